"""Scans of table functions: limits, partitions, workers that die, memory, and hostile rows."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import crosslane

from ..conftest import Load, error, eventually, value
from .test_tables import HEAD, pool, rows


def test_a_limit_ends_the_generator_and_gives_the_lane_back(load: Load, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    con = load(
        HEAD
        + f"""
@udtf("billion() -> TABLE(i BIGINT, x DOUBLE)")
def billion():
    try:
        for i in range(1_000_000_000):
            yield i, i / 2
    finally:
        open({str(ended)!r}, "a").write("ended ")
"""
    )
    for _ in range(20):
        assert rows(con, "FROM billion() LIMIT 3") == [(0, 0), (1, 0.5), (2, 1)]
    assert eventually(lambda: pool(con) == (0, 0) and ended.read_text() == "ended " * 20)
    assert value(con, "SELECT booted FROM crosslane_pools()") <= os.cpu_count() + 1


def test_a_slow_generator_shows_its_first_rows(load: Load) -> None:
    con = load(
        HEAD
        + """
import time
@udtf("slow() -> TABLE(i BIGINT)", timeout=60)
def slow():
    yield 1
    time.sleep(1.1)
    yield 2
    time.sleep(600)
"""
    )
    assert rows(con, "FROM slow() LIMIT 1") == [(1,)]


def test_partitions_are_scanned_by_several_workers(load: Load) -> None:
    con = load(
        HEAD
        + """
import os, time
def days(n, step):
    return [{"day": day} for day in range(0, n, step)]
@udtf("days(n BIGINT, step BIGINT) -> TABLE(day BIGINT, pid BIGINT)", partitions=days)
def all_days(partition, n, step=1):
    # Long enough for the other worker to take its part.
    time.sleep(0.3)
    for i in range(5000):
        yield partition["day"], os.getpid()
@udtf("nothing() -> TABLE(i BIGINT)", partitions=lambda: [])
def nothing(partition):
    yield 1
@udtf("broken() -> TABLE(i BIGINT)", partitions=lambda: 1 / 0)
def broken(partition):
    yield 1
"""
    )
    found = rows(con, "SELECT day, count(*) FROM days(6, step := 2) GROUP BY day ORDER BY day")
    assert found == [(0, 5000), (2, 5000), (4, 5000)]
    assert value(con, "SELECT count(DISTINCT pid) FROM days(8, step := 1)") == 2
    con.execute("SET threads = 1")
    assert value(con, "SELECT count(DISTINCT day) FROM days(8, step := 1)") == 8
    assert rows(con, "FROM nothing()") == []
    assert "ZeroDivisionError" in error(con, "FROM broken()")
    assert (
        value(con, "SELECT options FROM crosslane_functions() WHERE function = 'nothing'")
        == "partitions=true"
    )


def test_a_cardinality_is_a_hint_for_plans_which_call_nothing(load: Load) -> None:
    con = load(
        HEAD
        + """
@udtf("f(n BIGINT) -> TABLE(i BIGINT)", cardinality=12345)
def f(n):
    yield n
"""
    )
    plan = con.execute("EXPLAIN FROM f(1)").fetchall()[0][1]
    assert "12345" in plan.replace(",", "")
    con.execute("PREPARE p AS SELECT i FROM f(?)")
    assert value(con, "SELECT calls FROM crosslane_stats()") == 0
    assert [rows(con, f"EXECUTE p({i})") for i in (4, 5)] == [[(4,)], [(5,)]]


def test_a_worker_that_dies_late_is_an_error_or_tried_again(load: Load, tmp_path: Path) -> None:
    con = load(
        HEAD
        + f"""
import os
@udtf("dies(n BIGINT) -> TABLE(i BIGINT)")
def dies(n):
    yield from range(n)
    os._exit(3)
@udtf("once(n BIGINT) -> TABLE(i BIGINT)", retries=2)
def once(n):
    first = not os.path.exists({str(tmp_path / "died")!r})
    for i in range(n):
        if first and i == n // 2:
            open({str(tmp_path / "died")!r}, "w").close()
            os._exit(3)
        yield i
@udtf("raises(n BIGINT) -> TABLE(i BIGINT)", retries=2)
def raises(n):
    first = not os.path.exists({str(tmp_path / "raised")!r})
    for i in range(n):
        if first and i == n - 1:
            open({str(tmp_path / "raised")!r}, "w").close()
            raise OSError("for once")
        yield i
