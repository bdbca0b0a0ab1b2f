"""What PySpark's functions give by Crosslane, compared with what Spark gives.

What a declaration gives is called here as a lane's guest would; ``tests/test_pyspark.py`` has the lanes. These tests have a process of their
own, because its time zone is another than the session's.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import math
import os
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pyspark.sql.functions as F
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from crosslane import _guest, _library, _pyspark
from crosslane._errors import describe
from crosslane._loop import make
from crosslane._signature import Declared
from crosslane._vectors import Caller

ZONE = "America/New_York"


def where(condition: bool) -> Callable[[Any], Any]:
    """Leaves a test out of a version of Spark that does not have what it tests."""
    return (lambda test: test) if condition else (lambda test: None)


IS_NEW = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
#: What Spark tells its workers of a query (``ArrowPythonRunner.getPythonRunnerConfMap``).
KEYS = (
    "spark.sql.session.timeZone",
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
    "spark.sql.execution.arrow.useLargeVarTypes",
    "spark.sql.execution.pyspark.binaryAsBytes",
    "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
)
CONF: dict[str, str] = {"spark.sql.session.timeZone": ZONE}
UTC = datetime.UTC

SQL = {
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}


def sql_of(kind: T.DataType) -> str:
    match kind:
        case T.DecimalType():
            return f"DECIMAL({kind.precision},{kind.scale})"
        case T.ArrayType():
            return f"{sql_of(kind.elementType)}[]"
        case T.MapType():
            return f"MAP({sql_of(kind.keyType)}, {sql_of(kind.valueType)})"
        case T.StructType():
            return f"STRUCT({', '.join(f'{field.name} {sql_of(field.dataType)}' for field in kind)})"
    return SQL[kind.typeName()]


#: In the place of Spark's own: its workers begin with what they would import one by one.
DAEMON = """\
import runpy
import pandas, pyarrow.compute, pyspark.worker, pyspark.sql.pandas.types
runpy.run_module("pyspark.daemon", run_name="__main__")
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # The zone of Python's processes is another than the session's.
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    os.environ.setdefault("JAVA_HOME", "/usr/lib/jvm/java-17-openjdk-amd64")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "quick_daemon.py").write_text(DAEMON)
    # Workers import this module, too.
    here = os.path.dirname(__file__)
    os.environ["PYTHONPATH"] = f"{folder}:{here}:{os.environ.get('PYTHONPATH', '')}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": ZONE,
        "spark.python.daemon.module": "quick_daemon",
        # These tests are about the functions' values. A JVM that lives so shortly does not gain by better code.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for key in KEYS:
        # This version may not know it.
        with contextlib.suppress(Exception):
            CONF[key] = session.conf.get(key)
    yield session
    session.stop()


def declared(udf: Any, *types: T.DataType, conf: dict[str, str] | None = None) -> Declared:
    parameters = ", ".join(f"a{number} {sql_of(kind)}" for number, kind in enumerate(types))
    (made,) = _pyspark.declare(
        "f",
        f"f({parameters}) -> {sql_of(udf.returnType)}",
        CloudPickleSerializer().dumps((udf.func, udf.returnType)),
        udf.evalType,
        [kind.json() for kind in types],
        udf.returnType.json(),
        {**CONF, **(conf or {})},
    )
    return made


def arrow_of(sql: str) -> pa.DataType:
    return _guest.table_type(f"STRUCT(c {sql})").field(0).type


def by_lane(
    udf: Any, columns: list[list[Any]], types: list[T.DataType], conf: dict[str, str] | None = None
) -> list[Any]:
    """What a lane gives for columns of Spark's values."""
    made = declared(udf, *types, conf=conf)
    returns = sql_of(udf.returnType)
    arrays = [
        pa.array([sent(value, kind) for value in column], arrow_of(sql_of(kind)))
        for column, kind in zip(columns, types)
    ]
    rows = len(columns[0])
    if made.kind == "vectorized":
        result = Caller(made, arrow_of(returns))(arrays, rows)
        values = result.to_pylist()
    else:
        values = called(made, [array.to_pylist() for array in arrays])
    return [collected(value, udf.returnType) for value in values]


def called(made: Declared, columns: list[list[Any]]) -> list[Any]:
    convert = getattr(made, "convert", None) or (lambda value: value)
    return [convert(made.callee()(*row)) for row in zip(*columns)]


