"""Traces: what is recorded, in SQL."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import CPUS, Library, error, eventually, value

FUNCTIONS = """
import os

@udf(deterministic=False)
def plain(x: int) -> int:
    return int(str(x)) + 1

@udf(on_error="null", deterministic=False)
def fails(x: int) -> int:
    if x % 10 == 0:
        raise ValueError(x)
    return x

@udf(deterministic=False)
def raises(x: int) -> int:
    raise ValueError("a <script>")

@udf(retries=1, deterministic=False)
def dies(x: int, mark: str) -> int:
    if not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(3)
    return x

@udf(deterministic=False)
class Prepared:
    def __init__(self):
        self.one = len(os.environ["PATH"][:1])
    def __call__(self, x: int) -> int:
        return x + self.one
"""


def events(con: duckdb.DuckDBPyConnection, kind: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """The events of a kind, the first ones first."""
    return con.execute(f"SELECT {columns} FROM crosslane_events() WHERE kind = ?", [kind]).fetchall()


def start(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("CALL crosslane_trace(true)").fetchall() == [(True, 0, 0)]


def stop(con: duckdb.DuckDBPyConnection) -> int:
    """Ends a trace; the number of its events."""
    ((on, count, dropped),) = con.execute("CALL crosslane_trace(false)").fetchall()
    assert (on, dropped) == (False, 0)
    return count


def test_a_query_is_traced(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    start(con)
    file = library(FUNCTIONS)
    crosslane.load(con, file)
    assert value(con, "SELECT sum(plain(i)) FROM range(10_000) r(i)") == 50_005_000
    # One worker per processor is kept ready, and the last ones may still prepare themselves.
    assert eventually(lambda: len(events(con, "set_up")) == CPUS, 30)
    count = stop(con)
    assert value(con, "SELECT count(*) FROM crosslane_events()") == count
    # A slice is written, worked on and read.
    rows = "SELECT sum(rows) FROM crosslane_events() WHERE function = 'plain' AND kind = "
    assert [value(con, f"{rows}'{kind}'") for kind in ("copy_in", "function", "copy_out")] == [10_000] * 3
    spent = "SELECT sum(duration_us) / 1e6 FROM crosslane_events() WHERE kind = 'function'"
    counted = "SELECT sum(guest_seconds) FROM crosslane_stats()"
    assert value(con, spent) == pytest.approx(value(con, counted))
    assert events(con, "load", "library, function, lane") == [(str(file), None, None)]
    workers = con.execute("SELECT lane, pid FROM crosslane_lanes() ORDER BY lane").fetchall()
    for kind in ("boot", "set_up"):
        assert sorted(events(con, kind, "lane, pid")) == workers
    assert set(events(con, "function", "lane, pid")) <= set(workers)
    assert value(con, "SELECT min(start_us) >= 0 AND min(duration_us) >= 0 FROM crosslane_events()")
    # Nothing more is recorded, and the next trace begins anew.
    con.execute("SELECT plain(1)").fetchall()
    assert value(con, "SELECT count(*) FROM crosslane_events()") == count
    start(con)
    assert "traced already; end that trace with CALL crosslane_trace(false)" in error(
        con, "CALL crosslane_trace(true)"
    )
    con.execute("SELECT plain(7), plain(NULL)").fetchall()
    stop(con)
    assert events(con, "function", "function, rows, detail") == [("plain", 1, "x = 7")]
    assert "argument is NULL" in error(con, "CALL crosslane_trace(NULL)")


def test_troubles_are_traced(con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Any) -> None:
    crosslane.load(con, library(FUNCTIONS))
    start(con)
    con.execute("SELECT count(fails(i)) FROM range(100) r(i)").fetchall()
    con.execute("SELECT dies(i, ?) FROM range(3) r(i)", [str(tmp_path / "mark")]).fetchall()
    assert "a <script>" in error(con, "SELECT raises(1)")
    stop(con)
    exceptions = "SELECT function, sum(rows), any_value(detail) FROM crosslane_events() WHERE kind = 'exception' GROUP BY 1"
    assert sorted(con.execute(exceptions).fetchall()) == [
        ("fails", 10, None),
        ("raises", 1, "ValueError: a <script>"),
    ]
    assert events(con, "lane_lost", "function, lane IS NOT NULL") == [("dies", True)]
    assert events(con, "retry", "function, rows") == [("dies", 1)]


def test_databases_have_traces_of_their_own(con: duckdb.DuckDBPyConnection) -> None:
    with crosslane.connect() as other:
        start(con)
        crosslane.register(other, lambda x: x + 1, "plus(x BIGINT) -> BIGINT")
        assert value(other, "SELECT plus(1)") == 2
        assert stop(con) == 0
