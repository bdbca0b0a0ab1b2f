"""Runs the code of PySpark's own worker in this process, on batches that are in memory."""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import Callable, Iterator
from typing import Any

from crosslane._engines.spark.support import ARROW_BATCHED, MAPS, Unsupported, version


def of_worker(
    function: Callable[..., Any], eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function from batches of arguments to batches of one column, which does what PySpark's own
    worker does.

    A worker of PySpark reads batches from a stream, and writes the results into another. Here,
    :class:`_Stream` takes the place of these streams, and the code between them is the same.
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
    """Stands in for a stream of PySpark's serializers, and has the batches themselves."""

    def __init__(self, batches: Iterator[Any] | None = None) -> None:
        self.batches = batches

    def write(self, _: bytes) -> None:
        """Drops bytes that a serializer writes between batches."""

    @classmethod
    @functools.cache
    def prepare(cls) -> None:
        """Makes PySpark's serializers accept such streams."""
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


class _Given:
    """Stands in for the pickler of a worker, and has the unpickled function already."""

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
    """Calls `worker.read_udfs` of Spark 4.3."""
    from pyspark.worker_message import UDFInfo

    info = UDFInfo(udfs=[memoryview(b"")], args=list(range(len(types))), kwargs={}, result_id=0)
    runner_conf, eval_conf = worker.RunnerConf(dict(conf)), worker.EvalConf({"input_type": _schema(types)})
    return worker.read_udfs(_Given((function, returns)), [info], eval_type, runner_conf, eval_conf)


def _read_functions_of_stream(
    worker: Any, function: Any, eval_type: int, types: list[Any], returns: Any, conf: dict[str, str]
) -> Any:
    """Calls `worker.read_udfs` of Spark 4.2, which reads the functions from a stream."""
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
    """Calls `worker.read_udfs` of Spark 4.0 and 4.1: functions and settings in a stream."""
    from pyspark.serializers import write_int, write_with_length

    told = io.BytesIO()
    write_int(len(conf), told)
    for pair in conf.items():
        for text in pair:
            write_with_length(text.encode(), told)
    if eval_type == ARROW_BATCHED and version() >= (4, 1):
        write_with_length(_schema(types).encode(), told)
    told.write(b"\0")  # No profiler.
    write_int(1, told)
    _tell_arguments(len(types), eval_type not in MAPS, told)
    write_int(1, told)
    told.seek(0)
    return worker.read_udfs(_Given((function, returns)), told, eval_type)


def _tell_arguments(count: int, with_names: bool, told: io.BytesIO) -> None:
    """Writes which columns are the arguments: all columns, without names."""
    from pyspark.serializers import write_int

    write_int(count, told)
    for number in range(count):
        write_int(number, told)
        if with_names:
            told.write(b"\0")
