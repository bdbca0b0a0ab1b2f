"""A server and its client for the tests of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

import crosslane

from ..conftest import Library, eventually
from ..servers import Server

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
def ends_server(calls: str) -> str:
    open(f"{calls}/{os.environ['NAME']}", "w").close()
    if len(os.listdir(calls)) == 1:
        # The test ends the server, because a function cannot.
        time.sleep(600)
    return "repeated"

@udf(retries=1)
def ends_server_again(calls: str) -> str:
    return ends_server(calls)

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
    """A folder in which functions create files to show that they have begun."""
    folder = tmp_path / "begun"
    folder.mkdir()
    return folder


def has_begun(folder: Path, count: int = 1) -> bool:
    return eventually(lambda: len(list(folder.iterdir())) >= count, 30)


def connections(server: Server) -> int:
    """The number of connections from this process to a server."""
    port = int(server.address.rpartition(":")[2])
    # A listening socket has no remote address.
    return sum(1 for it in psutil.Process().net_connections("tcp") if it.raddr and it.raddr.port == port)
