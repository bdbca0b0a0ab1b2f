"""JavaScript's table functions: generators whose rows SQL reads."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Load, error, eventually, printed, value
from ..languages.test_conformance import CASES, quoted, text_of
from ..tables.test_tables import pool, rows

pytestmark = pytest.mark.any_duckdb

NUMBERS = """
import { udtf } from "crosslane";
// Numbers and their texts.
udtf("numbers(n BIGINT, step BIGINT, start BIGINT) -> TABLE(i BIGINT, s VARCHAR)", function* (n, step = 1, start = 0) {
  for (let i = 0; i < n; i++) yield [start + i * step, `n${start + i * step}`];
});
"""


def test_rows_are_those_that_a_generator_yields(script: Load) -> None:
    con = script(NUMBERS)
    assert rows(con, "FROM numbers(3)") == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert rows(con, "SELECT sum(i), count(s), max(s) FROM numbers(50_000)") == [(1249975000, 50000, "n9999")]
    assert rows(con, "SELECT count(*) FROM numbers(5000)") == [(5000,)]
    assert rows(con, "SELECT max(s) FROM numbers(5000)") == [("n999",)]
    assert rows(con, "FROM numbers(0)") == []
    assert rows(con, "FROM numbers(NULL)") == []
    assert value(con, "SELECT calls FROM crosslane_stats()") == 5


def test_parameters_with_a_default_are_named_and_may_be_left_out(script: Load) -> None:
    con = script(NUMBERS)
    assert rows(con, "SELECT i FROM numbers(3, step := 5)") == [(0,), (5,), (10,)]
    assert rows(con, "SELECT i FROM numbers(2, start := 7, step := NULL)") == [(7,), (8,)]
    assert rows(con, "SELECT kind, options, parameters, returns, description FROM crosslane_functions()") == [
        (
            "table",
            "named=step start",
            "n BIGINT, step BIGINT, start BIGINT",
            "TABLE(i BIGINT, s VARCHAR)",
            "Numbers and their texts.",
        )
    ]
    for query in ("FROM numbers()", "FROM numbers(1, 2)", "FROM numbers(1, steps := 2)"):
        with pytest.raises(duckdb.Error):
            rows(con, query)


def test_rows_may_have_any_shape_that_names_their_columns(script: Load) -> None:
    con = script(
        """
        class Point { constructor(i, s) { this.i = i; this.text = s; } get s() { return this.text; } }
        delete Point.prototype.nothing;
        udtf("shapes() -> TABLE(i BIGINT, s VARCHAR)", function* () {
          const kept = [1, "array"];
          yield kept;
          kept[0] = 2n;
          kept[1] = "again";
          yield kept;
          yield { s: "object", i: 3 };
          yield { s: "fewer" };
          yield Object.assign(Object.create({ s: "inherited" }), { i: 4 });
          yield [null, undefined];
        });
        udtf("array() -> TABLE(i BIGINT)", () => [[1], 2, { i: 3 }, null]);
        udtf("set() -> TABLE(s VARCHAR)", () => new Set(["a", "b"]));
        udtf("later() -> TABLE(s VARCHAR)", async () => ["c"]);
        udtf("a_date() -> TABLE(d DATE)", function* () { yield new Date(0); yield { d: new Date(0) }; });
        udtf("json() -> TABLE(j JSON)", function* () { yield { a: 1 }; yield { j: [2] }; yield "text"; });
        udtf("lists() -> TABLE(a BIGINT[], b STRUCT(x BIGINT))", function* () {
          const list = [];
          for (let i = 0; i < 3; i++) { list.push(i); yield [list, { x: i }]; }
        });
        """
    )
    assert rows(con, "FROM shapes()") == [
        (1, "array"),
        (2, "again"),
        (3, "object"),
        (None, "fewer"),
        (4, "inherited"),
        (None, None),
    ]
    assert rows(con, 'FROM "array"()') == [(1,), (2,), (3,), (None,)]
    assert rows(con, 'FROM "set"()') == [("a",), ("b",)]
    assert rows(con, "FROM later()") == [("c",)]
    assert value(con, "SELECT count(*) FROM a_date() WHERE d = DATE '1970-01-01'") == 2
    assert rows(con, 'SELECT j::VARCHAR FROM "json"()') == [('{"a":1}',), ("[2]",), ('"text"',)]
    assert rows(con, "SELECT a, b.x FROM lists()") == [([0], 0), ([0, 1], 1), ([0, 1, 2], 2)]


#: Generators that yield something else than rows, and the errors.
NO_ROWS = [
    ("yield 5", "yielded 5, which is no row"),
    ("yield [1]", "1 value, where a row has 2 columns (i, s)"),
    ("yield [1, 'a', 3]", "3 values, where a row has 2 columns"),
    ("yield { i: 1, t: 'a' }", '"t" is no column (i, s)'),
    ("yield new Map()", "which is no row"),
    ("yield {}", "which is no row"),
    ("yield Promise.resolve([1, 'a'])", "a promise where a row is due"),
    ("yield ['a', 'b']", 'returned "a" where BIGINT is due'),
    ("yield [2 ** 64, 'b']", "does not fit BIGINT"),
    ("yield [1, 'a']; yield new RangeError('mine')", "RangeError: mine"),
    ("yield [1, 'a']; throw new RangeError('mine')", "RangeError: mine"),
    ("null.x", "Cannot read properties of null"),
]


def test_what_is_no_row_is_an_error(script: Load, subtests: pytest.Subtests) -> None:
    con = script(
        "\n".join(
            f'udtf("f{at}() -> TABLE(i BIGINT, s VARCHAR)", function* () {{ {body}; }});'
            for at, (body, _) in enumerate(NO_ROWS)
        )
    )
    for at, (body, message) in enumerate(NO_ROWS):
        with subtests.test(body):
            assert message in error(con, f"FROM f{at}()")
            assert pool(con) == (0, 0)


#: Functions that return no rows, and the errors.
NO_TABLES = [
    ("() => 5", "returned 5 where rows are due"),
    ("() => 'text'", 'returned "text" where rows are due'),
    ("() => ({})", "where rows are due"),
    ("() => ({ [Symbol.iterator]: () => ({ next: () => 5 }) })", "an iterator gave 5"),
]


def test_what_is_no_table_is_an_error(script: Load, subtests: pytest.Subtests) -> None:
    con = script(
        "\n".join(
            f'udtf("f{at}() -> TABLE(i BIGINT)", {source});' for at, (source, _) in enumerate(NO_TABLES)
        )
    )
    for at, (source, message) in enumerate(NO_TABLES):
        with subtests.test(source):
            assert message in error(con, f"FROM f{at}()")


#: Declarations that are refused, and the reasons.
REFUSED = [
    ('udtf("f() -> BIGINT", function* () {})', "ends with -> TABLE(column TYPE, ...)"),
    ('udf("f() -> TABLE(i BIGINT)", () => 1)', "is declared with udtf, not with udf"),
    ('udtf("f(*x BIGINT) -> TABLE(i BIGINT)", () => 1)', "any number or type of arguments"),
    ('udtf("f() -> TABLE(i BIGINT)", { concurrency: 2 }, () => 1)', "an option of udf, and not of udtf"),
    ('udf("f() -> BIGINT", { partitions: () => [] }, () => 1)', "an option of udtf, and not of udf"),
    ('udtf("f() -> TABLE(i BIGINT)", { nonsense: 2 }, () => 1)', 'there is no option "nonsense"'),
    ('udtf("f() -> TABLE(i BIGINT)", { partitions: [] }, () => 1)', "partitions is a function"),
    ('udtf("f() -> TABLE(i BIGINT)", { cardinality: -1 }, () => 1)', "cardinality is a whole number"),
    ('udtf("f() -> TABLE(i BIGINT)", { projection: 1 }, () => 1)', "projection is true or false"),
    ('udtf("f() -> TABLE(i BIGINT)", {})', "use udtf("),
    ('udtf("f() -> TABLE(i BIGINT, i BIGINT)", () => 1)', "i"),
]


def test_what_cannot_be_declared_says_why(script: Load, subtests: pytest.Subtests) -> None:
    for source, message in REFUSED:
        with subtests.test(source):
            with pytest.raises(duckdb.Error, match="rror") as raised:
                script(f"{source};")
            assert message in str(raised.value)


def test_a_limit_ends_the_generator_and_gives_its_worker_back(
    script: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    con = script(
        """
        udtf("endless() -> TABLE(i BIGINT, s VARCHAR)", function* () {
          try { for (let i = 0; ; i++) yield [i, `n${i}`]; } finally { console.log("endless ended"); }
        });
        udtf("stubborn() -> TABLE(i BIGINT)", function* () {
          try { for (let i = 0; ; i++) yield i; } finally { console.log("stubborn ends"); for (;;) ; }
        });
        udtf("slow() -> TABLE(i BIGINT)", async function* () {
          try {
            for (let i = 0; ; i++) { yield i; await new Promise((done) => setTimeout(done, 200)); }
          } finally { console.log("slow ended"); }
        });
        udtf("sleeping() -> TABLE(i BIGINT)", async function* () {
          yield 1;
          await new Promise((done) => setTimeout(done, 60_000));
        });
        """
    )
    for _ in range(3):
        assert rows(con, "FROM endless() LIMIT 10") == [(i, f"n{i}") for i in range(10)]
        printed(capfd, "endless ended")
    assert rows(con, "FROM slow() LIMIT 1") == [(0,)]
    printed(capfd, "slow ended")
    assert rows(con, "FROM stubborn() LIMIT 1") == [(0,)]
    printed(capfd, "stubborn ends")
    assert rows(con, "FROM sleeping() LIMIT 1") == [(1,)]
    assert eventually(lambda: pool(con) == (0, 0))


def test_a_generator_that_waits_or_works_too_long_is_ended(script: Load) -> None:
    con = script(
        """
        udtf("stuck() -> TABLE(i BIGINT)", { timeout: 0.2 }, function* () { yield 1; yield 2; for (;;) ; });
        udtf("never() -> TABLE(i BIGINT)", { timeout: 0.2 }, function* () { for (;;) ; });
        udtf("waits() -> TABLE(i BIGINT)", { timeout: 0.2 }, async function* () {
          yield 1;
          await new Promise((done) => setTimeout(done, 60_000));
        });
        udtf("lost() -> TABLE(i BIGINT)", async function* () { yield 1; await new Promise(() => {}); });
        udtf("begun() -> TABLE(i BIGINT)", { timeout: 0.2, on_error: "null" }, function* () { yield 1; yield 2; for (;;) ; });
        udtf("greedy() -> TABLE(i BIGINT)", { memory_limit: "30 MB" }, function* () {
          const kept = [];
          for (let i = 0; ; i++) { kept.push(new Array(1000).fill(i + 0.5)); yield i; }
        });
        udtf("fine() -> TABLE(i BIGINT)", () => [1]);
        """
    )
    for name in ("stuck", "never", "waits"):
        assert "timed out after 0.2 s" in error(con, f"FROM {name}()")
        assert rows(con, "FROM fine()") == [(1,)]
    assert "nothing can settle" in error(con, "FROM lost()")
    assert rows(con, "FROM begun()") == [(1,), (2,)]
    assert value(con, "SELECT errors FROM crosslane_stats() WHERE function = 'begun'") == 1
    assert "the function's memory_limit" in error(con, "FROM greedy()")
    assert rows(con, "FROM fine()") == [(1,)]
    assert pool(con) == (0, 0)


def test_async_generators_wait_between_rows(script: Load) -> None:
    con = script(
        """
        const pause = () => new Promise((done) => setTimeout(done, 1));
        udtf("rows(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", async function* (n) {
          for (let i = 0; i < n; i++) { if (i % 1000 === 0) await pause(); yield [i, `n${i}`]; }
        });
        udtf("whole(n BIGINT) -> TABLE(i BIGINT)", { vectorized: true }, async function* (n) {
          for (let i = 0; i < n; i++) { await pause(); yield [new Float64Array(1000).fill(i)]; }
        });
        udtf("fails() -> TABLE(i BIGINT)", async function* () { yield 1; throw new Error("mine"); });
        """
    )
    assert rows(con, "SELECT sum(i), max(s) FROM rows(5000)") == [(12497500, "n999")]
    assert rows(con, "SELECT sum(i), count(*) FROM whole(5)") == [(10000, 5000)]
    assert "mine" in error(con, "FROM fails()")


def test_batches_are_columns(script: Load) -> None:
    con = script(
        """
        udtf("f(n BIGINT) -> TABLE(i BIGINT, x DOUBLE, s VARCHAR)", { vectorized: true }, function* (n) {
          const i = Array.from({ length: n }, (_, at) => at);
          yield [i, Float64Array.from(i), i.map(String)];
          yield { s: ["last"], i: new Int32Array([-1]), x: [0.5] };
          yield [[], [], []];
        });
        udtf("one() -> TABLE(x DOUBLE)", { vectorized: true }, function* () { yield new Float64Array([1, 2]); yield [[3]]; });
        udtf("bad() -> TABLE(i BIGINT, s VARCHAR)", { vectorized: true, on_error: "null" }, function* () {
          yield [[1, "two", 3], ["a", "b", "c"]];
          yield new Error("a batch");
          yield [[1], ["a", "b"]];
          yield [[9], ["z"]];
        });
        udtf("uneven() -> TABLE(i BIGINT, s VARCHAR)", { vectorized: true }, function* () { yield [[1], ["a", "b"]]; });
        udtf("rows() -> TABLE(i BIGINT, s VARCHAR)", { vectorized: true }, function* () { yield [1, "a"]; });
        udtf("cell() -> TABLE(i BIGINT)", { vectorized: true }, function* () { yield [[1, 2, "three"]]; });
        """
    )
    assert rows(con, "SELECT count(*), sum(i), sum(x), count(DISTINCT s) FROM f(5000)") == [
        (5001, 12497499, 12497500.5, 5001)
    ]
    assert rows(con, "SELECT count(*) FROM f(3)") == [(4,)]
    assert rows(con, "SELECT x FROM f(2)") == [(0,), (1,), (0.5,)]
    assert rows(con, "FROM one()") == [(1,), (2,), (3,)]
    assert rows(con, "FROM bad()") == [(1, "a"), (None, None), (3, "c"), (None, None), (None, None), (9, "z")]
    assert value(con, "SELECT errors FROM crosslane_stats() WHERE function = 'bad'") == 3
    assert "columns of different lengths: s has 2, and i has 1" in error(con, "FROM uneven()")
    assert "is no array: a vectorized function yields columns" in error(con, "FROM rows()")
    assert 'returned "three" where BIGINT is due' in error(con, "FROM cell()")


def test_a_row_that_fails_may_be_null(script: Load) -> None:
    con = script(
        """
        udtf("f() -> TABLE(a VARCHAR, b BIGINT[], c BOOLEAN, d BLOB)", { on_error: "null" }, function* () {
          yield ["one", [1, 2], true, new Uint8Array([1])];
          yield ["two", [3, "four"], true, new Uint8Array([2])];
          yield ["three", [5], 1, null];
          yield new Error("mine");
          yield ["four", [6, 7], false, 5];
          yield ["five", [8], true, new Uint8Array([9])];
          throw new Error("over");
        });
        """
    )
    null = (None, None, None, None)
    assert rows(con, "FROM f()") == [
        ("one", [1, 2], True, b"\1"),
        null,
        null,
        null,
        null,
        ("five", [8], True, b"\x09"),
    ]
    assert value(con, "SELECT errors FROM crosslane_stats()") == 5


def test_a_scan_that_fails_is_done_again_without_the_rows_that_were_delivered(
    script: Load,
) -> None:
    con = script(
        """
        let calls = 0;
        udtf("f(n BIGINT) -> TABLE(i BIGINT)", { retries: 8 }, function* (n) {
          const last = ++calls < 3 ? 3000 : n;
          for (let i = 0; i < last; i++) yield i;
          if (last !== n) throw new Error("too early");
        });
        """
    )
    assert rows(con, "SELECT count(*), sum(i), count(DISTINCT i) FROM f(10_000)") == [
        (10000, 49995000, 10000)
    ]


def test_partitions_are_scanned_by_several_workers(script: Load) -> None:
    con = script(
        """
        const partitions = function* (n) {
          for (let i = 0; i < n; i++) yield { i, at: new Date(i), big: 2n ** 64n, map: new Map([[i, [undefined, -0]]]) };
        };
        udtf("parts(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", { partitions }, function* (part, n) {
          const { i, at, big, map } = part;
          const fine = at.getTime() === i && big === 2n ** 64n && Object.is(map.get(i)[1], -0) && map.get(i)[0] === undefined;
          yield [i, `${fine} of ${n}`];
        });
        udtf("nothing() -> TABLE(i BIGINT)", { partitions: () => [] }, function* () { yield 1; });
        udtf("bad() -> TABLE(i BIGINT)", { partitions: () => [() => 1] }, function* () { yield 1; });
        udtf("none() -> TABLE(i BIGINT)", { partitions: () => [() => 1], on_error: "null" }, function* () { yield 1; });
        """
    )
    con.execute("SET threads = 4")
    assert rows(con, "SELECT count(*), sum(i), any_value(s), count(DISTINCT s) FROM parts(1000)") == [
        (1000, 499500, "true of 1000", 1)
    ]
    assert rows(con, "FROM nothing()") == []
    assert "cannot be sent to another worker" in error(con, "FROM bad()")
    assert rows(con, 'FROM "none"()') == []


def test_a_function_may_learn_which_columns_are_wanted(script: Load) -> None:
    con = script(
        """
        udtf("wide(n BIGINT, step BIGINT) -> TABLE(a BIGINT, b VARCHAR, c DOUBLE)", { projection: true },
          function* (n, step = 2, { wanted }) {
            const all = { a: () => step, b: () => "b", c: () => 0.5 };
            for (let i = 0; i < n; i++) yield i % 2 ? wanted.map((name) => all[name]()) : { a: step, b: "b", c: 0.5 };
          });
        udtf("whole() -> TABLE(a BIGINT, b VARCHAR, c DOUBLE)", { projection: true }, () => [[1, "b", 0.5]]);
        udtf("not_converted() -> TABLE(a BIGINT, b BIGINT)", () => [[1, "no BIGINT"]]);
        """
    )
    assert rows(con, "SELECT c, a FROM wide(2, step := 7)") == [(0.5, 7), (0.5, 7)]
    assert rows(con, "SELECT b FROM wide(2)") == [("b",), ("b",)]
    assert rows(con, "FROM wide(2)") == [(2, "b", 0.5)] * 2
    assert value(con, "SELECT count(*) FROM wide(3)") == 3
    assert rows(con, "SELECT c FROM whole()") == [(0.5,)]
    assert rows(con, "SELECT a FROM not_converted()") == [(1,)]


def test_changed_prototypes_change_no_rows(script: Load) -> None:
    con = script(
        """
        udtf("f(n BIGINT) -> TABLE(i BIGINT, s VARCHAR, l BIGINT[])", { on_error: "null" }, function* (n) {
          for (let i = 0; i < n; i++) yield i % 3 === 2 ? ["bad", "x", []] : [i, `n${i}`, [i]];
        });
        udtf("v(n BIGINT) -> TABLE(i BIGINT)", { vectorized: true }, function* (n) { yield [new Float64Array(n)]; });
        const Generator = Object.getPrototypeOf(function* () {}).prototype;
        Generator.next = Generator.return = () => { throw new Error("changed"); };
        Object.defineProperty(Array.prototype, "0", { set() { throw new Error("changed"); }, configurable: true });
        for (const method of ["push", "map", "join"]) Array.prototype[method] = () => { throw new Error("changed"); };
        Array.prototype[Symbol.iterator] = () => { throw new Error("changed"); };
        Map.prototype.get = Map.prototype.set = () => { throw new Error("changed"); };
        Object.prototype.toJSON = Array.prototype.toJSON = () => "changed";
        Promise.prototype.then = () => { throw new Error("changed"); };
        """
    )
    assert rows(con, "SELECT count(*), sum(i), count(s), sum(l[1]) FROM f(10_000)") == [
        (10000, 33330000, 6667, 33330000)
    ]
    assert rows(con, "SELECT count(*) FROM v(5000)") == [(5000,)]
    assert rows(con, "FROM f(10) LIMIT 1") == [(0, "n0", [0])]


def test_wide_rows_travel_in_smaller_batches(script: Load) -> None:
    con = script(
        """
        udtf("texts(n BIGINT) -> TABLE(s VARCHAR)", function* (n) { for (let i = 0; i < n; i++) yield "é".repeat(100_000); });
        udtf("bytes(n BIGINT) -> TABLE(b BLOB)", function* (n) { for (let i = 0; i < n; i++) yield new Uint8Array(3e6); });
        """
    )
    assert rows(con, "SELECT count(*), sum(strlen(s)) FROM texts(1000)") == [(1000, 200_000_000)]
    assert rows(con, "SELECT count(*), sum(octet_length(b)) FROM bytes(50)") == [(50, 150_000_000)]


def test_a_process_that_dies_in_the_midst_of_a_scan_is_an_error(script: Load) -> None:
    con = script(
        """
        udtf("f() -> TABLE(i BIGINT)", { memory_limit: "60 MB" }, function* () {
          for (let i = 0; i < 5000; i++) yield i;
          const huge = [];
          huge.length = 4e8;
          huge.fill(0);
        });
        udtf("fine() -> TABLE(i BIGINT)", () => [1]);
        """
    )
    assert "f: RangeError: its process had to be ended: " in error(con, "SELECT count(*) FROM f()")
    assert rows(con, "FROM fine()") == [(1,)]


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_table_has_every_type(con: duckdb.DuckDBPyConnection, tmp_path: Path, vectorized: bool) -> None:
    yields = "yield [[x, null, x]]" if vectorized else "yield [x]; yield [null]; yield [x]"
    options = f"{{ bigint: true, vectorized: {str(vectorized).lower()} }}"
    path = tmp_path / "types.js"
    types = [case["type"] for case in CASES]
    signatures = [json.dumps(f"f{at}(x {type_}) -> TABLE(x {type_})") for at, type_ in enumerate(types)]
    path.write_text(
        "\n".join(f"udtf({text}, {options}, function* (x) {{ {yields}; }});" for text in signatures)
    )
    crosslane.load(con, path)
    con.execute("SET TimeZone = 'UTC'")
    for at, case in enumerate(CASES):
        for given in case["values"][:3]:
            text = text_of(given)
            sql = text if case.get("expressions") else quoted(text)
            query = f"SELECT list(x IS NOT DISTINCT FROM (CAST({sql} AS {case['type']}))) FROM f{at}(CAST({sql} AS {case['type']}))"
            assert rows(con, query) == [([True, False, True],)], query[:200]
