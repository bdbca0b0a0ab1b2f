"""Declarations: the options of a function, and the checks of their values."""

from __future__ import annotations

import json
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
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
_MOST_BUDGET = 10**15
_LONGEST_TIMEOUT = 1_000_000_000
_LARGEST_MEMORY_LIMIT = 1 << 50
_MOST_ROWS = (1 << 63) - 1
#: The two values of each option that has only two.
_CHOICES: dict[str, tuple[Any, Any]] = {
    "nulls": ("skip", "call"),
    "on_error": ("fail", "null"),
    **dict.fromkeys(("deterministic", "vectorized", "inline", "overload"), (True, False)),
}
_SANDBOX_OPTIONS = ("sandbox", "allow_read", "allow_write", "allow_net", "allow_run")
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
    budget: int | None
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


@dataclass(kw_only=True)
class EngineOptions:
    """The options of a function that the engine is told, and where the function is defined."""

    deterministic: bool = True
    timeout: float | None = None
    memory_limit: int | None = None
    memoize: int | None = None
    rate: str | None = None
    budget: int | None = None
    batch: int | None = None
    workers: int | None = None
    gpus: int | None = None
    cache: str | None = None
    #: How long kept results hold, in seconds.
    ttl: float | None = None
    #: The sandbox of its own workers.
    own_sandbox: dict[str, Any] | None = None
    on_error: str = "fail"
    retries: int = 0
    #: Whether functions of its name that take other types stay.
    overload: bool = False
    file: str
    line: int

    def engine_options(self) -> dict[str, Any]:
        """These options, by name."""
        return {option.name: getattr(self, option.name) for option in fields(EngineOptions)}


@dataclass(kw_only=True)
class Declaration(EngineOptions):
    """What :func:`udf`, :func:`udtf` or :func:`udaf` was told about a function."""

    function: Callable[..., Any]
    name: str
    signature: str | None
    nulls: str = "skip"
    vectorized: bool = False
    concurrency: int = DEFAULT_CONCURRENCY
    inline: bool = True
    #: The options as they were given.
    given: dict[str, Any]
    #: ``"scalar"``, ``"table"`` or ``"aggregate"``.
    kind: str
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
    function: Callable[..., Any], signature: str | None = None, *, kind: str = "scalar", **options: Any
) -> Declaration:
    """The declaration of a function, with the options of one of the decorators.

    Raises:
        DeclarationError: if an option cannot have the value that it was given.
        TypeError: if no decorator has an option of the name.
    """
    for option in options:
        if option not in Options.__annotations__ and option not in TableOptions.__annotations__:
            raise TypeError(f"declare() got an unexpected keyword argument {option!r}")
    known = {"table": TableOptions, "aggregate": AggregateOptions}.get(kind, Options)
    given = {option: value for option, value in options.items() if option in known.__annotations__}
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
    name = options.pop("name", None) or _name_in(signature) or name_of(function)
    sandbox = {option: options.pop(option, None) for option in _SANDBOX_OPTIONS}
    concurrency = options.pop("concurrency", None)
    declaration = Declaration(
        function=function,
        name=name,
        signature=signature,
        concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
        given=given,
        kind=kind,
        **options,
    )
    if is_plain_class:
        raise declaration.error(
            "a table function is a generator; a class is for udf, and for a udtf whose parameter is a TABLE"
        )
    if not isinstance(name, str):
        raise declaration.error(f"name is a text, not {name!r}")
    if not isinstance(declaration.rate, str | None):
        raise declaration.error(f"rate is a text such as '50/s', not {declaration.rate!r}")
    for option, choices in _CHOICES.items():
        value = getattr(declaration, option)
        if not (isinstance(value, type(choices[0])) and value in choices):
            raise declaration.error(f"{option} is {choices[0]!r} or {choices[1]!r}, not {value!r}")
    vectorized = declaration.vectorized
    if isinstance(function, Stateful) and (missing := needed(function.class_)):
        raise declaration.error(f"each lane makes an instance without arguments; this class needs {missing}")
    if isinstance(function, Aggregate) and (wrong := function.wrong()):
        raise declaration.error(wrong)
    takes_nothing = _NO_PARAMETERS.match(signature or "") is not None
    if isinstance(function, Aggregate) and vectorized and (takes_nothing or not function.takes_any()):
        raise declaration.error("a vectorized aggregate needs a parameter: its update is given columns")
    if declaration.batch is not None and not (vectorized or is_async(function)):
        raise declaration.error(
            "batch is for functions that get many rows at once: vectorized and async ones"
        )
    if concurrency is not None and not is_async(function):
        raise declaration.error("concurrency is for async functions; this one is not (`async def`)")
    if kind == "aggregate" and not (declaration.deterministic and declaration.inline):
        raise declaration.error("an aggregate has no options deterministic and inline")
    partitions = declaration.partitions
    if kind != "table" and (partitions is not None or declaration.cardinality is not None):
        raise declaration.error("partitions and cardinality are for table functions; decorate it with udtf")
    if partitions is not None and not callable(partitions):
        raise declaration.error(f"partitions is a function that returns a list, not {partitions!r}")
    if vectorized and is_async(function):
        raise declaration.error("a function is vectorized or async, not both")
    try:
        declaration.retries = _count("retries", declaration.retries, least=0, most=_MOST_RETRIES)
        for option, check in _CHECKS.items():
            if (value := getattr(declaration, option)) is not None:
                setattr(declaration, option, check(option, value))
        declaration.own_sandbox = _own_sandbox(sandbox, declaration.file)
    except (TypeError, ValueError) as error:
        raise declaration.error(str(error)) from None
    return declaration


