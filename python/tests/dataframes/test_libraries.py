"""Functions in expressions of polars and Ibis, and as methods of columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import duckdb
import ibis
import pandas as pd
import polars as pl
import pytest

import crosslane

pytestmark = pytest.mark.any_duckdb

FRAME = pl.DataFrame({"title": ["Hello World", None, "A b"], "n": [1, 2, 3], "half": [1, 1, 2]})


@pytest.fixture
def clean() -> Iterator[None]:
    """Removes the additions of a test from the libraries."""
    yield
    for place in (pl.Expr, pl.Series, pd.Series):
        if hasattr(place, "crosslane"):
            del place.crosslane


def test_expressions_of_polars(fns: crosslane.Functions) -> None:
    lazy = FRAME.lazy().select(
        fns.slug(pl.col("title")),
        column=fns.plus(pl.col("n"), pl.col("half")),
        value=fns.plus(10, pl.col("n")),
        literal=fns.plus(pl.col("n"), pl.lit(20)),
        overload=fns.twice(pl.col("title")),
    )
    expected = pl.DataFrame(
        {
            "title": ["hello-world", None, "a-b"],
            "column": [2, 3, 5],
            "value": [11, 12, 13],
            "literal": [21, 22, 23],
            "overload": ["Hello WorldHello World", None, "A bA b"],
        }
    )
    assert lazy.collect_schema() == expected.schema
    assert lazy.collect().equals(expected)
    assert lazy.collect(engine="streaming").equals(expected)
    assert FRAME.select(pl.col("title").map_batches(fns.slug))["title"].to_list() == [
        "hello-world",
        None,
        "a-b",
    ]
    assert FRAME.clear().select(fns.plus(pl.col("n"), pl.lit(1))).schema == {"n": pl.Int64}


def test_columns_beside_expressions(fns: crosslane.Functions) -> None:
    more = pl.Series([10, 20, 30])
    for column in (more, [10, 20, 30]):
        with pytest.raises(TypeError, match="plus: y is a column beside expressions"):
            fns.plus(pl.col("n"), column)
    assert FRAME.select(fns.plus(pl.col("n"), pl.lit(more)))["n"].to_list() == [11, 22, 33]


def test_groups_of_polars(fns: crosslane.Functions) -> None:
    grouped = FRAME.group_by("half", maintain_order=True)
    sums = grouped.agg(fns.sum_of(pl.col("n")), each=fns.plus_one(pl.col("n")))
    assert sums.rows() == [(1, 3, [2, 3]), (2, 3, [4])]


def test_an_expression_makes_no_calls_of_its_own(tmp_path: Path) -> None:
    """To find out a type, polars calls the functions of `map_batches` with rows that it has made up."""
    path = tmp_path / "functions.py"
    path.write_text("from crosslane import udf\n@udf\ndef f(x: str) -> int: return {'a': 1}[x]")
    with crosslane.Functions(path) as fns:
        frame = pl.DataFrame({"x": ["a"]})
        assert frame.select(fns.f(pl.col("x"))).rows() == [(1,)]


def test_an_error_in_an_expression(fns: crosslane.Functions) -> None:
    with pytest.raises(duckdb.Error, match="reciprocal: ZeroDivisionError"):
        FRAME.select(fns.reciprocal(pl.col("n") - 1))


@pytest.mark.usefixtures("clean")
def test_methods_of_columns(fns: crosslane.Functions) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            fns.polars()
            fns.pandas()
    slugs = ["hello-world", None, "a-b"]
    assert FRAME.select(pl.col("title").crosslane.slug())["title"].to_list() == slugs
    assert FRAME.select(pl.col("n").crosslane.plus(pl.col("half")))["n"].to_list() == [2, 3, 5]
    assert FRAME["title"].crosslane.slug().to_list() == slugs
    assert FRAME["n"].crosslane.close().to_list() == [1, 2, 3]
    numbers = pd.Series([1, 2], [5, 6], name="n")
    pd.testing.assert_series_equal(numbers.crosslane.plus(3), numbers + 3)
    assert {"slug", "plus"} <= set(dir(numbers.crosslane)) & set(dir(pl.col("n").crosslane))
    with pytest.raises(AttributeError, match="no function slugs; did you mean slug"):
        pl.col("title").crosslane.slugs()
    with pytest.raises(AttributeError, match="reserved namespace 'str'"):
        fns.polars("str")
    with pytest.warns(UserWarning, match="overrid"):
        fns.pandas("sum")
    del pd.Series.sum


def test_ibis(fns: crosslane.Functions) -> None:
    con = ibis.duckdb.from_connection(fns.cursor())
    functions = fns.ibis()
    table = ibis.memtable(FRAME.to_arrow())
    result = con.to_pyarrow(
        table.select(
            slug=functions.slug(table.title),
            deferred=functions.plus(ibis._.n, 10),
            total=functions.total(table.n, table.half, 1),
            cast=functions.halved(table.n),
        )
    )
    assert result.to_pydict() == {
        "slug": ["hello-world", None, "a-b"],
        "deferred": [11, 12, 13],
        "total": [3, 4, 6],
        "cast": [0.5, 1.0, 1.5],
    }
    assert con.to_pyarrow(functions.sum_of(table.n)).as_py() == 6
    assert con.to_pyarrow(functions.close(table.n)).to_pylist() == [1, 2, 3]
    assert "slug" in dir(functions)
    with pytest.raises(AttributeError, match="no function slugs; did you mean slug"):
        functions.slugs(table.title)
    with pytest.raises(TypeError, match="Ibis needs one type of results, and twice has several"):
        functions.twice(table.n)
    with pytest.raises(TypeError, match="numbers is a table function"):
        functions.numbers(3)
    with pytest.raises(TypeError, match="slug was called with 2 arguments"):
        functions.slug(table.title, 3)
    con.disconnect()
