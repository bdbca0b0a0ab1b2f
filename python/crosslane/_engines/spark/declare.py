"""PySpark's functions as Spark's plugin takes them over: the same results as in Spark's own workers.

What is supported, by the eval type (``pyspark/util.py``) and the Spark types of arguments and result:

=====  =======================  ===============================================================
100    ``@udf``                 ``_ATOMS``, and arrays of them without a NULL that is ruled out
101    ``@udf(useArrow=True)``  ``_ATOMS``, and arrays, maps and structs of them
200    ``@pandas_udf``          as 101
250    ``@arrow_udf``           as 101
204    ``@pandas_udf``          as 101, with iterators
251    ``@arrow_udf``           as 101, with iterators
205    ``mapInPandas``          as 101: rows of them
207    ``mapInArrow``           as 101: rows of them
=====  =======================  ===============================================================

``_ATOMS`` are boolean, byte, short, integer, long, float, double, string, binary, date, timestamp, timestamp_ntz and
decimal(p,s). All else is refused with a reason, by :func:`reason_against` before a query is planned, or by
:class:`Unsupported` when what was pickled is looked at: other types (also strings with a collation, char, varchar),
functions of columns without an argument (nothing tells how many rows they have), profilers, and threads
(``spark.sql.execution.pythonUDF.arrow.concurrency.level``).

A function of rows (100) is called by the guest's own loop. The result that it nearly always has goes into the column as
it is; any other becomes what Spark makes of it (``EvaluatePython.makeFromJava``): mostly NULL for a value of another type,
and integers lose the bits that do not fit. Functions of columns (101, 200, 250) run Spark's own code for a batch
(``pyspark.worker``), with shortcuts for common types where nothing else could come out. There Spark's answers depend on
what lies in the same batch, which therefore has ``spark.sql.execution.arrow.maxRecordsPerBatch`` rows in both. Functions of
iterators (204, 251, 205, 207) see the batches of a whole task, by the same code.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import inspect
import io
import json
import math
import pickle
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crosslane import _guest
from crosslane._declare.decorators import underlying
from crosslane._declare.signature.annotations import Declared, quoted

#: Eval types of ``pyspark.util.PythonEvalType``.
BATCHED, ARROW_BATCHED, SCALAR_PANDAS, SCALAR_ARROW = 100, 101, 200, 250
SCALAR_PANDAS_ITER, SCALAR_ARROW_ITER, MAP_PANDAS_ITER, MAP_ARROW_ITER = 204, 251, 205, 207
#: What sees the batches of a whole task, as an iterator.
_ITERATORS = frozenset({SCALAR_PANDAS_ITER, SCALAR_ARROW_ITER, MAP_PANDAS_ITER, MAP_ARROW_ITER})
#: What makes rows of rows, each of which has one value: a struct.
_MAPS = frozenset({MAP_PANDAS_ITER, MAP_ARROW_ITER})
_KNOWN_TYPES = _ITERATORS | {BATCHED, ARROW_BATCHED, SCALAR_PANDAS, SCALAR_ARROW}

#: The Spark types that functions take and give, by their names in Spark's JSON. ``decimal(p,s)`` is one, too.
_ATOMS = frozenset(
    {
        "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp",
        "timestamp_ntz",
    }
)  # fmt: skip
_DECIMAL = re.compile(r"decimal(\(\s*\d+\s*,\s*\d+\s*\))?")

_PROFILER = "spark.sql.pyspark.udf.profiler"
_THREADS = "spark.sql.execution.pythonUDF.arrow.concurrency.level"
_LEGACY = "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled"
_BINARY_AS_BYTES = "spark.sql.execution.pyspark.binaryAsBytes"

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LARGEST_FLOAT = 3.4028234663852886e38
#: Floats of fewer bits than integers have: those beyond are not exact.
_EXACT = 2**53


class Unsupported(Exception):
    """Spark has to run the function itself."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def reason_against(
    eval_type: int, argument_types: list[str], return_type: str, conf: dict[str, str]
) -> str | None:
    """Why Spark has to run such a function itself; None if a lane can. PySpark is not imported for this.

    Args:
        eval_type: a number of ``pyspark.util.PythonEvalType``.
        argument_types: Spark's types as JSON, such as ``'"long"'``.
        return_type: the same for the result.
        conf: the settings of the query that concern Python.
    """
    if eval_type not in _KNOWN_TYPES:
        return f"functions of eval type {eval_type} are not known"
    if conf.get(_PROFILER):
        return f"{_PROFILER} is set"
    threads = conf.get(_THREADS)
    if eval_type == ARROW_BATCHED and threads and int(threads) > 0:
        return f"{_THREADS} is set"
    if eval_type != BATCHED and not argument_types:
        return "a function of columns has no argument"
    for number, text in enumerate(argument_types, 1):
        wrong = _wrong(_parsed(text), eval_type == BATCHED, False)
        if wrong:
            return f"argument {number} has the type {wrong}"
    wrong = _wrong(_parsed(return_type), eval_type == BATCHED, True)
    return f"the result has the type {wrong}" if wrong else None


