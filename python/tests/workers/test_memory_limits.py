"""Memory that `memory_limit` counts although no allocation fails: files in memory, shared memory, and other
processes."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Load, error, eventually, name, processes

pytestmark = pytest.mark.any_duckdb

EXCEEDED = "more than 40 MB were used, the function's memory_limit; its worker process was ended"
#: A process that holds 10 MB. Its parent has ended.
CHILD = "(x=$(head -c 10000000 /dev/zero | tr '\\0' x); sleep 1000; :) &"
#: Each file has a function that takes 60 MB in the given way, and then waits until its process is ended.
FILES = {
    "py": """
        import mmap, os, signal, subprocess
        from crosslane import udf
        PART, PATH, CHILD = bytes(10**6), {path!r}, {child!r}
        @udf(memory_limit="40 MB")
        def use(x: int) -> int:
            {way}
            signal.pause()
    """,
    "rb": """
        PART, PATH, CHILD = "x" * 10**6, {path!r}, {child!r}
        udf("use(x BIGINT) -> BIGINT", memory_limit: "40 MB") {{ |x| {way}; sleep }}
    """,
    "lua": """
        local part, path, child = ("x"):rep(10^6), {path!r}, {child!r}
        udf("use(x BIGINT) -> BIGINT", {{ memory_limit = "40 MB" }}, function(x) {way}; os.execute("sleep 1000") end)
    """,
}
WAYS = {
    ("py", "tmpfs"): "file = open(PATH, 'wb', 0); [file.write(PART) for _ in range(60)]",
    ("py", "memfd"): "memfd = os.memfd_create('mine'); [os.write(memfd, PART) for _ in range(60)]",
    ("py", "mapping"): "memory = mmap.mmap(-1, 60 * len(PART)); [memory.write(PART) for _ in range(60)]",
    ("py", "processes"): "[subprocess.run(['sh', '-c', CHILD]) for _ in range(6)]",
    ("rb", "tmpfs"): "file = File.open(PATH, 'w'); file.sync = true; 60.times { file.write(PART) }",
    ("rb", "processes"): "6.times { system('sh', '-c', CHILD) }",
    ("lua", "tmpfs"): "local file = io.open(path, 'w'); for _ = 1, 60 do file:write(part) end; file:flush()",
    ("lua", "processes"): "for _ = 1, 6 do os.execute(child) end",
}


@pytest.fixture
def path() -> Iterator[Path]:
    """The path of a file on tmpfs."""
    path = Path(f"/dev/shm/crosslane-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(("language", "way"), WAYS)
def test_what_a_worker_holds_outside_of_its_own_memory(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, path: Path, language: str, way: str
) -> None:
    """The query fails, and the processes that the worker has started end with it."""
    text = FILES[language].format(way=WAYS[language, way], path=str(path), child=CHILD)
    file = tmp_path / f"functions.{language}"
    file.write_text(textwrap.dedent(text).lstrip("\n"))
    crosslane.load(con, file)
    assert EXCEEDED in error(con, "SELECT use(1)")
    assert eventually(lambda: not [process for process in processes() if name(process) in ("sh", "sleep")])


def test_a_worker_over_its_memory_limit_counts_as_one_that_died(load: Load) -> None:
    con = load("""
        import os

        @udf(memory_limit="40 MB", on_error="null")
        def use(x: int) -> int:
            if x == 3:
                memfd = os.memfd_create("mine")
                [os.write(memfd, bytes(10**6)) for _ in range(2000)]
            return x
    """)
    assert con.execute("SELECT use(i) FROM range(5) r(i)").fetchall() == [(0,), (1,), (2,), (None,), (4,)]


def test_an_aggregate_and_a_table(load: Load) -> None:
    """The limit holds for all states of a worker together, and for a whole scan. No single call takes too
    much."""
    con = load("""
        import os
        from crosslane import udaf, udtf

        class Kept:
            def __init__(self): self.memfd = os.memfd_create("mine")
            def grow(self):
                os.write(self.memfd, bytes(10**6))
                assert os.fstat(self.memfd).st_size < 2 * 10**9

        @udaf("uses(x BIGINT) -> BIGINT", memory_limit="40 MB")
        class Uses:
            def __init__(self): self.kept = Kept()
            def update(self, x): self.kept.grow()
            def merge(self, other): pass
            def finish(self): return 0

        @udtf("used() -> TABLE(x BIGINT)", memory_limit="40 MB")
        def used():
            kept = Kept()
            while True:
                kept.grow()
                yield (0,)
    """)
    con.execute("SET threads = 1")
    assert EXCEEDED in error(con, "SELECT uses(i) FROM range(10_000) r(i)")
    assert EXCEEDED in error(con, "SELECT count(*) FROM used()")
