"""Functions of one expression run inside the loop over a batch, with the results of a call. All other
functions are called."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType
from typing import Any

import duckdb
import pytest

import crosslane
from crosslane import udf
from crosslane._declare.declaration import DeclarationError, declare
from crosslane._declare.signature.resolve import resolve
from crosslane._worker import inlining, loops

from ..conftest import Load, error, value

pytestmark = pytest.mark.any_duckdb

FACTOR = 3


def plus_one(x: int) -> int:
    return x + 1


def documented(x: int) -> int:
    """Says nothing."""
    return FACTOR * x if x > 1 else -x


def branches(x: int) -> int:
    if x > 5:
        if x > 7:
            return 8
        return x * 2
    elif x < 0:
        return -x
    return 0


def factorial(x: int) -> int:
    return 1 if x < 2 else x * factorial(x - 1)


def several(x: int, y: int, z: int = 7) -> int:
    return (x - y) * z


def makes(k: int) -> tuple[Callable[[int], int], Callable[[int], None]]:
    def change(new: int) -> None:
        nonlocal k
        k = new

    return lambda x: x + k, change


def joins(x: int) -> str:
    return f"{x!r:>4}" + str(x)[::-1] + ("odd" if x % 2 else "even")


TWO = [lambda x: x * 2, lambda x: x * 3]
ADDS, CHANGE = makes(4)
INLINED = [plus_one, documented, branches, factorial, joins, ADDS, *TWO]


class Looped:
    """A loop with its cells. The test uses the cells as the guest's iterator does."""

    def __init__(self, loop: Callable[..., Any], result: CellType, arguments: list[CellType]) -> None:
        self.loop, self.result, self.arguments = loop, result, arguments

    def __call__(self, *rows: Any) -> list[Any]:
        """The results of rows. A row is a value, or a tuple if there are several parameters."""
        results = []

        def values() -> Iterator[Any]:
            for row in rows:
                first, *others = row if self.arguments else (row,)
                for cell, other in zip(self.arguments, others, strict=True):
                    cell.cell_contents = other
                yield first
                results.append(self.result.cell_contents)

        assert self.loop(values()) is None
        return results


def inlined(function: Callable[..., Any], count: int = 1) -> Looped | None:
    cells = CellType(), [CellType() for _ in range(count - 1)]
    loop = inlining.loop(function, *cells)
    return loop and Looped(loop, *cells)


@pytest.mark.parametrize("function", INLINED)
def test_loops_do_what_calls_do(function: Callable[[int], Any]) -> None:
    values = [-2, 0, 1, 6, 9]
    looped = inlined(function)
    assert looped is not None
    assert looped(*values) == [function(value) for value in values]
    loop: Any = looped.loop
    assert (loop.__code__.co_name, loop.__code__.co_qualname, loop.__code__.co_filename) == (
        function.__code__.co_name,
        function.__qualname__,
        function.__code__.co_filename,
    )
    assert loop.__globals__ is function.__globals__


def test_several_parameters() -> None:
    looped = inlined(several, 3)
    assert looped is not None
    assert looped((1, 2, 3), (5, 1, 1)) == [-3, 4]
    # A parameter without an argument has its default.
    assert inlined(several, 2) is None


def each(each: int, loop: Any, around: int) -> int:
    return loop(each, around)


def test_parameters_of_any_name() -> None:
    looped = inlined(each, 3)
    assert looped is not None
    assert looped((1, max, 2), (3, min, 2)) == [2, 2]


def test_changes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    looped, adds = inlined(documented), inlined(ADDS)
    assert looped
    assert adds
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert looped(4) == [20]
    CHANGE(100)
    assert adds(1) == [101]
    CHANGE(4)


def sees_locals(x: int) -> int:
    return len(locals())


def sees_its_frame(x: int) -> int:
    return len(inspect.currentframe().f_locals)  # type: ignore[union-attr]


def evaluates(x: int) -> int:
    return eval("x")


def binds(x: int) -> int:
    return (y := x) + y


def keeps(x: int) -> int:
    return (lambda: x)()


def makes_a_function(x: int) -> int:
    return (lambda y: y)(x)


def comprehends(x: int) -> int:
    return sum([y for y in (x, 0)])


def generates(x: int) -> Any:
    yield x


async def waits(x: int) -> int:
    return x


def takes_any(*x: int) -> int:
    return x[0]


