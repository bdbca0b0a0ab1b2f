"""The decorator that declares a function, and what it declares."""

from __future__ import annotations

import functools
import inspect
import numbers
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from crosslane._worker.aggregates import Aggregate
from crosslane._worker.states import Stateful, is_stateful, needed

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
#: Rows of a batch that an ``async`` function works on at once, unless it says otherwise.
DEFAULT_CONCURRENCY = 16
#: What the engine takes.
_MOST_CONCURRENCY = 65_536
_MOST_RETRIES = 1_000_000
_LONGEST_TIMEOUT = 1_000_000_000
_LARGEST_MEMORY_LIMIT = 1 << 50
_MOST_ROWS = (1 << 63) - 1
#: A signature of no parameters, with a name or without.
_NO_PARAMETERS = re.compile(r'\s*("([^"]|"")*"|[^"(]*)\s*\(\s*\)')


class DeclarationError(Exception):
    """A function was declared in a way that cannot work; the message says where."""


class Options(TypedDict, total=False):
    """The options of a function; :func:`udf` says what they mean."""

    name: str | None
    nulls: Literal["skip", "call"]
    deterministic: bool
    vectorized: bool
    concurrency: int | None
    timeout: float | None
    memory_limit: int | str | None
    on_error: Literal["fail", "null"]
    retries: int
    inline: bool
    overload: bool


class TableOptions(TypedDict, total=False):
    """The options of a table function; :func:`udtf` says what they mean."""

    name: str | None
    nulls: Literal["skip", "call"]
    deterministic: bool
    vectorized: bool
    timeout: float | None
    memory_limit: int | str | None
    on_error: Literal["fail", "null"]
    retries: int
    partitions: Callable[..., Iterable[Any]] | None
    cardinality: int | None


class AggregateOptions(TypedDict, total=False):
    """The options of an aggregate; :func:`udaf` says what they mean."""

    name: str | None
    nulls: Literal["skip", "call"]
    vectorized: bool
    timeout: float | None
    memory_limit: int | str | None
    on_error: Literal["fail", "null"]
    retries: int


@dataclass
class Declaration:
    """What :func:`udf`, :func:`udtf` or :func:`udaf` was told about a function."""

    function: Callable[..., Any]
    name: str
    signature: str | None
    nulls: str
    deterministic: bool
    vectorized: bool
    concurrency: int
    timeout: float | None
    memory_limit: int | None
    on_error: str
    retries: int
    inline: bool
    overload: bool
    #: The options as they were given.
    given: Options
    #: What it is: ``"scalar"`` or ``"table"``.
    kind: str = "scalar"
    partitions: Callable[..., Any] | None = None
    cardinality: int | None = None
    file: str = field(init=False)
    line: int = field(init=False)

    def __post_init__(self) -> None:
        code = getattr(underlying(self.function), "__code__", None)
        self.file = code.co_filename if code else "<unknown>"
        self.line = code.co_firstlineno if code else 0

    def error(self, message: str) -> DeclarationError:
        """An error that names the function and where it is defined."""
        place = f"{self.file}:{self.line}: " if self.line else ""
        return DeclarationError(f"{place}function {self.name}: {message}")


@overload
def udf(function: F, /) -> F: ...
@overload
def udf(signature: str | None = None, /, **options: Unpack[Options]) -> Callable[[F], F]: ...
def udf(function: Any = None, /, **options: Unpack[Options]) -> Any:
    """Declares a function for SQL. The function itself stays as it is, and can be called as before.

    A class whose instances are called is a stateful function: each lane makes an instance, without arguments, before its
    first row, calls its ``__call__`` for the rows, and its ``close``, if it has one, when the lane is not needed any more.

    Use it bare, ``@udf``, with options, ``@udf(timeout=10)``, or with a signature in SQL's types,
    ``@udf("slug(title VARCHAR) -> VARCHAR")``. Without a signature the types come from the
    annotations.

    Args:
        name: what SQL calls it; by default the function's own name.
        nulls: ``"skip"``: a NULL argument gives NULL without a call, except for parameters whose
            annotation admits None; ``"call"``: the function sees every NULL as None.
        deterministic: equal arguments give equal results, so that the engine may call once for
            many rows; ``False`` for functions such as a random number.
        vectorized: the function takes and returns whole columns: pyarrow arrays, or numpy, pandas
            or polars by annotation. A generator is called once per worker: with an iterator of batches, each a column, or a tuple of
            them; it yields a column for each before it asks for the next.
        concurrency: rows that an ``async`` function works on at once in each worker; 16 by default.
        timeout: seconds after which a call is ended (a row's; a vectorized function's batch).
        memory_limit: bytes that the function may allocate, as a number or text such as ``"500 MB"``.
        on_error: ``"fail"``: an exception ends the query; ``"null"``: it makes the row NULL.
        retries: how often a failed call is tried again, with growing pauses.
        inline: a row function that is one expression is compiled into the loop over the rows;
            ``False``: it is called for each.
        overload: whether functions of the name that take other types stay beside it. A file may then declare several under
            one name, also with one ``def`` after the other.

    Raises:
        DeclarationError: if an option cannot have the value that it was given.
    """
    if function is None or isinstance(function, str):

        def decorate(decorated: F) -> F:
            _mark(declare(decorated, function, **options))
            return decorated

        return decorate
    if not callable(function):
        raise DeclarationError(f"udf decorates a function, not {function!r}")
    _mark(declare(function, **options))
    return function


