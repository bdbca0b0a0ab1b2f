"""Declarations of functions: annotations, files that are wrong, and settings."""

from __future__ import annotations

import datetime
import enum
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import crosslane
from crosslane import Interval, TimestampNs
from crosslane._declare.signature import annotations

from ..conftest import Library, Load, error, value


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: float
    y: float | None


class Pair(NamedTuple):
    key: str
    value: int


class Named(TypedDict):
    name: str
    points: list[Point]


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    ("hint", "sql"),
    [
        (bool, "BOOLEAN"),
        (int, "BIGINT"),
        (float, "DOUBLE"),
        (str, "VARCHAR"),
        (bytes, "BLOB"),
        (datetime.date, "DATE"),
        (datetime.time, "TIME"),
        (datetime.datetime, "TIMESTAMP"),
        (datetime.timedelta, "INTERVAL"),
        (Interval, "INTERVAL"),
        (TimestampNs, "TIMESTAMP_NS"),
        (uuid.UUID, "UUID"),
        (np.float32, "FLOAT"),
        (np.uint8, "UTINYINT"),
        (Annotated[int, "INTEGER"], "INTEGER"),
        (Annotated[Decimal, "DECIMAL(10,2)"], "DECIMAL(10,2)"),
        (Annotated[dict, "JSON"], "JSON"),
        (Size, "ENUM('s', 'l')"),
        (Level, "ENUM('LOW', 'HIGH')"),
        (Literal["a", "it's"], "ENUM('a', 'it''s')"),
        (list[int], "BIGINT[]"),
        (list[list[str | None]], "VARCHAR[][]"),
        (dict[str, list[float]], "MAP(VARCHAR, DOUBLE[])"),
        (Point, 'STRUCT("x" DOUBLE, "y" DOUBLE)'),
        (Pair, 'STRUCT("key" VARCHAR, "value" BIGINT)'),
        (Named, 'STRUCT("name" VARCHAR, "points" STRUCT("x" DOUBLE, "y" DOUBLE)[])'),
    ],
)
def test_annotations(hint: Any, sql: str) -> None:
    assert annotations.from_annotation(hint).sql == sql


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    ("hint", "sql", "column"),
    [
        (pa.DoubleArray, "DOUBLE", "pyarrow"),
        (pa.StringArray, "VARCHAR", "pyarrow"),
        (Annotated[pa.Array, "DECIMAL(10,2)"], "DECIMAL(10,2)", "pyarrow"),
        (npt.NDArray[np.int32], "INTEGER", "numpy"),
        (Annotated[np.ndarray, "DOUBLE"], "DOUBLE", "numpy"),
        (Annotated[pd.Series, "VARCHAR"], "VARCHAR", "pandas"),
        (Annotated[pl.Series, "BIGINT"], "BIGINT", "polars"),
    ],
)
def test_column_annotations(hint: Any, sql: str, column: str) -> None:
    typed = annotations.from_annotation(hint, "vectorized")
    assert (typed.sql, typed.column) == (sql, column)


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (Annotated[Decimal | None, "DECIMAL(10,2)"], "row"),
        (Annotated[np.ndarray | None, "DECIMAL(10,2)"], "vectorized"),
    ],
)
def test_annotations_with_types_in_sql_admit_null(hint: Any, kind: str) -> None:
    typed = annotations.from_annotation(hint, kind)
    assert (typed.sql, typed.admits_null) == ("DECIMAL(10,2)", True)
    assert kind == "row" or typed.column == "numpy"


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    "hint",
    [list, dict, object, Any, int | str, None, list[object], Annotated[int, "INTT"], Decimal, list[Decimal]],
)
def test_annotations_without_a_type_say_what_to_write(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"Annotated|list\[int\]|SQL type"):
        annotations.from_annotation(hint)


@pytest.mark.any_duckdb
def test_objects_of_the_users_classes(load: Load) -> None:
    con = load(
        """
        import enum, datetime, uuid
        from dataclasses import dataclass
        from decimal import Decimal
        from typing import Annotated, NamedTuple, TypedDict
        class Size(enum.Enum):
            SMALL = "s"
            LARGE = "l"
        @dataclass
        class Point:
            x: float
            y: float | None = None
        class Pair(NamedTuple):
            key: str
            size: Size
        class Named(TypedDict):
            name: str
            points: list[Point]
        @udf
        def grow(p: Pair) -> Pair:
            assert type(p) is Pair and type(p.size) is Size
            return p._replace(size=Size.LARGE)
        @udf
        def name(p: Point, name: str) -> Named:
            assert type(p) is Point
            return {"name": name, "points": [p, Point(p.x + 1)]}
        @udf
        def spread(words: dict[str, int]) -> list[Pair]:
            return [Pair(word, "s") for word, n in words.items() for _ in range(n)]
        @udf
        def later(when: datetime.datetime, by: datetime.timedelta) -> datetime.datetime:
            return when + by
        @udf
        def total(prices: list[Annotated[Decimal, "DECIMAL(10,2)"]]) -> Annotated[Decimal, "DECIMAL(12,2)"]:
            return sum(prices)
        @udf
        def keys(document: Annotated[dict, "JSON"]) -> Annotated[list, "JSON"]:
            return sorted(document)
        @udf
        def raw(document: Annotated[str, "JSON"]) -> str:
            return document
        """
    )
    assert value(con, "SELECT grow({'key': 'k', 'size': 's'}::STRUCT(key VARCHAR, size ENUM('s', 'l')))") == {
        "key": "k",
        "size": "l",
    }
    assert value(con, "SELECT name({'x': 1, 'y': NULL}, 'n')") == {
        "name": "n",
        "points": [{"x": 1.0, "y": None}, {"x": 2.0, "y": None}],
    }
    assert (
        value(con, "SELECT spread(MAP {'a': 2})::VARCHAR") == "[{'key': a, 'size': s}, {'key': a, 'size': s}]"
    )
    later = value(con, "SELECT later(TIMESTAMP '2020-01-31 00:00:00', INTERVAL '1 day 2 hours')")
    assert later == datetime.datetime(2020, 2, 1, 2)
    assert value(con, "SELECT total([1.25, 2.50])") == Decimal("3.75")
    assert value(con, """SELECT keys('{"b": 1, "a": 2}')::VARCHAR""") == '["a","b"]'
    assert value(con, """SELECT raw('{"b":  null}')""") == '{"b":  null}'