"""
    )
    n = 409_600
    text = error(con, f"SELECT sum(i) FROM dies({n})")
    assert "exit code 3" in text
    assert f"of its table, with n = {n}" in text
    for function in ("once", "raises"):
        assert rows(con, f"SELECT count(*), sum(i) FROM {function}({n})") == [(n, n * (n - 1) // 2)]
        query = f"SELECT rows, retries FROM crosslane_stats() WHERE function = '{function}'"
        assert rows(con, query) == [(n, 1)]


@pytest.mark.any_duckdb
def test_a_generator_that_makes_no_row_in_time_is_ended(load: Load) -> None:
    con = load(
        HEAD
        + """
import time
@udtf("hangs() -> TABLE(i BIGINT)", timeout=0.5)
def hangs():
    yield 1
    time.sleep(600)
@udtf("slow() -> TABLE(i BIGINT)", timeout=0.5)
def slow():
    for i in range(8):
        time.sleep(0.1)
        yield i
"""
    )
    assert "hangs: timed out after 0.5 s" in error(con, "FROM hangs()")
    # Each row is progress, so the timeout begins again.
    assert len(rows(con, "FROM slow()")) == 8


@pytest.mark.any_duckdb
def test_a_generator_beyond_its_memory_fails(load: Load) -> None:
    con = load(
        HEAD
        + """
@udtf("eats() -> TABLE(i BIGINT)", memory_limit="200 MB")
def eats():
    kept = []
    for i in range(1000):
        kept.append(bytes(10_000_000))
        yield i
"""
    )
    assert "eats: MemoryError" in error(con, "FROM eats()")
    assert len(rows(con, "FROM eats() LIMIT 3")) == 3


def test_a_query_is_cancelled_within_a_generator(load: Load) -> None:
    con = load(
        HEAD
        + """
import time
@udtf("f(rows BIGINT) -> TABLE(i BIGINT)")
def f(rows):
    for i in range(rows):
        yield i
    time.sleep(600)
"""
    )
    outcome: list[str] = []
    busy = "SELECT count(*) FROM crosslane_lanes() WHERE busy"
    with con.cursor() as other:
        for n in (0, 1_000_000_000):
            query = f"SELECT sum(i) FROM f({n})"
            thread = threading.Thread(target=lambda query=query: outcome.append(error(con, query)))
            thread.start()
            assert eventually(lambda: other.execute(busy).fetchall() == [(1,)])
            time.sleep(0.1)
            crosslane.cancel(con)
            thread.join(10)
            assert not thread.is_alive()
            # Either the wait for the generator or DuckDB may see the cancellation first.
            assert outcome.pop().splitlines()[0].endswith(("f: cancelled", "Interrupted!"))
            assert eventually(lambda: other.execute(busy).fetchall() == [(0,)])


def test_a_table_of_any_length_takes_constant_memory(load: Load) -> None:
    con = load(
        HEAD
        + """
import resource
@udtf("long(n BIGINT) -> TABLE(i BIGINT, most BIGINT)")
def long(n):
    for i in range(n):
        yield i, 0
    yield n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""
    )
    con.execute("SET memory_limit = '100 MB'")
    least = value(con, "SELECT max(most) FROM long(10_000)")
    most = value(con, "SELECT max(most) FROM long(2_500_000)")
    assert most < least + 20_000, (least, most)


