"""Results that a server keeps for all of its clients: ``memoize``, ``cache`` and ``ttl``."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import flight

import crosslane

from ...conftest import error, eventually, value
from ...servers import Server
from ..test_server_flight import column, exchange
from ..test_server_http import Watched

pytestmark = pytest.mark.any_duckdb

FUNCTIONS = """
import os

from crosslane import udf

def note(name, x):
    with open(os.environ["CALLED"], "a") as file:
        file.write(f"{{name}} {{x}}\\n")

@udf({options})
def kept(x: int) -> int | None:
    note("kept", x)
    if x % 1000 == 13:
        raise ValueError("thirteen")
    return {result}

@udf({options}, on_error="null")
def soft(x: int) -> int | None:
    note("soft", x)
    if x % 1000 == 13:
        raise ValueError("thirteen")
    return x + 1

@udf({options})
def text(x: int, *more: str) -> str:
    note("text", x)
    return f"{{x}} {{more}}"

@udf({options})
def dies(x: int) -> int:
    note("dies", x)
    if x == 13:
        os._exit(3)
    return x + 1
"""

#: The options of the functions.
KINDS = {"memory": 'memoize="1 MB"', "file": 'cache="kept.db"'}


class Kept:
    """A file of functions that keep results, and the calls that were made."""

    def __init__(self, folder: Path, options: str) -> None:
        self.path, self.log = folder / "kept.py", folder / "called"
        self.options = options
        self.write()

    def write(self, result: str = "x + 1") -> None:
        new = self.path.with_suffix(".new")
        new.write_text(FUNCTIONS.format(options=self.options, result=result))
        new.rename(self.path)

    def called(self, name: str = "kept") -> Counter[int]:
        """How often a function was called with each value."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(int(line.split()[1]) for line in lines if line.split()[0] == name)

    def serve(self, *options: str) -> Watched:
        return Watched(self.path, options=options, CALLED=str(self.log))


@pytest.fixture(params=KINDS)
def kept(tmp_path: Path, request: pytest.FixtureRequest) -> Kept:
    return Kept(tmp_path, KINDS[request.param])


def once(*values: int) -> Counter[int]:
    return Counter(values)


def test_clients_of_all_kinds_share_results(con: duckdb.DuckDBPyConnection, kept: Kept) -> None:
    with kept.serve("--flight", "127.0.0.1:0") as server:
        with crosslane.Client(server.address) as client:
            assert client.call_batch("kept", [1, 2, 1]).to_pylist() == [2, 3, 2]
        with crosslane.Client(server.address) as client:
            assert client.call_batch("kept", [2, 3, 1, 3]).to_pylist() == [3, 4, 2, 4]
        con.execute(f"CALL crosslane_attach('{server.address}')")
        assert value(con, "SELECT sum(kept(i)) FROM range(1, 5) r(i)") == 14
        with flight.connect(server.next().rpartition(" ")[2]) as client:
            for values in ([1, 4, 5], [5]):
                (result,) = exchange(client, "kept", column(values))
                assert result.column(0).to_pylist() == [x + 1 for x in values]
        assert kept.called() == once(1, 2, 3, 4, 5)
        function = server.function("kept")
        assert (function["rows"], function["reused"]) == (5, 8)
        assert "crosslane_function_reused_rows_total{" in server.get("/metrics")[1]
    assert 'results reused function="kept" rows=5 reused=8' in server.log


def test_large_batches_have_their_results_in_their_places(con: duckdb.DuckDBPyConnection, kept: Kept) -> None:
    with kept.serve() as server:
        with crosslane.Client(server.address) as client:
            # Every third row is known.
            client.call_batch("text", list(range(0, 9000, 3)))
            rows = [row * row % 9001 for row in range(20_000)]
            assert client.call_batch("text", rows).to_pylist() == [f"{row} ()" for row in rows]
        assert max(kept.called("text").values()) == 1
        con.execute(f"CALL crosslane_attach('{server.address}')")
        query = "SELECT count(*) FROM range(20000) r(i) WHERE text(i * i % 9001) = (i * i % 9001) || ' ()'"
        assert value(con, query) == 20_000
        assert max(kept.called("text").values()) == 1


def test_an_error_names_the_row_of_the_client(con: duckdb.DuckDBPyConnection, kept: Kept) -> None:
    with kept.serve() as server, crosslane.Client(server.address) as client:
        client.call_batch("kept", [1, 2])
        con.execute(f"CALL crosslane_attach('{server.address}')")
        message = error(con, "SELECT kept(x) FROM (VALUES (1), (2), (2), (5), (13), (1)) v(x)")
        assert "in row 5 " in message
        assert "thirteen" in message
        assert client.call_batch("soft", [1, 13, 1, 2]).to_pylist() == [2, None, 2, 3]
        with crosslane.Client(server.address) as other:
            assert other.call_batch("soft", [13, 1, 13]).to_pylist() == [None, 2, None]
        # A failed call is made again.
        assert kept.called("soft") == Counter({1: 1, 2: 1, 13: 2})


