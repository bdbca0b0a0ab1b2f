"""JavaScript functions: values, kinds, errors. `test_isolates.py` tests limits and the ends of isolates."""

from __future__ import annotations

import json
import textwrap

import pytest

from ..conftest import Load, error, printed, value

pytestmark = pytest.mark.any_duckdb

# ---- files


# ---- values


def test_integers_beyond_what_a_number_holds(script: Load) -> None:
    con = script(
        """
        udf("f(x BIGINT) -> BIGINT", (x) => x);
        udf("u(x UBIGINT) -> UBIGINT", (x) => x);
        udf("big(x BIGINT) -> BIGINT", { bigint: true }, (x) => x + 1n);
        udf("kind(x HUGEINT) -> VARCHAR", (x) => typeof x);
        """
    )
    most = 2**53 - 1
    for x in (0, 1, -1, 2**31, -(2**31) - 1, 2**32, most, -most):
        assert value(con, f"SELECT f({x})") == x
    for x in (0, 1, 2**31, 2**32, most):
        assert value(con, f"SELECT u({x})") == x
    for call in (f"f({most + 2})", f"f(-{most + 2})", f"u({2**64 - 1})"):
        text = error(con, f"SELECT {call}")
        assert "beyond 2^53" in text
        assert "{ bigint: true }" in text
    assert value(con, f"SELECT big({2**62})") == 2**62 + 1
    assert "does not fit BIGINT" in error(con, f"SELECT big({2**63 - 1})")
    assert value(con, "SELECT kind(1)") == "bigint"


def test_decimals_are_exact(script: Load) -> None:
    con = script(
        """
        udf("text(x DECIMAL(38,10)) -> VARCHAR", (x) => `${typeof x} ${x}`);
        udf("unscaled(x DECIMAL(38,10)) -> DECIMAL(38,10)", { decimal: "bigint" }, (x) => x + 1n);
        udf("parse(x VARCHAR) -> DECIMAL(6,2)", (x) => x);
        udf("number(x DOUBLE) -> DECIMAL(6,2)", (x) => x);
        """
    )
    assert value(con, "SELECT text(-0.0000000001)") == "string -0.0000000001"
    assert str(value(con, "SELECT unscaled(9999999999999999999999999999.9999999998)")).endswith(
        "9999.9999999999"
    )
    for text, expected in {
        "1": "1.00", "-1.5": "-1.50", "1.005": "1.01", "-1.005": "-1.01", "1.004999": "1.00",
        "1e3": "1000.00", "12.5e-1": "1.25", ".5": "0.50", "9999.994": "9999.99",
    }.items():  # fmt: skip
        assert str(value(con, f"SELECT parse('{text}')")) == expected
    assert str(value(con, "SELECT number(1.25)")) == "1.25"
    for text in ("9999.995", "1e300", "x", "", "1.2.3"):
        assert "does not fit DECIMAL(6,2)" in error(con, f"SELECT parse('{text}')")


def test_dates_are_dates_and_keep_their_fractions(script: Load) -> None:
    con = script(
        """
        udf("iso(x TIMESTAMP) -> VARCHAR", (x) => `${x instanceof Date} ${x.toISOString()} ${x.nanoseconds}`);
        udf("later(x TIMESTAMP) -> TIMESTAMP", (x) => new Date(x.getTime() + 1));
        udf("fine(x TIMESTAMP_NS) -> TIMESTAMP_NS", (x) => new Timestamp(x.getTime(), x.nanoseconds + 1));
        udf("next_day(x DATE) -> DATE", (x) => new Date(Date.UTC(x.getUTCFullYear(), x.getUTCMonth(), x.getUTCDate() + 1, 5)));
        udf("invalid(x DATE) -> DATE", (x) => new Date(NaN));
        udf("clock(x TIME) -> VARCHAR", (x) => x);
        """
    )
    assert (
        value(con, "SELECT iso('2013-01-02 03:04:05.678901'::TIMESTAMP)")
        == "true 2013-01-02T03:04:05.678Z 901000"
    )
    assert (
        value(con, "SELECT later('2013-01-02 03:04:05.678'::TIMESTAMP)::VARCHAR") == "2013-01-02 03:04:05.679"
    )
    assert value(con, "SELECT fine('1969-12-31 23:59:59.999999998'::TIMESTAMP_NS)::VARCHAR").endswith(
        "999999999"
    )
    assert value(con, "SELECT next_day('1969-12-31'::DATE)::VARCHAR") == "1970-01-01"
    assert "invalid Date" in error(con, "SELECT invalid('1969-12-31'::DATE)")
    assert value(con, "SELECT clock('12:34:56.000007'::TIME)") == "12:34:56.000007"


