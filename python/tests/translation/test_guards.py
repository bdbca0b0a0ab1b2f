"""The conditions of a translated function, and the changes that send it back to the loop."""

from __future__ import annotations

import builtins
import datetime
import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import duckdb
import pytest

import crosslane
from crosslane._declare.declaration import declare
from crosslane._declare.signature.resolve import resolve
from crosslane._worker import translation

from ..conftest import error, value

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


class Pair(NamedTuple):
    x: int
    y: int = 5


def pair(x: int) -> Pair:
    return Pair(x)


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
        # A property has priority over an attribute of the object itself.
        lambda: monkeypatch.setattr(Tariff, "base", property(lambda _: 4.0), raising=False),
        lambda: monkeypatch.setattr(TARIFF, "__class__", type("Other", (Tariff,), {})),
    ]
    for change in changes:
        change()
        assert not is_usable()
        monkeypatch.undo()
        assert is_usable()


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


def test_a_file_s_own_calendar_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    _, is_usable = of(year_of)
    monkeypatch.setattr(time, "strftime", lambda *_: "never")
    assert not is_usable()
    monkeypatch.undo()
    assert is_usable()
    monkeypatch.setattr(datetime, "date", type("date", (datetime.date,), {}))
    assert not is_usable()


def test_a_class_that_changes_sends_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, is_usable = of(pair)
    for target, name, changed in ((Pair.__new__, "__defaults__", (77,)), (Pair, "x", property(lambda _: 1))):
        monkeypatch.setattr(target, name, changed)
        assert not is_usable()
        monkeypatch.undo()
        assert is_usable()


def test_an_attribute_that_is_computed_is_called() -> None:
    def computed(x: float) -> float:
        return x * TARIFF.doubled

    (declared,) = resolve(declare(computed))
    assert "a value of type Tariff" in str(translation.reason_against(declared))
