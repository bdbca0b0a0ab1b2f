"""Aggregates that raise, die, hang, take too much memory, or are cancelled."""

from __future__ import annotations

import threading
import time

import duckdb
import pytest

from ..conftest import Load, error, eventually, processes, value
from .test_aggregates import at_rest

TROUBLE = """
from crosslane import udaf
import os, time
def trouble(x, moment):
    if x == f"raise {moment}":
        raise ValueError(f"trouble in {moment}")
    if x == f"die {moment}":
        os._exit(7)
    if x == f"hang {moment}":
        time.sleep(60)

class Trouble:
    def __init__(self):
        self.seen = []
    def update(self, x: str) -> None:
        self.seen.append(x)
        trouble(x, "update")
    def merge(self, other) -> None:
        self.seen += other.seen
        for x in self.seen:
            trouble(x, "merge")
    def finish(self) -> int:
        for x in self.seen:
            trouble(x, "finish")
            if x == "garbage":
                return "text"
        return len(self.seen)

plain = udaf(name="plain")(type("Plain", (Trouble,), {}))
quick = udaf(name="quick", timeout=0.5)(type("Quick", (Trouble,), {}))
lenient = udaf(name="lenient", on_error="null", retries=1)(type("Lenient", (Trouble,), {}))
"""


@pytest.fixture
def troubles(load: Load) -> duckdb.DuckDBPyConnection:
    con = load(TROUBLE)
    con.execute("SET threads = 4")
    con.execute("PRAGMA verify_parallelism")
    con.execute("CREATE TABLE rows AS SELECT i, 'x' || i AS x FROM range(20000) t(i)")
    return con


#: A query whose row 777 has this value. Several lanes have so many rows of a group that the query merges
#: states.
ONE = "SELECT i % 3 AS g, {}(CASE WHEN i = 777 THEN '{}' ELSE x END) FROM rows GROUP BY g ORDER BY g"


#: The same with windows, where all methods see the row.
FRAMES = "SELECT {}(CASE WHEN i = 777 THEN '{}' ELSE x END) OVER (ORDER BY i ROWS 50 PRECEDING) FROM rows WHERE i < 6000"


