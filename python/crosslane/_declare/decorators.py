"""The decorators :func:`udf`, :func:`udtf` and :func:`udaf`, and what they note on a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from crosslane._declare.classes import DeclaredClass
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

    A class whose instances can be called is a stateful function. Each lane makes an instance
    without arguments before its first row, and calls the instance for each row. When the lane is
    not needed any more, it calls the instance's ``close``, if there is one.

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
            or polars by annotation. A generator is called once per worker, with an iterator of
            batches: each is a column, or a tuple of columns. It yields a column for each batch
            before it asks for the next.
        concurrency: rows that an ``async`` function works on at once in each worker; 16 by default.
        timeout: seconds after which a call is ended (a row's; a vectorized function's batch).
        memory_limit: bytes that the function may allocate, as a number or text such as ``"500
            MB"``.
        memoize: bytes that kept results may take. The engine keeps the results for all its queries,
            and does not call the function again with the same arguments.
        rate: the most rows that may be called in a time, such as ``"50/s"``, ``"300/min"`` or
            ``"1000/h"``, by all workers of the engine together.
        budget: the most rows that one query may have called. Then the query fails.
        batch: the most rows that a call gets, for a vectorized function, and that one call of the
            engine has in work, for an ``async`` one; for services that take only so many at once.
        cache: a file that keeps results for later programs; ``True`` for one in the user's cache.
        ttl: the seconds after which kept results hold no more, or a ``timedelta``.
        workers: the most workers that call the function. They are its own: no other worker holds
            what the function prepares, such as a large model.
        gpus: the GPUs that each worker of the function sees; without ``workers``, there are as many
            workers as GPUs for them.
        sandbox: ``"on"``: workers of its own call the function, in a sandbox that allows what the
            next four options list; ``"strict"``: one in which it opens nothing (docs/security.md).
            It is for calls from SQL. Other functions of the file may call it as any function.
        allow_read: a path that the function may read, or a list of them.
        allow_write: paths that it may read and change.
        allow_net: whether it may connect to other machines.
        allow_run: paths of programs that it may run.
        on_error: ``"fail"``: an exception ends the query; ``"null"``: it makes the row NULL.
        retries: how often a failed call is tried again, with growing pauses, or when its exception
            says so (:class:`crosslane.Retry`).
        inline: a row function that is one expression is compiled into the loop over the rows;
            ``False``: it is called for each.
        overload: whether functions of the same name that take other types stay. A file may then
            declare several functions under one name, also with several ``def`` of that name.

    Raises:
        DeclarationError: if an option cannot have the value that it was given.
    """
    return _decorate("udf", function, "scalar", options)


@overload
def udtf(function: F, /) -> F: ...


@overload
def udtf(signature: str | None = None, /, **options: Unpack[TableOptions]) -> Callable[[F], F]: ...


def udtf(function: Any = None, /, **options: Unpack[TableOptions]) -> Any:
    """Declares a table function for SQL: a generator of rows. The function itself stays as it is.

    Its columns come from a signature, ``@udtf("numbers(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)")``,
    or from the annotation of its result: an ``Iterator`` of a dataclass, a NamedTuple or a
    TypedDict. A row that it yields is a tuple, a list or a dict of the columns' values, or an
    object with attributes of the columns' names. If there is one column, a row may be the value
    itself. An exception that it yields is the error of one row.

    SQL passes parameters without a default by position, and may pass those with a default by name
    (``numbers(5, step := 2)``). A function with a keyword-only parameter ``wanted`` is told the
    names of the columns that the query wants; its rows may have only these.

    A function whose one parameter is a table, ``@udtf("late(flights TABLE(id BIGINT)) -> TABLE(id
    BIGINT)")``, is a stream function, for :func:`crosslane.map`. It is called with each batch of
    its input: a list of rows, which are named tuples, or with ``vectorized=True`` a pyarrow
    RecordBatch (by annotation a pyarrow Table, or a DataFrame of pandas or polars). It yields rows
    or batches as other table functions do, or returns None for no rows. A class whose instances can
    be called is a stateful stream function, as for :func:`udf`.

    Args:
        name: what SQL calls it; by default the function's own name.
        nulls: ``"skip"``: a NULL argument gives an empty table without a call, except for
            parameters whose annotation admits None; ``"call"``: the function sees every NULL as
            None.
        deterministic: equal arguments give the same rows in the same order, so that the engine may
            do a scan again.
        vectorized: the function yields batches: pyarrow RecordBatches or Tables, polars or pandas
            frames, whatever has the Arrow PyCapsule interface, or a tuple or dict of columns.
        timeout: seconds after which a function that makes no row is ended.
        memory_limit: bytes that the function may allocate, as a number or text such as ``"500
            MB"``.
        on_error: ``"fail"``: an exception ends the query; ``"null"``: a row that is an error is
            NULL, and an exception ends the table.
        retries: how often a failed scan is tried again, with growing pauses.
        partitions: a function that returns a list. It may have the same parameters as the table
            function, or some of them. The table function gets one element of the list as its first
            argument, and several workers scan at once.
        cardinality: about how many rows there are: a hint for the optimizer.

    Raises:
        DeclarationError: if an option cannot have the value that it was given.
    """
    return _decorate("udtf", function, "table", options)


