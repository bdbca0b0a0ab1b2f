"""Kinds of columns: each gives results of its own kind, without a loss."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import crosslane


def test_pyarrow(fns: crosslane.Functions) -> None:
    result = fns.plus_one(pa.array([1, None, 3]))
    assert isinstance(result, pa.Int64Array)
    assert result.to_pylist() == [2, None, 4]
    result = fns.plus_one(pa.chunked_array([[1], [], [None, 3]], pa.int64()))
    assert isinstance(result, pa.ChunkedArray)
    assert result.to_pylist() == [2, None, 4]


def test_list(fns: crosslane.Functions) -> None:
    assert fns.slug(["Hello World", None]) == ["hello-world", None]
    assert fns.told([date(2024, 2, 29)]) == ["datetime.date(2024, 2, 29)"]


def test_polars(fns: crosslane.Functions) -> None:
    result = fns.slug(pl.Series("title", ["Hello World", None]))
    assert isinstance(result, pl.Series)
    assert (result.name, result.dtype) == ("title", pl.String)
    assert result.to_list() == ["hello-world", None]
    categories = pl.Series(["A b", "A b", None], dtype=pl.Categorical)
    assert fns.slug(categories).to_list() == ["a-b", "a-b", None]
    with pytest.raises(TypeError, match="told: x is a Series without a type in Arrow: its dtype is Object"):
        fns.told(pl.Series([object()], dtype=pl.Object))


def test_pandas(fns: crosslane.Functions) -> None:
    numbers = pd.Series([1, 2, 3], index=[7, 8, 9], name="n")
    result = fns.plus_one(numbers)
    pd.testing.assert_series_equal(result, numbers + 1)
    # A column that used Arrow's memory would refuse this assignment.
    result[7] = 0
    assert fns.slug(pd.Series(["A b", None])).tolist()[0] == "a-b"


@pytest.mark.parametrize("dtype", ["Int64", "int64[pyarrow]"])
def test_dtypes_of_pandas(fns: crosslane.Functions, dtype: str) -> None:
    """A large integer that a float cannot hold stays unchanged."""
    numbers = pd.Series([2**60, None], dtype=dtype)
    pd.testing.assert_series_equal(fns.plus_one(numbers), numbers + 1)


def test_nulls_where_the_dtype_of_pandas_has_none(fns: crosslane.Functions) -> None:
    texts = pd.Series(["a", None])
    assert fns.total(texts.isna().astype("int64"), pd.Series([2**60, None], dtype="Int64")).tolist() == [
        2**60,
        pd.NA,
    ]
    result = fns.twice(pd.Series([3, None], dtype=object))
    assert (str(result.dtype), result.tolist()) == ("Int64", [6, pd.NA])
    assert str(fns.is_even(pd.Series([3, None], dtype=object)).dtype) == "boolean"
    assert fns.halved(pd.Series([3, None])).dtype == np.float64


def test_numpy(fns: crosslane.Functions) -> None:
    result = fns.plus_one(np.arange(3))
    assert type(result) is np.ndarray
    assert (result.dtype, result.tolist()) == (np.int64, [1, 2, 3])
    result[0] = 5
    # NaN is a number in NumPy. A result shows NULL as NaN.
    assert fns.told(np.array([1.5, np.nan])).tolist() == ["1.5", "nan"]
    assert np.isnan(fns.halved(np.ma.array([1.0, 2.0], mask=[True, False]))[0])
    assert fns.plus_one(np.arange(10)[::3]).tolist() == [1, 4, 7, 10]
    assert fns.slug(np.array(["A b"])).tolist() == ["a-b"]


def test_nulls_where_numpy_has_none(fns: crosslane.Functions) -> None:
    numbers = np.ma.array([2**60, 1], mask=[False, True])
    result = fns.plus_one(numbers)
    assert isinstance(result, np.ma.MaskedArray)
    assert (result.dtype, result.tolist()) == (np.int64, [2**60 + 1, None])
    result = fns.is_even(numbers)
    assert (result.dtype, result.tolist()) == (np.bool_, [True, None])


def test_results_that_are_no_numbers(fns: crosslane.Functions) -> None:
    """pyarrow makes floats of integers beside NULLs in nested values, and loses NULLs of an ENUM."""
    pairs = [{"n": 2**60 + 1, "more": [2**60 + 1, None]}, None]
    sizes = ["large", None]
    numbers = [2**60 + 1, None]
    array = np.ma.array([2**60 + 1, 0], mask=[False, True])
    series = pd.Series(numbers, dtype="Int64")
    for argument in (numbers, array, pl.Series(numbers), series, series.astype("int64[pyarrow]")):
        result = fns.pair(argument)
        assert [None if one is pd.NA else one for one in result] == pairs, type(argument)
    for argument in (numbers, array, pl.Series(numbers)):
        assert list(fns.size(argument)) == sizes
    assert fns.size(series).cat.codes.tolist() == [1, -1]


def test_any_arrow_object(fns: crosslane.Functions) -> None:
    class Foreign:
        def __init__(self, values: Any) -> None:
            self.__arrow_c_array__ = values.__arrow_c_array__

    result = fns.plus_one(Foreign(pa.array([1, 2])))
    assert isinstance(result, pa.ChunkedArray)
    assert result.to_pylist() == [2, 3]


@pytest.mark.parametrize(
    "empty",
    [
        pytest.param([], id="list"),
        pytest.param(pa.array([], pa.int64()), id="Array"),
        pytest.param(pa.chunked_array([], pa.int64()), id="ChunkedArray"),
        pytest.param(pl.Series([], dtype=pl.Int64), id="polars"),
        pytest.param(pd.Series([], dtype="int64"), id="pandas"),
        pytest.param(np.array([], np.int64), id="numpy"),
    ],
)
def test_empty_columns(fns: crosslane.Functions, empty: Any) -> None:
    result = fns.plus_one(empty)
    assert type(result) is type(empty) or isinstance(result, pa.Array)
    assert len(result) == 0


def test_columns_of_nulls_only(fns: crosslane.Functions) -> None:
    assert fns.slug([None, None]) == [None, None]
    assert fns.plus_one(pa.nulls(2)).to_pylist() == [None, None]
    assert fns.plus_one(pl.Series([None, None])).to_list() == [None, None]
    assert fns.plus_one(pd.Series([None, None])).isna().all()


@pytest.mark.parametrize("chunks", [1, 3])
def test_many_rows_keep_their_order(fns: crosslane.Functions, chunks: int) -> None:
    numbers = np.arange(500_000)
    column = pa.chunked_array([pa.array(part) for part in np.array_split(numbers, chunks)])
    result = fns.plus(column, pa.array(numbers))
    assert result.type == pa.int64()
    assert np.array_equal(result.to_numpy(), 2 * numbers)


def test_values(fns: crosslane.Functions) -> None:
    assert fns.plus([1, None], 3) == [4, None]
    assert fns.plus(3, np.array([1, 2])).tolist() == [4, 5]
    assert fns.plus(pd.Series([1], name="x"), pl.Series("y", [2])).name == "x"
    assert fns.plus([1, 2], None) == [None, None]
    assert fns.plus([1], np.int32(3)) == [4]
    assert fns.plus([1], np.array(3)) == [4]
    assert fns.told(
        [1],
    ) == ["1"]
    assert fns.length(pa.scalar([1, 2, 3])) == 3
    assert fns.slug("Hello World") == "hello-world"
    assert fns.plus(1, 2) == 3
    assert math.isnan(fns.halved(math.nan))


def test_kinds_of_functions(fns: crosslane.Functions) -> None:
    assert fns.twice([2]) == [4]
    assert fns.twice(["ab"]) == ["abab"]
    assert fns.total([1, 2], 10, [3, None]) == [14, None]
    assert fns.total() == 0
    assert (fns.rounded([1.25]), fns.rounded([1.25], 1)) == ([1.0], [1.2])
    assert fns.sum_of([1, 2, None]) == 3
    assert fns.sum_of([]) == 0
    table = fns.numbers(3, step=2)
    assert isinstance(table, pa.Table)
    assert table.to_pydict() == {"i": [0, 2, 4]}
    assert fns.each(pa.scalar([5, 6])).to_pydict() == {"i": [5, 6]}
