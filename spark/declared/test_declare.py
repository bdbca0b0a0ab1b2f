"""Functions of PySpark's as declarations: errors, tracebacks, options, and pickles.

The tests in this folder call declarations as a guest does, and compare the results with Spark's.
``tests/drop_in/test_scalar.py`` has tests over lanes. These run in their own process, because the time zone of the process
differs from that of the session.
"""

from __future__ import annotations

import struct
import tempfile
import traceback
from typing import Any

import pyspark.sql.functions as F
import pytest
from comparing import (
    CONF,
    by_lane,
    called,
    declared,
    fails_alike,
)
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from samples import DATA, NESTED

from crosslane._declare import library
from crosslane._engines.spark.declare import declare
from crosslane._engines.spark.support import Unsupported, reason_against
from crosslane._runtime.errors import describe
from crosslane._worker.loops import make


def raises(value: int) -> int:
    return 1 // value


@pytest.mark.parametrize("arrow", [False, True])
def test_the_traceback_has_the_users_frames(arrow: bool) -> None:
    udf = F.udf(raises, "long", useArrow=arrow)
    with pytest.raises(ZeroDivisionError) as failure:
        by_lane(udf, [[0]], [T.LongType()])
    name, message, shown = describe(failure.value)
    assert (name, message) == ("ZeroDivisionError", "integer division or modulo by zero")
    assert f"{__file__}:{raises.__code__.co_firstlineno + 1} in raises" in shown
    assert "_engines" not in shown
    assert any(frame.name == "raises" for frame in traceback.extract_tb(failure.value.__traceback__))


def stops(value: int) -> int:
    raise StopIteration("early")


@pytest.mark.parametrize("arrow", [False, True])
def test_stop_iteration(spark: SparkSession, arrow: bool) -> None:
    udf = F.udf(stops, "long", useArrow=arrow)
    fails_alike(spark, udf, [[1]], [T.LongType()])
    with pytest.raises(Exception, match="STOP_ITERATION_OCCURRED"):
        by_lane(udf, [[1]], [T.LongType()])


def test_a_row_function_is_a_loop_of_the_guest() -> None:
    made = declared(F.udf(lambda a, b: a * b, "long", useArrow=False), T.LongType(), T.LongType())
    assert (made.kind, made.admits_null, made.deterministic) == ("row", [True, True], False)
    each, result, (second,) = make(made, 2)
    second.cell_contents = 3
    each(iter([4]))
    assert result.cell_contents == 12
    assert made.file == __file__


def test_without_arguments(spark: SparkSession) -> None:
    made = declared(F.udf(lambda: 7, "long", useArrow=False))
    assert made.callee()() == 7


def test_binary_as_bytearray(spark: SparkSession) -> None:
    conf = {"spark.sql.execution.pyspark.binaryAsBytes": "false"}
    udf = F.udf(lambda value: type(value).__name__, "string", useArrow=False)
    assert by_lane(udf, [[b"x"]], [T.BinaryType()], conf) == [(str, "bytearray")]


@pytest.mark.parametrize(
    ("eval_type", "arguments", "returns", "conf", "reason"),
    [
        (204, [], '"long"', {}, "no argument"),
        (251, ['"long"'], '"variant"', {}, "the result has the type variant"),
        (205, [T.StructType().json()], T.StructType().add("a", "long").json(), {}, "no fields"),
        (207, ['"void"'], T.StructType().add("a", "long").json(), {}, "argument 1 has the type void"),
        (300, ['"long"'], '"long"', {}, "eval type 300"),
        (200, [], '"long"', {}, "no argument"),
        (101, [], '"long"', {}, "no argument"),
        (100, ['"void"'], '"long"', {}, "argument 1 has the type void"),
        (100, ['"long"', '"interval day to second"'], '"long"', {}, "argument 2"),
        (100, ['"string collate UNICODE"'], '"long"', {}, "collate"),
        (100, ['"long"'], '"variant"', {}, "the result has the type variant"),
        (100, ['"long"'], T.StructType().add("a", "long").json(), {}, "struct"),
        (100, [T.MapType(T.LongType(), T.LongType()).json()], '"long"', {}, "map"),
        (100, ['"long"'], T.ArrayType(T.LongType(), False).json(), {}, "cannot be NULL"),
        (101, ['"long"'], T.StructType().add("a", "long").add("A", "long").json(), {}, "several of a name"),
        (101, ['"long"'], T.StructType().json(), {}, "no fields"),
        (
            101,
            ['"long"'],
            '"long"',
            {"spark.sql.execution.pythonUDF.arrow.concurrency.level": "2"},
            "concurrency",
        ),
        (100, ['"long"'], '"long"', {"spark.sql.pyspark.udf.profiler": "perf"}, "profiler"),
    ],
)
def test_reasons_against(
    eval_type: int, arguments: list[str], returns: str, conf: dict[str, str], reason: str
) -> None:
    assert reason in (reason_against(eval_type, arguments, returns, conf) or "")
    with pytest.raises(Unsupported, match=reason):
        declare("f", "f(a BIGINT) -> BIGINT", b"", eval_type, arguments, returns, conf, "", {})


def test_no_reasons_against() -> None:
    for kind, _ in DATA:
        for eval_type in (100, 101, 200, 250):
            assert reason_against(eval_type, [kind.json()], kind.json(), {}) is None
    for kind, _ in NESTED:
        assert reason_against(200, [kind.json()], kind.json(), {}) is None


def pickled(thing: Any) -> bytes:
    """A pickle as the JVM writes it, by hand."""
    if isinstance(thing, str):
        text = thing.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(thing, bytes):
        return b"B" + struct.pack("<I", len(thing)) + thing
    if isinstance(thing, int):
        return b"J" + struct.pack("<i", thing)
    if isinstance(thing, list):
        return b"](" + b"".join(map(pickled, thing)) + b"e"
    pairs = b"".join(pickled(key) + pickled(value) for key, value in thing.items())
    return b"}(" + pairs + b"u"


def test_a_pickle_by_hand() -> None:
    command = CloudPickleSerializer().dumps((lambda a: a + 1, T.LongType()))
    arguments = ["f", "f(a BIGINT) -> BIGINT", command, 100, ['"long"'], '"long"', CONF, "", {}]
    call = b"ccrosslane._engines.spark.declare\ndeclare\n(" + b"".join(map(pickled, arguments)) + b"tR"
    with tempfile.TemporaryFile() as file:
        # Where modules are found, and the functions.
        file.write(b"\x80\x03" + pickled([]) + b".")
        file.write(b"\x80\x03" + call + b".")
        file.flush()
        (made,) = library.load_pickles(file.fileno())
    assert made.signature == '"f"("a" BIGINT) -> BIGINT'
    assert called(made, [[1, 2]]) == [2, 3]
    assert made.message()["calling"] == "row"


def test_a_broadcast_command() -> None:
    command = CloudPickleSerializer().dumps("something else")
    with pytest.raises(Unsupported, match="command is a str"):
        declare("f", "f(a BIGINT) -> BIGINT", command, 100, ['"long"'], '"long"', {}, "", {})
