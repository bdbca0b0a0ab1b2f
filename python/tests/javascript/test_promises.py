"""JavaScript functions that return promises: each row settles on its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Load, error, value

pytestmark = pytest.mark.any_duckdb


def test_promises(script: Load) -> None:
    con = script(
        """
        const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
        udf("awaits(x BIGINT) -> BIGINT", async (x) => (await null, x + 1));
        udf("returns(x BIGINT) -> VARCHAR", (x) => Promise.resolve("v" + x));
        udf("part(x BIGINT) -> BIGINT", (x) => (x % 3 === 0 ? Promise.resolve(x) : x));
        udf("whole(x DOUBLE) -> DOUBLE", { vectorized: true }, async (x) => { await sleep(1); return x.map((v) => v * 2); });
        udf("rejects(x BIGINT) -> BIGINT", async (x) => { if (x === 7) throw new TypeError("seven"); return x; });
        udf("forgives(x BIGINT) -> BIGINT", { on_error: "null", concurrency: 4 }, async (x) => { await sleep(x % 3); if (x % 5 === 2) throw new TypeError("no"); return x; });
        udf("never(x BIGINT) -> BIGINT", (x) => new Promise(() => {}));
        let running = 0, most = 0;
        udf("together(x BIGINT) -> BIGINT", { concurrency: 8, deterministic: false }, async (x) => {
          most = Math.max(most, ++running); await sleep(2); running--; return most;
        });
        """
    )
    query = "SELECT sum({}(x)) FROM range(5000) r(x)"
    for name, expected in (("awaits", 12502500), ("part", 12497500), ("whole", 24995000)):
        assert value(con, query.format(name)) == expected
    assert value(con, "SELECT count(DISTINCT returns(x)) FROM range(5000) r(x)") == 5000
    text = error(con, "SELECT rejects(x) FROM range(10) r(x)")
    assert "TypeError: seven" in text
    assert "functions.js:6:" in text
    assert "in row 8 of the batch, with x = 7" in text
    rows = con.execute("SELECT x, forgives(x) FROM range(20) r(x)").fetchall()
    assert rows == [(x, None if x % 5 == 2 else x) for x in range(20)]
    assert "a promise that nothing can settle" in error(con, "SELECT never(1)")
    assert value(con, "SELECT max(together(x)) FROM range(100) r(x)") == 8


PROMISES = """
    const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    const counts = new Map();
    const count = (x) => counts.set(x, (counts.get(x) ?? 0) + 1).get(x);
    udf("calls(x BIGINT) -> BIGINT", { deterministic: false }, (x) => counts.get(x) ?? 0);
