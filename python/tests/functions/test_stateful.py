"""Stateful functions in Python: classes. Each lane makes one instance before the first row."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, printed, value

pytestmark = pytest.mark.any_duckdb


def settled(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether the warm lanes exist and wait for work."""
    return bool(value(con, "SELECT bool_and(idle >= 1 AND busy = 0) FROM crosslane_pools()"))


@pytest.mark.parametrize("how", ["raise ValueError('cannot close')", "time.sleep(1000)", "os._exit(3)"])
def test_a_failed_tear_down_delays_nothing(load: Load, how: str) -> None:
    con = load(f"""
    import os, time
    @udf
    class F:
        def __call__(self, x: int) -> int: return x
        def close(self): {how}
    """)
    assert value(con, "SELECT f(7)") == 7
    con.close()


def test_what_a_tear_down_raises_comes_to_the_log(load: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = load("""
    @udf
    class Held:
        def __call__(self, x: int) -> int: return x
        def close(self):
            raise ValueError("cannot let go")
    """)
    assert value(con, "SELECT held(7)") == 7
    con.close()
    log = printed(capfd, "held: ValueError: cannot let go", "in the tear-down", "raise ValueError")
    assert "functions_1.py:7 in close" in log


def test_a_set_up_that_fails_is_the_error_of_the_call_and_is_tried_again(load: Load, tmp_path: Path) -> None:
    model = tmp_path / "model"
    con = load(f"""
    @udf
    class Score:
        def __init__(self):
            self.model = open({str(model)!r}).read()
        def __call__(self, x: int) -> str:
            return self.model * x
    @udf
    def other(x: int) -> int: return x
    """)
    message = error(con, "SELECT score(2)")
    assert "FileNotFoundError" in message
    assert "in the set-up of score" in message
    assert "functions_1.py:6 in __init__" in message
    assert value(con, "SELECT other(2)") == 2
    model.write_text("ab")
    assert value(con, "SELECT score(2)") == "abab"
    assert value(con, "SELECT sum(discarded) FROM crosslane_pools()") == 0


def test_a_worker_that_dies_in_its_set_up_is_an_error(load: Load) -> None:
    con = load("""
    import os
    @udf
    class F:
        def __init__(self): os._exit(3)
        def __call__(self, x: int) -> int: return x
    """)
    for _ in range(2):
        message = error(con, "SELECT f(1)")
        assert "the set-up of f (" in message
        assert "exit code 3" in message


def test_a_set_up_without_end_is_ended(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    con.execute("CALL crosslane_set('load_timeout', '3')")
    crosslane.load(
        con,
        library("""
        import time
        @udf
        class F:
            def __init__(self): time.sleep(1000)
            def __call__(self, x: int) -> int: return x
        """),
    )
    message = error(con, "SELECT f(1)")
    assert "the set-up of f (" in message
    assert "functions_1.py:7): this took longer than load_timeout" in message


def test_each_lane_has_its_own_instances(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    """Functions with defaults, of any types, async and vectorized have one instance each. A method close may
    be missing."""
    path = library("""
    from typing import Any
    import pyarrow as pa
    made = []
    class Base:
        def __init__(self): made.append(type(self).__name__)
    @udf
    class WithDefault(Base):
        def __call__(self, x: int, y: int = 5) -> int: return x + y
    @udf
    class OfAny(Base):
        def __call__(self, x: Any) -> str: return type(x).__name__
    @udf
    class Waits(Base):
        async def __call__(self, x: int) -> int: return x * 2
    @udf(vectorized=True)
    class Whole(Base):
        def __call__(self, x: pa.Int64Array) -> pa.Int64Array: return x
    @udf(name="renamed", retries=1)
    class Fails(Base):
        tries = 0
        def __call__(self, x: int) -> int:
            self.tries += 1
            if self.tries == 1: raise ValueError("once")
            return self.tries
    class Heir(OfAny): pass
    an_instance = OfAny()
    @udf
    def made_here() -> str: return ",".join(sorted(made))
    """)
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    con.execute("SET threads = 1")
    crosslane.load(con, path)
    row = con.execute("""
        SELECT with_default(1), with_default(1, 2), of_any(1), of_any('a'), waits(4), whole(9), renamed(1)
    """).fetchone()
    assert row == (6, 3, "int", "str", 8, 9, 2)
    # The file itself has made an instance of one of the classes.
    assert value(con, "SELECT made_here()") == "Fails,OfAny,OfAny,Waits,Whole,WithDefault"


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_a_class_is_registered(con: duckdb.DuckDBPyConnection, lane: str) -> None:
    class AddsUp:
        def __init__(self) -> None:
            self.sum = 0

        def __call__(self, x: int) -> int:
            self.sum += x
            return self.sum

    con.execute("SET threads = 1")
    signature = crosslane.register(con, AddsUp, lane=lane)  # type: ignore[arg-type]
    assert signature == "adds_up(x BIGINT) -> BIGINT"
    query = "SELECT max(adds_up(i)) FROM range(4) r(i)"
    assert value(con, query) == 6
    # The registration has not changed the class.
    assert AddsUp()(5) == 5
    # An instance is registered like any other function.
    crosslane.register(con, AddsUp(), "one(x BIGINT) -> BIGINT", lane=lane)  # type: ignore[arg-type]
    assert value(con, "SELECT one(3)") == 3


def test_a_class_that_cannot_be_made_without_arguments_is_refused(
    con: duckdb.DuckDBPyConnection,
) -> None:
    class NeedsPath:
        def __init__(self, path: str, *, size: int) -> None: ...

        def __call__(self, x: int) -> int:
            return x

    with pytest.raises(crosslane.DeclarationError, match="without arguments; this class needs path, size"):
        crosslane.register(con, NeedsPath)


def test_async_functions_of_a_worker_share_their_event_loop(load: Load) -> None:
    """A client that one of these functions has made can serve the others."""
    con = load("""
        import asyncio
        loop = None
        @udf
        async def keeps(x: int) -> int:
            global loop
            loop = asyncio.get_running_loop()
            return x
        @udf
        async def has(x: int) -> bool:
            return loop is asyncio.get_running_loop()
        """)
    con.execute("SET threads = 1")
    assert value(con, "SELECT bool_and(has(keeps(i))) FROM range(5) r(i)") is True