WRONG_RESULTS = [
    ("INTEGER", "1.5", "RangeError: returned 1.5, which does not fit INTEGER"),
    ("INTEGER", "2 ** 31", "which does not fit INTEGER"),
    ("TINYINT", "-129", "which does not fit TINYINT"),
    ("INTEGER", "NaN", "returned NaN, which does not fit INTEGER"),
    ("INTEGER", "'7'", 'TypeError: returned "7" where INTEGER is due'),
    ("BIGINT", "2 ** 63", "which does not fit BIGINT"),
    ("BIGINT", "0.5", "which does not fit BIGINT"),
    ("BIGINT", "true", "returned true where BIGINT is due"),
    ("UBIGINT", "-1", "which does not fit UBIGINT"),
    ("DOUBLE", "'x'", 'returned "x" where DOUBLE is due'),
    ("FLOAT", "1e300", "does not fit FLOAT"),
    ("BOOLEAN", "1", "returned 1 where BOOLEAN is due"),
    ("VARCHAR", "1", "returned 1 where VARCHAR is due"),
    ("VARCHAR", "({ a: 1 })", 'returned {"a":1} where VARCHAR is due'),
    ("DATE", "'2013-01-01'", "where DATE is due"),
    ("UUID", "'xyz'", "does not fit UUID"),
    ("ENUM('a', 'b')", "'c'", "does not fit ENUM('a', 'b')"),
    ("INTEGER[]", "7", "returned 7 where INTEGER[] is due"),
    ("INTEGER[]", "[1, 'x']", 'returned "x" where INTEGER is due'),
    ("INTEGER[2]", "[1]", "returned 1 elements where INTEGER[2] has 2"),
    ("STRUCT(a INTEGER)", "({ a: 1, b: 2 })", "is no field of STRUCT(a INTEGER)"),
    ("STRUCT(a INTEGER)", "[1]", "where STRUCT(a INTEGER) is due"),
    ("MAP(VARCHAR, INTEGER)", "new Map([[null, 1]])", "keys cannot be NULL"),
    ("BLOB", "'bytes'", "where BLOB is due"),
]


def test_results_of_another_type(script: Load) -> None:
    lines = [
        f"udf({json.dumps(f'f{index}(x BIGINT) -> {kind}')}, (x) => {result});"
        for index, (kind, result, _) in enumerate(WRONG_RESULTS)
    ]
    con = script("\n".join(lines))
    for index, (_, _, message) in enumerate(WRONG_RESULTS):
        text = error(con, f"SELECT f{index}(7)")
        assert message in text
        assert "in row 1 of the batch, with x = 7" in text


def test_results_of_all_kinds_that_fit(script: Load) -> None:
    con = script(
        """
        udf("to_list(x BIGINT) -> DOUBLE[]", (x) => [new Set([1, 2]), new Float32Array([1, 2]), [1, undefined], []][x]);
        udf("to_map(x BIGINT) -> MAP(VARCHAR, BIGINT)", (x) => [new Map([["a", 1]]), { a: 1 }, [["a", 1n]]][x]);
        udf("bytes(x BIGINT) -> BLOB", (x) => [new Uint8Array([1, 2]), new Uint8Array([1, 2]).buffer, new Uint16Array([513])][x]);
        udf("struct(x BIGINT) -> STRUCT(a BIGINT, \\"b c\\" VARCHAR)", (x) => [{ a: 1, "b c": "x" }, {}, { a: null }][x]);
        udf("half(x BIGINT) -> VARCHAR", (x) => "a\\ud800b");
        udf("to_json_(x BIGINT) -> JSON", (x) => ({ x, list: [1, "ü"], big: 5n }));
        udf("nothing(x BIGINT) -> BIGINT", (x) => undefined);
        """
    )
    rows = con.execute("SELECT to_list(x) FROM range(4) r(x)").fetchall()
    assert rows == [([1.0, 2.0],), ([1.0, 2.0],), ([1.0, None],), ([],)]
    assert con.execute("SELECT DISTINCT to_map(x)::VARCHAR FROM range(3) r(x)").fetchall() == [("{a=1}",)]
    assert con.execute("SELECT DISTINCT bytes(x) FROM range(3) r(x)").fetchall() == [(b"\x01\x02",)]
    assert con.execute("SELECT struct(x) FROM range(3) r(x)").fetchall() == [
        ({"a": 1, "b c": "x"},),
        ({"a": None, "b c": None},),
        ({"a": None, "b c": None},),
    ]
    assert value(con, "SELECT half(1)") == "a\ufffdb"
    assert json.loads(value(con, "SELECT to_json_(1)")) == {"x": 1, "list": [1, "ü"], "big": 5}
    assert value(con, "SELECT nothing(1)") is None


