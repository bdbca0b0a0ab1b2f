"""Calls functions of PySpark's as a lane does and as Spark does, and compares the results."""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa
import pyspark
import pyspark.sql.functions as F
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from crosslane import _guest
from crosslane._declare.signature.declared import Declared
from crosslane._engines.spark.declare import declare
from crosslane._worker.vectors import Caller

ZONE = "America/New_York"


def where(condition: bool) -> Callable[[Any], Any]:
    """Leaves a test out for versions of Spark that lack the tested feature."""
    return (lambda test: test) if condition else (lambda test: None)


IS_NEW = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)


#: The settings that Spark passes to its workers (``ArrowPythonRunner.getPythonRunnerConfMap``).
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


def declared(udf: Any, *types: T.DataType, conf: dict[str, str] | None = None) -> Declared:
    parameters = ", ".join(f"a{number} {sql_of(kind)}" for number, kind in enumerate(types))
    (made,) = declare(
        "f",
        f"f({parameters}) -> {sql_of(udf.returnType)}",
        CloudPickleSerializer().dumps((udf.func, udf.returnType)),
        udf.evalType,
        [kind.json() for kind in types],
        udf.returnType.json(),
        {**CONF, **(conf or {})},
        "",
        {},
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


def chosen(kind: T.DataType, values: list[Any], arrow: bool) -> Any:
    """A function that gives these values for their indexes."""
    return F.udf(lambda at: values[at] if at < len(values) else None, kind, useArrow=arrow)


def all_by_spark(spark: SparkSession, udfs: list[Any], indexes: list[int]) -> list[list[Any]]:
    """What functions give for the same column."""
    data = frame(spark, [indexes], [T.LongType()])
    rows = data.select([udf(*data.columns) for udf in udfs]).collect()
    return [[plain(row[at], udf.returnType) for row in rows] for at, udf in enumerate(udfs)]


def both_or_neither(
    spark: SparkSession, subtests: pytest.Subtests, calls: dict[str, Call]
) -> dict[str, tuple[Exception, str]]:
    """As `compare`. A call that fails in a lane must fail in Spark too. Returns both errors of these calls."""
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
