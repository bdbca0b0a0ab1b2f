"""Streams through functions, over all cores: :func:`map`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import pyarrow as pa

from crosslane import _guest
from crosslane._arrow.encode import Encoder
from crosslane._client.limits import check_depth, check_lanes
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
from crosslane._runtime.settings import text_of
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
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[MapOptions],
) -> MappedStream:
    """Calls a function with each batch of a stream, in worker processes on all cores, and returns
    the stream of its results.

    The function gets a pyarrow RecordBatch (by annotation a pyarrow Table, or a DataFrame of pandas
    or polars) of at most 65,536 rows. It returns a batch of any number of rows, yields batches, or
    returns None for no rows. A class whose instances can be called is a stateful function: each
    worker makes an instance before its first batch.

    Memory is constant, whatever the length of the stream: the workers read no further than the
    program takes results.

    Args:
        reader: any object with the Arrow C stream interface (a DuckDB relation, a polars or pandas
            DataFrame, a pyarrow Table or RecordBatchReader, an ADBC result), or an iterable of
            batches. The thread that takes results also reads it.
        function: any callable, which is pickled with all that it refers to. Or a stream function of
            a file in any language, such as ``"functions.js:late"`` (``"functions.js"`` if the file
            has only one). Or a stream function that is declared with :func:`crosslane.udtf`. A
            declaration says the columns and the options. The function gets its columns by name,
            cast to their types.
        ordered: whether results come in the order of the input, or else as they are ready.
        depth: how many batches a worker has at most. With 2, a worker has its next batch when it is
            done with one.
        lanes: the number of workers; by default one per processor that this process may use.
        schema: the columns of the results, as a pyarrow schema; by default those of the first batch
            that the function returns. Its batches are cast to the schema.
        settings: Crosslane's settings, as for :func:`crosslane.connect`, such as
            ``{"sandbox": "on", "allow_read": ["/data"]}``. Those for programs are not among them.
        name: what errors call the function; by default its own name.
        deterministic: equal batches give equal results, so that a batch may be tried again after
            some of its results were taken.
        timeout: seconds without a result after which a batch has failed.
        memory_limit: bytes that the function may allocate, as a number or text such as ``"500
            MB"``.
        on_error: ``"fail"``: an exception ends the stream; ``"null"``: it ends the results of its
            batch.
        retries: how often a batch is tried again if it failed or its worker died.

    Returns:
        A stream with the Arrow C stream interface. It is an iterator and a context manager, too.

    Raises:
        DeclarationError: if an option cannot have its value, the function cannot be sent to
            workers, or the file has no such function.
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
    try:
        texts = [(name, text_of(value)) for name, value in (settings or {}).items()]
        workers = (check_lanes(lanes), check_depth(depth), bool(ordered), texts)
    except ValueError as error:
        raise DeclarationError(str(error)) from None
    declared = isinstance(function, (str, os.PathLike)) or _is_declared(function)
    if declared and (options or schema is not None):
        given = next(iter(options), "schema")
        raise DeclarationError(
            f"the option {given} belongs to the function's declaration; map takes it of other functions"
        )
    given = declaration_of(function)
    if given is not None and given.own_sandbox is not None:
        raise given.error('map takes its sandbox as settings={"sandbox": "on"}')
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
        **declaration.engine_options(),
    )
    pickles = dump(declaration, [stream])  # type: ignore[list-item]
    return MappedStream(_guest.Map(python, declaration.name, pickles, *workers), source)


def _is_declared(function: object) -> bool:
    """Whether a function was declared as a stream function."""
    declaration = declaration_of(function)
    return declaration is not None and declaration.kind == "table" and takes_table(declaration.signature)


def _of_file(text: str, *workers: Any) -> Any:
    """The native stream through a function of a file, such as ``functions.py:late``."""
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