def takes_names(x: int, **names: int) -> int:
    return x


def by_name(x: int, *, y: int = 1) -> int:
    return x + y


def two_statements(x: int) -> int:
    y = x
    return y


def may_end(x: int) -> Any:
    if x:
        return x


def loops_itself(x: int) -> Any:
    while x:
        return x
    return 0


def tries(x: int) -> int:
    try:
        return x
    finally:
        pass


class Twice:
    def __call__(self, x: int) -> int:
        return x * 2

    def method(self, x: int) -> int:
        return x * 2

    @classmethod
    def of_class(cls, x: int) -> int:
        return x * 2


NAMESPACE: dict[str, Any] = {}
exec("def without_source(x):\n    return x * 2\n", NAMESPACE)


@pytest.mark.parametrize(
    "function",
    [
        sees_locals, sees_its_frame, evaluates, binds, keeps, makes_a_function, comprehends, generates, waits,
        takes_any, takes_names, by_name, two_statements, may_end, loops_itself, tries, Twice(), Twice().method,
        Twice.of_class, functools.partial(several, z=1), functools.lru_cache(plus_one), abs,
        NAMESPACE["without_source"],
    ],
)  # fmt: skip
def test_all_other_functions_are_called(function: Callable[..., Any]) -> None:
    assert inlined(function) is None


def test_a_wrapper_is_what_is_called() -> None:
    calls = []

    @functools.wraps(plus_one)
    def wrapper(x: int) -> int:
        return calls.append(x) or plus_one(x)

    looped = inlined(wrapper)
    assert looped is not None
    assert (looped(1, 2), calls) == ([2, 3], [1, 2])


def each_of(function: Callable[..., Any], **options: Any) -> Looped:
    (declared,) = resolve(declare(function, **options))
    return Looped(*loops.make(declared, len(declared.shapes)))


def frames(values: list[int]) -> list[str]:
    return [sys._getframe(1).f_code.co_name, *(name for name in sys._getframe(1).f_locals if name[0] == ".")]


def looked_at(x: list[int]) -> list[str]:
    return frames(x)


def test_inline_false_calls() -> None:
    (seen,) = each_of(looked_at)(1)
    (called,) = each_of(looked_at, inline=False)(1)
    assert seen[0] == "looked_at"
    assert len(seen) > 1
    assert called == ["looked_at"]
    with pytest.raises(DeclarationError, match="inline is True or False, not 1"):
        udf(inline=1)(plus_one)  # type: ignore[call-overload]


def test_a_debugger_sees_calls() -> None:
    each, called = each_of(plus_one), []

    def trace(frame: Any, event: str, argument: Any) -> None:
        called.append(frame.f_code)

    for watch, stop in ((sys.settrace, sys.gettrace()), (sys.setprofile, sys.getprofile())):
        called.clear()
        watch(trace)
        try:
            assert each(1, 2) == [2, 3]
        finally:
            watch(stop)
        assert called.count(plus_one.__code__) >= 2


def test_replaced_code_is_called() -> None:
    def first(x: int) -> int:
        return x + 1

    def second(x: int) -> int:
        return x + 2

    each = each_of(first)
    assert each(1) == [2]
    first.__code__ = second.__code__
    assert each(1) == [3]
    assert each_of(first)(1) == [3]


def imported(path: Path, text: str) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_cannot_be_parsed_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's parser raises this error if another thread parses at the same time."""

    def function(x: int) -> int:
        return x - 1

    def parse(_: str) -> Any:
        raise SystemError("AST constructor recursion depth mismatch")

    with monkeypatch.context() as patch:
        patch.setattr(inlining.ast, "parse", parse)
        assert inlined(function) is None
    assert not inlining._reading.locked()


def test_lanes_in_threads_compile_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: int) -> int:
        return x - 2

    compiled = inlining._compiled

    def locked(*arguments: Any) -> Any:
        assert inlining._reading.locked()
        return compiled(*arguments)

    monkeypatch.setattr(inlining, "_compiled", locked)
    assert inlined(function) is not None


