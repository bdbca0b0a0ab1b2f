"""Declarations: the options of a function, and the checks of their values."""

from __future__ import annotations

import json
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypedDict

from crosslane._declare.callables import defined_at, is_async, name_of
from crosslane._declare.classes import Aggregate, Stateful, is_stateful, needed

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
#: How many rows of a batch an ``async`` function works on at once by default.
DEFAULT_CONCURRENCY = 16
#: The largest values that the engine takes.
_MOST_CONCURRENCY = 65_536
_MOST_RETRIES = 1_000_000
_MOST_BATCH = 1_000_000
_MOST_WORKERS = 1024
_LONGEST_TIMEOUT = 1_000_000_000
_LARGEST_MEMORY_LIMIT = 1 << 50
_MOST_ROWS = (1 << 63) - 1
#: A signature without parameters, with a name or without.
_NO_PARAMETERS = re.compile(r'\s*("([^"]|"")*"|[^"(]*)\s*\(\s*\)')


#: One path, or several.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class DeclarationError(Exception):
    """A function was declared in a way that cannot work; the message says where."""


class AggregateOptions(TypedDict, total=False):
    """The options of an aggregate, which all functions have; :func:`udaf` says what they mean."""

    name: str | None
    nulls: Literal["skip", "call"]
    vectorized: bool
    timeout: float | None
    memory_limit: int | str | None
    on_error: Literal["fail", "null"]
    retries: int


class Options(AggregateOptions, total=False):
    """The options of a function; :func:`udf` says what they mean."""

    deterministic: bool
    concurrency: int | None
    inline: bool
    overload: bool
    memoize: int | str | None
    rate: str | None
    batch: int | None
    workers: int | None
    gpus: int | None
    cache: str | os.PathLike[str] | bool | None
    ttl: float | timedelta | None
    sandbox: Literal["on", "strict"] | bool | None
    allow_read: Paths | None
    allow_write: Paths | None
    allow_net: bool | None
    allow_run: Paths | None


class TableOptions(AggregateOptions, total=False):
    """The options of a table function; :func:`udtf` says what they mean."""

    deterministic: bool
    partitions: Callable[..., Iterable[Any]] | None
    cardinality: int | None


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
    memoize: int | None
    rate: str | None
    batch: int | None
    workers: int | None
    gpus: int | None
    cache: str | None
    #: How long kept results hold, in seconds.
    ttl: float | None
    #: The sandbox of its own workers, as the engine is told.
    own_sandbox: dict[str, Any] | None
    #: The options as they were given.
    given: Options
    #: ``"scalar"``, ``"table"`` or ``"aggregate"``.
    kind: str = "scalar"
    partitions: Callable[..., Any] | None = None
    cardinality: int | None = None
    file: str = field(init=False)
    line: int = field(init=False)

    def __post_init__(self) -> None:
        self.file, self.line = defined_at(self.function)

    def error(self, message: str) -> DeclarationError:
        """An error that names the function and the line where it is defined."""
        place = f"{self.file}:{self.line}: " if self.line else ""
        return DeclarationError(f"{place}function {self.name}: {message}")


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
    memoize: int | str | None = None,
    rate: str | None = None,
    batch: int | None = None,
    workers: int | None = None,
    gpus: int | None = None,
    cache: str | os.PathLike[str] | bool | None = None,
    ttl: float | timedelta | None = None,
    sandbox: Literal["on", "strict"] | bool | None = None,
    allow_read: Paths | None = None,
    allow_write: Paths | None = None,
    allow_net: bool | None = None,
    allow_run: Paths | None = None,
    partitions: Callable[..., Any] | None = None,
    cardinality: int | None = None,
    kind: str = "scalar",
) -> Declaration:
    """The declaration of a function, with the options of one of the decorators."""
    known = {"table": TableOptions, "aggregate": AggregateOptions}.get(kind, Options)
    given = {key: value for key, value in locals().items() if key in known.__annotations__}
    if kind == "scalar" and is_stateful(function):
        function = Stateful(function)  # type: ignore[arg-type]
    is_plain_class = False
    if kind == "table" and isinstance(function, type):
        from crosslane._runtime.sql import takes_table

        if takes_table(signature):
            function = Stateful(function) if is_stateful(function) else function
        else:
            # A class whose instances can be iterated over is called, and gives an iterator of rows.
            is_plain_class = not hasattr(function, "__iter__")
    if kind == "aggregate":
        if not isinstance(function, type):
            raise DeclarationError(f"udaf decorates a class, not {function!r}")
        function = Aggregate(function)
    declaration = Declaration(
        function=function,
        name=name or _name_in(signature) or name_of(function),
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
        memoize=None,
        rate=rate,
        batch=None,
        workers=None,
        gpus=None,
        cache=None,
        ttl=None,
        own_sandbox=None,
        given=given,  # type: ignore[arg-type]
        kind=kind,
        partitions=partitions,
    )
    if is_plain_class:
        raise declaration.error(
            "a table function is a generator; a class is for udf, and for a udtf whose parameter is a TABLE"
        )
    if not isinstance(declaration.name, str):
        raise declaration.error(f"name is a text, not {name!r}")
    if not isinstance(rate, str | None):
        raise declaration.error(f"rate is a text such as '50/s', not {rate!r}")
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
    if isinstance(function, Stateful) and (missing := needed(function.class_)):
        raise declaration.error(f"each lane makes an instance without arguments; this class needs {missing}")
    if isinstance(function, Aggregate) and (wrong := function.wrong()):
        raise declaration.error(wrong)
    takes_nothing = _NO_PARAMETERS.match(signature or "") is not None
    if isinstance(function, Aggregate) and vectorized and (takes_nothing or not function.takes_any()):
        raise declaration.error("a vectorized aggregate needs a parameter: its update is given columns")
    declaration.retries = _count(declaration, "retries", retries, 0, _MOST_RETRIES)
    if batch is not None:
        declaration.batch = _count(declaration, "batch", batch, 1, _MOST_BATCH)
        if not (vectorized or is_async(function)):
            raise declaration.error(
                "batch is for functions that get many rows at once: vectorized and async ones"
            )
    if workers is not None:
        declaration.workers = _count(declaration, "workers", workers, 1, _MOST_WORKERS)
    if gpus is not None:
        declaration.gpus = _count(declaration, "gpus", gpus, 1, _MOST_WORKERS)
    declaration.cache = _cache(declaration, cache)
    asked = {"allow_read": allow_read, "allow_write": allow_write, "allow_net": allow_net}
    declaration.own_sandbox = _own_sandbox(declaration, {"sandbox": sandbox, **asked, "allow_run": allow_run})
    if ttl is not None:
        declaration.ttl = _seconds(
            declaration, "ttl", ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        )
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
        declaration.timeout = _seconds(declaration, "timeout", timeout)
    try:
        if memory_limit is not None:
            declaration.memory_limit = parse_bytes(memory_limit)
        if memoize is not None:
            declaration.memoize = parse_bytes(memoize, "memoize")
    except ValueError as error:
        raise declaration.error(str(error)) from None
    return declaration