def sent(value: Any, kind: T.DataType) -> Any:
    """A value as it travels."""
    if value is None:
        return None
    if isinstance(kind, T.TimestampType):
        return value.astimezone(UTC)
    if isinstance(kind, T.ArrayType):
        return [sent(item, kind.elementType) for item in value]
    if isinstance(kind, T.MapType):
        return [(sent(key, kind.keyType), sent(item, kind.valueType)) for key, item in value.items()]
    if isinstance(kind, T.StructType):
        return {field.name: sent(item, field.dataType) for field, item in zip(kind, value)}
    return value


def collected(value: Any, kind: T.DataType) -> Any:
    """A value that a lane gives as `collect` shows it; what the lane does itself (``writer.rs``) is done here."""
    if value is None:
        return None
    if isinstance(kind, T.FloatType):
        return shown(struct.unpack("f", struct.pack("f", value))[0])
    if isinstance(kind, T.TimestampType):
        return value.astimezone().replace(tzinfo=None)
    if isinstance(kind, T.DecimalType):
        return value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
    if isinstance(kind, T.ArrayType):
        return [collected(item, kind.elementType) for item in value]
    if isinstance(kind, T.MapType):
        return {key: collected(item, kind.valueType) for key, item in value}
    if isinstance(kind, T.StructType):
        return tuple(collected(value[field.name], field.dataType) for field in kind)
    return shown(value)


def shown(value: Any) -> Any:
    """A value that equals what is the same to Spark's users."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, list):
        return [shown(item) for item in value]
    return (type(value), value)


def plain(value: Any, kind: T.DataType) -> Any:
    """What `collect` gave, to be compared."""
    if isinstance(value, T.Row):
        return tuple(plain(item, field.dataType) for item, field in zip(value, kind))
    if isinstance(value, dict):
        return {key: plain(item, kind.valueType) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, kind.elementType) for item in value]
    if value is None or isinstance(kind, (T.TimestampType, T.DecimalType)):
        return value
    return shown(value)


def frame(spark: SparkSession, columns: list[list[Any]], types: list[T.DataType]) -> DataFrame:
    if all(isinstance(kind, T.IntegralType) for kind in types):
        # The JVM has these without a Python worker.
        names = [f"a{number}" for number in range(len(types))]
        casts = [f"CAST({name} AS {kind.simpleString()})" for name, kind in zip(names, types)]
        rows = [", ".join("NULL" if value is None else str(value) for value in row) for row in zip(*columns)]
        values = ", ".join(f"({row})" for row in rows)
        return spark.sql(f"SELECT {', '.join(casts)} FROM VALUES {values} AS t({', '.join(names)})")
    schema = T.StructType()
    for number, kind in enumerate(types):
        schema = schema.add(f"a{number}", kind)
    return spark.createDataFrame(spark.sparkContext.parallelize(list(zip(*columns)), 1), schema)


def by_spark(spark: SparkSession, udf: Any, columns: list[list[Any]], types: list[T.DataType]) -> list[Any]:
    data = frame(spark, columns, types)
    return [plain(row[0], udf.returnType) for row in data.select(udf(*data.columns)).collect()]


#: A function, the columns that it is called with, and their types.
Call = tuple[Any, list[list[Any]], list[T.DataType]]


def compare(
    spark: SparkSession,
    subtests: pytest.Subtests,
    calls: dict[str, Call],
    conf: dict[str, str] | None = None,
) -> None:
    """Each function gives the same in a lane as in Spark, which calls all of them in one query."""
    columns = [column for _, columns, _ in calls.values() for column in columns]
    data = frame(spark, columns, [kind for _, _, types in calls.values() for kind in types])
    names = iter(data.columns)
    rows = data.select([udf(*(next(names) for _ in types)) for udf, _, types in calls.values()]).collect()
    for at, (name, (udf, columns, types)) in enumerate(calls.items()):
        with subtests.test(name):
            assert by_lane(udf, columns, types, conf) == [plain(row[at], udf.returnType) for row in rows]


def fails_alike(spark: SparkSession, udf: Any, columns: list[list[Any]], types: list[T.DataType]) -> None:
    """Both raise an exception, of one class if it is one of Python's."""
    with pytest.raises(Exception) as theirs:
        by_spark(spark, udf, columns, types)
    with pytest.raises(Exception) as ours:
        by_lane(udf, columns, types)
    if "Traceback (most recent call last)" in str(theirs.value):
        assert type(ours.value).__name__ in str(theirs.value)


