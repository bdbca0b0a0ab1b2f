"""How a query through crosslane_map ends: errors, limits, lack of memory, and cancellation."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import psutil
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, value
from .test_stream_sql import FUNCTIONS, VECTORIZED, connections, is_idle, rows


def test_errors_of_both_sides(load: Load) -> None:
    con = load(FUNCTIONS)
    text = error(con, "FROM crosslane_map('FROM range(100_000) t(id)', 'raises')")
    assert "raises, batch 3: ValueError: five thousand" in text
    assert eventually(lambda: is_idle(con))
    query = "SELECT CASE WHEN range = 300_000 THEN error(''out of '' || ''flights'') ELSE range END AS id FROM range(400_000)"
    assert "out of flights" in error(con, f"SELECT count(*) FROM crosslane_map('{query}', 'doubled')")
    query = "SELECT id FROM crosslane_map(''FROM range(100_000) t(id)'', ''raises'')"
    assert "raises, batch 3: ValueError: five thousand" in error(
        con, f"FROM crosslane_map('{query}', 'doubled')"
    )
    assert eventually(lambda: is_idle(con))


def test_errors_keep_their_text(load: Load) -> None:
    """The error has the same text, whichever of DuckDB's threads meets it first."""
    con = load(FUNCTIONS)
    query = "SELECT id FROM crosslane_map(''FROM range(100_000) t(id)'', ''raises'')"
    for _ in range(200):
        assert "raises, batch 3: ValueError: five thousand" in error(
            con, f"FROM crosslane_map('{query}', 'doubled')"
        )


def test_a_limit_ends_both_sides(load: Load, subtests: pytest.Subtests) -> None:
    con = load(FUNCTIONS)
    for query in ("FROM range(1_000_000_000_000) t(id)", "SELECT i AS id FROM numbers(1_000_000_000)"):
        with subtests.test(query):
            mapped = f"SELECT id FROM crosslane_map('{query}', 'doubled')"
            assert rows(con, f"{mapped} LIMIT 3") == [(0,), (1,), (2,)]
            assert eventually(lambda: is_idle(con))
            # A result that the program does not read to its end is closed by the next query.
            con.execute(mapped)
            assert con.fetchone() == (0,)
            assert rows(con, "SELECT 1") == [(1,)]
            assert eventually(lambda: is_idle(con))