def test_nulls(script: Load) -> None:
    con = script(
        """
        udf("skip(a BIGINT, b VARCHAR) -> VARCHAR", (a, b) => `${a}${b}`);
        udf("call(a BIGINT, b VARCHAR) -> VARCHAR", { nulls: "call" }, (a, b) => `${a}${b}`);
        udf("nested(x STRUCT(a BIGINT, b BIGINT[])) -> VARCHAR", (x) => JSON.stringify(x));
        """
    )
    con.execute(
        "CREATE TABLE t AS SELECT * FROM (VALUES (1, 'x'), (NULL, 'y'), (3, NULL), (NULL, NULL)) r(a, b)"
    )
    assert con.execute("SELECT skip(a, b) FROM t").fetchall() == [("1x",), (None,), (None,), (None,)]
    assert con.execute("SELECT call(a, b) FROM t").fetchall() == [
        ("1x",),
        ("nully",),
        ("3null",),
        ("nullnull",),
    ]
    assert value(con, "SELECT nested({'a': NULL, 'b': [1, NULL]})") == '{"a":null,"b":[1,null]}'


# ---- kinds


def test_vectorized_functions_get_typed_arrays(script: Load) -> None:
    con = script(
        """
        const name = (x) => x.constructor.name;
        const kinds = ["TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER", "FLOAT", "DOUBLE", "BIGINT", "VARCHAR", "BOOLEAN"];
        for (const kind of kinds) {
          udf(`of_${kind}(x ${kind}) -> VARCHAR`, { vectorized: true }, (x) => Array.from({ length: x.length }, () => name(x)));
        }
        udf("of_big(x BIGINT) -> VARCHAR", { vectorized: true, bigint: true }, (x) => Array.from(x, () => name(x)));
        udf("of_nulls(x DOUBLE) -> VARCHAR", { vectorized: true, nulls: "call" }, (x) => Array.from(x, (v) => `${name(x)} ${v}`));
        """
    )
    expected = dict.fromkeys(["VARCHAR", "BOOLEAN"], "Array") | {
        "TINYINT": "Int8Array", "SMALLINT": "Int16Array", "INTEGER": "Int32Array", "UTINYINT": "Uint8Array",
        "USMALLINT": "Uint16Array", "UINTEGER": "Uint32Array", "FLOAT": "Float32Array", "DOUBLE": "Float64Array",
        "BIGINT": "Float64Array",
    }  # fmt: skip
    for kind, name in expected.items():
        assert value(con, f"SELECT of_{kind}(1::{kind})") == name
    assert value(con, "SELECT of_big(1)") == "BigInt64Array"
    rows = con.execute("SELECT of_nulls(x) FROM (VALUES (1::DOUBLE), (NULL)) r(x)").fetchall()
    assert rows == [("Array 1",), ("Array null",)]


def test_vectorized_functions_do_not_see_rows_with_nulls(script: Load) -> None:
    con = script(
        """
        udf("sizes(x DOUBLE, y VARCHAR) -> BIGINT", { vectorized: true }, (x, y) => x.map((v, i) => v * 10 + y[i].length));
        udf("never(x DOUBLE) -> DOUBLE", { vectorized: true }, (x) => { throw new Error("called"); });
        """
    )
    con.execute(
        "CREATE TABLE t AS SELECT * FROM (VALUES (1.0, 'a'), (NULL, 'b'), (3.0, NULL), (4.0, 'dd')) r(x, y)"
    )
    assert con.execute("SELECT sizes(x, y) FROM t").fetchall() == [(11,), (None,), (None,), (42,)]
    assert con.execute("SELECT never(x) FROM t WHERE x IS NULL").fetchall() == [(None,)]


