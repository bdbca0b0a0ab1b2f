"""JavaScript's aggregates: classes, or objects of methods, whose states hold the accumulated values of a
group."""

from __future__ import annotations

import duckdb
import pytest

from ..aggregates.test_aggregates import QUERIES, at_rest
from ..conftest import Load, error, eventually, value

pytestmark = pytest.mark.any_duckdb

TOTALS = {
    "class": """
        // Adds integers.
        class Total {
          sum = 0;
          update(x) { this.sum += x; }
          merge(other) { this.sum += other.sum; }
          finish() { return this.sum; }
        }
        udaf("total(x BIGINT) -> BIGINT", Total);
        """,
    "object": """
        udaf("total(x BIGINT) -> BIGINT", { bigint: true }, {
          start: () => 0n,
          update: (state, x) => state + x,
          merge: (state, other) => state + other,
          finish: (state) => state,
        });
        """,
    "vectorized": """
        import { udaf } from "crosslane";
        class Total {
          parts = new Map();
          update(x) { this.add("sum", x.reduce((sum, one) => sum + one, 0)); }
          add(name, x) { this.parts.set(name, (this.parts.get(name) ?? 0) + x); }
          merge(other) { for (const [name, x] of other.parts) this.add(name, x); }
          finish() { return this.parts.get("sum") ?? 0; }
        }
        udaf("total(x BIGINT) -> BIGINT", { vectorized: true }, Total);
        """,
}
DATA = (
    "CREATE TABLE data AS SELECT i, (hash(i) % 100)::BIGINT AS few, (hash(i, 1) % 20000)::BIGINT AS many, "
    "CASE WHEN hash(i, 2) % 10 > 0 THEN (hash(i, 3) % 1000)::BIGINT END AS x FROM range(60000) t(i)"
)


@pytest.mark.parametrize("form", TOTALS)
def test_an_aggregate_gives_the_results_of_duckdbs_own(
    script: Load, form: str, subtests: pytest.Subtests
) -> None:
    con = script(TOTALS[form])
    con.execute(DATA)
    # With this setting, even small tables have tasks for all threads.
    con.execute("PRAGMA verify_parallelism")
    for threads in (1, 4):
        con.execute(f"SET threads = {threads}")
        for query in QUERIES:
            with subtests.test(f"{threads} threads: {query}"):
                expected = con.execute(query.format(total="sum")).fetchall()
                assert con.execute(query.format(total="total")).fetchall() == expected
        assert eventually(lambda: at_rest(con))


def test_states_are_copied_and_sent_with_all_that_they_hold(script: Load) -> None:
    con = script(
        """
        class Item { constructor(x) { this.x = x; } text() { return this.x === null ? "none" : `${this.x}`; } }
        class Things {
          items = [];
          seen = new Set();
          bytes = new Uint8Array(2);
          at = new Date(0);
          update(x) { this.items.push(new Item(x)); this.seen.add(x); this.bytes[0]++; this.at = new Date(5); }
          merge(other) {
            this.items.push(...other.items);
            for (const x of other.seen) this.seen.add(x);
            this.bytes[0] += other.bytes[0];
            this.at = new Date(Math.max(this.at, other.at));
          }
          finish() {
            return [...this.items.map((item) => item.text()), `${this.seen.size} ${this.bytes[0]} ${this.at.getTime()}`];
          }
        }
        udaf("things(x BIGINT) -> VARCHAR[]", { classes: [Item], nulls: "call" }, Things);
        """
    )
    con.execute("SET threads = 4")
    con.execute("PRAGMA verify_parallelism")
    frame = "OVER (ORDER BY i ROWS BETWEEN 40 PRECEDING AND 3 FOLLOWING)"
    got = con.execute(
        f"SELECT i, things(CASE WHEN i % 7 > 0 THEN i END) {frame} FROM range(2200) t(i) ORDER BY i"
    )
    for i, things in got.fetchall():
        window = range(max(0, i - 40), min(2200, i + 4))
        texts = [str(x) if x % 7 else "none" for x in window]
        assert things == [*texts, f"{len(set(texts))} {len(texts)} 5"]
    query = "SELECT things(i ORDER BY i)[:3], len(things(i)) FROM range(20_000) t(i) GROUP BY i % 1000 ORDER BY i % 1000 LIMIT 1"
    assert con.execute(query).fetchall() == [(["0", "1000", "2000"], 21)]


