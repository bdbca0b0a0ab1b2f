"""How streams of crosslane.map end: errors, retries, limits, early release, and Ctrl-C."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import crosslane
import crosslane._client.map
import crosslane._client.stream

from ..conftest import eventually
from .test_map import children, column, meeting, numbers, same

pytestmark = pytest.mark.any_duckdb


class Watched:
    """An input that records whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def numbers(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from numbers(20)
            raise OSError("the disk")
        finally:
            self.closed = True


def fails_at_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch["n"][0].as_py() == 7000:
        raise LookupError("seven")
    return batch


@pytest.mark.parametrize(
    ("function", "error", "what"),
    [(fails_at_seven, RuntimeError, "LookupError: seven"), (same, OSError, "the disk")],
)
def test_an_error_stays_and_closes_the_input(function: object, error: type[Exception], what: str) -> None:
    watched = Watched()
    stream = crosslane.map(watched.numbers(), function, lanes=1)  # type: ignore[arg-type]
    with pytest.raises(error, match=what):
        list(stream)
    assert watched.closed
    # A later read raises the same error, and does not report the end of the results.
    for _ in range(2):
        with pytest.raises(error, match=what):
            next(stream)
    with pytest.raises((pa.ArrowException, error), match=what):
        pa.table(stream)
    stream.close()


def test_the_input_is_closed_at_the_end() -> None:
    closed: list[bool] = []

    class Reader:
        def __iter__(self) -> Iterator[pa.RecordBatch]:
            try:
                yield from numbers(2)
            finally:
                closed.append(True)

    stream = crosslane.map(Reader(), same, lanes=1)
    assert [batch.num_rows for batch in stream] == [1000, 1000]
    assert closed == [True]
    assert list(stream) == []


def test_errors_name_the_batch_and_end_the_stream() -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["n"][0].as_py() == 7000:
            raise LookupError("no such flight")
        return batch

    stream = crosslane.map(numbers(20), fails)
    assert [next(stream).num_rows for _ in range(7)] == [1000] * 7
    with pytest.raises(
        RuntimeError, match=r"(?s)fails, batch 8: LookupError: no such flight.*test_map_endings.py.*in fails"
    ):
        next(stream)
    lenient = crosslane.map(numbers(20), fails, on_error="null")
    assert column(lenient) == [n for n in range(20_000) if n // 1000 != 7]


def test_retries(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def flaky(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.slice(0, 10)
        if batch["n"][0].as_py() == 3000 and not seen.exists():
            seen.touch()
            raise ConnectionError("again")
        yield batch.slice(10)

    def dies(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.slice(0, 10)
        if batch["n"][0].as_py() == 3000 and not seen.exists():
            seen.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch.slice(10)

    for function in (flaky, dies):
        for ordered in (True, False):
            got = column(crosslane.map(numbers(10), function, retries=1, ordered=ordered))
            assert (got if ordered else sorted(got)) == list(range(10_000))
            seen.unlink()
        with pytest.raises(RuntimeError, match=r"batch 4: (ConnectionError: again|.*SIGKILL)"):
            list(crosslane.map(numbers(10), function))
        seen.unlink()


def test_timeout() -> None:
    def sleeps(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(60 if batch["n"][0].as_py() == 2000 else 0)
        return batch

    with pytest.raises(TimeoutError, match=r"sleeps, batch 3: timed out after 0.3 s"):
        list(crosslane.map(numbers(5), sleeps, timeout=0.3))


def test_memory_limit() -> None:
    with pytest.raises(RuntimeError, match=r"batch 1: .*Memory"):
        list(crosslane.map(numbers(1), lambda batch: {"n": np.ones(1 << 28)}, memory_limit="200 MB", lanes=1))


def test_a_class_is_set_up_once_per_worker() -> None:
    class Model:
        def __init__(self) -> None:
            self.seen = 0

        def __call__(self, batch: pa.RecordBatch) -> dict[str, object]:
            self.seen += 1
            return {"seen": [self.seen]}

    assert column(crosslane.map(numbers(5), Model, lanes=1), "seen") == [1, 2, 3, 4, 5]


def test_a_reader_that_raises_ends_the_stream() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from numbers(3)
        raise OSError("the disk is gone")

    before = children()
    with pytest.raises(OSError, match="the disk is gone"):
        list(crosslane.map(broken(), same))
    assert eventually(lambda: children() == before)


def test_a_slow_consumer_holds_back_the_reader() -> None:
    read = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in numbers(10_000):
            read += 1
            yield batch

    with crosslane.map(counted(), same, lanes=2, depth=3) as stream:
        for taken in range(1, 50):
            next(stream)
            assert read <= taken + 2 * 3
            time.sleep(0.005)


def test_memory_stays_constant() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    batch = pa.record_batch({"x": np.arange(65_536), "y": np.arange(65_536.0)})
    with crosslane.map(itertools.repeat(batch), same, lanes=2) as stream:
        for _ in range(100):
            next(stream)
        before = resident()
        for _ in range(1000):
            next(stream)
        # A GB has gone through the stream.
        assert resident() - before < 50 << 20


def test_what_is_released_early_ends() -> None:
    kept: list[crosslane._client.stream.MappedStream] = []

    def ends(start: object) -> None:
        before = children()
        closed: list[bool] = []

        def endless() -> Iterator[pa.RecordBatch]:
            try:
                yield from itertools.cycle(numbers(10))
            finally:
                closed.append(True)

        start(endless())  # type: ignore[operator]
        gc.collect()
        # DuckDB 1.5 releases a stream a moment later, on another thread.
        assert eventually(lambda: (children(), closed) == (before, [True]))

    def closes(reader: Iterator[pa.RecordBatch]) -> None:
        stream = crosslane.map(reader, same)
        next(stream)
        stream.close()
        stream.close()
        with pytest.raises(ValueError, match="was closed"):
            next(stream)

    def closes_what_is_kept(reader: Iterator[pa.RecordBatch]) -> None:
        kept.append(crosslane.map(reader, same))
        next(kept[-1])
        kept[-1].close()

    def leaves(reader: Iterator[pa.RecordBatch]) -> None:
        with crosslane.map(reader, same) as stream:
            next(stream)

    def drops(reader: Iterator[pa.RecordBatch]) -> None:
        next(crosslane.map(reader, same))

    def drops_its_reader(reader: Iterator[pa.RecordBatch]) -> None:
        outer = pa.RecordBatchReader.from_stream(crosslane.map(reader, same))
        outer.read_next_batch()

    def limits(reader: Iterator[pa.RecordBatch]) -> None:
        stream = crosslane.map(reader, same)  # noqa: F841
        with duckdb.connect() as con:
            assert con.sql("SELECT n FROM stream LIMIT 3").fetchall() == [(0,), (1,), (2,)]

    for start in (closes, closes_what_is_kept, leaves, drops, drops_its_reader, limits):
        ends(start)


def test_another_thread_closes_it() -> None:
    def sleeps(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(60)
        return batch

    stream = crosslane.map(numbers(5), sleeps)
    threading.Timer(0.5, stream.close).start()
    with pytest.raises(ValueError, match="was closed"):
        next(stream)


def test_one_thread_reads_at_a_time(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def sleeps(batch: pa.RecordBatch) -> pa.RecordBatch:
        begun.touch()
        time.sleep(2)
        return batch

    stream = crosslane.map(numbers(2), sleeps, lanes=1)
    reader = threading.Thread(target=list, args=(stream,))
    reader.start()
    assert eventually(begun.exists)
    with pytest.raises(RuntimeError, match="another thread"):
        next(stream)
    reader.join()


def test_two_streams_and_one_through_two_functions() -> None:
    first = crosslane.map(numbers(30), same, lanes=2)
    second = crosslane.map(numbers(30), lambda batch: {"n": pc.multiply(batch["n"], 2)}, lanes=2)
    pairs = list(zip(first, second))
    assert len(pairs) == 30
    assert all(pc.multiply(a["n"], 2).equals(b["n"]) for a, b in pairs)
    inner = crosslane.map(numbers(30), lambda batch: {"n": pc.add(batch["n"], 1)}, lanes=2)
    assert column(crosslane.map(inner, same, lanes=2)) == list(range(1, 30_001))


def test_many_lanes(tmp_path: Path) -> None:
    come = meeting(tmp_path, 2)

    def told(batch: pa.RecordBatch) -> dict[str, object]:
        come(os.getpid())
        return {"n": batch["n"], "pid": [os.getpid()] * 1000}

    table = pa.table(crosslane.map(numbers(200), told, lanes=8))
    assert table["n"].to_pylist() == list(range(200_000))
    assert 2 <= len(set(table["pid"].to_pylist())) <= 8


def test_it_goes_on_into_other_libraries() -> None:
    con = duckdb.connect()
    stream = crosslane.map(numbers(20), same)  # noqa: F841
    assert con.sql("SELECT count(*), sum(n) FROM stream").fetchall() == [(20_000, sum(range(20_000)))]
    frame = pl.DataFrame(crosslane.map(numbers(20), same))
    assert frame["n"].sum() == sum(range(20_000))
    # A stream can go from DuckDB to DuckDB. The query of the reader then needs its own connection.
    source = con.cursor().sql("SELECT range AS n FROM range(100_000)")
    doubled = crosslane.map(source, lambda batch: {"n": pc.multiply(batch["n"], 2)})  # noqa: F841
    assert con.sql("SELECT sum(n) FROM doubled").fetchall() == [(sum(range(100_000)) * 2,)]
    failing = crosslane.map(numbers(20), lambda batch: {"n": [1]} if batch["n"][0].as_py() < 5000 else 1 / 0)  # noqa: F841
    with pytest.raises(duckdb.Error, match="batch 6: ZeroDivisionError"):
        con.sql("SELECT sum(n) FROM failing").fetchall()


def test_duckdb_refuses_a_library_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    started = crosslane._client.map._guest.Map
    monkeypatch.setattr(
        crosslane._client.map._guest, "Map", lambda *words: kept.append(words[2]) or started(*words)
    )
    assert column(crosslane.map(numbers(1), same, lanes=1)) == list(range(1000))
    con = crosslane.connect()
    with pytest.raises(duckdb.Error, match=r"same: SQL needs to know the columns of both tables"):
        con.execute("FROM crosslane_load_pickle(['same(x BIGINT) -> BIGINT'], ?)", kept).fetchall()


def test_a_fork_of_the_program() -> None:
    stream = crosslane.map(numbers(50), same)
    next(stream)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                next(stream)
            except RuntimeError as error:
                code = 0 if "forked" in str(error) else 2
            stream.close()
            del stream
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(batch.num_rows for batch in stream) == 49_000


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        import pyarrow as pa
        import crosslane

        def sleeps(batch):
            Path({str(begun)!r}).touch()
            time.sleep(3600)

        stream = crosslane.map(pa.table({{"n": [1]}}), sleeps)
        print("ready", flush=True)
        try:
            next(stream)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    command = [sys.executable, "-c", program]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    assert eventually(begun.exists, 30)
    os.kill(child.pid, signal.SIGINT)
    # The function alone would take an hour.
    assert child.communicate(timeout=60)[0] == "interrupted\n"
    assert child.returncode == 0