@overload
def udtf(function: F, /) -> F: ...
@overload
def udtf(signature: str | None = None, /, **options: Unpack[TableOptions]) -> Callable[[F], F]: ...
def udtf(function: Any = None, /, **options: Unpack[TableOptions]) -> Any:
    """Declares a table function for SQL: a generator of rows. The function itself stays as it is.

    Its columns come from a signature, ``@udtf("numbers(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)")``, or from its result's
    annotation: an ``Iterator`` of a dataclass, a NamedTuple or a TypedDict. It yields tuples or lists of the columns' values,
    dicts, or objects with attributes of the columns' names; for one column also the value itself. An exception that it yields
    is the error of one row.

    SQL passes parameters without a default by position, and may pass those with a default by name
    (``numbers(5, step := 2)``). A function with a keyword-only parameter ``wanted`` is told the names of the columns that the
    query wants; its rows may have these alone.

    A function whose one parameter is a table, ``@udtf("late(flights TABLE(id BIGINT)) -> TABLE(id BIGINT)")``, is a stream
    function, for :func:`crosslane.map`. It is called with each batch of its input: with a list of rows, which are named tuples, or
    with ``vectorized=True`` with a pyarrow RecordBatch (by annotation a pyarrow Table, or a DataFrame of pandas or polars). It yields
    rows or batches as other table functions do, or returns None for none. A class whose instances are called is a stateful one, as for
    :func:`udf`.

    Args:
        name: what SQL calls it; by default the function's own name.
        nulls: ``"skip"``: a NULL argument gives an empty table without a call, except for parameters whose annotation
            admits None; ``"call"``: the function sees every NULL as None.
        deterministic: equal arguments give the same rows in the same order, so that the engine may do a scan again.
        vectorized: the function yields batches: pyarrow RecordBatches or Tables, polars or pandas frames, whatever has the
            Arrow PyCapsule interface, or a tuple or dict of columns.
        timeout: seconds after which a function is ended that makes no row.
        memory_limit: bytes that the function may allocate, as a number or text such as ``"500 MB"``.
        on_error: ``"fail"``: an exception ends the query; ``"null"``: a row that is an error is NULL, and an exception ends
            the table.
        retries: how often a scan that failed is done again, with growing pauses.
        partitions: a function of the same parameters, as far as it has them, that returns a list. The table function gets
            one of its elements as its first argument, and several workers scan at once.
        cardinality: how many rows there are, about: a hint for the optimizer.

    Raises:
        DeclarationError: if an option cannot have the value that it was given.
    """
    if function is None or isinstance(function, str):

        def decorate(decorated: F) -> F:
            _mark(declare(decorated, function, kind="table", **options))
            return decorated

        return decorate
    if not callable(function):
        raise DeclarationError(f"udtf decorates a function, not {function!r}")
    _mark(declare(function, kind="table", **options))
    return function