@overload
def udaf(class_: C, /) -> C: ...


@overload
def udaf(signature: str | None = None, /, **options: Unpack[AggregateOptions]) -> Callable[[C], C]: ...


def udaf(class_: Any = None, /, **options: Unpack[AggregateOptions]) -> Any:
    """Declares a class as an aggregate for SQL. The class itself stays as it is.

    Each group has an instance, which is made without arguments. ``update(self, x, ...)`` adds a
    row, ``merge(self, other)`` adds what another instance holds, and ``finish(self)`` gives the
    result. The objects of ``other`` may become a part of the
    instance: nothing else uses them afterwards. ``finish`` changes nothing, because it may be
        called more than once.

    Use it bare, ``@udaf``, with options, ``@udaf(timeout=10)``, or with a signature in SQL's types,
    ``@udaf("total(x BIGINT) -> BIGINT")``. Without a signature the types come from the annotations
    of ``update`` and ``finish``.

    Args:
        name: what SQL calls it; by default the class's name, in snake case.
        nulls: ``"skip"``: rows with a NULL are left out, except for parameters whose annotation
            admits None; ``"call"``: ``update`` sees every NULL as None.
        vectorized: ``update`` takes columns, with many rows of a group at once: pyarrow arrays, or
            numpy, pandas or polars by annotation.
        timeout: seconds after which a call is ended (a row's; vectorized, that of a group's rows).
        memory_limit: bytes that all instances of a worker may take together, as a number or text
            such as ``"500 MB"``.
        on_error: ``"fail"``: an exception ends the query; ``"null"``: a row whose ``update`` raises
            is left out, and a group whose ``finish`` raises is NULL. A ``merge`` that raises always
            ends the query.
        retries: how often ``update`` and ``finish`` are tried again when they raise, with growing
            pauses.

    Raises:
        DeclarationError: if the class can be no aggregate, or an option cannot have the value that
            it was given.
    """
    return _decorate("udaf", class_, "aggregate", options)


#: What was declared since this process began to load a file, also functions whose variable has
#: another value by now. None before that: a program that only declares functions keeps no list.
declarations: list[Declaration] | None = None


def _decorate(decorator: str, given: Any, kind: str, options: Any) -> Any:
    """Returns the decorated function, or a decorator if it was given a signature."""
    if given is None or isinstance(given, str):

        def decorate(decorated: Any) -> Any:
            _mark(declare(decorated, given, kind=kind, **options))
            return decorated

        return decorate
    if not callable(given) and kind != "aggregate":
        raise DeclarationError(f"{decorator} decorates a function, not {given!r}")
    _mark(declare(given, kind=kind, **options))
    return given


def _mark(declaration: Declaration) -> None:
    if declarations is not None:
        declarations.append(declaration)
    function = declaration.function
    marked: Any = function.class_ if isinstance(function, DeclaredClass) else function
    try:
        marked.__crosslane__ = declaration
    except (AttributeError, TypeError):
        raise declaration.error(
            "nothing can be noted on it; wrap it in a function, or give it to crosslane.register"
        ) from None


def declaration_of(function: object) -> Declaration | None:
    """What a function was declared as; None if it was not.

    A method or a wrapper of a declared function counts as declared, and is called itself.
    """
    declaration = getattr(function, "__crosslane__", None) if callable(function) else None
    if not isinstance(declaration, Declaration):
        return None
    declared = declaration.function
    if isinstance(declared, DeclaredClass):
        # Subclasses of a declared class are not declared, and neither are its instances.
        return declaration if function is declared.class_ else None
    return declaration if declared is function else replace(declaration, function=function)