def test_memory_stays_constant(load: Load) -> None:
    con = load(VECTORIZED)
    query = "SELECT sum(id), count(*) FROM crosslane_map('SELECT range AS id, 20 AS delay FROM range({})', 'late')"
    rows(con, query.format(1_000_000))
    before = psutil.Process().memory_info().rss
    assert rows(con, query.format(8_000_000)) == [(8_000_000 * 7_999_999 // 2, 8_000_000)]
    assert psutil.Process().memory_info().rss - before < 50_000_000


def test_the_function_begins_with_the_first_rows_of_the_query(load: Load, tmp_path: Path) -> None:
    """If the query has not yet made a MB of rows, it waits for the function. DuckDB 1.5 makes a MB first."""
    seen = tmp_path / "seen"
    if duckdb.__version__ < "2":
        seen.touch()
    con = load(
        f"""
import time
from pathlib import Path
from crosslane import udf, udtf
seen = Path({str(seen)!r})

@udf
def paced(x: int) -> int:
    if x == 15_000:
        end = time.monotonic() + 20
        while not seen.exists():
            assert time.monotonic() < end, "nobody had a row"
            time.sleep(0.01)
    return x

@udtf("sees(t TABLE(id BIGINT)) -> TABLE(rows BIGINT)")
def sees(t):
    seen.touch()
    yield len(t)
"""
    )
    con.execute("CREATE TABLE t AS SELECT range AS id FROM range(20_000)")
    query = "SELECT sum(rows) FROM crosslane_map('SELECT paced(id) AS id FROM t', 'sees')"
    assert value(con, query) == 20_000
    # If a locked configuration refuses a setting, the query runs without it.
    con.execute("SET lock_configuration = true")
    assert value(con, query) == 20_000


#: Rows for which the memory has room once, or twice, or not at all. The engine answers or refuses them.
SHORT_OF_MEMORY = """
import resource, sys
import crosslane, duckdb

con = crosslane.connect(config={"threads": 1})
crosslane.load(con, sys.argv[1])
con.execute("SET enable_progress_bar = false")
con.execute("CREATE TABLE texts AS SELECT repeat('x', 25_000) || range AS s FROM range(2048)")
con.execute("CREATE TABLE nested AS SELECT [repeat('x', 25_000) || range] AS s FROM range(2048)")
con.execute("CREATE TABLE lists AS SELECT range(2_500 + range) AS l FROM range(2048)")
con.execute("FROM crosslane_map('SELECT ''x'' AS s', 'texts')").fetchall()
queries = {
    "SELECT sum(n) FROM crosslane_map('FROM texts', 'texts')": 2048,
    "SELECT sum(n) FROM crosslane_map('FROM nested', 'nested')": 2048,
    "SELECT sum(n) FROM crosslane_map('FROM lists', 'lists')": 2048,
    "SELECT sum(length(s)) FROM crosslane_map('SELECT 1 AS id', 'long')": 3000 * 25_000,
    "SELECT sum(len(l)) FROM crosslane_map('SELECT 1 AS id', 'listed')": 3000 * 2_500,
}
answered = refused = 0
for more in (15, 32, 50, 67, 85, 102, 120, 150, 225):
    for query, answer in queries.items():
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + more * 10**6, resource.RLIM_INFINITY))
        try:
            assert con.execute(query).fetchall() == [(answer,)], query
            answered += 1
        except (duckdb.Error, MemoryError):
            refused += 1
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(answered > 0, refused > 0)
"""


def test_rows_that_the_memory_has_no_room_for(library: Library) -> None:
    path = library(
        """
        import numpy as np, pyarrow as pa
        from crosslane import udtf
        @udtf("texts(t TABLE(s VARCHAR)) -> TABLE(n BIGINT)", vectorized=True)
        def texts(t): return {"n": [t.num_rows]}
        @udtf("nested(t TABLE(s VARCHAR[])) -> TABLE(n BIGINT)", vectorized=True)
        def nested(t): return {"n": [t.num_rows]}
        @udtf("lists(t TABLE(l BIGINT[])) -> TABLE(n BIGINT)", vectorized=True)
        def lists(t): return {"n": [t.num_rows]}
        @udtf("long(t TABLE(id BIGINT)) -> TABLE(s VARCHAR)", vectorized=True)
        def long(t): return pa.table({"s": ["x" * 25_000] * 3000})
        @udtf("listed(t TABLE(id BIGINT)) -> TABLE(l BIGINT[])", vectorized=True)
        def listed(t):
            values = pa.array(np.zeros(3000 * 2_500, np.int64))
            return {"l": pa.ListArray.from_arrays(pa.array(range(0, 7_500_001, 2_500), pa.int32()), values)}
        """
    )
    command = [sys.executable, "-c", SHORT_OF_MEMORY, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout) == (0, "True True\n"), ended.stderr[-2000:]


COMPUTES = "SELECT sum(a.range * b.range)::BIGINT AS id FROM range(10_000_000) a, range(1_000_000) b"


#: Queries that call no function before they are cancelled.
SILENT = [
    COMPUTES,
    "SELECT range AS id FROM range(1_000_000_000_000) WHERE range < 0",
    f"FROM crosslane_map(''{COMPUTES}'', ''doubled'')",
]


#: Queries, and the functions to which their rows go.
LONG = [
    *((query, "doubled") for query in SILENT),
    ("SELECT waits(range) AS id FROM range(1)", "doubled"),
    # DuckDB calls the function while it plans the query.
    ("SELECT waits(1) AS id", "doubled"),
    ("FROM crosslane_map(''SELECT 1 AS id'', ''sleeps'')", "doubled"),
    ("SELECT 1 AS id", "sleeps"),
    ("FROM range(1_000_000_000_000) t(id)", "doubled"),
]


def test_a_query_is_cancelled(load: Load, subtests: pytest.Subtests) -> None:
    con = load(FUNCTIONS)
    for query, function in LONG:
        for how in ("interrupt", "cancel", "cancel_all"):
            with subtests.test(f"{how}: {query}, {function}"):
                cancelled(con, how, query, function)


def cancelled(con: duckdb.DuckDBPyConnection, how: str, query: str, function: str) -> None:
    """Cancels a running query. If the query calls a function, a busy lane shows that it runs."""
    calls = query not in SILENT
    outcome: list[str] = []

    def run() -> None:
        outcome.append(error(con, f"SELECT count(*) FROM crosslane_map('{query}', '{function}')"))

    with con.cursor() as watch:
        thread = threading.Thread(target=run)
        before = connections(watch)
        thread.start()
        # The query within has a connection of its own. A cancellation before that query has begun would have
        # no effect.
        assert eventually(lambda: connections(watch) > before)
        if calls:
            assert eventually(lambda: bool(value(watch, "SELECT sum(busy) > 0 FROM crosslane_pools()")))
    time.sleep(0.1 if calls else 0.5)
    if how == "interrupt":
        con.interrupt()
    elif how == "cancel":
        crosslane.cancel(con)
    else:
        with con.cursor() as other:
            other.execute("FROM crosslane_cancel()").fetchall()
    thread.join(20)
    assert not thread.is_alive()
    # The first to see the cancellation may be any of the functions, or the query within.
    called = [name for name in ("doubled", "sleeps", "waits") if name in query + function]
    ends = (*(f"{name}: cancelled" for name in called), "Interrupted!")
    said = outcome.pop().splitlines()[0]
    assert said.endswith(ends), said
    assert eventually(lambda: is_idle(con))