@overload
def udaf(made_by: C, /) -> C: ...
@overload
def udaf(signature: str | None = None, /, **options: Unpack[AggregateOptions]) -> Callable[[C], C]: ...
def udaf(made_by: Any = None, /, **options: Unpack[AggregateOptions]) -> Any:
    """Declares a class as an aggregate for SQL. The class itself stays as it is.

    Each group has an instance, which is made without arguments. ``update(self, x, ...)`` adds a row to it, ``merge(self, other)``
    what another instance holds, and ``finish(self)`` gives the result. What ``other`` holds may become a part of the instance: nobody
    else uses it afterwards. ``finish`` changes nothing, because it may be called more than once.

    Use it bare, ``@udaf``, with options, ``@udaf(timeout=10)``, or with a signature in SQL's types,
    ``@udaf("total(x BIGINT) -> BIGINT")``. Without a signature the types come from the annotations of ``update`` and ``finish``.

    Args:
        name: what SQL calls it; by default the class's name, in snake case.
        nulls: ``"skip"``: rows with a NULL are left out, except for parameters whose annotation admits None; ``"call"``:
            ``update`` sees every NULL as None.
        vectorized: ``update`` takes columns, with many rows of a group at once: pyarrow arrays, or numpy, pandas or polars by
            annotation.
        timeout: seconds after which a call is ended (a row's; vectorized, that of a group's rows).
        memory_limit: bytes that all instances of a worker may take together, as a number or text such as ``"500 MB"``.
        on_error: ``"fail"``: an exception ends the query; ``"null"``: a row whose ``update`` raises is left out, and a group
            whose ``finish`` raises is NULL. A ``merge`` that raises always ends the query.
        retries: how often ``update`` and ``finish`` are tried again when they raise, with growing pauses.

    Raises:
        DeclarationError: if the class can be no aggregate, or an option cannot have the value that it was given.
    """
    if made_by is None or isinstance(made_by, str):

        def decorate(decorated: C) -> C:
            _mark(declare(decorated, made_by, kind="aggregate", **options))
            return decorated

        return decorate
    _mark(declare(made_by, kind="aggregate", **options))
    return made_by


#: What was declared since this process has loaded a file: a variable keeps only the last function that it was given. None before.
declarations: list[Declaration] | None = None


def _mark(declaration: Declaration) -> None:
    if declarations is not None:
        declarations.append(declaration)
    function = declaration.function
    try:
        (
            function.made_by if isinstance(function, (Stateful, Aggregate)) else function
        ).__crosslane__ = declaration  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise declaration.error(
            "nothing can be noted on it; wrap it in a function, or give it to crosslane.register"
        ) from None


def declaration_of(function: object) -> Declaration | None:
    """What a function was declared as. It may be a method or a wrapper of what was declared, and is called as such."""
    declaration = getattr(function, "__crosslane__", None) if callable(function) else None
    if not isinstance(declaration, Declaration):
        return None
    declared = declaration.function
    if isinstance(declared, (Stateful, Aggregate)):
        # What inherits from a declared class is not declared, nor are instances.
        return declaration if function is declared.made_by else None
    return declaration if declared is function else replace(declaration, function=function)


