"""Aggregates of prepared statements: each run is independent, though DuckDB keeps the states of the run
before."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb
import pytest

import crosslane

FILE = """
from crosslane import udaf

@udaf
class Told:
    def __init__(self):
        self.rows = 0
    def update(self, x: int) -> None:
        self.rows += 1
    def merge(self, other) -> None:
        self.rows += other.rows
    def finish(self) -> str:
        return f"{self.rows} rows by %s"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "told.py"
    path.write_text(FILE % "first")
    return path


def run(con: duckdb.DuckDBPyConnection) -> list[str]:
    """The results of the prepared statement."""
    return sorted(result for (result,) in con.execute("EXECUTE twice").fetchall())


@pytest.mark.parametrize("groups", ["", "GROUP BY i % 2"])
def test_a_prepared_statement_uses_what_was_loaded_last(
    con: duckdb.DuckDBPyConnection, file: Path, groups: str
) -> None:
    crosslane.load(con, file)
    con.execute(f"PREPARE twice AS SELECT told(i) FROM range(10) r(i) {groups}")
    rows = 5 if groups else 10
    count = 10 // rows
    assert run(con) == [f"{rows} rows by first"] * count
    file.write_text(FILE % "second")
    crosslane.load(con, file)
    assert run(con) == [f"{rows} rows by second"] * count
    crosslane.unregister(con, "told")
    with pytest.raises(duckdb.Error, match="dropped"):
        run(con)


def test_a_prepared_statement_is_not_cancelled_with_its_run_before(
    con: duckdb.DuckDBPyConnection, file: Path
) -> None:
    crosslane.load(con, file)
    con.execute("PREPARE twice AS SELECT told(i) FROM range(10) r(i)")
    assert run(con) == ["10 rows by first"]
    time.sleep(0.2)
    con.execute("CALL crosslane_cancel()")
    assert run(con) == ["10 rows by first"]