def test_words_are_counted_in_objects_without_a_prototype(script: Load) -> None:
    con = script(
        """
        udaf("words(word VARCHAR) -> VARCHAR", {
          start: () => Object.create(null),
          update(counts, word) { counts[word] = (counts[word] ?? 0) + 1; },
          merge(counts, other) { for (const word in other) counts[word] = (counts[word] ?? 0) + other[word]; },
          finish: (counts) => Object.keys(counts).sort().map((word) => `${word} ${counts[word]}`).join(),
        });
        """
    )
    con.execute("SET threads = 4")
    con.execute("PRAGMA verify_parallelism")
    words = ["a" if i % 100 < 50 else "constructor" for i in range(2000)]
    data = "(SELECT i, CASE WHEN i % 100 < 50 THEN 'a' ELSE 'constructor' END AS word FROM range(2000) t(i))"

    def counted(part: list[str]) -> tuple[str]:
        return (",".join(f"{word} {part.count(word)}" for word in sorted(set(part))),)

    query = f"SELECT words(word) OVER (ORDER BY i ROWS 70 PRECEDING) FROM {data} ORDER BY i"
    assert con.execute(query).fetchall() == [counted(words[max(0, i - 70) : i + 1]) for i in range(2000)]
    query = f"SELECT words(word) FROM {data} GROUP BY i // 97 ORDER BY i // 97"
    assert con.execute(query).fetchall() == [counted(words[i : i + 97]) for i in range(0, 2000, 97)]


def test_a_row_without_a_state_and_a_group_without_rows(script: Load) -> None:
    con = script(TOTALS["class"])
    assert value(con, "SELECT total(x) FROM (SELECT 1::BIGINT AS x WHERE false)") == 0
    assert value(con, "SELECT total(NULL)") == 0
    assert value(con, "SELECT total(5)") == 5


BAD = """
    class Bad {
      sum = 0;
      update(x) { if (x === 77) throw new RangeError("no 77"); this.sum += x; }
      merge(other) { if (this.sum === -1 || other.sum === -1) throw new Error("no merge"); this.sum += other.sum; }
      finish() { if (this.sum === 13) throw new Error("no 13"); return this.sum; }
    }
    udaf("fails(x BIGINT) -> BIGINT", Bad);
    udaf("left_out(x BIGINT) -> BIGINT", { on_error: "null" }, Bad);
    udaf("late(x BIGINT) -> BIGINT", { timeout: 0.2 }, {
      start: () => 0, update(state, x) { while (x === 5) ; return state + x; }, merge: (a, b) => a + b, finish: (state) => state,
    });
    udaf("by_columns(x BIGINT) -> BIGINT", { vectorized: true, on_error: "null" }, {
      start: () => ({ sum: 0 }),
      update(state, x) { if (x.includes(77)) throw new Error("no 77"); for (const one of x) state.sum += one; },
      merge(state, other) { state.sum += other.sum; },
      finish: (state) => state.sum,
    });
    udaf("greedy(x BIGINT) -> BIGINT", { memory_limit: "30 MB", on_error: "null" }, {
      start: () => [],
      update(state, x) { for (; x === 5;) state.push(new Array(1000).fill(0.5)); state.push(x); },
      merge: (a, b) => [...a, ...b],
      finish: (state) => state.length,
    });
"""


def test_errors_fail_the_query_or_leave_the_row_out(script: Load) -> None:
    con = script(BAD)
    numbers = "FROM range(100) t(i)"
    assert "no 77" in error(con, f"SELECT fails(i) {numbers}")
    assert "no 13" in error(con, "SELECT fails(13)")
    assert value(con, f"SELECT left_out(i) {numbers}") == 4950 - 77
    assert value(con, "SELECT left_out(13)") is None
    assert value(con, "SELECT errors FROM crosslane_stats() WHERE function = 'left_out'") == 2
    assert con.execute(f"SELECT by_columns(i) {numbers} GROUP BY i % 2 ORDER BY i % 2").fetchall() == [
        (2450,),
        (0,),
    ]
    assert value(con, "SELECT errors FROM crosslane_stats() WHERE function = 'by_columns'") == 50
    assert "timed out after 0.2 s" in error(con, f"SELECT late(i) {numbers}")
    assert value(con, "SELECT late(i) FROM range(5) t(i)") == 10
    assert eventually(lambda: at_rest(con))


def test_an_isolate_that_used_too_much_loses_its_states(script: Load) -> None:
    con = script(BAD)
    con.execute("SET threads = 1")
    message = error(con, "SELECT greedy(i) FROM range(100) t(i)")
    assert "the function's memory_limit" in message
    assert "the states of this worker's groups are lost" in message
    assert value(con, "SELECT greedy(i) FROM range(4) t(i)") == 4
    assert eventually(lambda: at_rest(con))


def test_the_update_of_each_group_has_its_own_time(script: Load) -> None:
    con = script(
        """
        udaf("counted(x BIGINT) -> BIGINT", { vectorized: true, timeout: 0.3 }, {
          start: () => 0,
          update(state, x) { for (const end = Date.now() + 20; Date.now() < end || x[0] === -1;); return state + x.length; },
          merge: (a, b) => a + b,
          finish: (state) => state,
        });
        """
    )
    con.execute("SET threads = 1")
    query = "SELECT sum(n), count(*) FROM (SELECT counted(i) AS n FROM range({}, 200) t(i) GROUP BY i % 50)"
    # The updates of all groups together take a second.
    assert con.execute(query.format(0)).fetchall() == [(200, 50)]
    assert "timed out after 0.3 s" in error(con, query.format(-1))
    assert eventually(lambda: at_rest(con))