class Color(enum.IntEnum):
    RED = 1


NUMBERS = [0, 1, -1, 127, 128, 300, 70_000, 2**31, -(2**31) - 1, 2**40, 2**63 - 1, -(2**63), 2**63, 2**70]
FLOATS = [
    0.0,
    -0.0,
    1.0,
    2.5,
    1.1,
    1e7,
    123456.789,
    9999999.0,
    12345678.9,
    1e-3,
    9.99e-4,
    1e-5,
    1e16,
    1e300,
    5e-324,
]
FLOATS += [100.0, -2e-3, 3.5e38, 3.4028235e38, 3.40282356e38, math.nan, math.inf, -math.inf]
DECIMALS = [
    Decimal(text) for text in ("1.5", "1E+3", "1E-10", "-0", "2.345", "-2.345", "0E-20", "NaN", "1234567.899")
]
COLLECTIONS = [
    [1, "a", None, 2.5, True],
    [],
    [[1], {"k": None}],
    {"c": 1, "d": 2, "h": 3},
    {},
    {1: "x", -1: "y"},
]
COLLECTIONS += [
    {"b": {"x": [Decimal("1.0")]}, True: 2.0, None: 1, 2**40: 2, 1.5: 0},
    {3, 1, 2},
    frozenset("abc"),
]
COLLECTIONS += [{f"key{number}": number for number in range(count)} for count in (1, 2, 4, 6, 7, 12, 13, 20)]
COLLECTIONS += [{f"key{number}" for number in range(count)} for count in (11, 12, 13, 25)]
MOMENTS = [
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
    datetime.datetime(2021, 7, 2, 23, 30),
    datetime.datetime(1960, 3, 1),
]
ANY = [None, True, False, *NUMBERS, *FLOATS, "x", "", "12", "äß€😀", *DECIMALS, *COLLECTIONS]
BYTES = [b"ab", bytearray(b"xy")]


RESULTS: list[tuple[T.DataType, list[Any]]] = [
    (T.BooleanType(), ANY + BYTES + MOMENTS),
    (T.ByteType(), ANY + BYTES + MOMENTS),
    (T.ShortType(), ANY),
    (T.IntegerType(), ANY),
    (T.LongType(), ANY + BYTES + MOMENTS),
    (T.FloatType(), ANY),
    (T.DoubleType(), ANY + BYTES + MOMENTS),
    (T.StringType(), ANY),
    (T.BinaryType(), ANY + BYTES),
    (T.DateType(), [None, datetime.date(2020, 1, 2), datetime.date(1500, 1, 1), *MOMENTS]),
    (T.TimestampType(), [None, *MOMENTS, datetime.datetime(2020, 1, 2, 3, 4, 5, 6, UTC)]),
    (T.TimestampNTZType(), [None, *MOMENTS]),
    (T.DecimalType(10, 2), ANY),
    (T.DecimalType(38, 18), [Decimal("1.5"), Decimal("-0.0000000000000000005"), None]),
    (T.ArrayType(T.LongType()), [None, [1, True, None, 2**63, "x"], (1, 2), {"a": 1}, "ab", []]),
    (T.ArrayType(T.DateType()), [None, [datetime.date(2020, 1, 2), None], []]),
    (T.ArrayType(T.ArrayType(T.StringType())), [[["a", 1], None, [[1]]], [(True,)]]),
]
INDEXES = list(range(max(len(values) for _, values in RESULTS)))


def chosen(kind: T.DataType, values: list[Any], arrow: bool) -> Any:
    """A function that gives these values for their indexes."""
    return F.udf(lambda at: values[at] if at < len(values) else None, kind, useArrow=arrow)


def all_by_spark(spark: SparkSession, udfs: list[Any], indexes: list[int]) -> list[list[Any]]:
    """What functions give for the same column."""
    data = frame(spark, [indexes], [T.LongType()])
    rows = data.select([udf(*data.columns) for udf in udfs]).collect()
    return [[plain(row[at], udf.returnType) for row in rows] for at, udf in enumerate(udfs)]


