"""Any exception of a function is a failed call. `on_error` and `retries` apply to it, and its worker keeps
running."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import crosslane
from crosslane._engines import host_lanes
from crosslane._runtime.errors import describe
from crosslane._runtime.frames import current_frames

from ..conftest import Load, eventually

pytestmark = pytest.mark.any_duckdb

Numbers = npt.NDArray[np.int64]
Texts = Annotated[np.ndarray, "VARCHAR"]


class Stop(BaseException):
    """An exception that `except Exception` does not catch."""


class Sealed(Exception):
    """An exception on which no attribute can be set."""

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("nothing can be noted")


class Wordless(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        sys.exit("no words")


class Text(str):
    """A text that no code can iterate over."""

    def __iter__(self) -> Any:
        raise RuntimeError("for ever")


class Wordy(Exception):
    """An exception whose text has a class of its own."""

    def __str__(self) -> str:
        return Text("many words")


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "base": (lambda: Stop("enough"), "Stop: enough"),
    "cancelled": (lambda: asyncio.CancelledError("by itself"), "CancelledError: by itself"),
    "sealed": (lambda: Sealed("shut"), "Sealed: shut"),
    "wordless": (Wordless, "its message cannot be shown: SystemExit"),
    "wordy": (Wordy, "Wordy: many words"),
    "surrogate": (lambda: ValueError("a\ud800b"), "ValueError: a?b"),
    "noted": (lambda: _noted(), "ValueError: noted"),
    "generator": (lambda: GeneratorExit("over"), "GeneratorExit: over"),
    "iteration": (lambda: StopIteration("over"), "StopIteration"),
}


def _noted() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = 5  # type: ignore[assignment]
    return error


def _fail(x: int, how: str, tried: list[tuple[int, str]]) -> int:
    """Fails always for 1, and once for 2."""
    tried.append((x, how))
    if x == 1 or (x == 2 and tried.count((2, how)) == 1):
        raise RAISED[how][0]()
    return x


def function(kind: str) -> Callable[..., Any]:
    tried: list[tuple[int, str]] = []

    def row(x: int, how: str) -> int:
        return _fail(x, how, tried)

    async def waits(x: int, how: str) -> int:
        await asyncio.sleep(0)
        return _fail(x, how, tried)

    async def in_a_task(x: int, how: str) -> int:
        async def inner() -> int:
            return _fail(x, how, tried)

        return await asyncio.create_task(inner())

    def column(x: Numbers, how: Texts) -> Numbers:
        return np.array([_fail(int(value), str(text), tried) for value, text in zip(x, how)])

    return {"row": row, "async": waits, "task": in_a_task, "vectorized": column}[kind]


KINDS = ("row", "async", "task", "vectorized")
LANES = ("process", "thread")
OPTIONS: dict[str, dict[str, Any]] = {"fails": {}, "nulls": {"on_error": "null"}, "again": {"retries": 1}}
#: This file is also loaded as a library. If each function were registered alone, each registration would
#: start the workers again.
for _kind, (_name, _option) in product(KINDS, OPTIONS.items()):
    globals()[f"process_{_kind}_{_name}"] = crosslane.udf(
        function(_kind), name=f"process_{_kind}_{_name}", vectorized=_kind == "vectorized", **_option
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    """Functions of all kinds, which share their workers. An exception of one function never reaches another
    one."""
    with crosslane.connect(config={"threads": 2}) as con:
        con.execute("CALL crosslane_set('fan_out', 'false')")
        crosslane.load(con, __file__)
        for kind, (name, option) in product(KINDS, OPTIONS.items()):
            vectorized = kind == "vectorized"
            crosslane.register(
                con,
                function(kind),
                name=f"thread_{kind}_{name}",
                lane="thread",
                vectorized=vectorized,
                **option,
            )
        yield con


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_raised_is_a_failed_call(
    engine: duckdb.DuckDBPyConnection, kind: str, how: str, lane: str
) -> None:
    def call(name: str, *numbers: int) -> list[Any]:
        values = ", ".join(f"({number})" for number in numbers)
        query = f"SELECT {lane}_{kind}_{name}(i, '{how}') FROM (VALUES {values}) t(i)"
        return [row[0] for row in engine.execute(query).fetchall()]

    vectorized = kind == "vectorized"
    with pytest.raises(duckdb.Error) as caught:
        call("fails", 0, 1, 3)
    text = str(caught.value)
    assert RAISED[how][1] in text
    if not vectorized:
        assert "with x = 1" in text
    assert call("fails", 4, 5) == [4, 5]
    assert call("nulls", 0, 1, 3) == ([None] * 3 if vectorized else [0, None, 3])
    assert call("nulls", 4, 5) == [4, 5]
    assert call("again", 2, 3) == [2, 3]
    with pytest.raises(duckdb.Error):
        call("again", 1)
    assert call("again", 4, 5) == [4, 5]
    lost = engine.execute("SELECT sum(lanes_lost) FROM crosslane_stats()").fetchall()
    assert lost == [(0,)]


RUBY = {
    "exit": "exit(3)",
    "abort": "abort('no')",
    "exception": "raise(Exception, 'base')",
    "interrupt": "raise(Interrupt)",
    "signal": "raise(SignalException, 'TERM')",
    "throw": "throw(:away)",
    "stack": "deep(1)",
    "memory": "raise(NoMemoryError)",
    "wordless": "raise(Wordless)",
    "nameless": "raise(Nameless)",
    "thread": "Thread.exit",
}


RUBY_KINDS = {"row": "", "async": ", concurrency: 2", "vectorized": ", vectorized: true"}


def test_whatever_ruby_raises_is_a_failed_call(ruby: Load, subtests: pytest.Subtests) -> None:
    """No lane is lost: one worker runs all cases."""
    text = """
