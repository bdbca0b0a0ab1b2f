"""The decorators :func:`udf`, :func:`udtf` and :func:`udaf`, and how a decorated function is known again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from crosslane._declare.classes import Aggregate, Stateful
from crosslane._declare.declaration import (
    AggregateOptions,
    Declaration,
    DeclarationError,
    Options,
    TableOptions,
    declare,
)

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


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