@pytest.fixture(scope="module")
def results_of_rows(spark: SparkSession) -> list[list[Any]]:
    udfs = [chosen(kind, values, False) for kind, values in RESULTS]
    return all_by_spark(spark, udfs, INDEXES)


@pytest.mark.parametrize("case", range(len(RESULTS)), ids=[kind.simpleString() for kind, _ in RESULTS])
def test_results_of_rows(results_of_rows: list[list[Any]], case: int) -> None:
    ours = by_lane(chosen(*RESULTS[case], False), [INDEXES], [T.LongType()])
    assert ours == results_of_rows[case]
    assert any(value is not None for value in ours)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (T.LongType(), np.int64(1)),
        (T.DoubleType(), np.float64(1.5)),
        (T.LongType(), Color.RED),
        (T.LongType(), Decimal("Infinity")),
        (T.StringType(), datetime.datetime(2020, 1, 1, tzinfo=UTC)),
        (T.StringType(), T.Row(a=1)),
        (T.DateType(), "2020-01-01"),
        (T.TimestampType(), 1),
        (T.TimestampNTZType(), "x"),
        (T.LongType(), lambda: 1),
        (T.LongType(), [np.int64(1)]),
    ],
)
def test_results_of_rows_that_fail(spark: SparkSession, kind: T.DataType, value: Any) -> None:
    fails_alike(spark, F.udf(lambda at: value, kind, useArrow=False), [[1]], [T.LongType()])


DATA: list[tuple[T.DataType, list[Any]]] = [
    (T.BooleanType(), [True, False]),
    (T.ByteType(), [1, -128]),
    (T.ShortType(), [300, -1]),
    (T.IntegerType(), [70_000, -1]),
    (T.LongType(), [2**53 + 1, -1]),
    (T.FloatType(), [1.5, 1.100000023841858]),
    (T.DoubleType(), [2.5, 1e300]),
    (T.StringType(), ["x", "äß€😀"]),
    (T.BinaryType(), [bytearray(b"ab"), bytearray(b"")]),
    (T.DateType(), [datetime.date(2020, 1, 2), datetime.date(1500, 1, 1)]),
    (T.TimestampType(), [MOMENTS[0], MOMENTS[1]]),
    (T.TimestampNTZType(), [MOMENTS[0], MOMENTS[2]]),
    (T.DecimalType(20, 9), [Decimal("1.500000000"), Decimal("0E-9")]),
    (T.ArrayType(T.IntegerType()), [[1, None, 2], []]),
    (T.ArrayType(T.BinaryType()), [[bytearray(b"a"), None], []]),
    (T.ArrayType(T.TimestampType()), [[MOMENTS[0], None], []]),
]
NESTED: list[tuple[T.DataType, list[Any]]] = [
    (T.MapType(T.StringType(), T.LongType()), [{"a": 1, "b": None}, {}]),
    (T.StructType().add("p", T.IntegerType()).add("q", T.StringType()), [(1, "x"), (None, "y")]),
    (
        T.StructType().add("p", T.ArrayType(T.StructType().add("d", T.DateType()))),
        [([(MOMENTS[0].date(),)],), (None,)],
    ),
]


def columns_of(data: list[tuple[T.DataType, list[Any]]], nulls: bool) -> list[list[Any]]:
    """Three rows, with a NULL or without."""
    return [[*values, None if nulls else values[0]] for _, values in data]


def test_arguments(spark: SparkSession, subtests: pytest.Subtests) -> None:
    def show(*values: Any) -> str:
        return repr([(type(value).__name__, value) for value in values])

    calls = {}
    for arrow in (False, True):
        data = DATA + (NESTED if arrow else [])
        for nulls in (False, True):
            udf = F.udf(show, "string", useArrow=arrow)
            calls[f"arrow {arrow}, nulls {nulls}"] = (
                udf,
                columns_of(data, nulls),
                [kind for kind, _ in data],
            )
    compare(spark, subtests, calls)


def test_arguments_of_common_types_with_arrow(spark: SparkSession, subtests: pytest.Subtests) -> None:
    data = [(kind, values) for kind, values in DATA if kind.typeName() in _pyspark._Shortcut._LISTED]
    udf = F.udf(lambda *values: repr([(type(value), value) for value in values]), "string", useArrow=True)
    types = [kind for kind, _ in data]
    compare(
        spark, subtests, {f"nulls {nulls}": (udf, columns_of(data, nulls), types) for nulls in (False, True)}
    )


