"""``rate`` of a function: how often all clients of a server together call it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

import crosslane

from ...conftest import Library, eventually, value
from ..test_server_http import Watched

pytestmark = pytest.mark.any_duckdb

FUNCTIONS = """
import time

@udf(rate="1/h", deterministic=False)
def seldom(x: int) -> int:
    return x

@udf(rate="30/min", timeout=1, deterministic=False)
def waits(seconds: int) -> int:
    time.sleep(seconds)
    return seconds

@udf
def free(x: int) -> int:
    return x
"""


@pytest.fixture
def server(library: Library, serve: Callable[..., Watched]) -> Watched:
    with Watched(library(FUNCTIONS), options=("--workers", "1")) as server:
        yield server


def test_all_clients_of_a_server_wait_for_its_rate(con: duckdb.DuckDBPyConnection, server: Watched) -> None:
    def seen() -> tuple[int, int]:
        function = server.function("seldom")
        return function["calls"], function["waiting"]

    con.execute(f"CALL crosslane_attach('{server.address}')")
    second = crosslane.Client(server.address, lanes=2)
    with crosslane.Client(server.address) as first, ThreadPoolExecutor(2) as threads:
        assert first.call("seldom", 1) == 1
        waiting = threads.submit(second.call, "seldom", 2)
        assert eventually(lambda: seen() == (1, 1), 30)
        query = threads.submit(value, con, "SELECT seldom(3)")
        assert eventually(lambda: seen() == (1, 2), 30)
        # Calls that wait have no worker.
        assert (first.call("free", 5), second.call("free", 6)) == (5, 6)
        second.close()
        with pytest.raises(ValueError, match="closed"):
            waiting.result()
        assert eventually(lambda: seen()[1] == 1, 30)
        con.interrupt()
        with pytest.raises(duckdb.Error, match=r"Interrupted!|seldom: cancelled"):
            query.result()
        assert eventually(lambda: seen()[1] == 0, 30)
        assert first.call("free", 7) == 7


def test_a_wait_for_the_rate_is_no_lack_of_progress(server: Watched) -> None:
    with crosslane.Client(server.address) as first, crosslane.Client(server.address) as second:
        assert first.call("waits", 0) == 0
        # It waits for two seconds, and the timeout is one.
        assert second.call("waits", 0) == 0
        # The timeout counts from the begin of the call.
        with pytest.raises(TimeoutError, match=r"waits: timed out after 1 s"):
            first.call("waits", 600)