def deep(x) = deep(x) + 1
class Wordless < StandardError; def message = exit; end
class Nameless < StandardError; def self.name = raise("no name"); end
TRIED = Hash.new(0)
"""
    for how, (kind, option) in product(RUBY, RUBY_KINDS.items()):
        case = f"{how}_{kind}"
        body = f"xs.map {{ |x| {case}(x) }}" if kind == "vectorized" else f"{case}(xs)"
        text += f"""
def {case}(x)
  {RUBY[how]} if x == 1 || (x == 2 && (TRIED[:{case}] += 1) == 1)
  x
end
udf("{case}_fails(xs BIGINT) -> BIGINT"{option}) {{ |xs| {body} }}
udf("{case}_nulls(xs BIGINT) -> BIGINT"{option}, on_error: :null) {{ |xs| {body} }}
udf("{case}_again(xs BIGINT) -> BIGINT"{option}, retries: 1) {{ |xs| {body} }}
"""
    con = ruby(text)
    con.execute("CALL crosslane_set('fan_out', 'false')")

    def call(name: str, *numbers: int) -> list[Any]:
        values = ", ".join(f"({number})" for number in numbers)
        return [row[0] for row in con.execute(f"SELECT {name}(i) FROM (VALUES {values}) t(i)").fetchall()]

    for how, kind in product(RUBY, RUBY_KINDS):
        with subtests.test(f"{how}, {kind}"):
            case = f"{how}_{kind}"
            with pytest.raises(duckdb.Error):
                call(f"{case}_fails", 0, 1, 3)
            assert call(f"{case}_fails", 4, 5) == [4, 5]
            nulls = [None] * 6 if kind == "vectorized" else [0, None, 3, None, None, 5]
            assert call(f"{case}_nulls", 0, 1, 3, 1, 1, 5) == nulls
            assert call(f"{case}_nulls", 4, 5) == [4, 5]
            if case != "thread_async":
                # A thread that has ended makes no second try.
                assert call(f"{case}_again", 2, 3) == [2, 3]
            with pytest.raises(duckdb.Error):
                call(f"{case}_again", 1)
            assert con.execute("SELECT sum(lanes_lost) FROM crosslane_stats()").fetchall() == [(0,)]


SURROGATES = {
    "str": "'a\\ud800b'",
    "dict[str, int]": "{'a\\ud800b': 1}",
    "list[str]": "['a\\ud800b']",
    "Annotated[dict, 'JSON']": "{'a': 'a\\ud800b'}",
    "Annotated[str, 'JSON']": "'a\\ud800b'",
}


def test_text_that_utf8_cannot_encode(load: Load, subtests: pytest.Subtests) -> None:
    text = "from typing import Annotated\n"
    for at, (hint, result) in enumerate(SURROGATES.items()):
        for kind, begin in (("row", "def"), ("async", "async def")):
            text += f"@udf\n{begin} f_{kind}_{at}(x: int) -> {hint}: return {result}\n"
            text += f"@udf(on_error='null')\n{begin} g_{kind}_{at}(x: int) -> {hint}: return {result}\n"
    con = load(text)
    for at, hint in enumerate(SURROGATES):
        for kind in ("row", "async"):
            with subtests.test(f"{kind}, {hint}"):
                with pytest.raises(duckdb.Error) as caught:
                    con.execute(f"SELECT f_{kind}_{at}(1)").fetchall()
                shown = str(caught.value)
                assert "ValueError: returned str" in shown
                assert r"a\ud800b" in shown
                assert "which has half a surrogate pair, where" in shown
                assert con.execute(f"SELECT g_{kind}_{at}(1)").fetchall() == [(None,)]
                assert con.execute("SELECT sum(lanes_lost) FROM crosslane_stats()").fetchall() == [(0,)]


@pytest.mark.parametrize("options", [{"on_error": "null"}, {"retries": 1_000_000}])
@pytest.mark.parametrize("kind", ["row", "async", "vectorized"])
@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_lane_that_is_dropped_ends(
    con: duckdb.DuckDBPyConnection, kind: str, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception that ends the lane is no failed call. Python reports no error about anything that the
    lane leaves."""
    # pyarrow imports pandas at the first conversion, and swallows exceptions that are raised during the
    # import.
    assert pd
    before = threading.active_count()
    begun: list[int] = []

    def stuck(x: int) -> int:
        begun.append(x)
        while x >= 0:
            pass
        return x

    async def waits(x: int) -> int:
        return stuck(x)

    def column(x: Numbers) -> Numbers:
        return np.array([stuck(int(value)) for value in x])

    function = {"row": stuck, "async": waits, "vectorized": column}[kind]
    options = {"timeout": 0.05, "vectorized": kind == "vectorized", **options}
    crosslane.register(con, function, name="f", lane="thread", **options)
    if "retries" in options:
        # An async function that does not wait blocks its own loop. So the loop cannot try it again.
        tries = 1 if kind == "async" else 2

        def cancel() -> None:
            eventually(lambda: begun.count(0) >= tries, 30)
            crosslane.cancel(con)

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(duckdb.Error):
            con.execute("SELECT f(i) FROM range(3) r(i)").fetchall()
        # The thread uses the connection, too.
        canceller.join()
        assert begun.count(0) >= tries
    else:
        assert con.execute("SELECT f(i) FROM range(3) r(i)").fetchall() == [(None,)] * 3
    con.close()
    assert eventually(lambda: threading.active_count() <= before, 10)
    gc.collect()
    assert caplog.text == ""


