"""Streams through functions, over all cores: :func:`map`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import pyarrow as pa

from crosslane import _guest
from crosslane._arrow.encode import Encoder
from crosslane._client.stream import MappedStream, input_batches
from crosslane._declare.declaration import DeclarationError, declare
from crosslane._declare.decorators import declaration_of
from crosslane._declare.library import refuse_while_loading
from crosslane._declare.pickles import dump
from crosslane._declare.signature.mapped import Stream
from crosslane._declare.signature.resolve import resolve
from crosslane._declare.signature.resolve_stream import frame_of
from crosslane._runtime.children import end_with_this_process
from crosslane._runtime.languages import command
from crosslane._runtime.sql import takes_table


class MapOptions(TypedDict, total=False):
    """The options of a function of a stream; :func:`map` says what they mean."""

    name: str | None
    deterministic: bool
    timeout: float | None
    memory_limit: int | str | None
    on_error: Literal["fail", "null"]
    retries: int


def map(
    reader: Any,
    function: Callable[..., Any] | str | os.PathLike[str],
    *,
    ordered: bool = True,
    depth: int = 2,
    lanes: int | None = None,
    schema: Any = None,
    **options: Unpack[MapOptions],
) -> MappedStream:
    """Calls a function with each batch of a stream, in worker processes on all cores, and gives the stream of its results.

    The function gets a pyarrow RecordBatch (by annotation a pyarrow Table, or a DataFrame of pandas or polars) of at most
    65,536 rows. It returns a batch of any number of rows, yields batches, or returns None for none. A class whose
    instances are called is a stateful function: each worker makes an instance, before its first batch.

    Memory is constant, however long the stream is: who takes results slowly slows down the workers, and they the reader.

    Args:
        reader: anything with the Arrow C stream interface (a DuckDB relation, a polars or pandas DataFrame, a pyarrow Table
            or RecordBatchReader, an ADBC result), or an iterable of batches. It is read while results are taken, by the
            thread that takes them.
        function: any callable; it is pickled, with what it refers to. Or a stream function of a file in any language, such as
            ``"functions.js:late"`` (``"functions.js"`` for the only one), or one that is declared with :func:`crosslane.udtf`: then its
            declaration says the columns and the options. It gets its columns by name, cast to their types.
        ordered: whether results come in the order of the input; else they come as they are ready.
        depth: how many batches a worker has at most: with 2 it finds the next when it is done with one.
        lanes: how many workers there are; by default one per processor that this process may use.
        schema: the columns of the results, as a pyarrow schema; by default those of the first batch that the function gives. The
            function's batches are cast to it.
        name: what errors call the function; by default its own name.
        deterministic: equal batches give equal results, so that a batch whose results were partly taken may be tried again.
        timeout: seconds after which a batch for which nothing came is given up.
        memory_limit: bytes that the function may allocate, as a number or text such as ``"500 MB"``.
        on_error: ``"fail"``: an exception ends the stream; ``"null"``: it ends the results of its batch.
        retries: how often a batch is tried again that failed, or whose worker died.

    Returns:
        A stream: it has the Arrow C stream interface itself, can be iterated over, and is a context manager.

    Raises:
        DeclarationError: if an option cannot have its value, the function cannot be sent to workers, or the file has no such
            function.
        FileNotFoundError: if there is no such file, or no guest for its language.

    >>> import pyarrow as pa
    >>> table = pa.table({"n": range(5)})
    >>> def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    ...     return batch.filter([n % 2 == 1 for n in batch["n"].to_pylist()])
    >>> pa.table(map(table, odd))["n"].to_pylist()
    [1, 3]
    """
    refuse_while_loading()
    end_with_this_process()
    known = MapOptions.__annotations__
    for option in options:
        if option not in known:
            raise TypeError(f"map has no option {option}; the function's are {', '.join(known)}")
    lanes = len(os.sched_getaffinity(0)) if lanes is None else lanes
    for option, value, most in (("depth", depth, 64), ("lanes", lanes, 1024)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise DeclarationError(f"{option} is a whole number from 1 to {most}, not {value!r}")
    declared = isinstance(function, (str, os.PathLike)) or _is_declared(function)
    if declared and (options or schema is not None):
        given = next(iter(options), "schema")
        raise DeclarationError(
            f"the option {given} belongs to the function's declaration; map takes it of other functions"
        )
    workers = (lanes, depth, bool(ordered))
    if isinstance(function, (str, os.PathLike)):
        source = input_batches(reader)
        return MappedStream(_of_file(os.fspath(function), *workers), source)
    if not callable(function):
        raise DeclarationError(f"map calls a function, and {function!r} is none")
    source = input_batches(reader)
    python = [sys.executable, "-P", "-m", "crosslane._worker.zygote"]
    if declared:
        declaration = declaration_of(function)
        assert declaration is not None
        pickles = dump(declaration, resolve(declaration))
        return MappedStream(_guest.Map(python, declaration.name, pickles, *workers), source)
    declaration = declare(function, **options)
    if schema is not None:
        schema = pa.schema(schema)
        try:
            Encoder(schema)
        except (TypeError, ValueError) as error:
            raise declaration.error(f"schema: {error}") from None
    stream = Stream(
        name=declaration.name,
        callable=declaration.function,
        frame=frame_of(declaration),
        schema=schema,
        deterministic=declaration.deterministic,
        timeout=declaration.timeout,
        memory_limit=declaration.memory_limit,
        on_error=declaration.on_error,
        retries=declaration.retries,
        file=declaration.file,
        line=declaration.line,
    )
    pickles = dump(declaration, [stream])  # type: ignore[list-item]
    return MappedStream(_guest.Map(python, declaration.name, pickles, *workers), source)


def _is_declared(function: object) -> bool:
    """Whether a function is declared as a stream function."""
    declaration = declaration_of(function)
    return declaration is not None and declaration.kind == "table" and takes_table(declaration.signature)


def _of_file(text: str, *workers: int) -> Any:
    """A stream through a function of a file, such as ``functions.py:late``."""
    path, name = Path(text), None
    if not path.is_file() and ":" in text:
        path, _, name = text.rpartition(":")
        path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"map calls a function, such as 'functions.py:late', and there is no file {path}"
        )
    try:
        return _guest.Map(command(path), str(path), (path.resolve(), name), *workers)
    except LookupError as error:
        raise DeclarationError(str(error)) from None
