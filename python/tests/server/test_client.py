"""crosslane.Client and crosslane.AsyncClient: a server's functions without an engine."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pytest

import crosslane

from ..conftest import Library, eventually
from ..servers import Server, unix

pytestmark = pytest.mark.any_duckdb

TEXT = '''
import os
import time

import pyarrow as pa

from crosslane import udaf, udtf

@udf
def initials(name: str) -> str:
    """The first letters of a name."""
    return "".join(word[0] for word in name.split())

@udf
def plus(x: int, y: int) -> int:
    return x + y

@udf
def joined(first: str, *rest: str) -> str:
    return first + "".join(rest)

@udf("kind_of(x ANY) -> VARCHAR")
def kind_of(x):
    return type(x).__name__

@udf("paint(color ENUM('green')) -> VARCHAR")
def paint(color):
    return color

@udf
def fails(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x

@udf(on_error="null")
def fails_softly(x: int) -> int:
    return fails(x)

@udf
def dies(x: int) -> int:
    os._exit(3)

@udf(timeout=0.4)
def late(seconds: float) -> float:
    time.sleep(seconds)
    return seconds

@udf
def sleeps(begun: str, seconds: float) -> float:
    open(f"{begun}/{os.getpid()}", "w").close()
    time.sleep(seconds)
    return seconds

@udf(retries=2)
def survives(begun: str) -> str:
    open(f"{begun}/{os.environ['NAME']}", "w").close()
    if len(os.listdir(begun)) == 1:
        time.sleep(600)
    return os.environ["NAME"]

@udf
def ends_server(calls: str, one: int, two: int) -> str:
    open(f"{calls}/{os.environ['NAME']}", "w").close()
    if len(os.listdir(calls)) == 1:
        os.kill({"one": one, "two": two}[os.environ["NAME"]], 9)
        time.sleep(600)
    return "repeated"

@udf(retries=1)
def ends_server_again(calls: str, one: int, two: int) -> str:
    return ends_server(calls, one, two)

@udf
def worker(x: int) -> int:
    time.sleep(0.001)
    return os.getpid()

@udtf("words(text VARCHAR) -> TABLE(word VARCHAR)")
def words(text):
    yield from text.split()

@udtf("numbers(n BIGINT, start BIGINT) -> TABLE(i BIGINT)")
def numbers(n, *, start=5):
    for i in range(start, start + n):
        yield (i,)

@udtf("where(n BIGINT) -> TABLE(name VARCHAR)")
def where(n):
    for _ in range(n):
        yield os.environ["NAME"]

@udtf("halves(rows TABLE(n BIGINT)) -> TABLE(half BIGINT)", vectorized=True)
def halves(rows: pa.RecordBatch):
    return pa.record_batch({"half": [n // 2 for n in rows["n"].to_pylist()]})

@udaf("largest(x BIGINT) -> BIGINT")
class Largest:
    def __init__(self): self.most = 0
    def update(self, x):
        if x == -3:
            raise ValueError("minus three")
        self.most = max(self.most, x)
    def merge(self, other): self.most = max(self.most, other.most)
    def finish(self): return self.most

@udaf("total(x BIGINT) -> BIGINT", vectorized=True)
class Total:
    def __init__(self): self.sum = 0
    def update(self, x): self.sum += x.to_numpy().sum()
    def merge(self, other): self.sum += other.sum
    def finish(self): return int(self.sum)

@udaf("dies_once(begun VARCHAR) -> BIGINT", retries=2)
class DiesOnce:
    def __init__(self): self.rows = 0
    def update(self, begun):
        self.rows += 1
        if self.rows == 5000:
            open(f"{begun}/{os.getpid()}", "w").close()
            if len(os.listdir(begun)) == 1:
                os._exit(3)
    def merge(self, other): self.rows += other.rows
    def finish(self): return self.rows
'''


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers, which end with the test."""
    with ExitStack() as stack:
        yield lambda *files, **options: stack.enter_context(Server(*files, **options))


@pytest.fixture
def server(library: Library, serve: Callable[..., Server]) -> Server:
    return serve(library(TEXT), NAME="one")