def test_a_changed_file_is_no_source(tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    module = imported(path, "def f(x): return x + 1\ndef g(x): return x\n")
    path.write_text("def f(x): return x + 2\ndef g(x): return  x\n")
    # The text of the second function differs only by a column. Tracebacks show columns.
    assert inlined(module.f) is None
    assert inlined(module.g) is None
    path.unlink()
    assert inlined(imported(tmp_path / "broken.py", "def f(x): return x\n").f) is not None
    module = imported(path, "def f(x): return x + 3\n")
    path.write_text("def f(x: return\n")
    assert inlined(module.f) is None


def test_a_traceback_is_that_of_the_call(tmp_path: Path) -> None:
    text = "def f(x, y):\n    if x:\n        return 0\n    return (x +\n        1 // y)\n"
    # A function of another file with the same code has a traceback with that file.
    for name in ("one", "other"):
        function = imported(tmp_path / f"{name}.py", text).f
        looped = inlined(function, 2)
        assert looped is not None

        def shown(run: Callable[[], object]) -> list[str]:
            try:
                run()
            except ZeroDivisionError as error:
                frame = error.__traceback__.tb_next  # type: ignore[union-attr]
                while frame.tb_next:  # type: ignore[union-attr]
                    frame = frame.tb_next  # type: ignore[union-attr]
                return traceback.format_tb(frame)
            return []

        expected = shown(lambda function=function: function(0, 0))
        assert f'{name}.py", line 5, in f' in expected[0]
        assert shown(lambda looped=looped: looped((1, 1), (0, 0))) == expected


TABLE = "CREATE TABLE t AS SELECT i, CASE WHEN i % 3 > 0 THEN i END a, CASE WHEN i % 7 > 0 THEN i / 2 END b FROM range(5000) r(i)"


#: Functions with all types of results. They have the options {options}, and their names end in {n}.
RESULTS = """
@udf({options})
def number_{n}(a: int) -> int: return a + 1
@udf({options})
def sum2_{n}(a: int, b: float) -> float: return a + b
@udf({options})
def text_{n}(a: int, b: float, i: int) -> str: return f"{{a}} {{b}} {{i}}"
@udf({options})
def truth_{n}(b: float) -> bool: return b > 1000
@udf({options})
def maybe_{n}(a: int) -> int | None: return None if a % 2 else a
@udf({options})
def sees_{n}(a: int | None, b: float) -> int: return -1 if a is None else a
@udf("narrow_{n}(a BIGINT) -> INTEGER", {options})
def narrow_{n}(a): return a
@udf("mixed_{n}(a BIGINT) -> BIGINT", {options})
def mixed_{n}(a): return a % 4 == 1 if a % 4 < 2 else a
@udf("ratio_{n}(a BIGINT) -> DOUBLE", {options})
def ratio_{n}(a): return a if a % 5 else a / 2
"""
OPTIONS = ["", "inline=False", "retries=1", "on_error='null', inline=False"]


def test_rows_with_nulls(load: Load, subtests: pytest.Subtests) -> None:
    con = load("".join(RESULTS.format(options=options, n=n) for n, options in enumerate(OPTIONS)))
    con.execute(TABLE)
    for n, options in enumerate(OPTIONS):
        for call, expected in {
            f"number_{n}(a)": "a + 1",
            f"sum2_{n}(a, b)": "a + b",
            f"text_{n}(a, b, i)": "printf('%d %s %d', a, b::VARCHAR, i)",
            f"truth_{n}(b)": "b > 1000",
            f"maybe_{n}(a)": "CASE WHEN a % 2 = 0 THEN a END",
            f"sees_{n}(a, b)": "CASE WHEN b IS NOT NULL THEN coalesce(a, -1) END",
            f"narrow_{n}(a)": "a",
            f"mixed_{n}(a)": "CASE WHEN a % 4 < 2 THEN a % 4 ELSE a END",
            f"ratio_{n}(a)": "CASE WHEN a % 5 = 0 THEN a / 2 ELSE a END",
        }.items():
            with subtests.test(f"{call}: {options}"):
                assert value(con, f"SELECT count(*) FROM t WHERE {call} IS DISTINCT FROM {expected}") == 0
                assert value(con, f"SELECT count({call}) FROM t WHERE a IS NULL AND b IS NULL") == 0
        with subtests.test(f"a constant: {options}"):
            assert value(con, f"SELECT count(number_{n}(NULL::BIGINT)) FROM t") == 0


def test_errors_are_those_of_their_rows(load: Load, subtests: pytest.Subtests) -> None:
    con = load(
        """
        @udf
        def half(x: int, y: int) -> int:
            return x // y

        @udf
        def wrong(x: int) -> str:
            return "a" if x < 3 else x

        from dataclasses import dataclass
        @dataclass
        class Point:
            x: int
            def __post_init__(self):
                if self.x == 2: raise StopIteration("no point")
        @udf
        def of(p: Point) -> int: return p.x
        @udf(on_error="null")
        def maybe(p: Point, i: int) -> int: return p.x

        def stop(x): raise [StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit, ValueError][x % 5](x)
        @udf(on_error="null")
        def picky(x: int) -> int: return x if x % 2 else stop(x)
        """
    )
    with subtests.test("they name the function and the row"):
        rows = "(VALUES (1, 1), (NULL, 0), (2, NULL), (3, 0)) t(x, y)"
        text = error(con, f"SELECT half(x, y) FROM {rows}")
        assert "functions_1.py:5 in half" in text
        assert "return x // y" in text
        assert "with x = 3, y = 0" in text
        assert "returned int 3 where VARCHAR is due" in error(con, f"SELECT wrong(x) FROM {rows}")
        assert "with x = 3" in error(con, f"SELECT wrong(x) FROM {rows}")
    with subtests.test("an argument that raises StopIteration is an error"):
        assert "StopIteration: no point" in error(con, "SELECT of({'x': i}) FROM range(5) r(i)")
        found = con.execute("SELECT maybe({'x': i}, i) FROM range(5) r(i)").fetchall()
        assert [row[0] for row in found] == [0, 1, None, 3, 4]
    with subtests.test("exceptions of every kind fail one row"):
        found = con.execute("SELECT picky(i) FROM range(40) r(i)").fetchall()
        assert [row[0] for row in found] == [i if i % 2 else None for i in range(40)]


def test_each_row_is_called_once(con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    for inline, null in itertools.product([True, False], repeat=2):
        with subtests.test(f"inline {inline}, null {null}"):
            calls_each_row_once(con, inline, null)


def calls_each_row_once(con: duckdb.DuckDBPyConnection, inline: bool, null: bool) -> None:
    name = f"odd_{inline}_{null}"
    seen: Counter[int] = Counter()

    def done(x: int, y: int) -> int:
        seen[x] += 1
        return 1 // ((x % 50 != 7) or seen[x] > y)

    def odd(x: int, y: int) -> int:
        return done(x, y) + x - 1

    options: Any = {"retries": 2, "on_error": "null" if null else "fail", "lane": "thread", "inline": inline}
    crosslane.register(con, odd, f"{name}(x BIGINT, y BIGINT) -> BIGINT", **options)
    con.execute(
        "CREATE OR REPLACE TABLE t AS SELECT i, CASE WHEN i % 5 > 0 THEN 1 END y FROM range(150) r(i)"
    )
    con.execute("UPDATE t SET y = 9 WHERE i = 57 AND ?", [null])
    rows = con.execute(f"SELECT i, {name}(i, y) FROM t ORDER BY i").fetchall()
    assert rows == [(i, i if i % 5 and not (null and i == 57) else None) for i in range(150)]
    again = {7: 2, 57: 3 if null else 2, 107: 2}
    assert seen == Counter({i: again.get(i, 1) for i in range(150) if i % 5})
    stats = f"SELECT errors, retries FROM crosslane_stats() WHERE function = '{name}'"
    assert con.execute(stats).fetchall() == [(1, 4) if null else (0, 3)]


def test_results_that_do_not_fit_are_failed_calls(con: duckdb.DuckDBPyConnection) -> None:
    seen: Counter[int] = Counter()

    def small(x: int) -> int:
        return seen.update([x]) or (2**40 if x == 5 or (x == 3 and seen[x] < 2) else x)

    signature = "small(x BIGINT) -> INTEGER"
    crosslane.register(con, small, signature, on_error="null", retries=1, lane="thread")
    rows = con.execute("SELECT small(i) FROM range(8) r(i)").fetchall()
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4, None, 6, 7]
    assert seen == Counter({**dict.fromkeys(range(8), 1), 3: 2, 5: 2})


def test_functions_of_a_program_are_inlined_too(con: duckdb.DuckDBPyConnection) -> None:
    factor = 3
    for lane in ("process", "thread"):
        crosslane.register(con, lambda x: x * factor, "triple(x BIGINT) -> BIGINT", lane=lane)
        assert value(con, "SELECT sum(triple(i)) FROM range(10) r(i)") == 135
    factor = 4
    assert value(con, "SELECT sum(triple(i)) FROM range(10) r(i)") == 180