"""


@pytest.fixture
def promises(tmp_path: Path) -> Iterator[Load]:
    """Loads functions that count their calls. `calls(x)` returns the count. There is only one lane."""
    con = crosslane.connect(config={"threads": 1})

    def load(text: str) -> duckdb.DuckDBPyConnection:
        path = tmp_path / "promises.js"
        path.write_text(PROMISES + text)
        crosslane.load(con, path)
        return con

    yield load
    con.close()


def calls(con: duckdb.DuckDBPyConnection, rows: int, start: int = 0) -> list[object]:
    query = f"SELECT calls(x) FROM range({start}, {start + rows}) r(x)"
    return [count for (count,) in con.execute(query).fetchall()]


#: What a row awaits before it rejects.
WAITS = ["null", "sleep(0)", "sleep(x % 3)", "sleep((x * 7) % 5)"]


def test_a_row_that_rejects_concerns_no_other_row(promises: Load, subtests: pytest.Subtests) -> None:
    cases = list(enumerate(itertools.product(WAITS, ["async (x)", "(x)"])))
    con = promises(
        "\n".join(
            f"""
        const body{at} = async (x) => {{ await {wait}; if (x % 5 === 2) throw new TypeError("no"); return x; }};
        udf("f{at}(x BIGINT) -> BIGINT", {{ on_error: "null", concurrency: 4, deterministic: false }},
          {declared} => {{ count(x); return body{at}(x); }});
    """
            for at, (wait, declared) in cases
        )
    )
    for at, (wait, declared) in cases:
        with subtests.test(f"{declared}: {wait}"):
            # Each case has its own rows.
            start = 20 * at
            query = f"SELECT x, f{at}(x) FROM range({start}, {start + 20}) r(x)"
            rows = [(x, None if x % 5 == 2 else x) for x in range(start, start + 20)]
            assert con.execute(query).fetchall() == rows
            assert calls(con, 20, start) == [1] * 20
            errors = f"SELECT errors FROM crosslane_stats() WHERE function = 'f{at}'"
            assert value(con, errors) == 4


def test_rows_that_reject_are_retried_each_on_its_own(promises: Load) -> None:
    con = promises("""
        udf("f(x BIGINT) -> BIGINT", { on_error: "null", concurrency: 4, retries: 2, deterministic: false }, async (x) => {
          const n = count(x);
          await sleep(x % 3);
          if (x % 5 === 2 || (x % 7 === 3 && n < 3)) throw new TypeError("no");
          return x;
        });
    """)
    rows = con.execute("SELECT x, f(x) FROM range(20) r(x)").fetchall()
    assert rows == [(x, None if x % 5 == 2 else x) for x in range(20)]
    assert calls(con, 20) == [3 if x % 5 == 2 or x % 7 == 3 else 1 for x in range(20)]
    query = "SELECT errors, retries FROM crosslane_stats() WHERE function = 'f'"
    assert con.execute(query).fetchall() == [(4, 12)]


def test_each_promise_has_the_timeout_of_its_own_row(promises: Load) -> None:
    # All rows together take longer than the timeout of one row.
    con = promises("""
        udf("f(x BIGINT) -> BIGINT", { timeout: 1, on_error: "null", concurrency: 4, deterministic: false }, async (x) => {
          count(x);
          await sleep(x === 2 ? 1e6 : 100);
          return x;
        });
    """)
    rows = con.execute("SELECT x, f(x) FROM range(60) r(x)").fetchall()
    assert rows == [(x, None if x == 2 else x) for x in range(60)]
    assert calls(con, 60) == [1] * 60


def test_promises_that_nothing_can_settle_fail_alone(promises: Load) -> None:
    con = promises("""
        udf("f(x BIGINT) -> BIGINT", { on_error: "null", concurrency: 4, deterministic: false }, async (x) => {
          count(x);
          await (x % 3 === 0 ? new Promise(() => {}) : null);
          return x;
        });
    """)
    rows = con.execute("SELECT x, f(x) FROM range(20) r(x)").fetchall()
    assert rows == [(x, None if x % 3 == 0 else x) for x in range(20)]
    assert calls(con, 20) == [1] * 20


def test_only_the_culprit_of_rows_that_were_ended_together_fails(promises: Load) -> None:
    con = promises("""
        const options = { on_error: "null", concurrency: 4, deterministic: false };
        udf("loops(x BIGINT) -> BIGINT", { ...options, timeout: 0.3 }, async (x) => {
          await sleep(1);
          while (x === 5) await null;
          return x;
        });
        udf("throws(x BIGINT) -> BIGINT", options, async (x) => {
          await sleep(1);
          if (x === 5) setTimeout(() => { throw new TypeError("no"); });
          await sleep(1);
          return x;
        });
    """)
    for name in ("loops", "throws"):
        rows = con.execute(f"SELECT x, {name}(x) FROM range(20) r(x)").fetchall()
        assert rows == [(x, None if x == 5 else x) for x in range(20)]
        ((errors,),) = con.execute(
            f"SELECT errors FROM crosslane_stats() WHERE function = '{name}'"
        ).fetchall()
        assert errors == 1
