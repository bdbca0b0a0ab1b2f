"""The decorator that declares a function, and what it declares."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
#: Rows of a batch that an ``async`` function works on at once, unless it says otherwise.
DEFAULT_CONCURRENCY = 16


class DeclarationError(Exception):
    """A function was declared in a way that cannot work; the message says where."""


@dataclass
class Declaration:
    """What :func:`udf` was told about a function."""

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
    file: str = field(init=False)
    line: int = field(init=False)

    def __post_init__(self) -> None:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        self.file = code.co_filename if code else "<unknown>"
        self.line = code.co_firstlineno if code else 0

    def error(self, message: str) -> DeclarationError:
        """An error that names the function and where it is defined."""
        return DeclarationError(f"{self.file}:{self.line}: function {self.name}: {message}")


@overload
def udf(function: F, /) -> F: ...
@overload
def udf(
    signature: str | None = None,
    /,
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
) -> Callable[[F], F]: ...
def udf(
    function: Any = None,
    /,
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
) -> Any:
    """Declares a function for SQL. The function itself stays as it is, and can be called as before.

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
            or polars by annotation.
        concurrency: rows that an ``async`` function works on at once in each worker; 16 by default.
        timeout: seconds after which a call is ended (a row's; a vectorized function's batch).
        memory_limit: bytes that the function may allocate, as a number or text such as ``"500 MB"``.
        on_error: ``"fail"``: an exception ends the query; ``"null"``: it makes the row NULL.
        retries: how often a failed call is tried again, with growing pauses.

    Raises:
        DeclarationError: if an option cannot have the value that it was given.
    """
    if function is None or isinstance(function, str):
        options = dict(locals())
        options.pop("function")

        def decorate(decorated: F) -> F:
            declare(decorated, signature=function, **options)
            return decorated

        return decorate
    if not callable(function):
        raise DeclarationError(f"udf decorates a function, not {function!r}")
    declare(function)
    return function


def declare(
    function: Callable[..., Any],
    *,
    signature: str | None = None,
    name: str | None = None,
    nulls: str = "skip",
    deterministic: bool = True,
    vectorized: bool = False,
    concurrency: int | None = None,
    timeout: float | None = None,
    memory_limit: int | str | None = None,
    on_error: str = "fail",
    retries: int = 0,
) -> Declaration:
    """Attaches a declaration to a function; the options are those of :func:`udf`."""
    declaration = Declaration(
        function=function,
        name=name or getattr(function, "__name__", "function"),
        signature=signature,
        nulls=nulls,
        deterministic=deterministic,
        vectorized=vectorized,
        concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
        timeout=None if timeout is None else float(timeout),
        memory_limit=None,
        on_error=on_error,
        retries=retries,
    )
    if nulls not in ("skip", "call"):
        raise declaration.error(f"nulls is 'skip' or 'call', not {nulls!r}")
    if on_error not in ("fail", "null"):
        raise declaration.error(f"on_error is 'fail' or 'null', not {on_error!r}")
    if concurrency is not None and not is_async(function):
        raise declaration.error("concurrency is for async functions; this one is not (`async def`)")
    if declaration.concurrency < 1:
        raise declaration.error(f"concurrency is at least 1, not {concurrency!r}")
    if vectorized and is_async(function):
        raise declaration.error("a function is vectorized or async, not both")
    if timeout is not None and not float(timeout) > 0:
        raise declaration.error(f"timeout is a positive number of seconds, not {timeout!r}")
    if retries < 0:
        raise declaration.error(f"retries is at least 0, not {retries!r}")
    try:
        declaration.memory_limit = None if memory_limit is None else parse_bytes(memory_limit)
    except ValueError as error:
        raise declaration.error(str(error)) from None
    function.__crosslane__ = declaration  # type: ignore[attr-defined]
    return declaration


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of the function gives an awaitable."""
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def parse_bytes(size: int | str) -> int:
    """A number of bytes, from a number or from text such as ``"500 MB"`` or ``"2 GiB"``.

    >>> parse_bytes("1.5 KiB")
    1536
    """
    if isinstance(size, int):
        count = size
    else:
        match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", size)
        unit = _UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise ValueError(f"memory_limit is a size such as '500 MB' or '2 GiB', not {size!r}")
        count = int(float(match[1]) * unit)
    if count <= 0:
        raise ValueError(f"memory_limit is positive, not {size!r}")
    return count