def _parsed(text: str) -> Any:
    """A type's JSON; a bare name is one, too."""
    text = text.strip()
    return json.loads(text) if text[:1] in ('"', "{") else text


def _wrong(kind: Any, by_row: bool, is_result: bool) -> str | None:
    """The part of a type that is not supported, in words."""
    if isinstance(kind, str):
        return None if kind in _ATOMS or _DECIMAL.fullmatch(kind) else kind
    name = kind.get("type")
    if name == "array":
        if by_row and is_result and not kind.get("containsNull", True):
            return "array of elements that cannot be NULL"
        return _wrong(kind["elementType"], by_row, is_result)
    if name == "udt" or by_row:
        return str(name)
    if name == "map":
        return _wrong(kind["keyType"], by_row, is_result) or _wrong(kind["valueType"], by_row, is_result)
    if name == "struct":
        names = [field["name"].lower() for field in kind["fields"]]
        if not names or len(set(names)) < len(names):
            return "struct with no fields, or several of a name"
        parts = (_wrong(field["type"], by_row, is_result) for field in kind["fields"])
        return next(filter(None, parts), None)
    return str(name)


def declare(
    name: str,
    signature: str,
    command: bytes,
    eval_type: int,
    argument_types: list[str],
    return_type: str,
    conf: dict[str, str],
) -> list[Declared | Iterated]:
    """What a lane needs to run a function of PySpark, for :func:`crosslane._declare.library.load_pickles`.

    Args:
        name: what the function is called here.
        signature: its types in SQL, such as ``f(a BIGINT) -> BIGINT``.
        command: what PySpark pickled: the function and the type of its result.
        eval_type: a number of ``pyspark.util.PythonEvalType``.
        argument_types: Spark's types as JSON.
        return_type: the same for the result.
        conf: the settings of the query that concern Python, with ``spark.sql.session.timeZone``.

    Raises:
        Unsupported: if Spark has to run it itself.
        Exception: whatever is raised when the function is unpickled.
    """
    reason = reason_against(eval_type, argument_types, return_type, conf)
    if reason:
        raise Unsupported(reason)
    loaded = pickle.loads(command)
    if not (isinstance(loaded, tuple) and len(loaded) == 2 and callable(loaded[0])):
        raise Unsupported(f"the command is a {type(loaded).__name__}, and no function with its type")
    function = loaded[0]
    types = [_spark_type(text) for text in argument_types]
    returns = _spark_type(return_type)
    if eval_type == BATCHED:
        called = _row_function(function, types, returns, conf)
        return [_declared(name, signature, function, called, "row")]
    if eval_type in _ITERATORS:
        return [Iterated(name, signature, function, eval_type, types, returns, conf)]
    called = _column_function(function, eval_type, types, returns, conf)
    return [_declared(name, signature, function, called, "vectorized")]


def _declared(
    name: str,
    signature: str,
    function: Callable[..., Any],
    called: Callable[..., Any],
    kind: str,
) -> Declared:
    _, parameters, returns, _ = _guest.parse_signature(signature)
    inner = ", ".join(f"{quoted(parameter)} {sql}" for parameter, sql in parameters)
    count = len(parameters)
    file, line = _defined(function)
    return Declared(
        name=name,
        signature=f"{quoted(name)}({inner}) -> {returns}",
        callable=called,
        kind=kind,
        variadic=False,
        shapes=[None] * count,
        result_shape=None,
        admits_null=[True] * count,
        columns=["pyarrow"] * count,
        # Spark calls it for each row.
        deterministic=False,
        concurrency=1,
        timeout=None,
        memory_limit=None,
        on_error="fail",
        retries=0,
        inline=called is function,
        file=file,
        line=line,
        description=inspect.getdoc(function) or "",
        # Of columns, Spark gives it these batches, too.
        whole_batches=kind == "vectorized",
    )