IDENTICAL = [*DATA, *NESTED]
MAKERS = {
    "udf": lambda kind: F.udf(lambda value: value, kind, useArrow=True),
    "pandas_udf": lambda kind: F.pandas_udf(lambda column: column, kind),
    "arrow_udf": lambda kind: F.arrow_udf(lambda column: column, kind),
}


def test_identity_of_columns(spark: SparkSession, subtests: pytest.Subtests) -> None:
    """Every type there and back."""
    calls = {}
    for maker, make_udf in MAKERS.items():
        for kind, values in IDENTICAL:
            # Spark 4.0 makes floats of its integers, and then fails.
            if hasattr(F, maker) and (
                IS_NEW or maker == "pandas_udf" or kind != T.ArrayType(T.IntegerType())
            ):
                for nulls in (False, True):
                    name = f"{maker} {kind.simpleString()}, nulls {nulls}"
                    calls[name] = (make_udf(kind), columns_of([(kind, values)], nulls), [kind])
    compare(spark, subtests, calls)


#: Results of functions with Arrow, a batch each: what Spark makes of one depends on the others.
BATCHES: list[tuple[T.DataType, list[Any]]] = [
    (T.LongType(), [1, 2]),
    (T.LongType(), [1, None]),
    (T.LongType(), [2**53 + 1, None]),
    (T.LongType(), [1, 2.5]),
    (T.LongType(), [2.0, 3.0]),
    (T.LongType(), ["1", "2"]),
    (T.LongType(), [np.int64(1), np.int32(2)]),
    (T.LongType(), [Decimal("1"), Decimal("2.5")]),
    (T.LongType(), [None, None]),
    (T.IntegerType(), [1, None]),
    (T.ShortType(), [1, None]),
    (T.DoubleType(), [1.5, None]),
    (T.DoubleType(), [math.nan, 1.0]),
    (T.DoubleType(), [1, 2]),
    (T.DoubleType(), [1, 2.5]),
    (T.DoubleType(), ["1.5", "2"]),
    (T.DoubleType(), [True, 1.0]),
    (T.FloatType(), [1.1, None]),
    (T.FloatType(), [1e300, math.nan]),
    (T.FloatType(), [3.5e38, 3.40282356e38]),
    (T.FloatType(), [1, 2]),
    (T.BooleanType(), [True, None]),
    (T.BooleanType(), [1, 0]),
    (T.BooleanType(), ["true", "false"]),
    (T.StringType(), ["a", None]),
    (T.StringType(), ["", "äß€😀"]),
    (T.StringType(), [1, True]),
    (T.StringType(), [b"x", 1.5]),
    (T.StringType(), [{"a": 1}, [1]]),
    (T.BinaryType(), [b"x", bytearray(b"y")]),
    (T.BinaryType(), [b"x", None]),
    (T.DateType(), [datetime.date(2020, 1, 2), None]),
    (T.DateType(), [datetime.datetime(2020, 1, 2, 3), None]),
    (T.TimestampType(), [MOMENTS[0], None]),
    (
        T.TimestampType(),
        [datetime.datetime(2020, 1, 2, tzinfo=UTC), datetime.datetime(2020, 1, 2, tzinfo=UTC)],
    ),
    (T.TimestampNTZType(), [MOMENTS[0], None]),
    (T.DecimalType(10, 2), [Decimal("1.5"), None]),
    (T.DecimalType(10, 2), [Decimal("1.234"), Decimal("1")]),
    (T.ArrayType(T.LongType()), [[1, 2], None]),
    (T.MapType(T.StringType(), T.LongType()), [{"a": 1}, None]),
    (T.StructType().add("p", T.IntegerType()).add("q", T.StringType()), [(1, "x"), T.Row(p=2, q="y")]),
    (T.StructType().add("p", T.IntegerType()).add("q", T.StringType()), [{"p": 1, "q": "x"}, None]),
]


