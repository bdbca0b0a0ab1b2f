"""Functions that are evaluated by columns: nobody can tell, whatever changes, raises or watches."""

from __future__ import annotations

import builtins
import datetime
import linecache
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import duckdb
import pytest

import crosslane
from crosslane._declare import library as libraries
from crosslane._declare.declaration import declare
from crosslane._declare.signature.resolve import resolve
from crosslane._worker import translation

from ..conftest import Library, Load, error, processes, value

pytestmark = pytest.mark.any_duckdb

RATE = 2.5
WEEKEND = (5, 6)


def fee(x: float) -> float:
    return x * RATE


def root(x: float) -> float:
    return round(math.sqrt(x), 1)


def is_weekend(day: int) -> bool:
    return day % 7 in WEEKEND


def twice(x: int) -> int:
    return 2 * x


PRICES = {"pear": 2, "plum": 1}


def price(fruit: str) -> int:
    return PRICES[fruit]


class Tariff:
    share = 0.5

    def __init__(self) -> None:
        self.base = 2.0

    @property
    def doubled(self) -> float:
        return self.base * 2


TARIFF = Tariff()


def with_tariff(x: float) -> float:
    return x * TARIFF.base + Tariff.share


def year_of(text: str) -> str:
    return f"{datetime.date.fromisoformat(text):%Y}"


def calls_another(x: int) -> int:
    y = twice(x) + 1
    return y if y > 3 else 0


def times(factor: int) -> Callable[[int], int]:
    def scaled(x: int) -> int:
        return x * factor

    return scaled


def of(function: Any) -> translation.Usable:
    (declared,) = resolve(declare(function))
    made = translation.of(declared, function.__code__.co_argcount)
    assert made is not None, translation.reason_against(declared)
    return made


@pytest.mark.parametrize(
    "function", [fee, root, is_weekend, calls_another, price, with_tariff, year_of, times(3)]
)
def test_it_is_translated(function: Any) -> None:
    _, is_usable = of(function)
    assert is_usable()


def test_a_change_sends_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, is_usable = of(fee)
    monkeypatch.setitem(fee.__globals__, "RATE", 3.0)
    assert not is_usable()
    monkeypatch.undo()
    assert is_usable()
    _, is_usable = of(root)
    monkeypatch.setattr(math, "sqrt", lambda x: x)
    assert not is_usable()
    monkeypatch.undo()
    # A variable of the module hides a builtin function.
    monkeypatch.setitem(root.__globals__, "round", lambda x, _: x)
    assert not is_usable()
    monkeypatch.undo()
    monkeypatch.setattr(builtins, "round", lambda x, _: x)
    assert not is_usable()
    monkeypatch.undo()
    assert is_usable()


def test_a_change_of_another_function_sends_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, is_usable = of(calls_another)
    code = twice.__code__
    try:
        twice.__code__ = (lambda x: 3 * x).__code__
        assert not is_usable()
    finally:
        twice.__code__ = code
    assert is_usable()
    monkeypatch.setitem(calls_another.__globals__, "twice", abs)
    assert not is_usable()


def test_a_change_of_a_variable_around_it_sends_it_back() -> None:
    function: Any = times(3)
    _, is_usable = of(function)
    function.__closure__[0].cell_contents = 4
    assert not is_usable()
    del function.__closure__[0].cell_contents
    assert not is_usable()


def test_a_watcher_sends_it_back() -> None:
    _, is_usable = of(fee)
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        assert not is_usable()
    finally:
        sys.setprofile(before)


def test_the_next_batch_sees_a_change(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    crosslane.register(con, fee, lane="thread")
    assert value(con, "SELECT fee(2.0)") == 5.0
    monkeypatch.setitem(fee.__globals__, "RATE", 3.0)
    assert value(con, "SELECT fee(2.0)") == 6.0


def test_a_cell_of_a_notebook(con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, name = "def tripled(x: int) -> int:\n    y = 3 * x\n    return y // (x - 7)\n", "<cell-of-a-test>"
    monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), namespace)
    crosslane.register(con, namespace["tripled"])
    assert value(con, "SELECT tripled(9)") == 13
    assert value(con, "SELECT by_columns FROM crosslane_stats()") == 1
    # The traceback shows the line.
    assert "return y // (x - 7)" in error(con, "SELECT tripled(7)")


