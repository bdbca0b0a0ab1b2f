"""crosslane.map: streams through functions in worker processes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import crosslane
import crosslane._map
from crosslane._streams import Chooser, Encoder

from ..conftest import eventually

pytestmark = pytest.mark.any_duckdb


def numbers(count: int, rows: int = 1000) -> Iterator[pa.RecordBatch]:
    """So many batches of consecutive numbers."""
    for start in range(0, count * rows, rows):
        yield pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def column(stream: object, name: str = "n") -> list[object]:
    return pa.table(stream)[name].to_pylist()


def children() -> set[int]:
    """Of all threads."""
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {int(pid) for text in lists for pid in text.split()}


class Unprepared:
    def __init__(self) -> None:
        raise ValueError("no model")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def test_a_set_up_that_fails_ends_the_stream() -> None:
    mapped = crosslane.map(numbers(3), Unprepared, lanes=1, on_error="null", retries=3)
    with pytest.raises(RuntimeError, match="batch 1: ValueError: no model\n  in the set-up of unprepared"):
        list(mapped)


def test_every_kind_of_reader() -> None:
    table = pa.table({"n": list(range(10)), "s": [None, *"abcdefghi"]})
    con = duckdb.connect()
    con.register("t", table)
    readers = [
        con.sql("FROM t"),
        table,
        table.to_reader(),
        table.to_batches()[0],
        table.to_batches(),
        (batch for batch in table.to_batches(max_chunksize=3)),
        [{"n": list(range(10)), "s": [None, *"abcdefghi"]}],
        pl.from_arrow(table),
        table.to_pandas(),
        [table.slice(0, 4), pl.from_arrow(table.slice(4))],
    ]
    for reader in readers:
        assert pa.table(crosslane.map(reader, same, lanes=1)).to_pydict() == table.to_pydict(), reader


def test_what_is_no_reader_or_function() -> None:
    with pytest.raises(TypeError, match="not int"):
        crosslane.map(7, same)
    with pytest.raises(TypeError, match=r"a batch is .* not str"):
        list(crosslane.map(["abc"], same))
    with pytest.raises(crosslane.DeclarationError, match="is none"):
        crosslane.map(numbers(1), 7)
    with pytest.raises(FileNotFoundError, match="there is no file same"):
        crosslane.map(numbers(1), "same")
    for option in (
        {"depth": 0},
        {"lanes": True},
        {"lanes": 1.5},
        {"timeout": -1},
        {"retries": -1},
        {"schema": {"a": pa.duration("s")}},
    ):
        with pytest.raises(crosslane.DeclarationError, match=next(iter(option))):
            crosslane.map(numbers(1), same, **option)
    with pytest.raises(TypeError, match="no option vectorized"):
        crosslane.map(numbers(1), same, vectorized=True)
    with pytest.raises(crosslane.DeclarationError, match="lock"):
        lock = threading.Lock()
        crosslane.map(numbers(1), lambda batch: (lock, batch))


def meeting(folder: Path, count: int) -> Callable[[object], None]:
    """A function that says who comes, and waits until so many have come: for a minute at most."""

    def come(who: object) -> None:
        (folder / str(who)).touch()
        end = time.monotonic() + 60
        while len(list(folder.iterdir())) < count and time.monotonic() < end:
            time.sleep(0.01)

    return come


def test_ordered_or_not(tmp_path: Path) -> None:
    def slow_first(ordered: bool) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        folder = tmp_path / str(ordered)
        folder.mkdir()
        # The others wait for the results of the first, or go on without it.
        come = meeting(folder, 3 if ordered else 20)

        def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
            first = batch["n"][0].as_py()
            if first == 0:
                come(first)
            else:
                (folder / str(first)).touch()
            return batch

        return slow

    assert column(crosslane.map(numbers(40), slow_first(True), lanes=3)) == list(range(40_000))
    got = column(crosslane.map(numbers(40), slow_first(False), lanes=3, ordered=False))
    assert sorted(got) == list(range(40_000)) != got


def test_more_and_fewer_rows() -> None:
    def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 1))

    def repeated(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            yield batch

    assert column(crosslane.map(numbers(10), odd)) == list(range(1, 10_000, 2))
    assert column(crosslane.map(numbers(10, 10), repeated)) == [
        n for start in range(0, 100, 10) for _ in range(100) for n in range(start, start + 10)
    ]


def test_large_answers_are_cut() -> None:
    def wide(batch: pa.RecordBatch) -> dict[str, object]:
        return {"s": ["x" * 100_000] * 200}

    batches = list(crosslane.map(numbers(2), wide, lanes=1))
    assert sum(batch.num_rows for batch in batches) == 400
    assert max(batch.nbytes for batch in batches) <= 4 << 20
    one = list(crosslane.map(numbers(1), lambda batch: {"s": ["x" * 20_000_000]}, lanes=1))
    assert [len(s) for s in one[0]["s"].to_pylist()] == [20_000_000]


def test_large_batches_are_cut_for_all_lanes(tmp_path: Path) -> None:
    # A lane that is not there yet takes no part: the first waits for the second.
    come = meeting(tmp_path, 2)

    def told(batch: pa.RecordBatch) -> dict[str, list[int]]:
        come(os.getpid())
        return {"rows": [batch.num_rows], "pid": [os.getpid()]}

    table = pa.table(crosslane.map(pa.table({"n": range(1_000_000)}), told, lanes=2))
    assert (pc.sum(table["rows"]).as_py(), pc.max(table["rows"]).as_py()) == (1_000_000, 65_536)
    assert len(set(table["pid"].to_pylist())) == 2


def test_empty_input_and_empty_results() -> None:
    for empty in (
        [],
        pa.table({"n": pa.array([], pa.int64())}),
        iter([pa.record_batch({"n": pa.array([], pa.int64())})]),
    ):
        stream = crosslane.map(empty, same, lanes=1)
        assert list(stream) == []
        with pytest.raises(ValueError, match="give map a schema"):
            _ = stream.schema
    declared = crosslane.map([], same, lanes=1, schema={"n": pa.int64()})
    assert pa.table(declared).schema == pa.schema({"n": pa.int64()})
    nothing = crosslane.map(numbers(5), lambda batch: batch.slice(0, 0), lanes=1)
    assert pa.table(nothing).schema == pa.schema({"n": pa.int64()})
    assert list(crosslane.map(numbers(5), lambda batch: None, lanes=1)) == []
    assert list(crosslane.map(numbers(5), lambda batch: iter(()), lanes=1)) == []


def test_types_go_through() -> None:
    import datetime
    import decimal

    columns = {
        "flag": pa.array([True, None]),
        "tiny": pa.array([-1, None], pa.int8()),
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "real": pa.array([0.5, None], pa.float32()),
        "text": pa.array(["ä", None]),
        "bytes": pa.array([b"\0", None]),
        "day": pa.array([datetime.date(2026, 1, 2), None]),
        "moment": pa.array([datetime.datetime(2026, 1, 2, 3), None], pa.timestamp("ns")),
        "zoned": pa.array([datetime.datetime(2026, 1, 2, 3), None], pa.timestamp("us", "UTC")),
        "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(9, 2)),
        "huge": pa.array([decimal.Decimal(2**100), None], pa.decimal256(39, 0)),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "pair": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
        "struct": pa.array([{"a b": [{"c": "x"}]}, None]),
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
    table = pa.table(columns)
    got = pa.table(crosslane.map(table, same, lanes=1))
    assert got.to_pydict() == table.to_pydict()
    assert got.schema.equals(table.schema), (got.schema, table.schema)
    # Rows behind an offset, with bitmaps that begin within a byte.
    long = pa.concat_tables([table] * 50)
    assert (
        pa.table(crosslane.map([long.combine_chunks().slice(13, 41)], same, lanes=1)).to_pydict()
        == long.slice(13, 41).to_pydict()
    )


def test_types_that_sql_has_in_another_form() -> None:
    table = pa.table(
        {
            "category": pa.array(["a", "b", "a"]).dictionary_encode(),
            "large": pa.array(["a", None, "b"], pa.large_string()),
            "view": pa.array(["a", None, "b"], pa.string_view()),
            "lists": pa.array([["a"], None, []], pa.large_list(pa.large_string())),
            "half": pa.array([np.float16(0.5), None, None], pa.float16()),
            "none": pa.nulls(3),
            "zoned": pa.array([0, None, 1], pa.timestamp("s", "Europe/Berlin")),
        }
    )
    got = pa.table(crosslane.map(table, same, lanes=1))
    assert got.to_pydict() == {**table.to_pydict(), "zoned": got["zoned"].to_pylist()}
    assert got["zoned"].cast(pa.int64()).to_pylist() == [0, None, 1_000_000]
    assert got.schema.types == [
        pa.string(), pa.string(), pa.string(), pa.list_(pa.string()), pa.float32(), pa.int32(), pa.timestamp("us", "UTC")
    ]  # fmt: skip


def test_types_that_sql_has_not() -> None:
    for array in (
        pa.array([1], pa.duration("s")),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    ):
        with pytest.raises(
            TypeError, match=f"column x: SQL has no type for Arrow's {re.escape(str(array.type))}"
        ):
            list(crosslane.map([pa.record_batch({"x": array})], same, lanes=1))
    with pytest.raises(
        RuntimeError, match="batch 1: TypeError: column x: SQL has no type for Arrow's duration"
    ):
        list(crosslane.map(numbers(1), lambda batch: {"x": pa.array([1], pa.duration("s"))}, lanes=1))
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"])
    with pytest.raises(ValueError, match="of different names"):
        list(crosslane.map([twice], same, lanes=1))
    with pytest.raises(TypeError, match="at least one column"):
        list(
            crosslane.map(
                [pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))], same, lanes=1
            )
        )


def test_a_function_gets_what_its_annotation_says() -> None:
    def arrow(batch: pa.Table) -> pa.Table:
        assert isinstance(batch, pa.Table)
        return pa.concat_tables([batch, batch])

    def pandas(batch: pd.DataFrame) -> pd.DataFrame:
        return batch[batch.n % 2 == 0]

    def polars(batch: pl.DataFrame) -> pl.DataFrame:
        return batch.select(pl.col("n") * 2)

    def plain(batch):  # type: ignore[no-untyped-def]
        return {"n": np.array([batch.num_rows])}

    assert len(column(crosslane.map(numbers(2), arrow, lanes=1))) == 4000
    assert column(crosslane.map(numbers(2), pandas, lanes=1)) == list(range(0, 2000, 2))
    assert column(crosslane.map(numbers(2), polars, lanes=1)) == list(range(0, 4000, 2))
    assert column(crosslane.map(numbers(2), plain, lanes=1)) == [1000, 1000]


def test_results_that_are_no_batches() -> None:
    for function, what in (
        (lambda batch: 7, "gave int"),
        (lambda batch: "ab", "a batch is .* not str"),
        (lambda batch: iter([7]), "a batch is .* not int"),
    ):
        with pytest.raises(RuntimeError, match=f"batch 1: TypeError: .*{what}"):
            list(crosslane.map(numbers(1), function, lanes=1))


def test_a_schema_chooses_and_casts() -> None:
    schema = pa.schema({"b": pa.string(), "n": pa.int16()})

    def more(batch: pa.RecordBatch) -> dict[str, object]:
        return {"n": batch["n"], "a": batch["n"], "b": pc.cast(batch["n"], pa.large_string())}

    stream = crosslane.map(numbers(2, 3), more, schema=schema, lanes=1)
    assert stream.schema == schema
    assert pa.table(stream).to_pydict() == {"b": list("012345"), "n": list(range(6))}
    with pytest.raises(RuntimeError, match="batch 1: ValueError: a batch without the column b; it has n"):
        list(crosslane.map(numbers(1), same, schema=schema, lanes=1))
    with pytest.raises(RuntimeError, match=r"batch 33: pyarrow.lib.ArrowInvalid: .*not in range"):
        list(crosslane.map(numbers(40), more, schema=schema, lanes=1))


def test_batches_of_other_columns_are_an_error() -> None:
    def changing(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if batch["n"][0].as_py() < 3000 else batch.rename_columns(["m"])

    stream = crosslane.map(numbers(5), changing)
    assert [next(stream).num_rows for _ in range(3)] == [1000] * 3
    with pytest.raises(
        RuntimeError,
        match=r"batch 4: .*gave \(STRUCT\(m BIGINT\)\), where batches have \(STRUCT\(n BIGINT\)\)",
    ):
        next(stream)


REPEATED = pa.DictionaryArray.from_arrays(pa.array([0, None] * 20_000, pa.int8()), pa.array(["x" * 10_000]))
SKEWED = pa.DictionaryArray.from_arrays(
    pa.array([*[0] * 39_000, *[1] * 1000], pa.int32()), pa.array(["x", "y" * 200_000], pa.large_string())
)


@pytest.mark.parametrize(
    ("column", "sql"),
    [
        (REPEATED, "VARCHAR"),
        (SKEWED, "VARCHAR"),
        (pa.ListArray.from_arrays(pa.array(range(0, 40_001, 10), pa.int32()), REPEATED), "VARCHAR[]"),
        (pa.StructArray.from_arrays([REPEATED], ["a"]), "STRUCT(a VARCHAR)"),
        (
            pa.MapArray.from_arrays(
                pa.array(range(0, 40_001, 10), pa.int32()), pa.array(range(40_000)), REPEATED
            )[5:],
            "MAP(BIGINT, VARCHAR)",
        ),
    ],
    ids=["text", "skewed", "list", "struct", "map"],
)
def test_what_a_cast_makes_longer_is_cut(column: pa.Array, sql: str) -> None:
    """Dictionaries whose values are long: in the input, for functions of files, and in results."""
    batch, most = pa.record_batch({"c": column}), 1 << 20
    for encoder in (Encoder(), Chooser(f"STRUCT(c {sql})")):
        rows = 0
        for _, piece in encoder.encode(batch, most):
            rows += len(piece)
            assert piece.nbytes <= most
        assert rows == len(column)
    narrow = pa.record_batch({"n": pa.array([1] * 60_000, pa.int8())})
    pieces = [piece for _, piece in Chooser("STRUCT(n HUGEINT)").encode(narrow, most)]
    assert sum(map(len, pieces)) == 60_000
    assert max(piece.nbytes for piece in pieces) <= most


def test_long_values_of_dictionaries_go_both_ways() -> None:
    def sizes(batch: pa.RecordBatch) -> dict[str, object]:
        assert batch.nbytes <= 1 << 20
        return {"rows": [batch.num_rows]}

    table = pa.table({"c": SKEWED})
    assert sum(map(int, column(crosslane.map(table, sizes), "rows"))) == 40_000  # type: ignore[call-overload]

    def repeated(batch: pa.RecordBatch) -> pa.RecordBatch:
        codes = pa.array([0] * 5000, pa.int8())
        return pa.record_batch({"c": pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 20_000]))})

    batches = list(crosslane.map({"n": [1]}, repeated, lanes=1))
    assert sum(batch.num_rows for batch in batches) == 5000
    assert max(batch.nbytes for batch in batches) <= 1 << 20


class Watched:
    """An input that says whether it was closed."""

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
    # What reads on does not take it for the end of the results.
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
        RuntimeError, match=r"(?s)fails, batch 8: LookupError: no such flight.*test_map.py.*in fails"
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
        # A GB has gone through.
        assert resident() - before < 50 << 20


def test_what_is_released_early_ends() -> None:
    kept: list[crosslane._map.MappedStream] = []

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
        # DuckDB 1.5 releases a stream on a thread of its own, a moment later.
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
    # From DuckDB into DuckDB: the reader's query needs a connection of its own.
    source = con.cursor().sql("SELECT range AS n FROM range(100_000)")
    doubled = crosslane.map(source, lambda batch: {"n": pc.multiply(batch["n"], 2)})  # noqa: F841
    assert con.sql("SELECT sum(n) FROM doubled").fetchall() == [(sum(range(100_000)) * 2,)]
    failing = crosslane.map(numbers(20), lambda batch: {"n": [1]} if batch["n"][0].as_py() < 5000 else 1 / 0)  # noqa: F841
    with pytest.raises(duckdb.Error, match="batch 6: ZeroDivisionError"):
        con.sql("SELECT sum(n) FROM failing").fetchall()


def test_duckdb_refuses_a_library_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    started = crosslane._map._guest.Map
    monkeypatch.setattr(crosslane._map._guest, "Map", lambda *words: kept.append(words[2]) or started(*words))
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