def test_a_vectorized_function_that_keeps_its_arguments(script: Load) -> None:
    con = script(
        """
        let kept;
        udf("keep(x DOUBLE) -> DOUBLE", { vectorized: true }, (x) => { kept = x; return x; });
        udf("kept(x DOUBLE) -> BIGINT", { deterministic: false }, (x) => kept.length);
        """
    )
    con.execute("SET threads = 1")
    assert con.execute("SELECT keep(x) FROM range(3) r(x)").fetchall() == [(0.0,), (1.0,), (2.0,)]
    assert value(con, "SELECT kept(1)") == 0


def test_a_vectorized_result_that_does_not_fit(script: Load, subtests: pytest.Subtests) -> None:
    results = {
        "x.subarray(1)": "returned 0 values for 1 row",
        "7": "returned 7 where an array of 1 DOUBLE is due",
        "['x']": 'returned "x" where DOUBLE is due',
    }
    con = script(
        "\n".join(
            f"udf('f{at}(x DOUBLE) -> DOUBLE', {{ vectorized: true }}, (x) => {result});"
            for at, result in enumerate(results)
        )
    )
    for at, (result, message) in enumerate(results.items()):
        with subtests.test(result):
            assert message in error(con, f"SELECT f{at}(x) FROM range(3) r(x)")


WIDE_JSON = (
    "9007199254740991",
    "9007199254740993",
    "-9007199254740993",
    "[12345678901234567890, -12345678901234567890, 1.5, 1]",
    '{"n123": 9223372036854775807, "s": ["n12345678901234567890", "s", ""], "12345678901234567890": -9223372036854775808}',
    '{"deep": [[{"a\\"b\\\\": 340282366920938463463374607431768211455, "t": "\\"1234567890123456789"}]]}',
    '"12345678901234567890"',
    "[1e30, 1.5e300, 0.1]",
    '{ "__proto__" : 12345678901234567890 }',
)


def test_integers_in_json_are_exact(script: Load) -> None:
    con = script("""
        udf("same(x JSON) -> JSON", (x) => x);
        udf("total(x JSON) -> JSON", (x) => ({ sum: x.reduce((a, b) => BigInt(a) + BigInt(b)), as: new String("n1") }));
        udf("kind(x JSON) -> VARCHAR", (x) => typeof x);
    """)
    for text in WIDE_JSON:
        ((back,),) = con.execute("SELECT same(?)", [text]).fetchall()
        assert json.loads(back) == json.loads(text)
    query = "SELECT total('[9007199254740993, 9007199254740993]')"
    assert value(con, query) == '{"sum":18014398509481986,"as":"n1"}'
    assert value(con, "SELECT kind('9007199254740991') || kind('9007199254740992')") == "numberbigint"


# ---- errors and output


def test_errors_carry_the_place_the_row_and_the_cause(script: Load) -> None:
    con = script(
        """
        class ShapeError extends Error {}
        function inner(x) {
          try { null.x; } catch (cause) { throw new ShapeError(`not ${x}`, { cause }); }
        }
        udf("f(x BIGINT, name VARCHAR) -> BIGINT", (x, name) => (x === 2000 ? inner(x) : x));
        udf("text(x BIGINT) -> BIGINT", (x) => { throw `just ${x}`; });
        """
    )
    text = error(con, "SELECT f(x, 'n' || x) FROM range(3000) r(x)")
    assert "f: ShapeError: not 2000" in text
    assert "at inner (" in text
    assert "functions.js:3:" in text
    assert "functions.js:5:" in text
    assert "caused by TypeError: Cannot read properties of null" in text
    assert "in row 2001 of the batch, with x = 2000, name = 'n2000'" in text
    assert "crosslane:" not in text
    text = error(con, "SELECT text(3)")
    assert 'thrown string: "just 3"' in text
    assert "functions.js:6:" in text


HOSTILE = {
    "throw null": "thrown object: null",
    "throw undefined": "thrown undefined: undefined",
    "throw Symbol('s')": "thrown symbol: Symbol(s)",
    "throw { a: 1 }": 'Object: {"a":1}',
    "throw new Proxy({}, { get() { throw 1; } })": "cannot be shown",
    "throw Object.assign(new Error('x'), { stack: 7 })": "Error: x",
    "throw Object.defineProperty(new Error('x'), 'message', { get() { throw 1; } })": "cannot be shown",
    "throw new Error('long '.repeat(1e6))": "(5000000 characters)",
    "const e = new Error('ring'); e.cause = e; throw e": "caused by Error: ring",
    "throw Object.assign(Object.create(Error.prototype), { name: 'Fake' })": "Fake: ",
    "return new Proxy({}, { get() { throw new Error('trap'); } })": "where BIGINT is due",
    "return { toString() { throw new Error('no text'); } }": "where BIGINT is due",
    "return { toJSON() { throw new Error('no json'); } }": "where BIGINT is due",
}