def test_memory_that_another_function_uses_up_after_an_aggregate_is_its_own_error(script: Load) -> None:
    con = script(
        BAD
        + """
        udf("hog(x BIGINT) -> BIGINT", { memory_limit: "30 MB", on_error: "null" }, (x) => {
          for (const all = []; x === 5;) all.push(new Array(1000).fill(0.5));
          return x;
        });
        """
    )
    con.execute("SET threads = 1")
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    assert value(con, "SELECT left_out(i) FROM range(10) t(i)") == 45
    assert eventually(lambda: at_rest(con))
    for _ in range(2):
        assert value(con, "SELECT count(hog(i)) FROM range(10) t(i)") == 9


#: Aggregates that are refused, and the reasons.
REFUSED = [
    (
        "class Total { update() {} merge() {} }",
        "Total has no method finish: an aggregate has update, merge, finish",
    ),
    ("{ update() {}, merge() {}, finish() {} }", "has no method start"),
    ("class Total { async update() {} merge() {} finish() {} }", "Total: update is async"),
    (
        "class Total { #sum = 0; update(x) { this.#sum += x; } merge() {} finish() {} }",
        "private fields (#sum)",
    ),
    (
        "class Total { less = (a, b) => a < b; update() {} merge() {} finish() {} }",
        "cannot be sent to another worker",
    ),
    (
        "class Total { all = new (class Heap {})(); update() {} merge() {} finish() {} }",
        "the option classes",
    ),
    (
        "class Total { constructor() { throw new Error('mine'); } update() {} merge() {} finish() {} }",
        "mine",
    ),
    ("5", "use udaf("),
    (
        "{ concurrency: 2 }, class { update() {} merge() {} finish() {} }",
        "is an option of udf, and not of udaf",
    ),
    (
        "{ classes: [5] }, class { update() {} merge() {} finish() {} }",
        "classes is an array of the classes",
    ),
]


def test_what_cannot_be_declared_says_why(script: Load, subtests: pytest.Subtests) -> None:
    # One file tries all declarations, and catches the errors.
    declared = [f'udaf("total(x BIGINT) -> BIGINT", {source})' for source, _ in REFUSED]
    tried = "\n".join(
        f"try {{ {text}; why.push('nothing is wrong'); }} catch (error) {{ why.push(`${{error}}`); }}"
        for text in declared
    )
    con = script(f'const why = [];\n{tried}\nudf("why() -> VARCHAR[]", () => why);')
    found = con.execute("SELECT unnest(why())").fetchall()
    for (source, message), (why,) in zip(REFUSED, found, strict=True):
        with subtests.test(source):
            assert message in why
    # If the file does not catch the error, the load fails with it.
    with pytest.raises(duckdb.Error) as raised:
        script(declared[0])
    assert REFUSED[0][1] in str(raised.value)


def test_an_aggregate_by_columns_has_some(script: Load) -> None:
    counts = "udaf('counted() -> BIGINT', {}, {{ start: () => 0, update: (n) => n + 1, merge: (a, b) => a + b, finish: (n) => n }});"
    assert value(script(counts.format("{}")), "SELECT counted() FROM range(1000)") == 1000
    with pytest.raises(
        duckdb.Error, match=r"counted: a vectorized aggregate needs a parameter: its update is"
    ):
        script(counts.format("{ vectorized: true }"))


def test_an_aggregate_gives_no_table(script: Load) -> None:
    with pytest.raises(duckdb.Error, match="an aggregate has one result"):
        script(f"{TOTALS['class'].replace('-> BIGINT', '-> TABLE(x BIGINT)')}")


def test_changed_prototypes_change_no_states(script: Load) -> None:
    con = script(
        TOTALS["class"]
        + """
        udaf("by_columns(x BIGINT) -> BIGINT", { vectorized: true }, {
          start: () => ({ sum: 0 }),
          update(state, x) { for (let i = 0; i < x.length; i++) state.sum += x[i]; },
          merge(state, other) { state.sum += other.sum; },
          finish: (state) => state.sum,
        });
        for (let i = 0; i < 9; i++) {
          Object.defineProperty(Array.prototype, i, { set() { throw new Error("changed"); }, configurable: true });
        }
        for (const method of ["push", "map", "join"]) Array.prototype[method] = () => { throw new Error("changed"); };
        Array.prototype[Symbol.iterator] = () => { throw new Error("changed"); };
        Map.prototype.get = Map.prototype.set = Map.prototype.has = () => { throw new Error("changed"); };
        Object.prototype.toJSON = Array.prototype.toJSON = () => "changed";
        """
    )
    con.execute(DATA)
    con.execute("SET threads = 4")
    con.execute("PRAGMA verify_parallelism")
    for query in (QUERIES[1], QUERIES[10]):
        expected = con.execute(query.format(total="sum")).fetchall()
        for name in ("total", "by_columns"):
            assert con.execute(query.format(total=name)).fetchall() == expected, query