@pytest.fixture
def client(server: Server) -> Iterator[crosslane.Client]:
    with crosslane.Client(server.address, lanes=2) as client:
        yield client


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A folder in which functions say that they have begun."""
    folder = tmp_path / "begun"
    folder.mkdir()
    return folder


def has_begun(folder: Path, count: int = 1) -> bool:
    return eventually(lambda: len(list(folder.iterdir())) >= count, 30)


def connections(server: Server) -> int:
    """How many connections this process has to a server."""
    port = int(server.address.rpartition(":")[2])
    return sum(it.raddr and it.raddr.port == port for it in psutil.Process().net_connections("tcp"))


def test_functions_are_described(client: crosslane.Client) -> None:
    assert list(client.functions)[:3] == ["initials", "plus", "joined"]
    initials = client.functions["initials"]
    assert (initials.signature, initials.kind) == ("initials(name VARCHAR) -> VARCHAR", "scalar")
    assert initials.description == "The first letters of a name."
    assert initials.file.endswith("functions_1.py")
    lines = Path(initials.file).read_text().splitlines()
    assert lines[initials.line - 1 :][:2] == ["@udf", "def initials(name: str) -> str:"]
    kinds = {client.functions[name].kind for name in ("words", "halves", "largest")}
    assert kinds == {"table", "stream", "aggregate"}
    with pytest.raises(TypeError):
        client.functions["other"] = initials  # type: ignore[index]


def test_one_row(client: crosslane.Client) -> None:
    assert client.call("initials", "Ada Byron") == "AB"
    assert client.call("INITIALS", name="Ada Byron") == "AB"
    assert client.call("plus", 1, y=2) == 3
    assert client.call("plus", 1, None) is None
    assert [client.call("joined", "a"), client.call("joined", "a", "b", "c")] == ["a", "abc"]
    assert [client.call("kind_of", value) for value in (1, 1.5, "x", [1])] == ["int", "float", "str", "list"]


@pytest.mark.parametrize(
    ("arguments", "named", "what"),
    [
        ((), {}, r"the argument x is missing: plus\(x BIGINT, y BIGINT\) -> BIGINT"),
        ((1, 2, 3), {}, "3 arguments for plus"),
        ((1,), {"x": 2}, "x is given twice"),
        ((1,), {"z": 2}, "z is no parameter"),
        (("a", 2), {}, "plus: x: str 'a' where BIGINT is due"),
    ],
)
def test_wrong_arguments(
    client: crosslane.Client, arguments: tuple[Any, ...], named: dict[str, Any], what: str
) -> None:
    with pytest.raises(TypeError, match=what):
        client.call("plus", *arguments, **named)
    assert client.call("plus", 1, 2) == 3


def test_wrong_uses(client: crosslane.Client) -> None:
    with pytest.raises(OverflowError, match=r"plus: y: .*BIGINT"):
        client.call("plus", 1, 1 << 70)
    with pytest.raises(LookupError, match="has no function nothing; it has initials, plus"):
        client.call("nothing")
    with pytest.raises(TypeError, match="words is of the kind table: use scan"):
        client.call("words", "a")
    with pytest.raises(TypeError, match="initials is of the kind scalar: use call or call_batch"):
        client.scan("initials", "a")
    with pytest.raises(TypeError, match="largest is of the kind aggregate: use aggregate"):
        client.call("largest", 1)
    with pytest.raises(ValueError, match="lanes is a whole number from 1 to 1024, not 0"):
        crosslane.Client("crosslane://127.0.0.1", lanes=0)
    with pytest.raises(ValueError, match="ftp://127"):
        crosslane.Client("ftp://127.0.0.1")


def test_errors_are_those_of_local_lanes(client: crosslane.Client) -> None:
    with pytest.raises(RuntimeError) as caught:
        client.call("fails", 3)
    lines = str(caught.value).splitlines()
    assert lines[0] == "fails: ValueError: three"
    assert "functions_1.py:" in lines[1]
    assert lines[1].endswith("in fails")
    assert lines[-1] == "  in row 1 of the batch, with x = 3"
    with pytest.raises(RuntimeError, match=r"worker process ended with exit code 3[\s\S]*with x = 4"):
        client.call("dies", 4)
    with pytest.raises(TimeoutError, match=r"late: timed out after 0\.4 s"):
        client.call("late", 600.0)
    assert client.call("fails", 2) == 2


def test_columns_of_every_library(client: crosslane.Client) -> None:
    due = [1, 3, None, 7]
    x = [0, 2, None, 6]
    for column in (
        x,
        tuple(x),
        pa.array(x),
        pa.array(x, pa.int8()),
        pa.chunked_array([x[:1], x[1:]]),
        pd.Series(x, dtype="Int64"),
        pl.Series(x),
        pa.array([9, *x])[1:],
    ):
        assert client.call_batch("plus", column, [1, 1, 1, 1]).to_pylist() == due
    assert client.call_batch("plus", np.array([1, 2]), y=np.array([1, 2])).to_pylist() == [2, 4]
    assert client.call_batch("joined", ["a", "b"], ["c", "d"], ["e", "f"]).to_pylist() == ["ace", "bdf"]
    assert client.call_batch("kind_of", [1.5, None]).to_pylist() == ["float", None]
    assert client.call_batch("plus", [], []).to_pylist() == []
    assert pl.Series(client.call_batch("initials", ["Ada Byron"])).to_list() == ["AB"]


def test_wrong_columns(client: crosslane.Client) -> None:
    with pytest.raises(TypeError, match="plus: y of row 2: str 'b' where BIGINT is due"):
        client.call_batch("plus", [1, 2], [1, "b"])
    with pytest.raises(ValueError, match="columns of 1 and 2 rows"):
        client.call_batch("plus", [1, 2], [1])
    with pytest.raises(ValueError, match=r"column x: .*'b'"):
        client.call_batch("plus", pa.array(["b"]), [1])
    with pytest.raises(ValueError, match=r"paint: color: 'red', which is none of ENUM\('green'\)"):
        client.call_batch("paint", pa.array(["green", "red"]))
    with pytest.raises(TypeError, match="column x: object where a column is due"):
        client.call_batch("plus", object(), [1])


def test_a_large_batch_keeps_its_order(client: crosslane.Client) -> None:
    n = pa.array(range(300_000))
    assert client.call_batch("plus", n, n).equals(pa.array(range(0, 600_000, 2)))
    with pytest.raises(RuntimeError, match=r"three[\s\S]*in row 200001 of the batch, with x = 3"):
        client.call_batch("fails", pa.concat_arrays([pa.array([5] * 200_000), pa.array([3, 5])]))
    some = client.call_batch("fails_softly", list(range(5)))
    assert some.to_pylist() == [0, 1, 2, None, 4]


def test_aggregates(client: crosslane.Client) -> None:
    assert client.aggregate("largest", [3, 5, None, 4]) == 5
    assert client.aggregate("total", x=pa.array([1, 2, 3])) == 6
    assert client.aggregate("total", []) == 0
    by = ["b", None, "a", "b", None]
    for keys in (by, pa.array(by), pd.Series(by, dtype=object), pl.Series(by)):
        sums = client.aggregate("total", [1, 2, 4, 8, 16], by=keys)
        assert list(sums.items()) == [("b", 9), (None, 18), ("a", 4)]
    assert client.aggregate("total", [], by=[]) == {}
    n = 300_000
    sums = client.aggregate("total", pa.array(range(n)), by=np.arange(n) % 1000)
    assert sums == {key: sum(range(key, n, 1000)) for key in range(1000)}
    # Its lane is given back, and keeps no states.
    assert [client.aggregate("largest", [1, 2], by=["a", "b"]) for _ in range(50)] == [{"a": 1, "b": 2}] * 50


def test_wrong_aggregates(client: crosslane.Client) -> None:
    with pytest.raises(ValueError, match="columns of 2 and 3 rows"):
        client.aggregate("total", [1, 2], by=["a", "b", "c"])
    with pytest.raises(TypeError, match="by is a column of keys, not str"):
        client.aggregate("total", [1, 2], by="ab")
    with pytest.raises(TypeError, match="initials is of the kind scalar: use call or call_batch"):
        client.aggregate("initials", ["a"])
    with pytest.raises(TypeError, match="total: x of row 2: str 'b' where BIGINT is due"):
        client.aggregate("total", [1, "b"])
    with pytest.raises(RuntimeError, match=r"largest: ValueError: minus three[\s\S]*with x = -3"):
        client.aggregate("largest", [1, 2, 3, -3], by=[0, 1, 0, 1])
    assert client.aggregate("largest", [1]) == 1


def test_an_aggregate_whose_worker_dies_is_done_again(client: crosslane.Client, begun: Path) -> None:
    assert client.aggregate("dies_once", [str(begun)] * 6000) == 6000
    assert len(list(begun.iterdir())) == 2


def test_a_batch_goes_over_all_lanes(library: Library, serve: Callable[..., Server]) -> None:
    # The server leaves one of its workers to short calls.
    server = serve(library(TEXT), options=("--workers", "4"), NAME="one")
    with crosslane.Client(server.address, lanes=2) as client:

        def workers() -> int:
            return len(set(client.call_batch("worker", list(range(400))).to_pylist()))

        # The second lane is made when the first is used.
        assert eventually(lambda: workers() >= 2, 60)


def test_tables(client: crosslane.Client) -> None:
    stream = client.scan("words", "a b c")
    assert stream.schema.names == ["word"]
    assert pa.table(stream)["word"].to_pylist() == ["a", "b", "c"]
    assert pa.table(client.scan("numbers", 2))["i"].to_pylist() == [5, 6]
    assert pl.DataFrame(client.scan("numbers", 2, start=0))["i"].to_list() == [0, 1]
    assert sum(batch.num_rows for batch in client.scan("numbers", 5000)) == 5000
    with client.scan("numbers", 1 << 40) as endless:
        assert next(endless)["i"][0].as_py() == 5
    with pytest.raises(ValueError, match="the stream was closed"):
        next(endless)


def test_who_reads_a_table_may_call(server: Server) -> None:
    with crosslane.Client(server.address, lanes=1) as client:
        sums = [
            client.call("plus", number, 1)
            for batch in client.scan("numbers", 3)
            for number in batch["i"].to_pylist()
        ]
    assert sums == [6, 7, 8]


def test_streams(client: crosslane.Client) -> None:
    table = pa.table({"n": range(100_000)})
    halves = pa.table(client.map(table, "halves"))["half"]
    assert halves.to_pylist() == [n // 2 for n in range(100_000)]
    with pytest.raises(ValueError, match="the input has no column n"):
        list(client.map(pa.table({"m": [1]}), "halves", lanes=1))
    with pytest.raises(ValueError, match="depth is a whole number from 1 to 64"):
        client.map(table, "halves", depth=0)


def test_a_server_may_ask_for_a_token(
    library: Library, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(library(TEXT), NAME="one", CROSSLANE_TOKEN="secret")
    with pytest.raises(ConnectionError, match="refused"):
        crosslane.Client(server.address, token="other")
    with crosslane.Client(server.address, token="secret") as client:
        assert client.call("plus", 1, 2) == 3
    monkeypatch.setenv("CROSSLANE_TOKEN", "secret")
    with crosslane.Client(server.address) as client:
        assert client.call("plus", 1, 2) == 3


def test_threads_share_lanes(server: Server, client: crosslane.Client) -> None:
    with ThreadPoolExecutor(16) as threads:
        sums = list(threads.map(lambda n: client.call("plus", n, 1), range(2000)))
    assert sums == list(range(1, 2001))
    assert connections(server) <= 2


def test_calls_beyond_the_lanes_wait(server: Server, begun: Path) -> None:
    with crosslane.Client(server.address, lanes=1) as client, ThreadPoolExecutor(2) as threads:
        slow = threads.submit(client.call, "sleeps", str(begun), 600.0)
        assert has_begun(begun)
        waits = threads.submit(client.call, "plus", 1, 2)
        assert not waits.done()
        client.close()
        for call in (slow, waits):
            # The second may not have begun.
            with pytest.raises(ValueError, match=r"the client (is|was) closed"):
                call.result(30)


def test_after_close(client: crosslane.Client) -> None:
    scan, stream = client.scan("numbers", 1 << 40), client.map(pa.table({"n": [1]}), "halves")
    next(scan)
    client.close()
    client.close()
    uses: list[Callable[[], Any]] = [
        lambda: client.call("plus", 1, 2),
        lambda: client.call_batch("plus", [1], [2]),
        lambda: client.scan("words", "a"),
        lambda: client.map(pa.table({"n": [1]}), "halves"),
        lambda: next(scan),
        lambda: next(stream),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"the client (is|was) closed"):
            use()
    assert "plus" in client.functions


def test_a_client_that_nobody_has_is_closed(server: Server) -> None:
    client = crosslane.Client(server.address)
    assert client.call("plus", 1, 2) == 3
    assert connections(server) > 0
    del client
    gc.collect()
    assert eventually(lambda: connections(server) == 0)


def test_a_fork_needs_a_client_of_its_own(server: Server, client: crosslane.Client) -> None:
    assert client.call("plus", 1, 2) == 3
    scan = client.scan("numbers", 10)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for use in (lambda: client.call("plus", 1, 2), lambda: next(scan)):
                try:
                    use()
                except RuntimeError as error:
                    code = 0 if "forked after the client had connected" in str(error) else 2
            client.close()
            with crosslane.Client(server.address) as own:
                code = code or (own.call("plus", 1, 2) != 3)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.call("plus", 1, 2) == 3
    assert len(pa.table(scan)) == 10


def run(text: str, *arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["idle", "reading", "calling", "async"])
def test_a_program_ends_with_an_open_client(server: Server, begun: Path, how: str) -> None:
    text = """
        import asyncio, os, sys, threading, time
        import crosslane
        address, begun, how = sys.argv[1:]
        client = crosslane.Client(address)
        assert client.call("plus", 1, 2) == 3
        if how == "reading":
            scan = client.scan("numbers", 1 << 40)
            next(scan)
        if how == "calling":
            call = threading.Thread(target=client.call, args=("sleeps", begun, 600.0), daemon=True)
            call.start()
            while not os.listdir(begun):
                time.sleep(0.01)
        if how == "async":
            async def main():
                other = await crosslane.AsyncClient(address).__aenter__()
                call = asyncio.create_task(other.call("sleeps", begun, 600.0))
                while not os.listdir(begun):
                    await asyncio.sleep(0.01)
            asyncio.run(main())
        print("over")
    """
    program = run(text, server.address, str(begun), how)
    assert program.communicate(timeout=60) == ("over\n", "")
    assert program.returncode == 0


def test_ctrl_c_ends_a_call(server: Server, begun: Path) -> None:
    text = """
        import sys
        import crosslane
        client = crosslane.Client(sys.argv[1])
        try:
            client.call("sleeps", sys.argv[2], 600.0)
        except KeyboardInterrupt:
            print("interrupted", client.call("plus", 1, 2))
    """
    program = run(text, server.address, str(begun))
    assert has_begun(begun)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=60) == ("interrupted 3\n", "")


def test_a_server_that_comes_back_is_found(
    library: Library, serve: Callable[..., Server], tmp_path: Path, begun: Path
) -> None:
    file, address = library(TEXT), unix(tmp_path)
    server = serve(file, listen=address, NAME="one")
    with crosslane.Client(address, lanes=1) as client, ThreadPoolExecutor(1) as threads:
        call = threads.submit(client.call, "sleeps", str(begun), 600.0)
        assert has_begun(begun)
        server.end(signal.SIGKILL)
        # A call that has only just begun is sent again, and finds no server.
        with pytest.raises((RuntimeError, ConnectionError), match=r"crosslane\+unix"):
            call.result(60)
        with pytest.raises(ConnectionError, match=r"cannot connect to crosslane\+unix"):
            client.call("plus", 1, 2)
        (tmp_path / "crosslane.sock").unlink(missing_ok=True)
        serve(file, listen=address, NAME="one")
        assert client.call("plus", 1, 2) == 3


def test_a_server_with_other_functions_is_refused(
    library: Library, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(library(TEXT), listen=unix(tmp_path), NAME="one")
    with crosslane.Client(unix(tmp_path)) as client:
        assert client.call("plus", 1, 2) == 3
        server.end()
        serve(library("@udf\ndef plus(x: int) -> int: return x\n"), listen=unix(tmp_path))
        with pytest.raises(ConnectionError, match=r"have changed since .*make a new client"):
            client.call("plus", 1, 2)
    with crosslane.Client(unix(tmp_path)) as client:
        assert client.call("plus", 1) == 1


def test_servers_take_turns_and_stand_in_for_each_other(
    library: Library, serve: Callable[..., Server], begun: Path
) -> None:
    file = library(TEXT)
    servers = {name: serve(file, NAME=name) for name in ("one", "two")}
    with crosslane.Client(", ".join(server.address for server in servers.values()), lanes=2) as client:
        scans = [client.scan("where", 1 << 40) for _ in range(4)]
        assert {next(scan)["name"][0].as_py() for scan in scans} == {"one", "two"}
        for scan in scans:
            scan.close()
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(client.call, "survives", str(begun))
            assert has_begun(begun)
            (first,) = (path.name for path in begun.iterdir())
            servers.pop(first).end(signal.SIGKILL)
            assert call.result(60) == next(iter(servers))


@pytest.mark.parametrize("repeats", [False, True])
def test_a_call_that_had_begun_when_the_server_went_is_repeated_only_with_retries(
    library: Library, serve: Callable[..., Server], tmp_path: Path, repeats: bool
) -> None:
    text = library(TEXT)
    servers = [serve(text, NAME=name) for name in ("one", "two")]
    (calls := tmp_path / "calls").mkdir()
    arguments = (str(calls), *(server.process.pid for server in servers))
    with crosslane.Client(", ".join(server.address for server in servers), lanes=1) as client:
        if repeats:
            assert client.call("ends_server_again", *arguments) == "repeated"
        else:
            with pytest.raises(RuntimeError, match=r"ends_server: .*closed the connection"):
                client.call("ends_server", *arguments)
        assert len(list(calls.iterdir())) == 1 + repeats


def run_async(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 120))  # type: ignore[arg-type]


def test_tasks_call_side_by_side(server: Server) -> None:
    async def main() -> None:
        async with crosslane.AsyncClient(server.address, lanes=2) as client:
            assert client.functions["plus"].kind == "scalar"
            sums = await asyncio.gather(*(client.call("plus", n, y=1) for n in range(500)))
            assert sums == list(range(1, 501))
            assert (await client.call_batch("plus", [1, 2], [3, 4])).to_pylist() == [4, 6]
            assert await client.aggregate("total", [1, 2, 4], by=["a", "b", "a"]) == {"a": 5, "b": 2}
            with pytest.raises(RuntimeError, match="fails: ValueError: three"):
                await client.call("fails", 3)
            assert connections(server) <= 2

    run_async(main)


def test_a_cancelled_task_ends_its_call(server: Server, begun: Path) -> None:
    async def main() -> None:
        async with crosslane.AsyncClient(server.address, lanes=1) as client:
            slow = asyncio.create_task(client.call("sleeps", str(begun), 600.0))
            assert await asyncio.to_thread(has_begun, begun)
            waits = asyncio.create_task(client.call("sleeps", str(begun), 600.0))
            await asyncio.sleep(0)
            waits.cancel()
            slow.cancel()
            for task in (slow, waits):
                with pytest.raises(asyncio.CancelledError):
                    await task
            # Its worker has ended, and its lane is free.
            (pid,) = (int(path.name) for path in begun.iterdir())
            assert await client.call("plus", 1, 2) == 3
            assert await asyncio.to_thread(eventually, lambda: not psutil.pid_exists(pid), 30)

    run_async(main)


def test_async_streams(server: Server) -> None:
    async def main() -> None:
        async with crosslane.AsyncClient(server.address, lanes=1) as client:
            rows = [
                (word, await client.call("initials", word))
                async for batch in client.scan("words", "ab cd")
                for word in batch["word"].to_pylist()
            ]
            assert rows == [("ab", "a"), ("cd", "c")]
            halves = client.map(pa.table({"n": [2, 4]}), "halves")
            assert [batch["half"].to_pylist() async for batch in halves] == [[1, 2]]
            with pytest.raises(StopAsyncIteration):
                await anext(halves)
            async with client.scan("numbers", 1 << 40) as endless:
                assert (await anext(endless))["i"][0].as_py() == 5
            with pytest.raises(ValueError, match="the stream was closed"):
                await anext(endless)

    run_async(main)


def test_an_async_client_is_closed_with_calls_in_flight(server: Server, begun: Path) -> None:
    async def main() -> None:
        client = crosslane.AsyncClient(server.address, lanes=1)
        with pytest.raises(RuntimeError, match="not connected yet"):
            await client.call("plus", 1, 2)
        async with client:
            calls = [asyncio.create_task(client.call("sleeps", str(begun), 600.0)) for _ in range(3)]
            assert await asyncio.to_thread(has_begun, begun)
        for call in calls:
            with pytest.raises(ValueError, match=r"the client (is|was) closed"):
                await call
        with pytest.raises(ValueError, match="the client is closed"):
            await client.call("plus", 1, 2)
        await client.aclose()
        with pytest.raises(ConnectionError):
            async with crosslane.AsyncClient("crosslane://127.0.0.1:1"):
                pass

    run_async(main)


def test_no_thread_is_left(server: Server) -> None:
    before = threading.active_count()
    with crosslane.Client(server.address) as client:
        client.call("plus", 1, 2)

    async def main() -> None:
        async with crosslane.AsyncClient(server.address) as client:
            await client.call("plus", 1, 2)

    run_async(main)
    assert eventually(lambda: threading.active_count() <= before)

    def senders() -> list[str]:
        found = []
        for path in Path("/proc/self/task").iterdir():
            # Any thread may end meanwhile.
            with suppress(OSError):
                found.append((path / "comm").read_text())
        return [name for name in found if name.startswith("crosslane-send")]

    assert eventually(lambda: not senders())