BAD: list[tuple[T.DataType, list[Any]]] = [
    (T.LongType(), ["1", 2]),
    (T.LongType(), ["x", "y"]),
    (T.LongType(), [[1], [2]]),
    (T.BinaryType(), ["x", "y"]),
    (T.DateType(), ["2020-01-02", None]),
    (T.DecimalType(10, 2), [1, 2]),
]
#: What Spark 4.0 takes, and later ones do not.
BAD_LATER: list[tuple[T.DataType, list[Any]]] = [
    (T.LongType(), [2**63, 1]),
    (T.LongType(), [True, False]),
    (T.IntegerType(), [2**31, 1]),
    (T.ByteType(), [1, 300]),
    (T.BinaryType(), [3, b""]),
]
#: The other way round.
BAD_FIRST: list[tuple[T.DataType, list[Any]]] = [(T.DateType(), [1, 2])]
BATCHES += BAD_FIRST if IS_NEW else BAD_LATER
BAD += BAD_LATER if IS_NEW else BAD_FIRST


@pytest.fixture(scope="module")
def results_with_arrow(spark: SparkSession) -> list[list[Any]]:
    udfs = [chosen(kind, values, True) for kind, values in BATCHES]
    return all_by_spark(spark, udfs, [0, 1])


@pytest.mark.parametrize(
    "case", range(len(BATCHES)), ids=[f"{kind.simpleString()}-{v}" for kind, v in BATCHES]
)
def test_results_with_arrow(results_with_arrow: list[list[Any]], case: int) -> None:
    assert by_lane(chosen(*BATCHES[case], True), [[0, 1]], [T.LongType()]) == results_with_arrow[case]


@pytest.mark.parametrize(("kind", "values"), BAD, ids=[f"{kind.simpleString()}-{v}" for kind, v in BAD])
def test_results_with_arrow_that_fail(spark: SparkSession, kind: T.DataType, values: list[Any]) -> None:
    fails_alike(spark, chosen(kind, values, True), [[0, 1]], [T.LongType()])


def test_each_row_is_called_once_with_arrow() -> None:
    seen: list[int] = []

    def odd(value: int) -> Any:
        seen.append(value)
        return 2.5

    evaluate = _pyspark._column_function(odd, 101, [T.LongType()], T.LongType(), CONF)
    assert evaluate(pa.array([1, 2])).to_pylist() == [2, 2]
    assert seen == [1, 2]
    assert evaluate(pa.array([3])).to_pylist() == [2]
    assert seen == [1, 2, 3]


# Spark 4.0 knows no other conversion.
@where(IS_NEW)
def test_legacy_conversion(spark: SparkSession, subtests: pytest.Subtests) -> None:
    conf = {"spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled": "true"}
    spark.conf.set(*next(iter(conf.items())))
    try:
        shown = F.udf(lambda value: repr(value), "string", useArrow=True)
        times = F.udf(lambda value: value * 1.0, "double", useArrow=True)
        calls = {
            "integers": (shown, [[1, 2]], [T.LongType()]),
            "an integer and NULL": (shown, [[1, None]], [T.LongType()]),
            "floats": (times, [[math.nan, 1.0]], [T.DoubleType()]),
        }
        compare(spark, subtests, calls, conf)
    finally:
        spark.conf.unset(next(iter(conf)))


def both_or_neither(
    spark: SparkSession, subtests: pytest.Subtests, calls: dict[str, Call]
) -> dict[str, tuple[Exception, str]]:
    """As `compare`, and what fails in a lane fails in Spark, too. Gives both errors of these."""
    errors = {}
    for name, call in calls.items():
        try:
            by_lane(*call)
        except Exception as error:
            errors[name] = error
    compare(spark, subtests, {name: call for name, call in calls.items() if name not in errors})
    both = {}
    for name, ours in errors.items():
        with subtests.test(name):
            with pytest.raises(Exception) as theirs:
                by_spark(spark, *calls[name])
            assert type(ours).__name__ in str(theirs.value)
            both[name] = (ours, str(theirs.value))
    return both


ARGUMENTS = ([[1, None], [3, 4]], [T.LongType(), T.IntegerType()])