def _name_in(signature: str | None) -> str | None:
    return (signature or "").split("(")[0].strip().strip('"') or None


def _own_sandbox(asked: Mapping[str, Any], file: str) -> dict[str, Any] | None:
    """The sandbox that a function of a file asks for."""
    given = {name: value for name, value in asked.items() if value is not None}
    if not given:
        return None
    from crosslane import _guest

    found = _guest.own_sandbox(json.dumps(given, default=os.fspath), file)
    return None if found is None else json.loads(found)


def _is_number(value: object, kind: type) -> bool:
    """Whether a value is a number of a kind; True and False are not."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _count(option: str, value: int, *, least: int = 1, most: int) -> int:
    if not (_is_number(value, numbers.Integral) and least <= value <= most):
        raise ValueError(f"{option} is a whole number from {least} to {most}, not {value!r}")
    return int(value)


def _seconds(option: str, value: float) -> float:
    if not (_is_number(value, numbers.Real) and 0 < value <= _LONGEST_TIMEOUT):
        raise ValueError(
            f"{option} is a positive number of seconds, at most {_LONGEST_TIMEOUT}, not {value!r}"
        )
    return float(value)


def _seconds_or_delta(option: str, value: float | timedelta) -> float:
    return _seconds(option, value.total_seconds() if isinstance(value, timedelta) else value)


def _cache(_: str, cache: object) -> str | None:
    """The file of kept results, as the engine is told; the user's cache is ""."""
    if cache is False:
        return None
    if cache is True:
        return ""
    path = os.fspath(cache) if isinstance(cache, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise ValueError(f"cache is the path of a file, or True for one in the user's cache, not {cache!r}")
    return path


def parse_bytes(option: str, size: int | str) -> int:
    """The number of bytes of an option, from a number or from text such as ``"500 MB"`` or ``"2 GiB"``.

    >>> parse_bytes("memory_limit", "1.5 KiB")
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


#: For each option that may be None: what makes its value that of the engine, or raises a ValueError.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "batch": partial(_count, most=_MOST_BATCH),
    "budget": partial(_count, most=_MOST_BUDGET),
    "workers": partial(_count, most=_MOST_WORKERS),
    "gpus": partial(_count, most=_MOST_WORKERS),
    "concurrency": partial(_count, most=_MOST_CONCURRENCY),
    "cardinality": partial(_count, least=0, most=_MOST_ROWS),
    "timeout": _seconds,
    "ttl": _seconds_or_delta,
    "memory_limit": parse_bytes,
    "memoize": parse_bytes,
    "cache": _cache,
}
