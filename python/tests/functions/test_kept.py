"""A function's arguments may be objects that earlier rows had. No function can notice this, whatever it does
with its arguments."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import queue
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import Load

pytestmark = pytest.mark.any_duckdb

INTS = [
    *range(-8, 8), *range(250, 262), 2**30 - 1, 2**30, 2**31, 2**60 - 1, 2**60, 2**63 - 1, -(2**30) + 1, -(2**30), -(2**60) + 1,
    -(2**60), -(2**63), 1000, 1001, 1000, -1000, 5, 1000, 2**40, 7, 2**40 + 1,
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324, 1e308, *(number / 8 for number in range(40))]
TEXTS = [
    *("ab" * count for count in range(40)),
    *("x" * length for length in (300, 3, 256, 255, 257, 2, 1, 0, 15, 16)),
    "ä",
    "ab",
]
COLUMNS = {
    "BIGINT": INTS,
    "INTEGER": [value for value in INTS if abs(value) < 2**31],
    "DOUBLE": FLOATS,
    "VARCHAR": TEXTS,
}


def generates(value: Any) -> Generator[Any, None, None]:
    yield None
    yield value


def waits(value: Any) -> Any:
    generator = generates(value)
    next(generator)
    return lambda: next(generator)


def raised(value: Any) -> Any:
    try:
        raise ValueError
    except ValueError as error:
        return error


def fails(value: Any) -> Callable[[], Any]:
    error = raised(value)
    return lambda: error.__traceback__.tb_frame.f_locals["value"]


def defaults(value: Any) -> Callable[[], Any]:
    def kept(value: Any = value) -> Any:
        return value

    return kept


def hangs(value: Any) -> Callable[[], Any]:
    frame: Any = sys._getframe()
    return lambda: frame.f_locals["value"]


def runs(value: Any) -> Callable[[], Any]:
    """Keeps a value in a thread that still runs while later rows are called."""
    go, answers = threading.Event(), queue.SimpleQueue[Any]()

    def late() -> None:
        go.wait(60)
        answers.put(value)

    thread = threading.Thread(target=late)
    thread.start()

    def answer() -> Any:
        go.set()
        thread.join()
        return answers.get()

    return answer


#: Ways to keep a value and to return it later.
KEEPERS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "list": lambda value: [value].copy,
    "closure": lambda value: lambda: value,
    "partial": lambda value: functools.partial(lambda kept: kept, value),
    "locals": lambda value: functools.partial(locals().__getitem__, "value"),
    "dict": lambda value: lambda kept={value: value}: next(iter(kept)),
    "generator": waits,
    "traceback": fails,
    "default": defaults,
    "frame": hangs,
    "thread": runs,
}


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("sql", COLUMNS)
def test_kept_arguments_do_not_change(
    con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests, sql: str
) -> None:
    values = COLUMNS[sql]
    keeper = KEEPERS["list"]
    kept: dict[int, Callable[[], Any]] = {}

    def keep(value: Any, which: int) -> Any:
        # For every third value, nothing keeps the argument. Later rows get the objects of these arguments
        # again.
        return kept.update({which: keeper(value)}) if which % 3 else None

    def first(value: Any, which: int) -> Any:
        return keep(value, which) or value

    def second(which: int, value: Any) -> Any:
        return keep(value, which) or value

    # DuckDB 1.5 makes a NaN in a list NULL.
    con.execute(f"CREATE TABLE t(v {sql}, i BIGINT)")
    con.executemany("INSERT INTO t VALUES (?, ?)", [[value, which] for which, value in enumerate(values)])
    calls = []
    for inline in (True, False):
        at = str(inline).lower()
        crosslane.register(
            con, first, f"first_{at}(v {sql}, i BIGINT) -> {sql}", lane="thread", inline=inline
        )
        crosslane.register(
            con, second, f"second_{at}(i BIGINT, v {sql}) -> {sql}", lane="thread", inline=inline
        )
        calls += [f"first_{at}(v, i)", f"second_{at}(i, v)"]
    for name, call in itertools.product(KEEPERS, calls):
        with subtests.test(f"{name}, {call}"):
            keeper = KEEPERS[name]
            kept.clear()
            rows = con.execute(f"SELECT {call} FROM t ORDER BY i").fetchall()
            assert all(map(same, [row[0] for row in rows], values))
            expected = [value for which, value in enumerate(values) if which % 3]
            found = [kept[which]() for which in sorted(kept)]
            found = [value[0] if isinstance(value, list) else value for value in found]
            assert len(found) == len(expected)
            assert all(map(same, found, expected)), (found, expected)


@pytest.mark.parametrize("inline", [True, False])
def test_the_row_before(con: duckdb.DuckDBPyConnection, inline: bool) -> None:
    last: dict[str, Any] = {}

    def before(x: int, y: float, z: str) -> str:
        return str((last.get("row"), last.update(row=(x, y, z)))[0])

    crosslane.register(
        con, before, "before(x BIGINT, y DOUBLE, z VARCHAR) -> VARCHAR", lane="thread", inline=inline
    )
    con.execute("SET threads = 1")
    rows = con.execute(
        "SELECT before(i * 1000, i / 2, 'row ' || i) FROM range(300) r(i) ORDER BY i"
    ).fetchall()
    expected = [(i * 1000, i / 2, f"row {i}") for i in range(299)]
    assert [row[0] for row in rows] == [str(row) for row in (None, *expected)]


@pytest.mark.parametrize("inline", [True, False])
def test_a_text_has_the_hash_of_its_present_content(con: duckdb.DuckDBPyConnection, inline: bool) -> None:
    """A str keeps its hash, which must not be that of an earlier text."""
    known = {f"text {number}": number for number in range(1000)}

    def lookup(x: str) -> int:
        return known[x] + 0 * hash(x)

    crosslane.register(con, lookup, "lookup(x VARCHAR) -> BIGINT", lane="thread", inline=inline)
    rows = con.execute("SELECT lookup('text ' || i) FROM range(1000) r(i) ORDER BY i").fetchall()
    assert [row[0] for row in rows] == list(range(1000))


def test_interned_texts_stay(con: duckdb.DuckDBPyConnection) -> None:
    """In some versions of Python, the table of interned texts has no reference of its own."""
    names = []

    class Some:
        pass

    def intern(x: str) -> int:
        return len(sys.intern(x)) + len(names)

    def attribute(x: str) -> int:
        return setattr(Some, x, len(x)) or getattr(Some, x)

    for function in (intern, attribute):
        name = function.__name__
        crosslane.register(con, function, f"{name}(x VARCHAR) -> BIGINT", lane="thread")
        rows = con.execute(f"SELECT {name}('interned ' || i) FROM range(500) r(i) ORDER BY i").fetchall()
        assert [row[0] for row in rows] == [len(f"interned {i}") for i in range(500)]
    for number in range(500):
        text = f"interned {number}"
        assert getattr(Some, text) == len(text)
        assert sys.intern(text) == text


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later versions have no such copies")
def test_texts_with_a_copy_in_wide_characters(con: duckdb.DuckDBPyConnection) -> None:
    wide = ctypes.pythonapi.PyUnicode_AsUnicode
    wide.argtypes, wide.restype = [ctypes.py_object], ctypes.c_wchar_p

    def copy(x: str) -> str:
        return wide(x)

    crosslane.register(con, copy, "copy(x VARCHAR) -> VARCHAR", lane="thread")
    rows = con.execute("SELECT copy('text ' || i) FROM range(500) r(i) ORDER BY i").fetchall()
    assert [row[0] for row in rows] == [f"text {i}" for i in range(500)]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="no layout is known")
def test_objects_are_used_again(con: duckdb.DuckDBPyConnection) -> None:
    def held(x: int, y: int, z: float, s: str, t: str) -> str:
        counts = [sys.getrefcount(value) for value in (x, y, z, s, t)]
        return str([count - counts[1] for count in counts])

    parameters = "x BIGINT, y BIGINT, z DOUBLE, s VARCHAR, t VARCHAR"
    crosslane.register(con, held, f"held({parameters}) -> VARCHAR", lane="thread", inline=False)
    rows = con.execute(
        "SELECT held(1000 + i, (1::BIGINT << 61) + i, i / 2, 'text ' || i, repeat('text ', 100) || i) FROM range(9) r(i)"
    ).fetchall()
    # The expected counts include the reference of the loop, which uses the object again.
    assert [row[0] for row in rows] == ["[1, 0, 1, 1, 0]"] * 9


def test_arguments_that_are_results(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(
        con, lambda x, y: x if x < y else y, "least_of(x BIGINT, y BIGINT) -> BIGINT", lane="thread"
    )
    crosslane.register(con, lambda x: [x, x], "pair(x BIGINT) -> BIGINT[]", lane="thread")
    crosslane.register(
        con, lambda x, y: (x, y), "couple(x DOUBLE, y VARCHAR) -> STRUCT(x DOUBLE, y VARCHAR)", lane="thread"
    )
    con.execute(
        "CREATE TABLE t AS SELECT i * 7919 % 5000 * 1000 a, i * 104729 % 5000 * 1000 b FROM range(5000) r(i)"
    )
    assert con.execute("SELECT count(*) FROM t WHERE least_of(a, b) <> least(a, b)").fetchone() == (0,)
    assert con.execute("SELECT count(*) FROM t WHERE pair(a) <> [a, a]").fetchone() == (0,)
    both = "couple(a / 2, 'b' || b) <> {'x': a / 2, 'y': 'b' || b}"
    assert con.execute(f"SELECT count(*) FROM t WHERE {both}").fetchone() == (0,)


def test_a_function_that_drives_its_own_loop(con: duckdb.DuckDBPyConnection) -> None:
    """If another loop takes rows, they have no result. That is an error, and no crash."""

    def takes(x: int) -> int:
        values = sys._getframe(1).f_locals["values"]
        return x + sum(1 for _ in values)

    crosslane.register(con, takes, "takes(x BIGINT) -> BIGINT", lane="thread", inline=False)
    with pytest.raises(duckdb.Error):
        con.execute("SELECT takes(i) FROM range(100) r(i)").fetchall()


def test_objects_that_ask_for_rows_when_they_go(load: Load) -> None:
    con = load(
        """
        import sys
        from dataclasses import dataclass
        ASKED = [0, 0]
        @dataclass
        class Nosy:
            x: int
            def __del__(self):
                # The frame's own copy of its variables keeps the object of row 20.
                if self.x > 20: ASKED[next(Nosy.values, None) is not None] += 1
        @udf(inline=False)
        def nosy(x: int, y: Nosy) -> int:
            if x == 20: Nosy.values = sys._getframe(1).f_locals["values"]
            return x + y.x + 10000 * ASKED[1] + 1000 * (x > 30 and ASKED[0] == 0)
        """
    )
    con.execute("SET threads = 1")
    rows = con.execute("SELECT nosy(i, {'x': i}) FROM range(100) r(i) ORDER BY i").fetchall()
    assert [row[0] for row in rows] == [2 * i for i in range(100)]


def test_another_thread_that_is_within_the_iterator_when_the_loop_ends(load: Load) -> None:
    """The row that this thread took has no result, which is an error. The batch waits until the thread has
    left the iterator."""
    con = load(
        """
        import sys, threading, time
        from dataclasses import dataclass
        WITHIN, OVER, LEFT = threading.Event(), threading.Event(), threading.Event()
        @dataclass
        class Slow:
            x: int
            def __post_init__(self):
                if threading.current_thread().name != "thief": return
                WITHIN.set()
                OVER.wait()
                for _ in range(20): time.sleep(0.001)
                LEFT.set()
        def watch(frame, event, _):
            if frame.f_code.co_name != "called": return None
            if event == "call":
                thief = threading.Thread(target=next, args=(frame.f_locals["values"],), name="thief", daemon=True)
                thief.start()
                WITHIN.wait()
            if event == "return":
                sys.settrace(None)
                OVER.set()
            return watch
        @udf(inline=False, on_error="null")
        def stolen(x: int, y: Slow) -> int:
            if x == 0:
                # The loop over the rows from the next one on is watched.
                sys.settrace(watch)
                raise ValueError
            return x + y.x if LEFT.is_set() else -1
        """
    )
    con.execute("SET threads = 1")
    rows = con.execute("SELECT stolen(i, {'x': i}) FROM range(4) r(i) ORDER BY i").fetchall()
    assert [row[0] for row in rows] == [None, None, 4, 6]