def test_pandas(spark: SparkSession, subtests: pytest.Subtests) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "a sum": lambda a, b: a + b,
        "floats": lambda a, b: (a + b).astype("float64"),
        "NULLs": lambda a, b: pd.Series([None] * len(a)),
        "an array": lambda a, b: (a + b).to_numpy(),
        "names and types": lambda a, b: pd.Series(
            [f"{a.name} {a.dtype} {b.name} {b.dtype}".__len__()] * len(a)
        ),
        "categories": lambda a, b: (a + b).astype("category"),
        "too few": lambda a, b: a.head(1),
        "a number": lambda a, b: 1,
        "texts": lambda a, b: pd.Series(["x"] * len(a)),
        "an error": lambda a, b: 1 / 0,
    }
    calls = {name: (F.pandas_udf(function, "long"), *ARGUMENTS) for name, function in functions.items()}
    for name, (ours, theirs) in both_or_neither(spark, subtests, calls).items():
        with subtests.test(f"{name}: what is told"):
            assert str(ours).splitlines()[0] in theirs


def test_pandas_struct(spark: SparkSession, subtests: pytest.Subtests) -> None:
    kind = T.StructType().add("p", T.IntegerType()).add("q", T.StringType())
    calls = {
        "to a struct": (
            F.pandas_udf(lambda rows: pd.DataFrame({"q": rows.q + "!", "p": rows.p}), kind),
            [[(1, "x"), (2, "y")]],
            [kind],
        ),
        "to a number": (
            F.pandas_udf(lambda rows: rows.p.fillna(0) + 1, "long"),
            [[(1, "x"), (None, "y")]],
            [kind],
        ),
    }
    compare(spark, subtests, calls)


@where(hasattr(F, "arrow_udf"))
def test_arrow(spark: SparkSession, subtests: pytest.Subtests) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "a sum": lambda a, b: pa.compute.add(a, b),
        "whole floats": lambda a, b: pa.array([1.0] * len(a)),
        "floats": lambda a, b: pa.array([1.5] * len(a)),
        "texts": lambda a, b: pa.array(["x"] * len(a)),
        "too few": lambda a, b: a[:1],
        "a number": lambda a, b: 1,
        "NULLs": lambda a, b: pa.nulls(len(a)),
        "chunks": lambda a, b: pa.chunked_array([a]),
    }
    calls = {name: (F.arrow_udf(function, "long"), *ARGUMENTS) for name, function in functions.items()}
    both_or_neither(spark, subtests, calls)


def raises(value: int) -> int:
    return 1 // value


@pytest.mark.parametrize("arrow", [False, True])
def test_the_traceback_has_the_users_frames(arrow: bool) -> None:
    udf = F.udf(raises, "long", useArrow=arrow)
    with pytest.raises(ZeroDivisionError) as failure:
        by_lane(udf, [[0]], [T.LongType()])
    name, message, shown = describe(failure.value)
    assert (name, message) == ("ZeroDivisionError", "integer division or modulo by zero")
    assert f"{__file__}:{raises.__code__.co_firstlineno + 1} in raises" in shown
    assert "_pyspark.py" not in shown
    assert any(frame.name == "raises" for frame in traceback.extract_tb(failure.value.__traceback__))


def stops(value: int) -> int:
    raise StopIteration("early")


@pytest.mark.parametrize("arrow", [False, True])
def test_stop_iteration(spark: SparkSession, arrow: bool) -> None:
    udf = F.udf(stops, "long", useArrow=arrow)
    fails_alike(spark, udf, [[1]], [T.LongType()])
    with pytest.raises(Exception, match="STOP_ITERATION_OCCURRED"):
        by_lane(udf, [[1]], [T.LongType()])


def test_a_row_function_is_a_loop_of_the_guest() -> None:
    made = declared(F.udf(lambda a, b: a * b, "long", useArrow=False), T.LongType(), T.LongType())
    assert (made.kind, made.admits_null, made.deterministic) == ("row", [True, True], False)
    each, result, (second,) = make(made, 2)
    second.cell_contents = 3
    each(iter([4]))
    assert result.cell_contents == 12
    assert made.file == __file__


def test_without_arguments(spark: SparkSession) -> None:
    made = declared(F.udf(lambda: 7, "long", useArrow=False))
    assert made.callee()() == 7


def test_binary_as_bytearray(spark: SparkSession) -> None:
    conf = {"spark.sql.execution.pyspark.binaryAsBytes": "false"}
    udf = F.udf(lambda value: type(value).__name__, "string", useArrow=False)
    assert by_lane(udf, [[b"x"]], [T.BinaryType()], conf) == [(str, "bytearray")]