def test_an_exception_says_where_it_was_raised(
    troubles: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    for moment in ("update", "finish"):
        with subtests.test(moment):
            message = error(troubles, ONE.format("plain", f"raise {moment}"))
            assert f"plain: ValueError: trouble in {moment}" in message
            assert "functions_1.py:7 in trouble" in message
            assert "in row" in message
            if moment == "update":
                assert "x = 'raise update'" in message
            assert eventually(lambda: at_rest(troubles))


def test_an_exception_in_merge(troubles: duckdb.DuckDBPyConnection) -> None:
    for function in ("plain", "lenient"):
        message = error(troubles, FRAMES.format(function, "raise merge"))
        assert f"{function}: ValueError: trouble in merge" in message
    assert eventually(lambda: at_rest(troubles))


def test_a_worker_that_dies_takes_its_query_along(
    troubles: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    for moment in ("update", "merge", "finish"):
        with subtests.test(moment):
            message = error(troubles, FRAMES.format("plain", f"die {moment}"))
            assert "exit code 7" in message
            assert "the states that it held" in message
            assert eventually(lambda: at_rest(troubles))
            assert value(troubles, "SELECT plain(x) FROM rows") == 20000


def test_a_worker_that_hangs_is_ended(troubles: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    for moment in ("update", "merge", "finish"):
        with subtests.test(moment):
            message = error(troubles, FRAMES.format("quick", f"hang {moment}"))
            assert "quick: timed out after 0.5 s" in message
            assert eventually(lambda: at_rest(troubles))
            assert value(troubles, "SELECT quick(x) FROM rows") == 20000


def test_a_result_that_is_none_of_its_type(troubles: duckdb.DuckDBPyConnection) -> None:
    assert "plain: TypeError: returned str" in error(troubles, ONE.format("plain", "garbage"))
    assert eventually(lambda: at_rest(troubles))


def test_errors_may_be_left_out(troubles: duckdb.DuckDBPyConnection) -> None:
    # Each of the two tries added the row before it raised.
    assert troubles.execute(ONE.format("lenient", "raise update")).fetchall() == [
        (0, 6668),
        (1, 6667),
        (2, 6666),
    ]
    assert troubles.execute(ONE.format("lenient", "raise finish")).fetchall() == [
        (0, None),
        (1, 6667),
        (2, 6666),
    ]
    assert troubles.execute(ONE.format("lenient", "garbage")).fetchall() == [(0, None), (1, 6667), (2, 6666)]
    counted = "SELECT errors, retries FROM crosslane_stats() WHERE function = 'lenient'"
    assert troubles.execute(counted).fetchall() == [(3, 3)]
    # A lane that dies loses its states, whatever the options are.
    assert "the states that it held" in error(troubles, ONE.format("lenient", "die update"))
    assert eventually(lambda: at_rest(troubles))


def test_a_constructor_that_raises(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf
        @udaf
        class Never:
            def __init__(self):
                raise ValueError("never")
            def update(self, x: int) -> None: ...
            def merge(self, other) -> None: ...
            def finish(self) -> int: ...
        """
    )
    assert "ValueError: never" in error(con, "SELECT never(1)")
    assert "ValueError: never" in error(con, "SELECT never(i) FROM range(0) t(i)")
    assert eventually(lambda: at_rest(con))


def test_memory_goes_with_the_query(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf
        import os
        @udaf
        class Heavy:
            def __init__(self):
                self.blocks = []
            def update(self, x: int) -> None:
                self.blocks.append(bytes(x))
            def merge(self, other) -> None:
                self.blocks += other.blocks
            def finish(self) -> int:
                return sum(map(len, self.blocks))
        @udf
        def resident(x: int) -> int:
            pages = int(open("/proc/self/statm").read().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        """
    )
    con.execute("SET threads = 1")

    def largest() -> int:
        # A query with as many rows as there are workers would not give one row to each of them.
        return max(process.memory_info().rss for process in processes())

    before = largest()
    assert (
        value(con, "SELECT sum(h) FROM (SELECT i, heavy(1000000) AS h FROM range(200) t(i) GROUP BY i)")
        == 200_000_000
    )
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)
    # The workers also keep nothing for as many groups as there are here.
    assert (
        value(con, "SELECT sum(h) FROM (SELECT i, heavy(1) AS h FROM range(900000) t(i) GROUP BY i)")
        == 900_000
    )
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)
    failing = "SELECT i, heavy(1000000), sum(CASE WHEN i = 199 THEN error('no') ELSE 1 END) FROM range(200) t(i) GROUP BY i"
    assert "no" in error(con, failing)
    assert eventually(lambda: at_rest(con) and largest() < before + 50_000_000)


def test_a_memory_limit_is_one_for_all_states(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf

        class Blocks:
            def __init__(self):
                self.blocks = []
            def update(self, x):
                self.blocks.append(bytes(10_000))
            def merge(self, other):
                self.blocks += other.blocks
            def finish(self):
                return len(self.blocks)

        blocks = udaf("blocks(x BIGINT) -> BIGINT", memory_limit="50 MB")(type("Blocks", (Blocks,), {}))
        in_columns = udaf("in_columns(x BIGINT) -> BIGINT", memory_limit="50 MB", vectorized=True)(type("Columns", (Blocks,), {}))
        """
    )
    con.execute("SET threads = 1")
    # Each exchange alone would have enough memory. The memory that an earlier query has freed may be used
    # again, and does not count.
    few = "SELECT sum(b) FROM (SELECT i AS g, {}(i) AS b FROM range(200) t(i) GROUP BY g)"
    many = (
        "SELECT sum(b) FROM (SELECT i // 16 AS g, {}(i) AS b FROM generate_series(1, 40000) t(i) GROUP BY g)"
    )
    rows = "SELECT in_columns(i) FROM range(3000000) t(i)"
    for _ in range(3):
        # The next query may use the memory that this query has taken.
        for function in ("blocks", "in_columns"):
            assert value(con, few.format(function)) == 200
        assert "blocks: MemoryError" in error(con, many.format("blocks"))
        # The rows that the engine collects take a part of the memory.
        assert int(str(value(con, rows))) > 3
    assert eventually(lambda: at_rest(con))


def test_a_cancelled_query(load: Load) -> None:
    con = load(
        """
        from crosslane import udaf
        import time
        @udaf
        class Slow:
            def update(self, x: int) -> None:
                time.sleep(0.05)
            def merge(self, other) -> None: ...
            def finish(self) -> int:
                return 1
        """
    )
    outcome: list[str] = []
    other = con.cursor()
    thread = threading.Thread(
        target=lambda: outcome.append(error(con, "SELECT slow(i) FROM range(2000) t(i)"))
    )
    thread.start()
    busy = "SELECT sum(busy) > 0 FROM crosslane_pools()"
    assert eventually(lambda: bool(value(other, busy)))
    time.sleep(0.2)
    other.execute("FROM crosslane_cancel()").fetchall()
    # The query alone would take a hundred seconds.
    thread.join(30)
    assert not thread.is_alive()
    assert "slow: cancelled" in outcome[0]
    assert eventually(lambda: at_rest(other))
