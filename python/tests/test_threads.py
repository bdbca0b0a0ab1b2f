"""Host lanes: functions of this very process, on threads."""

from __future__ import annotations

import asyncio
import threading
import time

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import crosslane

from .conftest import error, eventually, value


@pytest.fixture
def four() -> duckdb.DuckDBPyConnection:
    con = crosslane.connect(config={"threads": 4})
    con.execute("CREATE TABLE t AS SELECT i AS x FROM range(500000) r(i)")
    yield con
    con.close()


def test_workers_run_side_by_side_in_this_process(four: duckdb.DuckDBPyConnection) -> None:
    seen = set()
    state = {"calls": 0}

    def wait(x: int) -> int:
        seen.add(threading.get_ident())
        state["calls"] += 1
        if x % 1000 == 0:
            time.sleep(0.001)
        return x

    crosslane.register(four, wait, lane="thread")
    assert value(four, "SELECT sum(wait(x)) FROM t") == sum(range(500_000))
    assert len(seen) > 2
    assert state["calls"] == 500_000


def test_what_this_process_has(four: duckdb.DuckDBPyConnection) -> None:
    factor = [3]
    crosslane.register(four, lambda x: x * factor[0], "scale(x BIGINT) -> BIGINT", lane="thread")
    assert value(four, "SELECT scale(2)") == 6
    factor[0] = 5
    assert value(four, "SELECT scale(2)") == 10
    # Each way of asking gives up the interpreter's lock.
    assert four.sql("SELECT scale(x) FROM t LIMIT 2").fetchall() == [(0,), (5,)]
    assert four.table("t").filter("scale(x) = 10").fetchall() == [(2,)]
    assert four.sql("SELECT scale(7)").project("scale(1)").fetchall() == [(5,)]


def test_errors_and_limits(four: duckdb.DuckDBPyConnection) -> None:
    def inverse(x: int) -> float:
        return 1 / x

    def stuck(x: int) -> int:
        while x >= 0:
            pass
        return x

    crosslane.register(four, inverse, lane="thread")
    crosslane.register(four, stuck, lane="thread", timeout=0.3)
    text = error(four, "SELECT inverse(x) FROM t")
    assert "inverse: ZeroDivisionError" in text
    assert "with x = 0" in text
    assert "stuck: timed out after 0.3 s" in error(four, "SELECT stuck(x) FROM t")
    with pytest.raises(crosslane.DeclarationError, match="memory_limit"):
        crosslane.register(four, inverse, lane="thread", memory_limit="1 GB")
    with pytest.raises(crosslane.DeclarationError, match="'process' or 'thread'"):
        crosslane.register(four, inverse, lane="fibre")


def test_threads_end_with_the_database(four: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(four, lambda x: x, "same(x BIGINT) -> BIGINT", lane="thread")
    assert value(four, "SELECT sum(same(x)) FROM t") == sum(range(500_000))

    def lanes() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("crosslane-")]

    assert lanes()
    four.close()
    assert eventually(lambda: not lanes())


def test_vectorized_and_async(four: duckdb.DuckDBPyConnection) -> None:
    def double(x: pa.Int64Array) -> pa.Int64Array:
        return pc.multiply(x, 2)

    async def later(x: int) -> int:
        await asyncio.sleep(0.001)
        return x

    crosslane.register(four, double, lane="thread", vectorized=True)
    crosslane.register(four, later, lane="thread", concurrency=100)
    assert value(four, "SELECT sum(double(x)) FROM t") == 2 * sum(range(500_000))
    assert value(four, "SELECT sum(later(x)) FROM t WHERE x < 5000") == sum(range(5000))
