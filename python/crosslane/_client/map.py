"""Streams through functions, over all cores: :func:`map`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack

import pyarrow as pa

from crosslane import _guest
from crosslane._arrow.encode import Chooser, Encoder, Stream, batches, is_batch
from crosslane._declare.decorators import DeclarationError, declaration_of, declare
from crosslane._declare.library import refuse_while_loading
from crosslane._declare.pickles import dump
from crosslane._declare.signature.annotations import resolve
from crosslane._declare.signature.stream import takes_table, wish_of
from crosslane._runtime.children import end_with_this_process
from crosslane._runtime.languages import command


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
        source = _source(reader)
        return MappedStream(_of_file(os.fspath(function), *workers), source)
    if not callable(function):
        raise DeclarationError(f"map calls a function, and {function!r} is none")
    source = _source(reader)
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
        wish=wish_of(declaration),
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


def _source(reader: Any) -> Iterator[pa.RecordBatch]:
    if is_batch(reader):
        return batches(reader)
    if not isinstance(reader, Iterable):
        raise TypeError(
            "map reads what has __arrow_c_stream__ (a relation of DuckDB, a data frame, a pyarrow Table, ...), or an iterable "
            f"of batches, not {type(reader).__name__}"
        )
    return (batch for item in reader for batch in batches(item))


class MappedStream:
    """The results of :func:`map`: a stream of batches, to be read once."""

    def __init__(self, native: Any, source: Iterator[pa.RecordBatch]) -> None:
        self._native = native
        self._input = self._encoded(source)
        self._ahead: pa.RecordBatch | None = None
        #: What ended it.
        self._error: BaseException | None = None

    def _encoded(self, source: Iterator[pa.RecordBatch]) -> Generator[tuple[str, pa.StructArray], None, None]:
        takes = self._native.takes
        encoder = Encoder() if takes is None else Chooser(takes)
        for batch in source:
            if batch.num_rows:
                yield from encoder.encode(batch, self._native.most)

    def _pull(self) -> tuple[str, pa.StructArray] | None:
        return next(self._input, None)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the results. If they are not declared, the first of the results are waited for.

        Raises:
            ValueError: if the function gave no batch from which they could be known.
        """
        if self._native.columns() is None and self._ahead is None:
            self._ahead = next(self, None)
        columns = self._native.columns()
        if columns is None:
            raise ValueError(
                "the function gave no batch, so that its columns are not known; give map a schema"
            )
        return pa.schema(list(_guest.table_type(columns)))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._ahead is not None:
            batch, self._ahead = self._ahead, None
            return batch
        if self._error is not None:
            # Another end would look like that of the results.
            raise self._error
        try:
            array = self._native.next(self._pull)
        except BaseException as error:
            # It is not over if another thread reads it, or if this is a fork.
            if self._native.is_over:
                self._error = error
                self._input.close()
            raise
        if array is None:
            self._input.close()
            raise StopIteration
        return pa.RecordBatch.from_struct_array(array)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, _Reading(self))
        return reader.__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Ends the stream and its workers. It may be called twice, and by another thread than the one that reads."""
        self._ahead = None
        self._native.close()
        # Whoever keeps the stream keeps no input. Another thread that reads it at this moment ends it by itself.
        with contextlib.suppress(ValueError):
            self._input.close()

    def __enter__(self) -> MappedStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Reading:
    """Who reads a stream through the C interface. When that is released, the stream ends."""

    def __init__(self, stream: MappedStream) -> None:
        self._stream = stream
        #: Some ask for the schema by an interface that they release unread.
        self._begun = False

    def __iter__(self) -> _Reading:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._begun = True
        return next(self._stream)

    def __del__(self) -> None:
        if self._begun:
            self._stream.close()