def _name_in(signature: str | None) -> str | None:
    return (signature or "").split("(")[0].strip().strip('"') or None


def _own_sandbox(declaration: Declaration, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The sandbox that a function asks for."""
    given = {name: value for name, value in asked.items() if value is not None}
    if not given:
        return None
    from crosslane import _guest

    try:
        found = _guest.own_sandbox(json.dumps(given, default=os.fspath), declaration.file)
    except (TypeError, ValueError) as error:
        raise declaration.error(str(error)) from None
    return None if found is None else json.loads(found)


def _is_number(value: object, kind: type) -> bool:
    """Whether a value is a number of a kind; True and False are not."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _count(declaration: Declaration, option: str, value: int, least: int, most: int) -> int:
    if not (_is_number(value, numbers.Integral) and least <= value <= most):
        raise declaration.error(f"{option} is a whole number from {least} to {most}, not {value!r}")
    return int(value)


def _seconds(declaration: Declaration, option: str, value: float) -> float:
    if not (_is_number(value, numbers.Real) and 0 < value <= _LONGEST_TIMEOUT):
        raise declaration.error(
            f"{option} is a positive number of seconds, at most {_LONGEST_TIMEOUT}, not {value!r}"
        )
    return float(value)


def _cache(declaration: Declaration, cache: object) -> str | None:
    """The file of kept results, as the engine is told; the user's cache is ""."""
    if cache is None or cache is False:
        return None
    if cache is True:
        return ""
    path = os.fspath(cache) if isinstance(cache, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise declaration.error(
            f"cache is the path of a file, or True for one in the user's cache, not {cache!r}"
        )
    return path


def parse_bytes(size: int | str, option: str = "memory_limit") -> int:
    """The number of bytes of an option, from a number or from text such as ``"500 MB"`` or ``"2 GiB"``.

    >>> parse_bytes("1.5 KiB")
    1536
    """
    count = size
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", size)
        unit = _UNITS.get(match[2].upper()) if match else None
        count = float(match[1]) * unit if match and unit else None
    if not (_is_number(count, numbers.Real) and 1 <= count <= _LARGEST_MEMORY_LIMIT):
        raise ValueError(f"{option} is a size such as '500 MB' or '2 GiB', at most 1 PiB, not {size!r}")
    return int(count)