@pytest.mark.parametrize(
    ("eval_type", "arguments", "returns", "conf", "reason"),
    [
        (204, [], '"long"', {}, "no argument"),
        (251, ['"long"'], '"variant"', {}, "the result has the type variant"),
        (205, [T.StructType().json()], T.StructType().add("a", "long").json(), {}, "no fields"),
        (207, ['"void"'], T.StructType().add("a", "long").json(), {}, "argument 1 has the type void"),
        (300, ['"long"'], '"long"', {}, "eval type 300"),
        (200, [], '"long"', {}, "no argument"),
        (101, [], '"long"', {}, "no argument"),
        (100, ['"void"'], '"long"', {}, "argument 1 has the type void"),
        (100, ['"long"', '"interval day to second"'], '"long"', {}, "argument 2"),
        (100, ['"string collate UNICODE"'], '"long"', {}, "collate"),
        (100, ['"long"'], '"variant"', {}, "the result has the type variant"),
        (100, ['"long"'], T.StructType().add("a", "long").json(), {}, "struct"),
        (100, [T.MapType(T.LongType(), T.LongType()).json()], '"long"', {}, "map"),
        (100, ['"long"'], T.ArrayType(T.LongType(), False).json(), {}, "cannot be NULL"),
        (101, ['"long"'], T.StructType().add("a", "long").add("A", "long").json(), {}, "several of a name"),
        (101, ['"long"'], T.StructType().json(), {}, "no fields"),
        (
            101,
            ['"long"'],
            '"long"',
            {"spark.sql.execution.pythonUDF.arrow.concurrency.level": "2"},
            "concurrency",
        ),
        (100, ['"long"'], '"long"', {"spark.sql.pyspark.udf.profiler": "perf"}, "profiler"),
    ],
)
def test_reasons_against(
    eval_type: int, arguments: list[str], returns: str, conf: dict[str, str], reason: str
) -> None:
    assert reason in (_pyspark.reason_against(eval_type, arguments, returns, conf) or "")
    with pytest.raises(_pyspark.Unsupported, match=reason):
        _pyspark.declare("f", "f(a BIGINT) -> BIGINT", b"", eval_type, arguments, returns, conf)


def test_no_reasons_against() -> None:
    for kind, _ in DATA:
        for eval_type in (100, 101, 200, 250):
            assert _pyspark.reason_against(eval_type, [kind.json()], kind.json(), {}) is None
    for kind, _ in NESTED:
        assert _pyspark.reason_against(200, [kind.json()], kind.json(), {}) is None


def pickled(thing: Any) -> bytes:
    """A pickle as the JVM writes it, by hand."""
    if isinstance(thing, str):
        text = thing.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(thing, bytes):
        return b"B" + struct.pack("<I", len(thing)) + thing
    if isinstance(thing, int):
        return b"J" + struct.pack("<i", thing)
    if isinstance(thing, list):
        return b"](" + b"".join(map(pickled, thing)) + b"e"
    pairs = b"".join(pickled(key) + pickled(value) for key, value in thing.items())
    return b"}(" + pairs + b"u"


def test_a_pickle_by_hand() -> None:
    command = CloudPickleSerializer().dumps((lambda a: a + 1, T.LongType()))
    arguments = ["f", "f(a BIGINT) -> BIGINT", command, 100, ['"long"'], '"long"', CONF]
    call = b"ccrosslane._pyspark\ndeclare\n(" + b"".join(map(pickled, arguments)) + b"tR"
    with tempfile.TemporaryFile() as file:
        # Where modules are found, and the functions.
        file.write(b"\x80\x03" + pickled([]) + b".")
        file.write(b"\x80\x03" + call + b".")
        file.flush()
        (made,) = _library.load_pickles(file.fileno())
    assert made.signature == '"f"("a" BIGINT) -> BIGINT'
    assert called(made, [[1, 2]]) == [2, 3]
    assert made.message()["calling"] == "row"


def test_a_broadcast_command() -> None:
    command = CloudPickleSerializer().dumps("something else")
    with pytest.raises(_pyspark.Unsupported, match="command is a str"):
        _pyspark.declare("f", "f(a BIGINT) -> BIGINT", command, 100, ['"long"'], '"long"', {})
