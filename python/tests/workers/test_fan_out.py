"""Expensive functions use every core. Cheap functions never leave their lane."""

from __future__ import annotations

import pytest

import crosslane

from ..conftest import CPUS, Library, Load, eventually, ready, value

pytestmark = pytest.mark.any_duckdb

FUNCTIONS = """
import os, time
import pyarrow as pa, pyarrow.compute as pc
@udf
def cheap(x: int) -> int: return x + 1
@udf
def expensive(x: int) -> int:
    end = time.perf_counter() + 0.0005
    while time.perf_counter() < end: pass
    return os.getpid()
@udf
def square(x: int) -> int:
    end = time.perf_counter() + 0.0001
    while time.perf_counter() < end: pass
    return x * x
@udf
def words(x: int) -> list[str]:
    end = time.perf_counter() + 0.0001
    while time.perf_counter() < end: pass
    return [str(x)] * (x % 4)
"""


def test_an_expensive_function_uses_every_core(load: Load) -> None:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE t AS SELECT i FROM range(1000) r(i)")
    ready(con, "expensive")
    # If the machine pauses during the first slice, the engine may believe that the function costs much for
    # each batch.
    used = "SELECT count(DISTINCT expensive(i)) FROM t"
    assert eventually(lambda: value(con, used) == min(2, CPUS))
    assert value(con, "SELECT fanned_out > 0 FROM crosslane_stats() WHERE function = 'expensive'") is (
        CPUS > 1
    )


def test_no_fan_out_with_one_thread_or_if_it_is_off(load: Load) -> None:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE t AS SELECT i FROM range(500) r(i)")
    con.execute("SET threads = 1")
    assert value(con, "SELECT count(DISTINCT expensive(i)) FROM t") == 1
    con.execute("SET threads = 2")
    con.execute("CALL crosslane_set('fan_out', 'false')").fetchall()
    assert value(con, "SELECT count(DISTINCT expensive(i)) FROM t") == 1


def test_a_cheap_function_stays_on_its_lane(load: Load) -> None:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE t AS SELECT i FROM range(5000) r(i)")
    for _ in range(20):
        assert value(con, "SELECT sum(cheap(i)) FROM t") == sum(range(1, 5001))
    # If the machine pauses during a batch, the batch may look expensive once.
    query = "SELECT fanned_out, calls FROM crosslane_stats() WHERE function = 'cheap'"
    ((fanned_out, calls),) = con.execute(query).fetchall()
    assert fanned_out <= calls / 5


def test_slices_come_back_in_their_places(load: Load) -> None:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE t AS SELECT i, CASE WHEN i % 11 > 0 THEN i END AS x FROM range(4000) r(i)")
    assert value(con, "SELECT count(*) FROM t WHERE square(x) IS DISTINCT FROM x * x") == 0
    wrong = """SELECT count(*) FROM (SELECT i, words(i) AS w FROM t)
               WHERE len(w) <> i % 4 OR len(list_filter(w, lambda s: s <> i::VARCHAR)) > 0"""
    assert value(con, wrong) == 0


def test_lanes_are_shared_by_all_expressions_of_a_worker(library: Library) -> None:
    con = crosslane.connect(functions=library(FUNCTIONS), config={"threads": 2})
    con.execute("CREATE TABLE t AS SELECT i FROM range(500000) r(i)")
    con.execute(
        "SELECT sum(cheap(i)), sum(cheap(i + 1)), sum(cheap(cheap(i))), max(cheap(i * 2)) FROM t"
    ).fetchall()
    assert value(con, "SELECT sum(booted) FROM crosslane_pools()") <= 3
    con.close()
