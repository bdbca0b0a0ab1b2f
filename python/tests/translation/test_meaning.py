"""Functions that are evaluated by columns have the results and errors of CPython."""

from __future__ import annotations

import datetime
import linecache
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import crosslane
from crosslane._declare import library as libraries
from crosslane._worker import translation

from ..conftest import Library, Load, error, processes, value

pytestmark = pytest.mark.any_duckdb


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
    # In one batch, many rows leave the evaluation by columns. Then the engine calls the function for later
    # batches.
    assert rows == 10000
    assert 0 < by_columns < 6000
    con.execute("SELECT divides(x) FROM (VALUES (1), (2)) t(x)")


def test_a_function_whose_rows_all_leave(load: Load) -> None:
    con = load("""
        @udf
        def shout(text: str) -> str:
            return text.upper() + "!"
    """)
    # In the first query, no row is ASCII. In the second query, all rows are ASCII.
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


def test_texts_in_between_are_not_kept(load: Load) -> None:
    # The function makes 150 texts of 7 KB for each row. CPython keeps only one of them at a time.
    grows = "    s = s + 'x'\n" * 150
    con = load(f"@udf\ndef long(s: str) -> int:\n    s = s * 7000\n{grows}    return len(s)\n")
    query = "SELECT sum(long(chr(97 + (i % 20)::int))) FROM range(5000) t(i)"
    assert value(con, query) == 5000 * 7150
    workers = [process for process in processes() if "python" in process.name()]
    assert workers
    assert all(process.memory_info().rss < 400 << 20 for process in workers)


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
    # Python has no such dates, so CPython raises its own errors.
    assert "OverflowError: date value out of range" in error(con, "SELECT moved('9999-12-31', 1)")
    assert "does not match format" in error(con, "SELECT read('29.2.24')")
    assert "DATE" in error(con, "SELECT of_year('infinity'::DATE)")


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


LEFT = """
    import logging
    import textwrap

    STATE = {0: 0}
    LOG = logging.getLogger("test")

    class Fault(Exception):
        def __init__(self, x):
            STATE[0] += x
            super().__init__(x)

    @udf
    def counted(x: int) -> int:
        try:
            return STATE[0] if x > 0 else STATE[x - 1]
        except KeyError:
            STATE[0] += 1
            return -1

    @udf(on_error="null")
    def faulty(x: int) -> int:
        if x == 0:
            raise Fault(1)
        return STATE[0]

    LEVELS = [1]

    @udf
    def aliased(x: int) -> bool:
        levels = LEVELS
        try:
            return 10 // x in LEVELS
        except ZeroDivisionError:
            levels += [x]
            return False

    @udf
    def told(x: int) -> int:
        try:
            return 10 // x
        except ZeroDivisionError:
            textwrap.info(x)
            return 0

    @udf
    def logged(x: int) -> int | None:
        try:
            return 10 // x
        except ZeroDivisionError as error:
            LOG.info("%s for %s", error, x)
            return None
"""


def test_rows_that_leave_change_nothing(load: Load, library: Library) -> None:
    by_name = {one.name: translation.reason_against(one) for one in libraries.load_file(str(library(LEFT)))}
    assert by_name["logged"] is None
    assert "where an exception is raised or caught" in str(by_name["counted"])
    assert "where an exception is raised or caught" in str(by_name["faulty"])
    assert "where an exception is raised or caught" in str(by_name["aliased"])
    assert "where an exception is raised or caught" in str(by_name["told"])
    con = load(LEFT)
    con.execute("SET threads = 1")
    rows = con.execute("SELECT counted(x) FROM (VALUES (1), (0), (2), (0), (3)) t(x)").fetchall()
    assert [row[0] for row in rows] == [0, -1, 1, -1, 2]


def test_bytes_that_are_no_text_leave(con: duckdb.DuckDBPyConnection) -> None:
    def characters(text: str) -> int:
        return len(text)

    column = pa.array([b"\xffA", b"ab", "é".encode(), b"\xc3"], pa.binary()).view(pa.string())
    con.register("texts", pa.table({"s": column}))
    crosslane.register(con, characters, on_error="null")
    rows = con.execute("SELECT characters(s) FROM texts").fetchall()
    crosslane.register(con, characters, on_error="null", inline=False, replace=True)
    assert rows == con.execute("SELECT characters(s) FROM texts").fetchall()


HOLDERS = """
    class Computed:
        rate = 3

        @property
        def __dict__(self):
            return {"rate": 5}

    class Deleted:
        def __get__(self, *_):
            return 7

        def __delete__(self, _):
            pass

    class Described:
        v = Deleted()

    class Lazy:
        __slots__ = ()

        def __getattr__(self, name):
            if name == "x":
                return 5
            raise SystemExit(name)

    computed, described, lazy = Computed(), Described(), Lazy()
    described.__dict__["v"] = 100

    @udf
    def a(i: int) -> int:
        return i + computed.rate

    @udf
    def b(i: int) -> int:
        return i + described.v

    @udf
    def c(i: int) -> int:
        return i + lazy.x
"""


def test_attributes_that_are_computed(load: Load) -> None:
    assert load(HOLDERS).execute("SELECT a(1), b(1), c(1)").fetchall() == [(4, 8, 6)]