def test_a_lost_worker_is_reported_for_its_row(con: duckdb.DuckDBPyConnection, kept: Kept) -> None:
    with kept.serve() as server:
        with crosslane.Client(server.address) as client:
            client.call_batch("dies", [1, 2, 3])
        con.execute(f"CALL crosslane_attach('{server.address}')")
        message = error(con, "SELECT dies(x) FROM (VALUES (1), (2), (4), (3), (13), (5)) v(x)")
        assert "in row 5 " in message
        assert value(con, "SELECT sum(dies(x)) FROM (VALUES (1), (2), (3)) v(x)") == 9
        assert [kept.called("dies")[x] for x in (1, 2, 3)] == [1, 1, 1]


def test_many_clients_at_once(kept: Kept) -> None:
    with kept.serve() as server, ThreadPoolExecutor(4) as threads:

        def ask(seed: int) -> bool:
            rows = [seed * row % 500 * 1000 for row in range(5000)]
            with crosslane.Client(server.address) as client:
                return client.call_batch("kept", rows).to_pylist() == [row + 1 for row in rows]

        assert all(threads.map(ask, [3, 7, 11, 13, 17, 19]))
        # Clients that ask at the same time may both have it called.
        assert set(kept.called()) == {row * 1000 for row in range(500)}
        assert max(kept.called().values()) <= 6


def test_a_file_keeps_results_over_a_restart(tmp_path: Path) -> None:
    kept = Kept(tmp_path, KINDS["file"])
    for values in ([1, 2], [2, 3, 1]):
        with kept.serve() as server, crosslane.Client(server.address) as client:
            assert client.call_batch("kept", values).to_pylist() == [x + 1 for x in values]
    assert kept.called() == once(1, 2, 3)
    # Programs of other kinds find them, too.
    with contextlib.closing(crosslane.connect(functions=[kept.path])) as con:
        assert value(con, "SELECT sum(kept(x)) FROM (VALUES (1), (2), (3)) v(x)") == 9
    assert kept.called() == once(1, 2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_holds_for_its_time(tmp_path: Path, kind: str) -> None:
    kept = Kept(tmp_path, KINDS[kind] + ", ttl=1e-3" * (kind == "memory") + ", ttl=3600" * (kind == "file"))

    def ask() -> int:
        with crosslane.Client(server.address) as client:
            return int(client.call("kept", 1))

    if kind == "memory":
        with kept.serve() as server:
            # Some time passes between the calls.
            assert eventually(lambda: ask() == 2 and kept.called()[1] > 1, 30)
            # The client has no results of its own, whose age it does not know.
            with crosslane.Client(server.address) as client:
                before = kept.called()[1]
                assert eventually(lambda: client.call("kept", 1) == 2 and kept.called()[1] > before + 1, 30)
        return
    for _ in range(2):
        with kept.serve() as server:
            assert ask() == ask() == 2
    assert kept.called() == once(1)
    with contextlib.closing(sqlite3.connect(tmp_path / "kept.db")) as connection, connection:
        connection.execute("UPDATE results SET made = made - 3600001")
    with kept.serve() as server:
        assert ask() == ask() == 2
    assert kept.called() == Counter({1: 2})


def test_a_file_that_has_changed_begins_without_results(kept: Kept) -> None:
    with kept.serve("--watch") as server, crosslane.Client(server.address) as client:
        assert client.call("kept", 1) == 2
        kept.write("x + 2")
        assert eventually(lambda: server.log.count(" INFO loaded again ") >= 1, 60)
        assert eventually(lambda: client.call("kept", 1) == 3, 30)
        kept.write()
        assert eventually(lambda: server.log.count(" INFO loaded again ") >= 2, 60)
        assert eventually(lambda: client.call("kept", 1) == 2, 30)
        # The cache still has the results of the first version.
        assert kept.called() == Counter({1: 2 if "cache" in kept.options else 3})


def test_a_sandbox_must_allow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "functions.py"
    path.write_text(
        '# /// script\n# [tool.crosslane]\n# sandbox = "on"\n# ///\n'
        "from crosslane import udf\n"
        f'@udf(cache="{tmp_path}/elsewhere/kept.db")\ndef f(x: int) -> int: return x\n'
    )
    with pytest.raises(RuntimeError, match="its sandbox allows no cache in"):
        Server(path).end()
    assert not (tmp_path / "elsewhere").exists()


def test_a_client_that_is_attached_to_two_types_gets_results_of_its_type(tmp_path: Path) -> None:
    path = tmp_path / "functions.py"
    path.write_text(
        "from crosslane import udf\n"
        '@udf("kind_of(x ANY) -> VARCHAR", memoize="1 MB")\ndef kind_of(x): return type(x).__name__\n'
    )
    with Server(path) as server:
        for _ in range(2):
            with crosslane.Client(server.address) as client:
                numbers = client.call_batch("kind_of", pa.array([1, 1], pa.int64()))
                dates = client.call_batch("kind_of", pa.array([1, 1], pa.int64()).cast(pa.timestamp("us")))
                assert (numbers.to_pylist(), dates.to_pylist()) == (["int"] * 2, ["datetime"] * 2)
