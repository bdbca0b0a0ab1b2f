"""The SQL types of Arrow's types."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from crosslane._runtime.sql import quoted

_PLAIN = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float16(): "FLOAT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
    pa.time32("s"): "TIME",
    pa.time32("ms"): "TIME",
    pa.time64("us"): "TIME",
    pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.month_day_nano_interval(): "INTERVAL",
    # A column of NULLs only; DuckDB gives it this type, too.
    pa.null(): "INTEGER",
}
#: The most digits of a DECIMAL.
_MOST_DIGITS = 38


def sql_type(data_type: pa.DataType) -> str:
    """The SQL type of an Arrow type.

    Raises:
        TypeError: if SQL has no such type.

    >>> sql_type(pa.list_(pa.large_string()))
    'VARCHAR[]'
    """
    types = pa.types
    if data_type in _PLAIN:
        return _PLAIN[data_type]
    if isinstance(data_type, pa.BaseExtensionType):
        return sql_type(data_type.storage_type)
    if types.is_dictionary(data_type):
        return sql_type(data_type.value_type)
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return "VARCHAR"
    if (
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
    ):
        return "BLOB"
    if types.is_timestamp(data_type):
        return "TIMESTAMP WITH TIME ZONE"
    if types.is_decimal(data_type) and data_type.precision <= _MOST_DIGITS and data_type.scale >= 0:
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if types.is_decimal256(data_type) and (data_type.precision, data_type.scale) == (39, 0):
        return "HUGEINT"
    if types.is_list(data_type) or types.is_large_list(data_type):
        return f"{sql_type(data_type.value_type)}[]"
    if types.is_fixed_size_list(data_type):
        return f"{sql_type(data_type.value_type)}[{data_type.list_size}]"
    if types.is_map(data_type):
        return f"MAP({sql_type(data_type.key_type)}, {sql_type(data_type.item_type)})"
    if types.is_struct(data_type) and data_type.num_fields:
        return struct_type(data_type)
    raise TypeError(f"SQL has no type for Arrow's {data_type}")


def struct_type(fields: Iterable[pa.Field]) -> str:
    """The STRUCT with these fields."""
    return f"STRUCT({', '.join(f'{quoted(field.name)} {sql_type(field.type)}' for field in fields)})"