def _defined(function: Callable[..., Any]) -> tuple[str, int]:
    """The file and the line where a function is defined."""
    code = getattr(underlying(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 0)


def _spark_type(text: str) -> Any:
    from pyspark.sql.types import _parse_datatype_json_string

    return _parse_datatype_json_string(json.dumps(_parsed(text)))


def _is_true(conf: dict[str, str], key: str, default: str) -> bool:
    return conf.get(key, default).lower() == "true"


# Functions of rows.


def _row_function(
    function: Callable[..., Any], types: list[Any], returns: Any, conf: dict[str, str]
) -> Callable[..., Any]:
    """What is called with a row's values, and makes a value of the column of any result."""
    as_bytes = _gets_bytes(conf)
    inputs = [_from_lane(kind, as_bytes) for kind in types]
    usual = _USUAL.get(returns.typeName(), "False")
    return _around(function, inputs, _converter(returns), usual)


def _gets_bytes(conf: dict[str, str]) -> bool:
    """Whether a function sees a BINARY as bytes, or as a bytearray as in Spark 4.0."""
    return _version() >= (4, 1) and _is_true(conf, _BINARY_AS_BYTES, "true")


def _from_lane(kind: Any, as_bytes: bool) -> Callable[[Any], Any] | None:
    """What makes Spark's value of one that the guest reads and that is not NULL; None if they are the same."""
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


def _local(moment: datetime.datetime) -> datetime.datetime:
    """The moment on a clock of this process's zone, as `TimestampType.fromInternal` has it."""
    return moment.astimezone().replace(tzinfo=None)


#: Whether a result is what the guest's loop takes at once, by the names of types.
_USUAL = {
    "boolean": "result is True or result is False",
    **{
        name: f"type(result) is int and {-(1 << bits - 1)} <= result <= {(1 << bits - 1) - 1}"
        for name, bits in _BITS.items()
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
        function, inputs, convert, _stopped, type, int, float, str, bytes, datetime.date
    )


def _stopped(error: StopIteration) -> Exception:
    """What `pyspark.util.fail_on_stopiteration` raises."""
    from pyspark.errors import PySparkRuntimeError

    return PySparkRuntimeError(errorClass="STOP_ITERATION_OCCURRED", messageParameters={"exc": str(error)})


def _converter(returns: Any) -> Callable[[Any], Any]:
    """What makes a value that the guest takes of any result that Spark's workers send, or raises what is wrong with it."""
    make = _from_java(returns)
    to_internal = returns.toInternal if returns.needConversion() else None
    usual = _USUAL.get(returns.typeName())
    is_usual = eval(f"lambda result: {usual}", {"date": datetime.date}) if usual else (lambda result: False)

    def convert(result: Any) -> Any:
        if result is None or is_usual(result):
            return result
        if to_internal:
            result = to_internal(result)
        _check_sent(result)
        return make(result)

    return convert


#: What Java has of Python's classes, beside containers: None is what its objects are to a type that has no place for them.
_KNOWN = (
    type(None), bool, int, float, complex, str, bytes, bytearray, decimal.Decimal, datetime.date, datetime.datetime,
    datetime.time, datetime.timedelta,
)  # fmt: skip


def _check_sent(value: Any) -> None:
    """Refuses what the JVM cannot unpickle."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        for item in value:
            _check_sent(item)
    elif kind is dict:
        for pair in value.items():
            _check_sent(pair)
    elif kind is decimal.Decimal and value.is_infinite():
        raise ValueError(f"Spark takes no {value!r}")
    elif kind not in _KNOWN:
        # What Python cannot pickle is told as in Spark.
        pickle.dumps(value)
        raise TypeError(
            f"returned a {kind.__module__}.{kind.__qualname__}, which Spark takes only as a plain value of Python: "
            "convert it, such as by its .item() or .tolist() if it is numpy's"
        )


def _from_java(returns: Any) -> Callable[[Any], Any]:
    """What `EvaluatePython.makeFromJava` makes of what was unpickled, in the guest's form: None where nothing matches."""
    name = returns.typeName()
    if name == "boolean":
        return lambda value: value if type(value) is bool else None
    if name in _BITS:
        return functools.partial(_integer, _BITS[name])
    if name == "float":
        return _single
    if name == "double":
        return _double
    if name == "string":
        return java_text
    if name == "binary":
        return _binary
    if name == "date":
        return lambda value: _date(value) if type(value) is int else None
    if name in ("timestamp", "timestamp_ntz"):
        start = _EPOCH_UTC if name == "timestamp" else _EPOCH

        def moment(value: Any) -> datetime.datetime | None:
            return start + datetime.timedelta(microseconds=value) if type(value) is int else None

        return moment
    if name == "decimal":
        return lambda value: value if type(value) is decimal.Decimal and value.is_finite() else None
    element = _from_java(returns.elementType)

    def elements(value: Any) -> list[Any] | None:
        if type(value) not in (list, tuple):
            return None
        return [item if item is None else element(item) for item in value]

    return elements


def _integer(bits: int, value: Any) -> int | None:
    """An int, without the bits that do not fit; None beyond 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        return None
    half = 1 << bits - 1
    return (value + half) % (half * 2) - half


def _double(value: Any) -> float | None:
    if type(value) is float:
        return value
    # Java's decimals have no NaN, which becomes a double.
    return math.nan if type(value) is decimal.Decimal and value.is_nan() else None


def _single(value: Any) -> float | None:
    number = _double(value)
    if number is None:
        return None
    try:
        struct.pack("f", number)
    except OverflowError:
        return math.copysign(math.inf, number)
    return number


def _binary(value: Any) -> bytes | None:
    if type(value) is str:
        return value.encode(errors="replace")
    return bytes(value) if type(value) in (bytes, bytearray) else None


def _date(days: int) -> datetime.date:
    return datetime.date.fromordinal(days + 719_163)


# Texts that Java makes.


def java_text(value: Any) -> str | None:
    """What Java's ``toString`` gives for a value of Python in the JVM; None for None.

    >>> java_text([True, 1e10, {"b": None}])
    '[true, 1.0E10, {b=null}]'

    Raises:
        TypeError: if only Java knows.
    """
    return None if value is None else _java_text(value)


def _java_text(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return value
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return _java_double(value)
    if kind is decimal.Decimal:
        return "NaN" if value.is_nan() else _java_decimal(value)
    if kind is list:
        return f"[{', '.join(map(_java_text, value))}]"
    if kind in (set, frozenset):
        return f"[{', '.join(_java_text(item) for item in _hashed(value))}]"
    if kind is dict:
        pairs = (f"{_java_text(key)}={_java_text(value[key])}" for key in _put(value))
        return f"{{{', '.join(pairs)}}}"
    if kind is tuple:
        return f"[Ljava.lang.Object;@{id(value) & 0x7FFFFFFF:x}"
    if kind in (bytes, bytearray):
        return f"[B@{id(value) & 0x7FFFFFFF:x}"
    raise TypeError(
        f"returned a {kind.__qualname__} where a string is due, of which only Java knows its text: return a str"
    )


def _java_decimal(value: decimal.Decimal) -> str:
    """BigDecimal knows no negative zero."""
    return str(value.copy_abs() if value.is_zero() else value)


def _java_double(value: float) -> str:
    """As `Double.toString`.

    >>> [_java_double(value) for value in (1.0, 1e7, 1e-3, -1.5e-4, math.inf)]
    ['1.0', '1.0E7', '0.001', '-1.5E-4', 'Infinity']
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    if len(text) == 1:
        # Java shows two digits, which may come closer than one and a zero.
        closest, _, power = f"{abs(value):.1e}".partition("e")
        text, point = closest.replace(".", "").rstrip("0"), int(power) + 1
    minus = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        whole = text[:point].ljust(point, "0") if point > 0 else "0"
        rest = text[point:] if point > 0 else "0" * -point + text
        return f"{minus}{whole}.{rest or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _hashed(keys: Iterable[Any]) -> list[Any]:
    """Keys as a `HashMap` or `HashSet` of Java has them that has got them from a stack, the last one first."""
    keys = list(keys)[::-1]
    size = 16
    while len(keys) > size * 3 // 4:
        size *= 2
    return sorted(keys, key=lambda key: _place(key) & (size - 1))


def _put(keys: Iterable[Any]) -> list[Any]:
    """Keys as a `HashMap` of Java 17 has them that has got all those of another at once."""
    keys = _hashed(keys)
    size = 1
    while size < len(keys) * 4 // 3 + 1:
        size *= 2
    return sorted(keys, key=lambda key: _place(key) & (size - 1))


def _place(key: Any) -> int:
    number = _java_hash(key) & 0xFFFFFFFF
    return number ^ number >> 16


def _java_hash(key: Any) -> int:
    kind = type(key)
    if key is None:
        return 0
    if kind is bool:
        return 1231 if key else 1237
    if kind is int and -(1 << 63) <= key < 1 << 63:
        bits = key & 0xFFFFFFFFFFFFFFFF
        return key if -(1 << 31) <= key < 1 << 31 else bits ^ bits >> 32
    if kind is float:
        (bits,) = struct.unpack("<Q", struct.pack("<d", key))
        return bits ^ bits >> 32
    if kind is str:
        units = key.encode("utf-16-le", errors="surrogatepass")
        result = 0
        for unit in struct.unpack(f"<{len(units) // 2}H", units):
            result = result * 31 + unit & 0xFFFFFFFF
        return result
    raise TypeError(
        f"returned a collection with a {kind.__qualname__} where a string is due, whose order only Java knows: return a str"
    )


# Functions of columns.


def _column_function(
    function: Callable[..., Any], eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Callable[..., Any]:
    """What is called with the arrays of a batch and gives one."""
    import pandas  # noqa: F401  A lane should find it imported.
    import pyarrow as pa

    evaluate = _of_worker(function, eval_type, types, returns, conf)
    kinds = [_arrow_type(kind, conf) for kind in types]
    names = [f"_{number}" for number in range(len(types))]

    def called(*arrays: Any) -> Any:
        columns = [_cast(array, kind) for array, kind in zip(arrays, kinds)]
        (result,) = evaluate(iter([pa.RecordBatch.from_arrays(columns, names)]))
        return result.column(0)

    if eval_type != ARROW_BATCHED or not _Shortcut.is_one(types, conf):
        return called
    # Spark's own code takes the results of the shortcut's calls that are unusual.
    replay = _Replay()
    evaluate = _of_worker(replay, eval_type, types, returns, conf)
    shortcut = _Shortcut(function, len(types), returns, conf)

    def quickly(*arrays: Any) -> Any:
        results = shortcut.results(arrays)
        array = shortcut.array(results)
        if array is not None:
            return array
        replay.results = iter(results)
        return called(*arrays)

    return quickly


class _Replay:
    """In the place of a function that was called already."""

    results: Iterator[Any] = iter(())

    def __call__(self, *_: object) -> Any:
        return next(self.results)


def _cast(array: Any, kind: Any) -> Any:
    return array if array.type == kind else array.cast(kind)


class Iterated:
    """A function that is called once for a task, with an iterator of its batches, as the guest's loop and the engine need it."""

    kind = "stream"
    table = None
    memory_limit = None
    columns = ["pandas", "pyarrow"]

    def __init__(
        self,
        name: str,
        signature: str,
        function: Callable[..., Any],
        eval_type: int,
        types: list[Any],
        returns: Any,
        conf: dict[str, str],
    ) -> None:
        import pandas  # noqa: F401  A lane should find it imported.

        from crosslane._arrow.encode import Chooser

        _, parameters, sql, _ = _guest.parse_signature(signature)
        self._is_map = eval_type in _MAPS
        if self._is_map:
            ((_, columns),) = parameters
        else:
            columns = f"STRUCT({', '.join(f'{quoted(parameter)} {of}' for parameter, of in parameters)})"
            sql = f"STRUCT(result {sql})"
        columns, sql = _guest.parse_type(columns), _guest.parse_type(sql)
        tables = (text.removeprefix("STRUCT") for text in (columns, sql))
        self._signature = "{}(rows TABLE{}) -> TABLE{}".format(quoted(name), *tables)
        #: The types of the batches that it takes, as they travel.
        self.takes = f"({columns})"
        self._result = Chooser(sql)
        self._names = [field.name for field in _guest.table_type(sql)]
        self._types = [_arrow_type(kind, conf) for kind in types]
        #: What each column of a batch has to be, where nothing else has made it so.
        self._declared = list(returns) if eval_type == MAP_ARROW_ITER else []
        self._evaluate = _of_worker(function, eval_type, types, returns, conf)
        self._file, self._line = _defined(function)
        self._description = inspect.getdoc(function) or ""

    def message(self) -> dict[str, Any]:
        """What the engine is told, as JSON."""
        return {
            "signature": self._signature,
            "kind": self.kind,
            "admits_null": [True],
            "calling": "vectorized",
            "iterates": True,
            "deterministic": False,
            "file": self._file,
            "line": self._line,
            "description": self._description,
        }

    def set_up(self) -> None:
        """There is nothing to prepare. Called by the native guest."""

    def iterate(self, arrays: Iterator[Any], most: int) -> Iterator[tuple[str, Any]]:
        """What the function gives for all batches, which are pyarrow StructArrays. Called by the native guest."""
        import pyarrow as pa

        for batch in self._evaluate(map(self._given, arrays)):
            column = batch.column(0)
            columns = column.flatten() if self._is_map else [column]
            if len(columns) < len(self._names):
                raise ValueError(f"gave {len(columns)} columns, where {len(self._names)} are declared")
            if self._declared:
                columns = [_read(column, field) for column, field in zip(columns, self._declared)]
            chosen = pa.RecordBatch.from_arrays(columns[: len(self._names)], self._names)
            yield from self._result.encode(chosen, most)

    def _given(self, array: Any) -> Any:
        """A batch as Spark's JVM sends it: the arguments, or one struct."""
        import pyarrow as pa

        columns = array.flatten()
        if not self._is_map:
            columns = [_cast(column, kind) for column, kind in zip(columns, self._types)]
            return pa.RecordBatch.from_arrays(columns, [f"_{number}" for number in range(len(columns))])
        fields = list(self._types[0])
        columns = [_cast(column, field.type) for column, field in zip(columns, fields)]
        return pa.RecordBatch.from_arrays([pa.StructArray.from_arrays(columns, fields=fields)], ["_0"])


#: How Arrow stores what Spark's JVM reads as one of its types, by the names of these types.
_STORED = {
    "boolean": "bool", "byte": "int8", "short": "int16", "integer": "int32", "date": "int32", "long": "int64",
    "timestamp": "int64", "timestamp_ntz": "int64", "float": "float", "double": "double", "decimal": "decimal",
    "string": "string", "binary": "binary",
}  # fmt: skip


def _read(column: Any, field: Any) -> Any:
    """A column of Arrow as Spark's JVM (``ArrowColumnVector``) reads it: it casts nothing, and takes the fields of a
    struct by their places. A TypeError says which columns it cannot read.
    """
    read_as = _read_as(column.type, field.dataType)
    if read_as is None:
        declared = field.dataType.simpleString()
        raise TypeError(f"gave {column.type} for the column {field.name}, where {declared} is declared")
    return column if read_as == column.type else column.view(read_as)


def _read_as(given: Any, declared: Any) -> Any:
    """The type of Arrow as which Spark's JVM reads a column of another that is stored alike; None if it cannot."""
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
        fields = [given.field(place) for place in range(given.num_fields)]
        read = [_read_as(field.type, within.dataType) for field, within in zip(fields, declared)]
        if None in read:
            return None
        known = [pa.field(within.name, kind) for within, kind in zip(declared, read)]
        # More fields than declared are not read, whatever their names.
        return pa.struct(known + [field.with_name("") for field in fields[len(known) :]])
    if _stored(given) != _STORED.get(name):
        return None
    if name == "date":
        return pa.date32()
    if name.startswith("timestamp") and kinds.is_int64(given):
        return pa.timestamp("us", "UTC" if name == "timestamp" else None)
    return given


def _stored(given: Any) -> str | None:
    """How Arrow stores a type, as far as Spark's JVM makes a difference."""
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


def _arrow_type(kind: Any, conf: dict[str, str]) -> Any:
    """The type of an argument as Spark's JVM sends it."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    large = _is_true(conf, "spark.sql.execution.arrow.useLargeVarTypes", "false")
    zone = conf.get("spark.sql.session.timeZone", "UTC")
    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return to_arrow_type(kind, timezone=zone, prefers_large_types=large)
    made = to_arrow_type(kind, prefers_large_types=large)
    return pa.timestamp("us", zone) if kind.typeName() == "timestamp" else made


def _of_worker(
    function: Callable[..., Any], eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What PySpark's own worker makes of batches, which have the arguments in their order: batches of one column.

    A worker reads batches from a stream and writes others into one; what it does between is the same here. Only the streams are none:
    :class:`_Stream` gives the batches, and takes them.
    """
    from pyspark import worker

    known = {
        ("pickleSer", "infile", "eval_type"): _read_all_of_stream,
        ("pickleSer", "infile", "eval_type", "runner_conf", "eval_conf"): _read_functions_of_stream,
        ("pickleSer", "udf_info_list", "eval_type", "runner_conf", "eval_conf"): _read_objects,
    }
    read = known.get(tuple(inspect.signature(worker.read_udfs).parameters))
    if read is None:
        raise Unsupported("this version of PySpark is not known")
    evaluate, _, deserializer, serializer = read(worker, function, eval_type, types, returns, conf)
    _Stream.prepare()

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        made = _Stream()
        serializer.dump_stream(evaluate(0, deserializer.load_stream(_Stream(batches))), made)
        assert made.batches is not None
        return made.batches

    return run


class _Stream:
    """In the place of a stream of PySpark's serializers: batches, which nobody writes or reads."""

    def __init__(self, batches: Iterator[Any] | None = None) -> None:
        self.batches = batches

    def write(self, _: bytes) -> None:
        """Takes what is written beside batches."""

    @classmethod
    @functools.cache
    def prepare(cls) -> None:
        """Has the serializers know such streams."""
        from pyspark.sql.pandas.serializers import ArrowStreamSerializer

        load, dump = ArrowStreamSerializer.load_stream, ArrowStreamSerializer.dump_stream

        def load_stream(serializer: Any, stream: Any) -> Any:
            return stream.batches if isinstance(stream, cls) else load(serializer, stream)

        def dump_stream(serializer: Any, iterator: Any, stream: Any) -> Any:
            if not isinstance(stream, cls):
                return dump(serializer, iterator, stream)
            stream.batches = iter(iterator)
            return None

        ArrowStreamSerializer.load_stream, ArrowStreamSerializer.dump_stream = load_stream, dump_stream


@functools.cache
def _version() -> tuple[int, int]:
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


class _Given:
    """In the place of the pickler of a worker: what is to be unpickled is there already."""

    def __init__(self, command: tuple[Any, Any]) -> None:
        self._command = command

    def loads(self, _: object) -> tuple[Any, Any]:
        return self._command

    _read_with_length = loads


def _schema(types: list[Any]) -> str:
    """The columns of a batch, as JSON."""
    from pyspark.sql.types import StructType

    schema = StructType()
    for number, kind in enumerate(types):
        schema = schema.add(f"_{number}", kind)
    return schema.json()  # type: ignore[no-any-return]


def _read_objects(
    worker: Any, function: Any, eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Any:
    """What `worker.read_udfs` gives in Spark 4.3."""
    from pyspark.worker_message import UDFInfo

    info = UDFInfo(udfs=[memoryview(b"")], args=list(range(len(types))), kwargs={}, result_id=0)
    runner_conf, eval_conf = worker.RunnerConf(dict(conf)), worker.EvalConf({"input_type": _schema(types)})
    return worker.read_udfs(_Given((function, returns)), [info], eval_type, runner_conf, eval_conf)


def _read_functions_of_stream(
    worker: Any, function: Any, eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Any:
    """The same in Spark 4.2, whose worker is told of functions in a stream."""
    from pyspark.serializers import write_int, write_long

    told = io.BytesIO()
    write_int(1, told)
    _tell_arguments(len(types), True, told)
    write_int(1, told)
    write_long(0, told)
    told.seek(0)
    runner_conf, eval_conf = worker.RunnerConf(), worker.EvalConf()
    runner_conf._conf.update(conf)
    eval_conf._conf.update({"input_type": _schema(types)})
    return worker.read_udfs(_Given((function, returns)), told, eval_type, runner_conf, eval_conf)


def _read_all_of_stream(
    worker: Any, function: Any, eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Any:
    """The same in Spark 4.0 and 4.1, whose workers are told of settings there, too."""
    from pyspark.serializers import write_int, write_with_length

    told = io.BytesIO()
    write_int(len(conf), told)
    for pair in conf.items():
        for text in pair:
            write_with_length(text.encode(), told)
    if eval_type == ARROW_BATCHED and _version() >= (4, 1):
        write_with_length(_schema(types).encode(), told)
    told.write(b"\0")  # No profiler.
    write_int(1, told)
    _tell_arguments(len(types), eval_type not in _MAPS, told)
    write_int(1, told)
    told.seek(0)
    return worker.read_udfs(_Given((function, returns)), told, eval_type)


def _tell_arguments(count: int, with_names: bool, told: io.BytesIO) -> None:
    """Which columns are the arguments: all, none of which has a name."""
    from pyspark.serializers import write_int

    write_int(count, told)
    for number in range(count):
        write_int(number, told)
        if with_names:
            told.write(b"\0")


class _Shortcut:
    """Rows of a function that Arrow carries (101), where Spark's code would come to the same in more steps."""

    #: Types whose columns are the same lists, by the shortest way.
    _LISTED = frozenset({"boolean", "byte", "short", "integer", "long", "float", "double", "string", "date"})

    def __init__(self, function: Callable[..., Any], count: int, returns: Any, conf: dict[str, str]) -> None:
        #: Whether Spark goes by way of pandas.
        self._pandas = _version() < (4, 1)
        self._returns = returns.typeName()
        self._kind = _arrow_type(returns, conf) if self._returns in self._LISTED else None
        self._each = _each(function, count)

    @classmethod
    def is_one(cls, types: list[Any], conf: dict[str, str]) -> bool:
        """Whether there is one for arguments of these types."""
        legacy = _version() >= (4, 1) and _is_true(conf, _LEGACY, "false")
        return not legacy and all(kind.typeName() in cls._LISTED for kind in types)

    def results(self, arrays: tuple[Any, ...]) -> list[Any]:
        """What the function gives for the rows."""
        try:
            return self._each(*map(self._listed, arrays))  # type: ignore[no-any-return]
        except StopIteration as error:
            raise _stopped(error)  # noqa: B904

    def _listed(self, array: Any) -> list[Any]:
        import pyarrow.types as kinds

        if (
            self._pandas
            and array.null_count
            and (kinds.is_integer(array.type) or kinds.is_floating(array.type))
        ):
            # In pandas they are floats, and NULL is NaN.
            return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        return array.to_pylist()  # type: ignore[no-any-return]

    def array(self, results: list[Any]) -> Any:
        """The results as an array; None if it takes Spark to know what becomes of them."""
        import pyarrow as pa

        if self._kind is None:
            return None
        classes = set(map(type, results))
        has_none = type(None) in classes
        classes.discard(type(None))
        if len(classes) != 1 or classes.pop() is not _CLASSES[self._returns]:
            return None
        try:
            if self._returns in ("float", "double"):
                # In pandas, NaN is NULL.
                made = pa.array(results, pa.float64(), from_pandas=self._pandas)
                return made.cast(self._kind, safe=False) if self._returns == "float" else made
            made = pa.array(results, self._kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return None
        if has_none and self._pandas and self._returns == "long" and not _is_exact(made):
            return None
        return made


#: The class that results of a type nearly always have.
_CLASSES = {
    "boolean": bool, "byte": int, "short": int, "integer": int, "long": int, "float": float, "double": float,
    "string": str, "date": datetime.date,
}  # fmt: skip


def _is_exact(array: Any) -> bool:
    """Whether integers are the same as floats, which they are in pandas beside NULLs."""
    import pyarrow.compute as pc

    most = pc.min_max(array).as_py()
    return most["min"] is None or (most["min"] >= -_EXACT and most["max"] <= _EXACT)


def _each(function: Callable[..., Any], count: int) -> Callable[..., list[Any]]:
    """A loop over columns, with a place of its own for the call, which CPython makes faster for the function that it finds."""
    names = [f"value_{number}" for number in range(count)]
    columns = [f"column_{number}" for number in range(count)]
    values = columns[0] if count == 1 else f"zip({', '.join(columns)})"
    source = (
        f"def around(function, zip):\n def each({', '.join(columns)}):\n"
        f"  return [function({', '.join(names)}) for {', '.join(names)} in {values}]\n return each\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), namespace)
    return namespace["around"](function, zip)  # type: ignore[no-any-return]
