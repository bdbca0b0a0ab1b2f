"""The Arrow types that Spark's JVM sends and reads."""

from __future__ import annotations

import inspect
from typing import Any

from crosslane._engines.spark.support import is_true


def arrow_type(kind: Any, conf: dict[str, str]) -> Any:
    """The type of an argument as Spark's JVM sends it."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    large = is_true(conf, "spark.sql.execution.arrow.useLargeVarTypes", "false")
    zone = conf.get("spark.sql.session.timeZone", "UTC")
    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return to_arrow_type(kind, timezone=zone, prefers_large_types=large)
    made = to_arrow_type(kind, prefers_large_types=large)
    return pa.timestamp("us", zone) if kind.typeName() == "timestamp" else made


def cast(array: Any, kind: Any) -> Any:
    return array if array.type == kind else array.cast(kind)


#: How Arrow stores the values that Spark's JVM reads, by the names of Spark's types.
_STORED = {
    "boolean": "bool", "byte": "int8", "short": "int16", "integer": "int32", "date": "int32", "long": "int64",
    "timestamp": "int64", "timestamp_ntz": "int64", "float": "float", "double": "double", "decimal": "decimal",
    "string": "string", "binary": "binary",
}  # fmt: skip


def read(column: Any, field: Any) -> Any:
    """A column as Spark's JVM (``ArrowColumnVector``) reads it: without casts, and with a struct's
    fields by their order.

    Raises:
        TypeError: if the JVM cannot read it.
    """
    read_as = _read_as(column.type, field.dataType)
    if read_as is None:
        declared = field.dataType.simpleString()
        raise TypeError(f"gave {column.type} for the column {field.name}, where {declared} is declared")
    return column if read_as == column.type else column.view(read_as)


def _read_as(given: Any, declared: Any) -> Any:
    """The Arrow type as which Spark's JVM reads a column; None if it cannot."""
    import pyarrow as pa
    import pyarrow.types as kinds

    name = declared.typeName()
    if kinds.is_null(given):
        return given
    if name == "array" and (kinds.is_list(given) or kinds.is_large_list(given)):
        value = _read_as(given.value_type, declared.elementType)
        whole = pa.list_ if kinds.is_list(given) else pa.large_list
        return None if value is None else whole(given.value_field.with_type(value))
    if name == "map" and kinds.is_map(given):
        key, item = _read_as(given.key_type, declared.keyType), _read_as(given.item_type, declared.valueType)
        if key is None or item is None:
            return None
        return pa.map_(given.key_field.with_type(key), given.item_field.with_type(item))
    if name == "struct" and kinds.is_struct(given) and given.num_fields >= len(declared):
        fields = [given.field(index) for index in range(given.num_fields)]
        read = [_read_as(field.type, within.dataType) for field, within in zip(fields, declared)]
        if None in read:
            return None
        known = [pa.field(within.name, kind) for within, kind in zip(declared, read)]
        # Fields beyond the declared ones are not read, so that their names do not matter.
        return pa.struct(known + [field.with_name("") for field in fields[len(known) :]])
    if _stored(given) != _STORED.get(name):
        return None
    if name == "date":
        return pa.date32()
    if name.startswith("timestamp") and kinds.is_int64(given):
        return pa.timestamp("us", "UTC" if name == "timestamp" else None)
    return given


def _stored(given: Any) -> str | None:
    """How Arrow stores a type, as far as it matters to Spark's JVM."""
    import pyarrow.types as kinds

    if kinds.is_string(given) or kinds.is_large_string(given):
        return "string"
    if kinds.is_binary(given) or kinds.is_large_binary(given):
        return "binary"
    if kinds.is_decimal128(given):
        return "decimal"
    if kinds.is_timestamp(given):
        return "int64" if given.unit == "us" else None
    return "int32" if kinds.is_date32(given) else str(given)
