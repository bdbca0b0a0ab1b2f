"""The engine cuts batches that are larger than a worker's ring into slices."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Load, error, eventually, value

#: Each of the 2,048 rows of a chunk has 1 KB. It begins with its number and a space.
TEXTS = "(SELECT i, rpad(i || ' ', 1024, 'x') AS s FROM range(2048) r(i))"

FUNCTIONS = """
    import os, pathlib, time
    @udf
    def shout(s: str) -> str: return s.upper()
    @udf
    def text(i: int, length: int) -> str: return str(i).ljust(length, "-")
    @udf(on_error="null")
    def dies(s: str, at: str) -> str:
        if s.split()[0] == at: os.abort()
        return s.upper()
    @udf(retries=1)
    def dies_once(s: str, at: str, marker: str) -> str:
        if s.split()[0] == at and not os.path.exists(marker):
            pathlib.Path(marker).touch()
            os.abort()
        return s.upper()
    @udf
    def waits(s: str, marker: str) -> int:
        if s.startswith("600 "):
            pathlib.Path(marker).touch()
            time.sleep(1000)
        return len(s)
"""

#: The number of slices of a function's batches.
CALLS = "SELECT calls FROM crosslane_stats() WHERE function = '{}'"


def one_thread(load: Load, *functions: str) -> duckdb.DuckDBPyConnection:
    """Functions on one thread, so that only their size decides how batches are cut."""
    con = load("\n".join(functions))
    con.execute("SET threads = 1")
    return con


@pytest.fixture
def wide(load: Load) -> duckdb.DuckDBPyConnection:
    return one_thread(load, FUNCTIONS)


def test_wide_arguments_come_in_slices(wide: duckdb.DuckDBPyConnection, load: Load) -> None:
    load(
        """
        import pyarrow as pa
        @udf(vectorized=True)
        def rows(s: pa.StringArray) -> pa.Int64Array: return pa.array([len(s)] * len(s))
        """
    )
    assert value(wide, f"SELECT count(*) FROM {TEXTS} WHERE shout(s) = upper(s)") == 2048
    # A slice fills a quarter of a ring, or a little less.
    assert 200 <= value(wide, f"SELECT max(rows(s)) FROM {TEXTS}") <= 256
    # A narrow batch is not cut.
    assert value(wide, f"SELECT min(rows(s[:200])) FROM {TEXTS}") == 2048


def test_wide_results_are_cut_from_the_second_batch_on(wide: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT count(*) FROM range({0}) r(i) WHERE text(i, {1}) = rpad(i::VARCHAR, {1}, '-')"
    assert value(wide, query.format(2048, 1024)) == 2048
    assert value(wide, CALLS.format("text")) == 1
    assert value(wide, query.format(2048, 1024)) == 2048
    assert value(wide, CALLS.format("text")) == 10
    # When results are narrow again, batches are not cut any more.
    assert value(wide, query.format(2048, 10)) == 2048
    before = value(wide, CALLS.format("text"))
    assert value(wide, query.format(2048, 10)) == 2048
    assert value(wide, CALLS.format("text")) == before + 1


# Each case has its own function, because earlier batches of a function decide how a batch is cut.
def test_huge_rows_among_small_ones(load: Load, subtests: pytest.Subtests) -> None:
    lengths = (100_000, 300_000, 600_000, 3_000_000)
    each = "@udf\ndef shout_{0}(s: str) -> str: return s.upper()"
    con = one_thread(load, *(each.format(length) for length in lengths))
    for length in lengths:
        for huge in ("i = 0", "i = 700", "i >= 2045", "i % 100 = 99" if length < 1_000_000 else "i = 2047"):
            with subtests.test(f"{length} where {huge}"):
                long = f"repeat('ä' || i, {length} // 5)"
                text = f"CASE WHEN {huge} THEN {long} WHEN i % 7 > 0 THEN 'ä' || i END"
                query = f"SELECT count(*) FROM (SELECT {text} AS s FROM range(2048) r(i)) "
                query += f"WHERE shout_{length}(s) IS NOT DISTINCT FROM upper(s)"
                assert value(con, query) == 2048


def test_an_error_in_a_slice_names_its_row(load: Load, subtests: pytest.Subtests) -> None:
    rows = (0, 227, 228, 1000, 2047)
    each = """
@udf
def fails_{0}(s: str) -> str:
    if s.split()[0] == "{0}": raise ValueError("not this")
    return s
"""
    con = one_thread(load, *(each.format(row) for row in rows))
    for row in rows:
        with subtests.test(f"{row}"):
            text = error(con, f"SELECT max(fails_{row}(s)) FROM {TEXTS}")
            assert "ValueError: not this" in text
            assert f"in row {row + 1} of the batch, with s = '{row} x" in text


def test_a_worker_that_dies_takes_one_row_along(wide: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    for row in (0, 300, 2047):
        died = f"(SELECT i, upper(s) AS u, dies(s, '{row}') AS d FROM {TEXTS})"
        query = f"SELECT list(i) FILTER (d IS NULL), count(*) FILTER (d = u) FROM {died}"
        assert wide.execute(query).fetchall() == [([row], 2047)]
        query = f"FROM {TEXTS} WHERE dies_once(s, '{row}', '{tmp_path / str(row)}') = upper(s)"
        assert value(wide, "SELECT count(*) " + query) == 2048


def test_a_query_may_end_amid_slices(wide: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    many = TEXTS.replace("2048", "20480")
    few = f"SELECT length(s) FROM {many} WHERE shout(s) LIKE '%X' LIMIT 3"
    assert wide.execute(few).fetchall() == [(1024,)] * 3
    marker = tmp_path / "marker"

    def cancel() -> None:
        assert eventually(marker.exists)
        crosslane.cancel(wide)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    assert "cancelled" in error(wide, f"SELECT sum(waits(s, '{marker}')) FROM {TEXTS}")
    canceller.join()
    assert value(wide, f"SELECT count(*) FROM {TEXTS} WHERE shout(s) = upper(s)") == 2048