DIVIDES = """
@udf{options}
def divides(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return 100 // x
"""


def test_errors_are_those_of_the_first_row(load: Load) -> None:
    con = load(DIVIDES.format(options=""))
    rows = "SELECT sum(divides(x)) FROM (SELECT {} AS x FROM range(5000) t(i))"
    message = error(con, rows.format("CASE i WHEN 1000 THEN 3 WHEN 2000 THEN 0 ELSE 1 END"))
    assert "ValueError: three" in message
    assert "functions_1.py:6 in divides" in message
    message = error(con, rows.format("CASE i WHEN 2000 THEN 3 WHEN 1000 THEN 0 ELSE 1 END"))
    assert "ZeroDivisionError: integer division or modulo by zero" in message
    assert "functions_1.py:7 in divides" in message


def test_failed_rows_become_null(load: Load) -> None:
    con = load(DIVIDES.format(options='(on_error="null")'))
    query = (
        "SELECT count(*), count(divides(x)), sum(divides(x)) FROM (SELECT i % 5 AS x FROM range(10000) t(i))"
    )
    # 0 and 3 fail; 1, 2 and 4 give 100, 50 and 25.
    assert con.execute(query).fetchall() == [(10000, 6000, 2000 * 175)]
    rows, by_columns = con.execute("SELECT rows, by_columns FROM crosslane_stats()").fetchall()[0]
    # After a batch in which many rows leave, the next ones are called.
    assert rows == 10000
    assert 0 < by_columns < 6000
    con.execute("SELECT divides(x) FROM (VALUES (1), (2)) t(x)")


def test_a_function_whose_rows_all_leave(load: Load) -> None:
    con = load("""
        @udf
        def shout(text: str) -> str:
            return text.upper() + "!"
    """)
    # No row is ASCII, and then all rows are.
    query = "SELECT count(*) FROM (SELECT shout({}) AS s FROM range(100000) t(i)) WHERE s = {}"
    assert value(con, query.format("'é' || i % 10", "'É' || right(s, 2)")) == 100000
    assert value(con, "SELECT by_columns FROM crosslane_stats()") == 0
    assert value(con, query.format("'e' || i % 10", "'E' || right(s, 2)")) == 100000


def test_nulls(load: Load) -> None:
    con = load("""
        @udf
        def next(x: int) -> int:
            return x + 1

        @udf
        def known(x: int | None, y: str | None) -> str | None:
            if x is None:
                return y
            return None if x < 0 else f"{x}"
    """)
    rows = con.execute("SELECT next(x) FROM (VALUES (1), (NULL), (3)) t(x)").fetchall()
    assert rows == [(2,), (None,), (4,)]
    rows = con.execute(
        "SELECT known(x, y) FROM (VALUES (1, 'a'), (NULL, 'b'), (NULL, NULL), (-1, 'c')) t(x, y)"
    ).fetchall()
    assert rows == [("1",), ("b",), (None,), (None,)]


#: Bodies, what is said of them, and in which line.
REASONS = {
    "return [x][0]": "line 5: an expression `list`",
    "for _ in range(x): pass\n    return x": "line 5: a statement `for`",
    "y = x\n    return y if x else 's'": "line 6: a conditional expression with values of several types",
    "return unknown(x)": "line 5: the variable unknown, which is not known",
    "return x ** x": "line 5: ** of ints whose exponent is no constant",
    "return max(x, key=abs)": "line 5: a call with keywords",
    "return max(*(x, 1))": "line 5: a call with *arguments",
    "return f(x - 1) if x else 0": "line 5: a call of f, which calls itself",
    "return int(f'{x:x}')": 'line 5: the format "x" of such a value',
    "return int(f'{x!r}')": "line 5: a conversion, or a format that is no constant, in an f-string",
    "try: return x\n    finally: pass": "line 5: a statement `try`",
    "return {1: 2}[x]": "line 5: a dict whose keys are no constant texts",
    "return (1, 2, 3)": "line 5: a collection or an object that is not returned",
    "return (1, 'a')[x]": "line 5: a look-up whose values have several types",
    "return x.bit_length()": "line 5: a number, where a str is known",
    "if x: y = 1\n    return y": "line 6: the variable y: only one branch of a condition assigns it",
    "return (x, 1) == (1, x)": "line 5: a collection or an object that is not returned",
    "return int(x in (1, 2) == (x > 1))": "line 5: a comparison behind `in`",
}