#: (what a file contains, what the error says)
WRONG_FILES = [
    ("@udf\ndef f(x) -> int: return x", "parameter x has no type"),
    ("@udf\ndef f(x: int): return x", "the result has no type"),
    ("@udf\ndef f(*x) -> int: return 1", "variable number of arguments"),
    ("@udf\ndef f(*, x: int) -> int: return 1", "keyword-only"),
    ("@udf\ndef f(x: list) -> int: return 1", "list[int]"),
    ("@udf('f(x INT)')\ndef f(x): return 1", "expected `->`"),
    ("@udf('f(x INTT) -> INT')\ndef f(x): return 1", "SQL type"),
    ("@udf('f(x INT) -> INT')\ndef f(x, y): return 1", "has 1 parameters"),
    ("@udf(timeout=0)\ndef f(x: int) -> int: return 1", "timeout is a positive number"),
    ("@udf(nulls='keep')\ndef f(x: int) -> int: return 1", "nulls is 'skip' or 'call'"),
    ("@udf(concurrency=4)\ndef f(x: int) -> int: return 1", "concurrency is for async functions"),
    ("@udf(memory_limit='much')\ndef f(x: int) -> int: return 1", "500 MB"),
    ("@udf(vectorized=True)\ndef f(x: int) -> int: return 1", "takes pyarrow arrays"),
    (
        "@udf\ndef f(x: int) -> int: return 1\n@udf(name='F')\ndef g(x: int) -> int: return 1",
        "the name is taken by line 2",
    ),
    ("def f(x: int) -> int: return 1", "declares no function"),
    ("import nothing_of_this_name", "ModuleNotFoundError"),
    ("1 / 0", "ZeroDivisionError"),
    ("def f(:", "SyntaxError"),
    ("raise SystemExit(3)", "SystemExit"),
]


@pytest.mark.any_duckdb
def test_wrong_files(con: duckdb.DuckDBPyConnection, library: Library, subtests: pytest.Subtests) -> None:
    for text, message in WRONG_FILES:
        with subtests.test(text):
            path = library(text)
            with pytest.raises(duckdb.Error) as caught:
                crosslane.load(con, path)
            assert message in str(caught.value)
            assert path.name in str(caught.value)
            assert value(con, "SELECT 42") == 42


@pytest.mark.any_duckdb
def test_wrong_places(con: duckdb.DuckDBPyConnection) -> None:
    assert "No such file" in error(con, "FROM crosslane_load('/nowhere/functions.py')")
    assert "there is no setting" in error(con, "CALL crosslane_set('rings', '1')")
    con.execute("CALL crosslane_set('python', '/nowhere/python')").fetchall()
    assert "/nowhere/python, which does not exist" in error(con, f"FROM crosslane_load('{__file__}')")


def test_settings_keep_their_types(con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    # Each call changes the setting that it names.
    for call, shown in (
        ("'idle_timeout', 2.5", "2.5"),
        ("'idle_timeout', 3", "3"),
        ("'idle_timeout', 2.5::DOUBLE", "2.5"),
        ("'warm_lanes', 3", "3"),
        ("'warm_lanes', 2.0", "2"),
        ("'largest_batch', 1e9", "1000000000"),
        ("'fan_out', false", "false"),
        ("'fan_out', 'true'", "true"),
    ):
        with subtests.test(call):
            name = call.split("'")[1]
            assert con.execute(f"CALL crosslane_set({call})").fetchall() == [(name, shown)]
            assert value(con, f"SELECT value FROM crosslane_settings() WHERE name = '{name}'") == shown


def test_settings_from_parameters(con: duckdb.DuckDBPyConnection) -> None:
    for name, setting in {"idle_timeout": 2.5, "warm_lanes": 2, "fan_out": False, "python": "/x"}.items():
        ((_, shown),) = con.execute("CALL crosslane_set(?, ?)", [name, setting]).fetchall()
        assert shown == str(setting).replace("False", "false")
    for wrong in ("-1", "1.5", "[1]", "true"):
        assert "the setting warm_lanes cannot be" in error(con, f"CALL crosslane_set('warm_lanes', {wrong})")
    assert "an argument is NULL" in error(con, "CALL crosslane_set('warm_lanes', NULL)")
