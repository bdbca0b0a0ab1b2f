"""Calls of functions for tests: `crosslane.testing.call`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import duckdb
import pytest

from crosslane import DeclarationError, Interval, testing, udf
from crosslane.testing import call

from ..conftest import eventually, processes

Price = Annotated[Decimal, "DECIMAL(9, 2)"]
FUNCTIONS = """
from collections.abc import Iterator
from typing import NamedTuple
from crosslane import udaf, udf, udtf

class Unknown(Exception):
    def __init__(self, kind, hint):
        super().__init__(f"{kind}, {hint}")

class Number(NamedTuple):
    i: int

@udf
def gross(price: float, kind: str, digits: int = 2) -> float:
    return round(price * {"book": 1.07, "tea": 1.19}[kind], digits)

@udf
def strange(x: int) -> int:
    raise Unknown(x, "see the list")

@udf
def joined(x: int, *rest: str) -> str:
    return f"{x}{''.join(rest)}"

@udf("kind(x ANY, n BIGINT) -> VARCHAR")
def kind(x, n):
    return type(x).__name__ * n

@udtf
def numbers(n: int, step: int = 1) -> Iterator[Number]:
    for i in range(n):
        yield Number(i * step)

@udtf("late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, hours DOUBLE)")
def late(flights):
    for flight in flights:
        if flight.delay > 60:
            yield flight.id, flight.delay / 60

@udaf
class Total:
    def __init__(self):
        self.total = 0
    def update(self, x: int):
        self.total += x
    def merge(self, other):
        self.total += other.total
    def finish(self) -> int:
        return self.total
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[None]:
    """Closes the engine that `call` keeps for all tests of this module."""
    yield
    testing.close()