@pytest.mark.parametrize("body", REASONS)
def test_reasons(library: Library, body: str) -> None:
    path = library(f"\n\n@udf\ndef f(x: int) -> int:\n    {body}\n".replace("\n\n@udf", "\n@udf"))
    (declared,) = libraries.load_file(str(path))
    assert translation.reason_against(declared) == REASONS[body]


def test_a_function_that_is_long_is_called(library: Library) -> None:
    # Each function calls the one before it ten times.
    calls = [
        f"def f{n}(x: int) -> int:\n    return {' + '.join([f'f{n - 1}(x)'] * 10)}\n" for n in range(1, 8)
    ]
    text = "def f0(x: int) -> int:\n    return x\n" + "".join(calls) + "@udf\n" + calls[-1].replace("f7", "f")
    (declared,) = libraries.load_file(str(library(text)))
    assert translation.reason_against(declared) == "line 3: more than 500 expressions"


@pytest.mark.parametrize("depth", [20, 100])
def test_conditions_that_are_nested_deeply(load: Load, depth: int) -> None:
    branches = "".join(f"    elif x == {n}:\n        return {n * 2}\n" for n in range(1, depth))
    con = load(f"@udf\ndef f(x: int) -> int:\n    if x == 0:\n        return 7\n{branches}    return -1\n")
    rows = con.execute("SELECT f(x) FROM (VALUES (0), (5), (1000)) t(x)").fetchall()
    assert rows == [(7,), (10,), (-1,)]


def test_a_function_that_cannot_be_translated_ends_nothing(load: Load, library: Library) -> None:
    branches = "".join(f"    elif x == {n}:\n        raise ValueError({n})\n" for n in range(1, 330))
    deep = f"@udf\ndef deep(x: int) -> int:\n    if x == 0:\n        raise ValueError(0)\n{branches}    return 1\n"
    con = load(deep + "@udf\ndef fine(x: int) -> int:\n    return x + 1\n")
    assert con.execute("SELECT fine(1), deep(1000)").fetchall() == [(2, 1)]
    declared = libraries.load_file(str(library(deep)))
    assert translation.reason_against(declared[0]) == "line 63: conditions that are nested too deeply"


def test_a_large_set_is_python_s(library: Library) -> None:
    path = library("""
        SOME = frozenset(range(0, 2000, 2))
        MANY = set(range(1001))

        @udf
        def some(x: int) -> bool:
            return x in SOME

        @udf
        def many(x: int) -> bool:
            return x in MANY
    """)
    by_name = {one.name: translation.reason_against(one) for one in libraries.load_file(str(path))}
    assert by_name == {"some": None, "many": "line 12: a look-up in a set of more than 1,000"}


def test_a_module_of_another_class_sends_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(type(math)):  # type: ignore[misc]
        sqrt = property(lambda _: abs)

    _, is_usable = of(root)
    before = math.__class__
    math.__class__ = Odd
    try:
        assert not is_usable()
    finally:
        math.__class__ = before
    assert is_usable()


def test_texts_in_between_are_not_kept(load: Load) -> None:
    # 150 texts of 7 KB for each row, of which CPython keeps one.
    grows = "    s = s + 'x'\n" * 150
    con = load(f"@udf\ndef long(s: str) -> int:\n    s = s * 7000\n{grows}    return len(s)\n")
    query = "SELECT sum(long(chr(97 + (i % 20)::int))) FROM range(5000) t(i)"
    assert value(con, query) == 5000 * 7150
    workers = [process for process in processes() if "python" in process.name()]
    assert workers
    assert all(process.memory_info().rss < 400 << 20 for process in workers)


def test_a_function_with_a_memory_limit_is_called(library: Library) -> None:
    path = library("@udf(memory_limit='300MB')\ndef f(s: str) -> str:\n    return s.upper()\n")
    (declared,) = libraries.load_file(str(path))
    assert translation.reason_against(declared) == "it has a memory_limit, which counts what a call takes"