class Slow:
    """The deletion of this object takes until a flag is set."""

    def __init__(self, flag: threading.Event) -> None:
        self.flag = flag

    def __del__(self) -> None:
        while not self.flag.is_set():
            pass


@pytest.mark.parametrize(
    "lost",
    [
        "caught",
        "deleting",
        pytest.param(
            "deleting for ever",
            marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
        ),
    ],
)
def test_a_lane_whose_end_was_lost_is_told_again(con: duckdb.DuckDBPyConnection, lost: str) -> None:
    """Python only prints a warning about an exception in the deletion of an object, and goes on. The
    exception that ends the lane is lost."""
    before = threading.active_count()
    told = threading.Event()

    def caught(x: int) -> int:
        with contextlib.suppress(BaseException):
            while x >= 0:
                pass
        told.set()
        while x >= 0:
            pass
        return x

    def deleting(x: int) -> int:
        Slow(told)
        while x >= 0:
            pass
        return x

    function = caught if lost == "caught" else deleting
    crosslane.register(con, function, name="f", lane="thread", timeout=0.05, on_error="null")
    assert con.execute("SELECT f(1)").fetchall() == [(None,)]
    lanes = [lane for host in host_lanes._this_process()._hosts for lane in host.lanes()]
    assert eventually(lambda: any(lane.told for lane in lanes), 10)
    if lost != "deleting for ever":
        told.set()
    con.close()
    assert eventually(lambda: threading.active_count() <= before, 10)
    gc.collect()


def test_no_garbage_is_collected_while_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection could let another thread end, and that thread would then wait for ever."""
    listed = []
    frames = sys._current_frames

    def seen() -> Any:
        listed.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", seen)
    assert threading.get_ident() in current_frames()
    assert (listed, gc.isenabled()) == ([False], True)


def test_frames_of_a_package_whose_name_begins_with_crosslane_are_shown() -> None:
    file = f"{Path(crosslane.__file__).parent}_tools/clean.py"
    try:
        exec(compile("1 / 0", file, "exec"))
    except ZeroDivisionError as error:
        assert f"at {file}:1" in describe(error)[2]


LEAVING = [
    ("INTEGER", "__index__"),
    ("UHUGEINT", "__index__"),
    ("DECIMAL(4,1)", "__index__"),
    ("DOUBLE", "__float__"),
    ("ENUM('a')", "__hash__"),
    ("INTEGER[]", "__iter__"),
    ("MAP(INTEGER, INTEGER)", "__iter__"),
    ("MAP(INTEGER, INTEGER)", "__class__"),
    ("STRUCT(a INTEGER)", "__getattr__"),
    ("STRUCT(a INTEGER)", "__class__"),
    ("UNION(a INTEGER)", "__eq__"),
    ("VARCHAR", "__repr__"),
]


def test_what_ends_a_program_ends_the_conversion_of_a_result(
    con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    """The exception that ends a dropped lane does so, too. If another error replaced it, only the row would
    end."""

    def leave(*arguments: object) -> None:
        raise SystemExit(3)

    def always(result: object) -> Callable[[int], object]:
        return lambda x: result

    for at, (returns, method) in enumerate(LEAVING):
        with subtests.test(f"{returns}, {method}"):
            leaving = type("Leaving", (), {method: property(leave) if method == "__class__" else leave})()
            function = always((leaving, 1) if method == "__eq__" else leaving)
            crosslane.register(con, function, f"leaves_{at}(x INTEGER) -> {returns}", lane="thread")
            with pytest.raises(duckdb.Error, match="SystemExit: 3"):
                con.execute(f"SELECT leaves_{at}(1)")
