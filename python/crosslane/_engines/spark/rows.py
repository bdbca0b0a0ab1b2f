"""Functions of rows: called with a row's values, they give a value of the column."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from crosslane._engines.spark.java_values import BITS, check_sent, from_java
from crosslane._engines.spark.support import is_true, version

_BINARY_AS_BYTES = "spark.sql.execution.pyspark.binaryAsBytes"
_LARGEST_FLOAT = 3.4028234663852886e38


def row_function(
    function: Callable[..., Any], types: list[Any], returns: Any, conf: dict[str, str]
) -> Callable[..., Any]:
    """A function from the values of a row to a value of the column."""
    as_bytes = _gets_bytes(conf)
    inputs = [_from_lane(kind, as_bytes) for kind in types]
    usual = _USUAL.get(returns.typeName(), "False")
    return _around(function, inputs, _converter(returns), usual)


def is_unchanged(types: list[Any], returns: Any) -> bool:
    """Whether the function gets the guest's values, and results of the usual classes become the column's."""
    # A large number may become an infinity of 32 bits.
    usual = _USUAL.keys() - {"float"}
    return returns.typeName() in usual and all(_from_lane(kind, True) is None for kind in types)


def _gets_bytes(conf: dict[str, str]) -> bool:
    """Whether a BINARY argument is bytes; in Spark 4.0 it is a bytearray."""
    return version() >= (4, 1) and is_true(conf, _BINARY_AS_BYTES, "true")


def _from_lane(kind: Any, as_bytes: bool) -> Callable[[Any], Any] | None:
    """Converts a value of the guest to the value that Spark gives. None if they are equal."""
    name = kind.typeName()
    if name == "timestamp":
        return _local
    if name == "binary":
        return None if as_bytes else bytearray
    if name == "array":
        element = _from_lane(kind.elementType, as_bytes)
        if element:
            return lambda values: [value if value is None else element(value) for value in values]
    return None


def _local(value: datetime.datetime) -> datetime.datetime:
    """A timestamp in the time zone of this process, as by `TimestampType.fromInternal`."""
    return value.astimezone().replace(tzinfo=None)


#: For each type, an expression that is true if the guest's loop takes the result as it is.
_USUAL = {
    "boolean": "result is True or result is False",
    **{
        name: f"type(result) is int and {-(1 << bits - 1)} <= result <= {(1 << bits - 1) - 1}"
        for name, bits in BITS.items()
    },
    "float": f"type(result) is float and {-_LARGEST_FLOAT!r} <= result <= {_LARGEST_FLOAT!r}",
    "double": "type(result) is float",
    "string": "type(result) is str",
    "binary": "type(result) is bytes",
    "date": "type(result) is date",
}
_SOURCE = """\
def around(function, inputs, convert, stopped, type, int, float, str, bytes, date):
    {unpacked}
    def called({names}):
        try:
            result = function({arguments})
        except StopIteration as error:
            raise stopped(error)
        if {usual}:
            return result
        return convert(result)
    return called
"""


def _around(
    function: Callable[..., Any],
    inputs: list[Callable[[Any], Any] | None],
    convert: Callable[[Any], Any],
    usual: str,
) -> Callable[..., Any]:
    names = [f"value_{number}" for number in range(len(inputs))]
    arguments = [
        f"{name} if {name} is None else input_{number}({name})" if inputs[number] else name
        for number, name in enumerate(names)
    ]
    source = _SOURCE.format(
        unpacked="".join(f"input_{number}, " for number in range(len(inputs))) + "*_, = inputs",
        names=", ".join(names),
        arguments=", ".join(arguments),
        usual=usual,
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), namespace)
    return namespace["around"](
        function, inputs, convert, stopped, type, int, float, str, bytes, datetime.date
    )


def stopped(error: StopIteration) -> Exception:
    """The exception of `pyspark.util.fail_on_stopiteration`."""
    from pyspark.errors import PySparkRuntimeError

    return PySparkRuntimeError(errorClass="STOP_ITERATION_OCCURRED", messageParameters={"exc": str(error)})


def _converter(returns: Any) -> Callable[[Any], Any]:
    """Converts any result that Spark accepts to a value that the guest accepts."""
    make = from_java(returns)
    to_internal = returns.toInternal if returns.needConversion() else None
    usual = _USUAL.get(returns.typeName())
    is_usual = eval(f"lambda result: {usual}", {"date": datetime.date}) if usual else (lambda result: False)

    def convert(result: Any) -> Any:
        if result is None or is_usual(result):
            return result
        if to_internal:
            result = to_internal(result)
        check_sent(result)
        return make(result)

    return convert