def test_hostile_exceptions_and_results_are_errors_too(script: Load) -> None:
    con = script(
        "\n".join(
            f"udf('f{index}(x BIGINT) -> BIGINT', (x) => {{ {way} }});" for index, way in enumerate(HOSTILE)
        )
    )
    for index, message in enumerate(HOSTILE.values()):
        text = error(con, f"SELECT f{index}(7)")
        assert message in text
        assert "in row 1 of the batch, with x = 7" in text
        assert len(text) < 20_000
    con = script(
        "udf('f(x BIGINT) -> STRUCT(a BIGINT)', (x) => new Proxy({}, { ownKeys() { throw new Error('trap'); } }));"
    )
    assert "Error: trap" in error(con, "SELECT f(7)")


def test_on_error_and_retries(script: Load) -> None:
    con = script(
        """
        let tries = 0;
        udf("bad(x BIGINT) -> BIGINT", { on_error: "null" }, (x) => { if (x % 2) throw new Error("odd"); return x; });
        udf("late(x BIGINT) -> VARCHAR", { on_error: "null" }, (x) => (x % 2 ? 7 : "even"));
        udf("flaky(x BIGINT) -> BIGINT", { retries: 2, deterministic: false }, (x) => { if (++tries % 3) throw new Error("again"); return tries; });
        udf("whole(x DOUBLE) -> DOUBLE", { vectorized: true, on_error: "null" }, (x) => { throw new Error("no"); });
        """
    )
    assert con.execute("SELECT bad(x) FROM range(4) r(x)").fetchall() == [(0,), (None,), (2,), (None,)]
    assert con.execute("SELECT late(x) FROM range(4) r(x)").fetchall() == [
        ("even",),
        (None,),
        ("even",),
        (None,),
    ]
    assert value(con, "SELECT flaky(1)") == 3
    assert con.execute("SELECT whole(x) FROM range(2) r(x)").fetchall() == [(None,), (None,)]
    stats = con.execute("SELECT function, errors, retries FROM crosslane_stats()").fetchall()
    assert stats == [("bad", 2, 0), ("late", 2, 0), ("flaky", 0, 2), ("whole", 2, 0)]


def test_the_console_goes_to_the_log(script: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = script(
        """
        console.log("loading");
        udf("f(x BIGINT) -> BIGINT", { nulls: "call" }, (x) => {
          console.log("a %s of %d, %o%%", "row", 3, { x }, [1, "s"], new Map([["k", null]]));
          console.group("group"); console.warn("inside\\nit"); console.groupEnd();
          console.error(new Set([1n]), undefined, -0, Symbol("s"), /r/g, [[[[[1]]]]], new Float64Array(2));
          const ring = { name: "ring" }; ring.self = ring; console.info(ring);
          console.assert(x === 1, "not one"); console.count(); console.count();
          return x;
        });
        """
    )
    assert value(con, "SELECT f(1)") == 1
    assert printed(capfd, "default: 2") == textwrap.dedent(
        """\
        loading
        a row of 3, {x: 1}% [1, 's'] Map {'k' => null}
        group
          inside
          it
        Set {1n} undefined -0 Symbol(s) /r/g [[[[[...]]]]] Float64Array [0, 0]
        {name: 'ring', self: [circular]}
        default: 1
        default: 2
        """
    )


def test_a_bigint_becomes_the_nearest_double(script: Load) -> None:
    con = script("""
        udf("sync(x BIGINT) -> DOUBLE", { bigint: true }, (x) => x);
        udf("later(x BIGINT) -> DOUBLE", { bigint: true }, async (x) => x);
        udf("inside(x BIGINT) -> DOUBLE[]", { bigint: true }, (x) => [x]);
        udf("small(x BIGINT) -> INTEGER", { bigint: true }, (x) => x);
    """)
    query = "SELECT [sync(x), later(x), inside(x)[1]] FROM (SELECT 9007199254740993 AS x)"
    assert value(con, query) == [2.0**53] * 3
    assert "does not fit INTEGER" in error(con, "SELECT small(9007199254740993)")