def declare(
    function: Callable[..., Any],
    signature: str | None = None,
    *,
    name: str | None = None,
    nulls: str = "skip",
    deterministic: bool = True,
    vectorized: bool = False,
    concurrency: int | None = None,
    timeout: float | None = None,
    memory_limit: int | str | None = None,
    on_error: str = "fail",
    retries: int = 0,
    inline: bool = True,
    overload: bool = False,
    partitions: Callable[..., Any] | None = None,
    cardinality: int | None = None,
    kind: str = "scalar",
) -> Declaration:
    """The declaration of a function; the options are those of :func:`udf`, :func:`udtf` or :func:`udaf`."""
    known = {"table": TableOptions, "aggregate": AggregateOptions}.get(kind, Options)
    given = {key: value for key, value in locals().items() if key in known.__annotations__}
    if kind == "scalar" and is_stateful(function):
        function = Stateful(function)  # type: ignore[arg-type]
    of_plain_table = False
    if kind == "table" and isinstance(function, type):
        from crosslane._declare.signature.stream import takes_table

        if takes_table(signature):
            function = Stateful(function) if is_stateful(function) else function
        else:
            # Its instances are the rows, if they can be.
            of_plain_table = not hasattr(function, "__iter__")
    if kind == "aggregate":
        if not isinstance(function, type):
            raise DeclarationError(f"udaf decorates a class, not {function!r}")
        function = Aggregate(function)
    declaration = Declaration(
        function=function,
        name=name or _name_in(signature) or _name_of(function),
        signature=signature,
        nulls=nulls,
        deterministic=deterministic,
        vectorized=vectorized,
        concurrency=DEFAULT_CONCURRENCY,
        timeout=None,
        memory_limit=None,
        on_error=on_error,
        retries=retries,
        inline=inline,
        overload=overload,
        given=given,  # type: ignore[arg-type]
        kind=kind,
        partitions=partitions,
    )
    if of_plain_table:
        raise declaration.error(
            "a table function is a generator; a class is for udf, and for a udtf whose parameter is a TABLE"
        )
    if not isinstance(declaration.name, str):
        raise declaration.error(f"name is a text, not {name!r}")
    for option, value, choices in (
        ("nulls", nulls, ("skip", "call")),
        ("on_error", on_error, ("fail", "null")),
        ("deterministic", deterministic, (True, False)),
        ("vectorized", vectorized, (True, False)),
        ("inline", inline, (True, False)),
        ("overload", overload, (True, False)),
    ):
        if not (isinstance(value, type(choices[0])) and value in choices):
            raise declaration.error(f"{option} is {choices[0]!r} or {choices[1]!r}, not {value!r}")
    if isinstance(function, Stateful) and (missing := needed(function.made_by)):
        raise declaration.error(f"each lane makes an instance without arguments; this class needs {missing}")
    if isinstance(function, Aggregate) and (wrong := function.wrong()):
        raise declaration.error(wrong)
    takes_nothing = _NO_PARAMETERS.match(signature or "") is not None
    if isinstance(function, Aggregate) and vectorized and (takes_nothing or not function.takes_any()):
        raise declaration.error("a vectorized aggregate needs a parameter: its update is given columns")
    declaration.retries = _count(declaration, "retries", retries, 0, _MOST_RETRIES)
    if concurrency is not None:
        declaration.concurrency = _count(declaration, "concurrency", concurrency, 1, _MOST_CONCURRENCY)
        if not is_async(function):
            raise declaration.error("concurrency is for async functions; this one is not (`async def`)")
    if kind == "aggregate" and not (deterministic and inline):
        raise declaration.error("an aggregate has no options deterministic and inline")
    if kind != "table" and (partitions is not None or cardinality is not None):
        raise declaration.error("partitions and cardinality are for table functions; decorate it with udtf")
    if partitions is not None and not callable(partitions):
        raise declaration.error(f"partitions is a function that returns a list, not {partitions!r}")
    if cardinality is not None:
        declaration.cardinality = _count(declaration, "cardinality", cardinality, 0, _MOST_ROWS)
    if vectorized and is_async(function):
        raise declaration.error("a function is vectorized or async, not both")
    if timeout is not None:
        if not (_is_number(timeout, numbers.Real) and 0 < timeout <= _LONGEST_TIMEOUT):
            raise declaration.error(
                f"timeout is a positive number of seconds, at most {_LONGEST_TIMEOUT}, not {timeout!r}"
            )
        declaration.timeout = float(timeout)
    try:
        declaration.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)
    except ValueError as error:
        raise declaration.error(str(error)) from None
    return declaration


def underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a callable calls: it has its code and its annotations, if it is written in Python."""
    while function is not (inner := _inner(function)):
        function = inner
    if isinstance(function, type):
        made = (getattr(function, name) for name in ("__init__", "__new__"))
        return next(filter(inspect.isfunction, made), function)
    if not inspect.isroutine(function):
        return type(function).__call__
    return function


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a partial calls, or what a decorator wraps, which raises ValueError if that is itself in the end."""
    return function.func if isinstance(function, functools.partial) else inspect.unwrap(function)


def _name_in(signature: str | None) -> str | None:
    return (signature or "").split("(")[0].strip().strip('"') or None


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of the function gives an awaitable."""
    return inspect.iscoroutinefunction(underlying(function))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call of the function gives a generator. What a decorator wraps may give one, and the decorator something else."""
    if isinstance(function, Stateful):
        return is_generator(function.made_by.__call__)
    called = inspect.isroutine(function) or isinstance(function, functools.partial)
    return inspect.isgeneratorfunction(function if called else type(function).__call__)


def _is_number(value: object, kind: type) -> bool:
    """Whether a value is a number, of the kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _count(declaration: Declaration, option: str, value: int, least: int, most: int) -> int:
    if not (_is_number(value, numbers.Integral) and least <= value <= most):
        raise declaration.error(f"{option} is a whole number from {least} to {most}, not {value!r}")
    return int(value)


def parse_bytes(size: int | str) -> int:
    """A number of bytes, from a number or from text such as ``"500 MB"`` or ``"2 GiB"``.

    >>> parse_bytes("1.5 KiB")
    1536
    """
    count = size
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", size)
        unit = _UNITS.get(match[2].upper()) if match else None
        count = float(match[1]) * unit if match and unit else None
    if not (_is_number(count, numbers.Real) and 1 <= count <= _LARGEST_MEMORY_LIMIT):
        raise ValueError(f"memory_limit is a size such as '500 MB' or '2 GiB', at most 1 PiB, not {size!r}")
    return int(count)