def test_a_dict_that_changes_sends_it_back(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    crosslane.register(con, price, lane="thread")
    assert value(con, "SELECT price('pear')") == 2
    monkeypatch.setitem(PRICES, "pear", 3)
    assert value(con, "SELECT price('pear')") == 3
    assert "KeyError: 'fig'" in error(con, "SELECT price('fig')")


def test_an_attribute_that_changes_sends_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, is_usable = of(with_tariff)
    changes: list[Callable[[], object]] = [
        lambda: monkeypatch.setattr(TARIFF, "base", 3.0),
        lambda: monkeypatch.delattr(TARIFF, "base"),
        lambda: monkeypatch.setattr(Tariff, "share", 0.25),
        # A property comes before the object's own attribute.
        lambda: monkeypatch.setattr(Tariff, "base", property(lambda _: 4.0), raising=False),
        lambda: monkeypatch.setattr(TARIFF, "__class__", type("Other", (Tariff,), {})),
    ]
    for change in changes:
        change()
        assert not is_usable()
        monkeypatch.undo()
        assert is_usable()


def test_an_attribute_that_is_computed_is_called() -> None:
    def computed(x: float) -> float:
        return x * TARIFF.doubled

    (declared,) = resolve(declare(computed))
    assert "a value of type Tariff" in str(translation.reason_against(declared))


def test_elements_that_change() -> None:
    from crosslane import _guest

    one, two = "one", "two"
    changes: list[tuple[Any, Callable[[Any], object]]] = [
        ({1: one}, lambda of: of.update({1: two})),
        ({1: one}, lambda of: of.update({2: two})),
        ({1: one, 2: two}, lambda of: of.pop(2)),
        ({1, 2}, lambda of: of.add(3)),
        ({1, 2}, lambda of: of.discard(2)),
        ([one, two], lambda of: of.reverse()),
        ([one], lambda of: of.append(two)),
    ]
    for of, change in changes:
        elements = _guest.Elements(of)
        assert elements.are_unchanged()
        change(of)
        assert not elements.are_unchanged()
    back = {1: one}
    elements = _guest.Elements(back)
    back[1] = two
    back[1] = one
    assert elements.are_unchanged()
    assert elements.are_unchanged()


DATES = """
    from datetime import date, datetime, timedelta

    @udf
    def moved(d: date, days: int) -> date:
        return d + timedelta(days=days)

    @udf
    def hours(a: datetime, b: datetime) -> float:
        return (b - a).total_seconds() / 3600

    @udf
    def of_year(d: date | None) -> int | None:
        return None if d is None else d.year

    @udf
    def read(text: str) -> datetime:
        return datetime.strptime(text, "%d.%m.%Y %H:%M")
"""


def test_dates(load: Load) -> None:
    con = load(DATES)
    query = """
        SELECT moved('2024-02-28', 1), moved('0001-01-01', 0), hours('1969-12-31 23:30', '1970-01-01 01:00'),
            of_year(NULL), of_year('1582-10-15'), read('29.02.2024 07:05')
    """
    leap = datetime.date(2024, 2, 29)
    read = datetime.datetime(2024, 2, 29, 7, 5)
    assert con.execute(query).fetchall() == [(leap, datetime.date(1, 1, 1), 1.5, None, 1582, read)]
    # Python has no such dates, and CPython raises its own errors.
    assert "OverflowError: date value out of range" in error(con, "SELECT moved('9999-12-31', 1)")
    assert "does not match format" in error(con, "SELECT read('29.2.24')")
    assert "DATE" in error(con, "SELECT of_year('infinity'::DATE)")


def test_a_file_s_own_calendar_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    _, is_usable = of(year_of)
    monkeypatch.setattr(time, "strftime", lambda *_: "never")
    assert not is_usable()
    monkeypatch.undo()
    assert is_usable()
    monkeypatch.setattr(datetime, "date", type("date", (datetime.date,), {}))
    assert not is_usable()


def test_errors_that_are_caught(load: Load) -> None:
    con = load("""
        @udf
        def number(text: str) -> int | None:
            try:
                value = int(text)
            except ValueError:
                return None
            else:
                return value + 1
    """)
    rows = con.execute("SELECT number(s) FROM (VALUES ('41'), ('x'), (''), (' 7 ')) t(s)").fetchall()
    assert rows == [(42,), (None,), (None,), (8,)]


def test_ints_become_floats_where_they_are_returned(load: Load) -> None:
    con = load("""
        @udf
        def capped(x: float) -> float:
            if x < 0:
                return 0
            return 10 if x > 10 else x

        def half(x: int) -> float:
            return 1 if x < 2 else x / 2

        @udf
        def ratio(x: int) -> float:
            return half(x) // 2
    """)
    assert con.execute("SELECT capped(-1), capped(0.5), capped(11)").fetchall() == [(0.0, 0.5, 10.0)]
    assert con.execute("SELECT ratio(1), ratio(8)").fetchall() == [(0.0, 2.0)]


STRUCTS = """
    from dataclasses import dataclass
    from typing import NamedTuple

    from typing_extensions import TypedDict

    @dataclass
    class Leg:
        mph: float
        made_up: int = 7
        verdict: str | None = None

    class Point(NamedTuple):
        x: float
        y: int

    class Both(TypedDict):
        a: int
        b: str

    @udf
    def leg(miles: float, minutes: float, delay: int) -> Leg | None:
        if delay < 0:
            return None
        verdict = "late" if delay > 15 else None
        return Leg(miles / minutes * 60, verdict=verdict) if delay < 60 else Leg(1, delay)

    @udf
    def point(x: int) -> Point:
        return Point(x, x + 1)

    @udf
    def doubled(x: int) -> Both:
        return {"b": str(x), "a": x * 2}
""".replace("from typing_extensions import TypedDict", "from typing import TypedDict")


def test_structs(load: Load) -> None:
    con = load(STRUCTS)
    rows = [(10.0, 5.0, 3), (10.0, 0.5, 20), (1.0, 1.0, 90), (1.0, 1.0, -1)]
    con.execute("CREATE TABLE t(miles DOUBLE, minutes DOUBLE, delay BIGINT)")
    con.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    assert [row[0] for row in con.execute("SELECT leg(miles, minutes, delay) FROM t").fetchall()] == [
        {"mph": 120.0, "made_up": 7, "verdict": None},
        {"mph": 1200.0, "made_up": 7, "verdict": "late"},
        {"mph": 1.0, "made_up": 90, "verdict": None},
        None,
    ]
    assert value(con, "SELECT by_columns FROM crosslane_stats() WHERE function = 'leg'") == 4
    assert "ZeroDivisionError" in error(con, "SELECT leg(1, 0, 3)")
    last = 2**63 - 1
    assert value(con, "SELECT point(3)") == {"x": 3.0, "y": 4}
    assert "9223372036854775808" in error(con, f"SELECT point({last})")
    assert value(con, "SELECT doubled(3)") == {"a": 6, "b": "3"}


def test_classes_that_are_more_than_their_fields_are_called(library: Library) -> None:
    path = library(
        """
        from dataclasses import InitVar, dataclass, field
        from typing import NamedTuple

        @dataclass
        class Checked:
            x: int

            def __post_init__(self):
                self.x += 1

        @dataclass
        class Made:
            x: int
            extra: InitVar[int] = 3

        @dataclass
        class Doubled:
            x: int

            def __getattribute__(self, name):
                return 2

        class Own:
            x: int

            def __init__(self, x):
                self.x = x

        @dataclass(frozen=True, slots=True)
        class Plain:
            x: int

        class Pair(NamedTuple):
            x: int

        @dataclass
        class Listed:
            x: int
            of: list[int] = field(default_factory=list)
    """
        + "".join(
            f"""
        @udf
        def {name.lower()}(x: int) -> {name}:
            return {name}(x)
    """
            for name in ("Checked", "Made", "Doubled", "Plain", "Pair", "Listed")
        )
    )
    reasons = {one.name: translation.reason_against(one) for one in libraries.load_file(str(path))}
    assert {name for name, reason in reasons.items() if reason is None} == {"plain", "pair"}
    assert "a call of Checked, which is more than its fields" in str(reasons["checked"])