def test_wide_rows_are_sent_in_short_batches(load: Load) -> None:
    con = load(
        HEAD
        + """
import resource
@udtf("wide(n BIGINT) -> TABLE(s VARCHAR, most BIGINT)")
def wide(n):
    for i in range(n):
        yield "x" * (1_000_000 + i), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""
    )
    found = con.execute("SELECT count(*), sum(strlen(s)), max(most) FROM wide(700)").fetchall()[0]
    assert found[:2] == (700, 700_244_650)
    assert found[2] < 500_000


HOSTILE = (
    HEAD
    + """
import os, time
class Evil(tuple):
    def __len__(self): return 1
    def __getitem__(self, i): raise RuntimeError("evil")
    def __iter__(self): raise RuntimeError("evil")
class Number(int):
    def __index__(self): raise RuntimeError("evil")
class Silent(Exception):
    def __str__(self): raise RuntimeError("evil")
class Clears:
    def __init__(self): self.row = [self, "x"]
    def __index__(self):
        self.row.clear()
        return 5
class Iterator7:
    def __iter__(self): return 7
@udtf("object(kind VARCHAR) -> TABLE(i BIGINT, s VARCHAR)")
def object(kind):
    yield {
        "tuple": lambda: Evil((1, "x")), "int": lambda: (Number(3), "x"), "clears": lambda: Clears().row,
        "silent": Silent, "stop": StopIteration, "exit": SystemExit, "half": lambda: (1, "\\ud800"),
    }[kind]()
@udtf("raised(kind VARCHAR) -> TABLE(i BIGINT)")
def raised(kind):
    yield 1
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "close": GeneratorExit(), "stop": StopIteration()}[kind]
@udtf("no_iterator() -> TABLE(i BIGINT)")
def no_iterator():
    return Iterator7()
@udtf("closed(how VARCHAR) -> TABLE(i BIGINT)")
def closed(how):
    try:
        yield from range(1_000_000_000)
    finally:
        if how == "hangs":
            time.sleep(600)
        elif how == "dies":
            os._exit(3)
        elif how == "raises":
            raise ValueError("at the end")
        else:
            yield 7
"""
)


#: Queries, and their rows or their errors.
OUTCOMES: list[tuple[str, object]] = [
    ("FROM object('tuple')", [(1, "x")]),
    ("FROM object('int')", [(3, "x")]),
    ("FROM object('clears')", [(5, "x")]),
    ("FROM object('silent')", "its message cannot be shown: RuntimeError"),
    ("FROM object('stop')", "object: StopIteration"),
    ("FROM object('exit')", "yielded SystemExit SystemExit() where a row is due"),
    ("FROM object('half')", "half a surrogate pair"),
    ("FROM raised('exit')", "raised: SystemExit: 3"),
    ("FROM raised('interrupt')", "raised: KeyboardInterrupt"),
    ("FROM raised('close')", "raised: GeneratorExit"),
    ("FROM raised('stop')", "RuntimeError: generator raised StopIteration"),
    ("FROM no_iterator()", "TypeError: iter() returned non-iterator of type 'int'"),
]


@pytest.mark.any_duckdb
def test_objects_that_are_not_what_they_seem(load: Load, subtests: pytest.Subtests) -> None:
    con = load(HOSTILE)
    for query, outcome in OUTCOMES:
        with subtests.test(query):
            if isinstance(outcome, str):
                assert outcome in error(con, query)
            else:
                assert rows(con, query) == outcome
            # DuckDB's threads may release a query a moment after its end.
            assert eventually(lambda: pool(con) == (0, 0))


@pytest.mark.any_duckdb
def test_generators_that_do_not_end_when_they_are_closed(load: Load, subtests: pytest.Subtests) -> None:
    con = load(HOSTILE)
    # The number is the count of workers that are lost so far.
    for how, lost in (("raises", 0), ("yields", 0), ("hangs", 1), ("dies", 2)):
        with subtests.test(how):
            assert rows(con, f"FROM closed('{how}') LIMIT 2") == [(0,), (1,)]
            assert eventually(lambda lost=lost: pool(con) == (0, lost))
            assert rows(con, "FROM object('int')") == [(3, "x")]


def test_a_partition_whose_worker_dies_is_scanned_again(load: Load, tmp_path: Path) -> None:
    con = load(
        HEAD
        + f"""
import os
from dataclasses import dataclass
@dataclass
class Part:
    start: int
@udtf("f() -> TABLE(i BIGINT)", partitions=lambda: [Part(i * 10_000) for i in range(10)], retries=1)
def f(part):
    mark = {str(tmp_path)!r} + f"/{{part.start}}"
    for i in range(10_000):
        if i == 7_000 and part.start % 20_000 and not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(9)
        yield part.start + i
"""
    )
    assert rows(con, "SELECT count(*), count(DISTINCT i), sum(i) FROM f()") == [
        (100_000, 100_000, 4999950000)
    ]
    assert rows(con, "SELECT rows, retries, lanes_lost FROM crosslane_stats()") == [(100_000, 5, 5)]
