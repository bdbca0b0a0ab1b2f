"""crosslane.map: streams through functions in worker processes."""

from __future__ import annotations

import os
import re
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
from crosslane._arrow.encode import Chooser, Encoder

pytestmark = pytest.mark.any_duckdb


def numbers(count: int, rows: int = 1000) -> Iterator[pa.RecordBatch]:
    """Returns this number of batches, with consecutive numbers."""
    for start in range(0, count * rows, rows):
        yield pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def column(stream: object, name: str = "n") -> list[object]:
    return pa.table(stream)[name].to_pylist()


def children() -> set[int]:
    """The child processes that all threads have started."""
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
    """A function that records its caller, and waits until this number of callers have come. It waits for a
    minute at most."""

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
        # If the stream is ordered, the others wait for the results of the first batch. If not, they go on
        # without it.
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
    # A lane that has not started yet gets no rows. So the first lane waits for the second.
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
    # These rows begin at an offset, so their bitmaps begin within a byte.
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
    """The values of a dictionary are long: in the input, for functions of files, and in results."""
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