@pytest.fixture(scope="module")
def shop(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of functions of all kinds."""
    file = tmp_path_factory.mktemp("shop") / "goods.py"
    file.write_text(FUNCTIONS)
    return file


def test_functions_of_files(shop: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases = {
        "rows of both lengths, and NULL": (
            "gross",
            [(10, "book"), (9.99, "tea", 1), (None, "tea")],
            [10.7, 11.9, None],
        ),
        "no rows": ("gross", [], []),
        "any number of arguments": ("joined", [1, (2, "a"), (3, "a", "b")], ["1", "2a", "3ab"]),
        "any type": ("kind", [(1, 1), ("a", 2), (None, 1)], ["int", "strstr", None]),
        "a table": ("numbers", [3], [(0,), (1,), (2,)]),
        "a table, with a parameter that has a name": ("NUMBERS", [(3, 10)], [(0,), (10,), (20,)]),
        "a stream": ("late", [(1, 90), (2, 5), (4, 120)], [(1, 1.5), (4, 2.0)]),
        "a group": ("total", [1, None, 3], 4),
        "a group without rows": ("total", [], 0),
    }
    for case, (name, rows, expected) in cases.items():
        with subtests.test(case):
            assert call(f"{shop}:{name}", rows) == expected
    script = tmp_path / "slug.js"
    script.write_text('udf("slug(title VARCHAR) -> VARCHAR", (title) => title.toLowerCase());')
    assert call(script, ["Ada"]) == ["ada"]
    with subtests.test("the file has changed"):
        script.write_text('udf("slug(title VARCHAR) -> VARCHAR", (title) => title.missing());')
        with pytest.raises(duckdb.Error, match=r"TypeError: title\.missing is not a function") as caught:
            call(script, ["Ada"])
        assert caught.value.__cause__ is None


def test_functions_of_the_program(engine: None, subtests: pytest.Subtests) -> None:
    @udf(on_error="null")
    def lower(price: Price, cents: int | None) -> Price:
        return price - Decimal(cents or 0) / 100

    factor = 2
    with subtests.test("one with the name of a built-in function"):
        rows = [(Decimal("1.50"), 25), (Decimal("1.50"), None), (None, 1), (Decimal("1"), 10**12)]
        assert call(lower, rows) == [Decimal("1.25"), Decimal("1.50"), None, None]
    with subtests.test("another one with this name"):
        assert call(lambda text: text * factor, ["ab"], "lower(text VARCHAR) -> VARCHAR") == ["abab"]
    with subtests.test("a variable that it uses has changed"):
        scaled = lambda x: x * factor  # noqa: E731
        assert call(scaled, [5], "(x BIGINT) -> BIGINT") == [10]
        factor = 3
        assert call(scaled, [5], "(x BIGINT) -> BIGINT") == [15]
    with subtests.test("types that only Crosslane has"):
        same = [Interval(months=14, days=-1), None]
        assert call(lambda x: x.months, same, "f(x INTERVAL) -> BIGINT") == [14, None]
    with subtests.test("the options of a call"), pytest.raises(duckdb.Error, match=r"timed out after 0\.1 s"):
        call(_endless, [1], timeout=0.1)


def _endless(x: int) -> int:
    while x:
        pass
    return x


def test_a_mock_is_there_with_a_lane_in_this_process(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}._endless", lambda x: -x)

    def calls(x: int) -> int:
        return _endless(x)

    assert call(calls, [1, 2], lane="thread") == [-1, -2]
    monkeypatch.setattr(f"{__name__}._endless", lambda x: 1 // 0)
    with pytest.raises(duckdb.Error, match="in row 1 of the batch, with x = 5") as caught:
        call(calls, [5], lane="thread")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_errors_of_functions(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(duckdb.Error, match=r"KeyError: 'car'\n  at .*goods.py:15 in gross") as caught:
        call(f"{shop}:gross", [(1, "tea"), (10, "car")])
    assert repr(caught.value.__cause__) == "KeyError('car')"
    assert "in row 2 of the batch, with price = 10.0" in str(caught.value)
    with pytest.raises(duckdb.Error, match="late, batch 1: TypeError: ") as caught:
        call(f"{shop}:late", [(3, None)])
    assert isinstance(caught.value.__cause__, TypeError)
    # This process has not imported the file, so it does not know the class of the exception.
    with pytest.raises(duckdb.Error, match=r"Unknown: 1, see the list") as caught:
        call(f"{shop}:strange", [1])
    assert caught.value.__cause__ is None
    monkeypatch.syspath_prepend(shop.parent)
    from goods import Unknown, strange  # type: ignore[import-not-found]

    with pytest.raises(duckdb.Error) as caught:
        call(strange, [1])
    # The class of the exception needs two arguments, and makes its message from them.
    assert type(caught.value.__cause__) is Unknown
    assert str(caught.value.__cause__) == "1, see the list"


def test_wrong_use(shop: Path, subtests: pytest.Subtests) -> None:
    cases = [
        (
            "gross",
            [(1, "tea"), ("1", "tea")],
            TypeError,
            "row 1, argument price: str '1' where DOUBLE is due",
        ),
        ("gross", [(1, "tea", 1), (1, "tea"), (1, "tea", "1")], TypeError, "row 2, argument digits: str '1'"),
        ("late", [(1, 2.5)], TypeError, "row 0, argument delay: float 2.5 where INTEGER is due"),
        ("numbers", [1 << 70], TypeError, "argument n: .* does not fit BIGINT"),
        ("gross", [(1, "tea"), 2], TypeError, r"row 1 has 1 argument; the function is gross\(price DOUBLE"),
        ("total", [1, (2, 3)], TypeError, r"row 1 has 2 arguments; the function is total\(x BIGINT\)"),
        ("numbers", [1, 2], TypeError, "a table function is called with one row of arguments"),
        ("gross", "tea", TypeError, "rows is a list with a value or a tuple for each row, not 'tea'"),
        ("gros", [], DeclarationError, "goods.py has no function gros; name one of them: .*goods.py:gross"),
        ("", [], DeclarationError, "goods.py has several functions; name one of them"),
    ]
    for name, rows, kind, message in cases:
        with subtests.test(message), pytest.raises(kind, match=message):
            call(f"{shop}:{name}", rows)
    with pytest.raises(FileNotFoundError, match=r"there is no file missing\.py"):
        call("missing.py:gross", [])
    with pytest.raises(TypeError, match="the file declares them"):
        call(f"{shop}:gross", [], timeout=1)
    with pytest.raises(DeclarationError, match="parameter x has no type"):
        call(lambda x: x, [1])


def test_few_databases_stay_open_and_close_ends_them() -> None:
    from crosslane._testing import engines

    before = set(processes())
    for number in range(engines._MOST + 1):
        assert call(lambda x, number=number: x + number, [1], "f(x BIGINT) -> BIGINT", lane="thread") == [
            1 + number
        ]
    assert len(engines._open) == engines._MOST
    assert call(len, ["four"], "f(x VARCHAR) -> BIGINT") == [4]
    testing.close()
    assert eventually(lambda: set(processes()) <= before)
    assert call(len, ["four"], "f(x VARCHAR) -> BIGINT") == [4]
    testing.close()


def test_it_closes_at_the_end_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            from crosslane.testing import call

            print(call(lambda x: x + 1, [1], "f(x BIGINT) -> BIGINT"))
        """)
    )
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[2]\n", "")
