"""`register` takes any callable, wherever the program defines it, and does not change it."""

from __future__ import annotations

import functools
import importlib.util
import math
import operator
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane
from crosslane import DeclarationError

from ..conftest import Library, Load, error, value

pytestmark = pytest.mark.any_duckdb

LANES = pytest.mark.parametrize("lane", ["process", "thread"])


#: A module that workers import, too. A worker that imports it need not import pytest.
SHOP = '''
from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import crosslane


class Scale:
    """Callable, and nothing can be set on it."""

    __slots__ = ("factor",)

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int) -> int:
        return x * self.factor

    def times(self, x: int) -> int:
        return x * self.factor

    @classmethod
    def twice(cls, x: int) -> int:
        return cls(2)(x)

    @staticmethod
    def thrice(x: int) -> int:
        return 3 * x


class Waiting:
    async def __call__(self, x: int) -> int:
        return x + 1


@dataclass
class Point:
    x: float
    y: float = 2.0


def raised(base: int, exponent: int) -> int:
    return base**exponent


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments) * 10

    return call


@crosslane.udf(name="tenfold", nulls="call", on_error="null")
def declared(x: int) -> int:
    return 10 // x
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shop_of_callables", None)
    return _module(tmp_path / "shop_of_callables.py", "shop_of_callables", SHOP)


@LANES
def test_any_callable(
    con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests, shop: Any, lane: Any
) -> None:
    cases: list[tuple[Callable[..., Any], str | None, str, object]] = [
        (abs, "f(x BIGINT) -> BIGINT", "f(-3)", 3),
        (operator.add, "f(x BIGINT, y BIGINT) -> BIGINT", "f(40, 2)", 42),
        (operator.itemgetter(1), "f(x BIGINT[]) -> BIGINT", "f([1, 2])", 2),
        (math.hypot, "f(x DOUBLE, y DOUBLE) -> DOUBLE", "f(3, 4)", 5.0),
        (max, "f(x BIGINT, y BIGINT) -> BIGINT", "f(3, 4)", 4),
        (str.upper, "f(x VARCHAR) -> VARCHAR", "f('a')", "A"),
        ("-".join, "f(x VARCHAR[]) -> VARCHAR", "f(['a', 'b'])", "a-b"),
        (int, "f(x VARCHAR) -> BIGINT", "f('12')", 12),
        (str, "f(x BIGINT) -> VARCHAR", "f(12)", "12"),
        (Decimal, "f(x VARCHAR) -> DECIMAL(6,2)", "f('1.25')", Decimal("1.25")),
        (shop.Scale(3), "f(x BIGINT) -> BIGINT", "f(4)", 12),
        (shop.Scale(3), None, "scale(4)", 12),
        (shop.Scale(3).times, None, "times(4)", 12),
        (shop.Scale.twice, None, "twice(4)", 8),
        (shop.Scale.thrice, None, "thrice(4)", 12),
        (shop.Waiting(), None, "waiting(4)", 5),
        (functools.partial(shop.raised, exponent=2), None, "raised(5)", 25),
        (functools.partial(shop.raised, 2), None, "raised(5)", 32),
        (functools.partial(shop.Scale(3).times), None, "times(5)", 15),
        (functools.lru_cache(shop.raised), None, "raised(5, 2)", 25),
        (shop.logged(shop.raised), None, "raised(5, 2)", 250),
        (shop.Point, None, "point(1, 3)", {"x": 1.0, "y": 3.0}),
        (shop.Point, None, "point(1)", {"x": 1.0, "y": 2.0}),
        (lambda *numbers: sum(numbers), "f(x BIGINT, y BIGINT, z BIGINT) -> BIGINT", "f(1, 2, 3)", 6),
    ]
    for function, signature, call, result in cases:
        with subtests.test(f"{call} is {result}"):
            crosslane.register(con, function, signature, lane=lane)
            assert value(con, f"SELECT {call}") == result


def test_a_builtin_without_a_signature_says_so(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(DeclarationError, match=r"function add: .* signature") as caught:
        crosslane.register(con, operator.add)
    assert "<unknown>" not in str(caught.value)
    with pytest.raises(DeclarationError, match="parameters cannot be found out; give it a signature"):
        crosslane.register(con, max)
    with pytest.raises(DeclarationError, match=r"has 3 parameters .*, with which it cannot be called"):
        crosslane.register(con, operator.add, "f(x BIGINT, y BIGINT, z BIGINT) -> BIGINT")


@LANES
def test_a_function_is_left_as_it_was(con: duckdb.DuckDBPyConnection, shop: Any, lane: Any) -> None:
    declared = shop.declared

    def plain(x: int) -> int:
        return x

    crosslane.register(con, plain, lane=lane, retries=1)
    assert vars(plain) == {}
    before = declared.__crosslane__
    crosslane.register(con, declared, lane=lane, name="other", on_error="fail")
    assert declared.__crosslane__ is before


@LANES
def test_a_decorated_function_keeps_its_options(con: duckdb.DuckDBPyConnection, shop: Any, lane: Any) -> None:
    declared = shop.declared

    def options(name: str) -> object:
        return value(con, f"SELECT options FROM crosslane_functions() WHERE function = '{name}'")

    assert crosslane.register(con, declared, lane=lane) == "tenfold(x BIGINT) -> BIGINT"
    assert options("tenfold") == "nulls=call, on_error=null"
    assert crosslane.register(con, declared, lane=lane, retries=2) == "tenfold(x BIGINT) -> BIGINT"
    assert options("tenfold") == "nulls=call, on_error=null, retries=2"
    text = crosslane.register(con, declared, "(y INTEGER) -> INTEGER", lane=lane, on_error="fail")
    assert text == '"tenfold"(y INTEGER) -> INTEGER'.replace('"', "")
    assert options("tenfold") == "nulls=call"
    crosslane.register(con, declared, "mine(y INTEGER) -> INTEGER", lane=lane)
    assert options("mine") == "nulls=call, on_error=null"
    crosslane.register(con, declared, lane=lane, name="yours")
    assert options("yours") == "nulls=call, on_error=null"
    assert value(con, "SELECT yours(0)") is None


@LANES
def test_a_method_of_a_declared_function_keeps_its_object(con: duckdb.DuckDBPyConnection, lane: Any) -> None:
    class Shop:
        rate = 3

        @crosslane.udf(retries=1)
        def price(self, x: int) -> int:
            return x * self.rate

    assert crosslane.register(con, Shop().price, lane=lane) == "price(x BIGINT) -> BIGINT"
    assert value(con, "SELECT price(2)") == 6


def _module(path: Path, name: str, text: str) -> types.ModuleType:
    """A module that only this program can import."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_a_module_that_no_worker_can_import(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = "class Rate:\n    def __init__(self): self.value = 3\nclass Fixed(Rate): pass"
    text = (
        "import only_here_too\nRATE = only_here_too.Fixed()\ndef price(x: int) -> int: return x * RATE.value"
    )
    monkeypatch.setitem(sys.modules, "only_here_too", None)
    monkeypatch.setitem(sys.modules, "only_here", None)
    _module(tmp_path / "two.py", "only_here_too", inner)
    module = _module(tmp_path / "one.py", "only_here", text)
    crosslane.register(con, module.price)
    assert value(con, "SELECT price(14)") == 42


def test_a_module_whose_name_another_one_has(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_two.py").write_text("def price(x: int) -> int: return -1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shop_of_two", None)
    module = _module(tmp_path / "mine.py", "shop_of_two", "def price(x: int) -> int: return x")
    crosslane.register(con, module.price)
    assert value(con, "SELECT price(14)") == 14


def test_modules_are_found_in_the_programs_order(tmp_path: Path) -> None:
    """A folder of the program comes before the places where packages are installed."""
    (tmp_path / "psutil.py").write_text("def price(x: int) -> int: return x * 3")
    (tmp_path / "app.py").write_text(
        "import crosslane, psutil\n"
        "con = crosslane.connect(config={'threads': 1})\n"
        "crosslane.register(con, psutil.price)\n"
        "print(con.execute('SELECT price(14)').fetchall())\n"
    )
    done = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[(42,)]\n", done.stderr


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_functions_of_a_pytest_file(tmp_path: Path, mode: str) -> None:
    (tmp_path / "test_price.py").write_text(
        "import crosslane\n"
        "RATE = 3\n"
        "def price(x: int) -> int: return x * RATE\n"
        "def test():\n"
        "    con = crosslane.connect(config={'threads': 1})\n"
        "    crosslane.register(con, price)\n"
        "    assert con.execute('SELECT price(14)').fetchall() == [(42,)]\n"
        "    con.close()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--import-mode={mode}"]
    # pytest runs in another folder, so Python does not look for modules in the file's folder.
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path / "elsewhere", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


class Model:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def predict(self, x: int) -> int:
        return x


MODEL = Model()


def test_what_cannot_be_sent_to_a_worker_is_named(con: duckdb.DuckDBPyConnection, shop: Any) -> None:
    lock = threading.Lock()

    def helper(x: int) -> int:
        with lock:
            return x

    def direct(x: int) -> int:
        return next(x for _ in [lock] if lock)

    def deep(x: int) -> int:
        return helper(x)

    def default(x: int, guard: Any = lock) -> int:
        return x

    model = Model()
    for function, named in (
        (direct, "the variable lock of direct"),
        (deep, "the variable lock of helper"),
        (default, "a default of default"),
        (lambda x: model.predict(x), "the attribute lock of Model"),
        (Model().predict, "the attribute lock of Model"),
        (functools.partial(direct), "the variable lock of direct"),
        (functools.partial(shop.raised, lock), "an argument of partial"),
    ):
        with pytest.raises(DeclarationError) as caught:
            crosslane.register(con, function, "f(x BIGINT) -> BIGINT")
        text = str(caught.value)
        assert f"function f: {named} cannot be sent to a worker process: TypeError" in text
        assert 'lane="thread"' in text
    crosslane.register(con, direct, lane="thread")
    assert value(con, "SELECT direct(7)") == 7


@pytest.mark.parametrize("way", ["file", "process", "thread"])
def test_defaults_can_be_left_out(con: duckdb.DuckDBPyConnection, library: Library, way: Any) -> None:
    def f(x: int, y: int = 3, z: str = "!", scale=2) -> str:  # type: ignore[no-untyped-def]
        return f"{x * y * scale}{z}"

    def register() -> str:
        if way == "file":
            return crosslane.load(
                con,
                library(
                    "@udf\ndef f(x: int, y: int = 3, z: str = '!', scale=2) -> str: return f'{x * y * scale}{z}'"
                ),
            )[0]
        return crosslane.register(con, f, lane=way)

    for _ in range(2):
        assert register() == "f(x BIGINT, y BIGINT, z VARCHAR) -> VARCHAR"
        assert con.execute("SELECT f(1), f(1, 2), f(1, 2, '?')").fetchall() == [("6!", "4!", "4?")]
        assert con.execute("SELECT f(i), f(i, 2), f(i, i, 'x') FROM range(1, 2) r(i)").fetchall() == [
            ("6!", "4!", "2x")
        ]
        assert value(con, "SELECT count(*) FROM duckdb_functions() WHERE function_name = 'f'") == 3
    # A registration with one parameter replaces the one with defaults. Then the function takes one argument
    # only.
    crosslane.register(con, lambda x: "one", "f(x BIGINT) -> VARCHAR")
    assert value(con, "SELECT f(i) FROM range(1) r(i)") == "one"


def test_all_kinds_have_defaults(load: Load) -> None:
    con = load(
        """
        import numpy as np, numpy.typing as npt
        @udf
        async def waits(x: int, y: int = 3) -> int: return x * y
        @udf(vectorized=True)
        def blocks(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64] = np.int64(3)) -> npt.NDArray[np.int64]: return x * y
        @udf("exact(x BIGINT, y BIGINT) -> BIGINT")
        def exact(x, y=3): return x * y
        """
    )
    for name in ("waits", "blocks"):
        assert con.execute(f"SELECT {name}(i), {name}(i, 2) FROM range(4, 5) r(i)").fetchall() == [(12, 8)]
    assert value(con, "SELECT exact(2, 2)") == 4
    # A signature says exactly how many arguments a call has.
    assert "No function matches" in error(con, "SELECT exact(2)")


def test_parameters_that_sql_cannot_pass(
    con: duckdb.DuckDBPyConnection, library: Library, subtests: pytest.Subtests
) -> None:
    for text, message in (
        ("def f(*x) -> int: return 1", r"variable number of arguments \(\*x\).* signature"),
        ("def f(x: int, scale=2, y: int = 3) -> int: return 1", "parameter scale has no type"),
        ("def f(x: int, *, y: int) -> int: return 1", "the parameter y is keyword-only"),
    ):
        with subtests.test(text), pytest.raises(duckdb.Error, match=message):
            crosslane.load(con, library(f"@udf\n{text}"))


def test_further_keywords_are_not_passed(load: Load) -> None:
    con = load("@udf\ndef f(x: int, *, y: int = 2, **options: int) -> int: return x * y + len(options)")
    assert value(con, "SELECT f(3)") == 6


def test_a_decorator_above_the_declaration_is_called(load: Load) -> None:
    con = load(
        """
        import functools
        def tenfold(function):
            @functools.wraps(function)
            def call(x): return function(x) * 10
            return call
        @tenfold
        @udf(retries=1)
        def f(x: int) -> int: return x
        """
    )
    assert value(con, "SELECT f(4)") == 40


def test_relative_imports_of_a_file_in_a_package(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    package = tmp_path / "shop_package" / "inner_package"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .functions import price")
    (package.parent / "rates.py").write_text("RATE = 3")
    (package / "helper.py").write_text("PLUS = 1")
    (package / "functions.py").write_text(
        "from crosslane import udf\nfrom ..rates import RATE\nfrom .helper import PLUS\n"
        "@udf\ndef price(x: int) -> int:\n    from . import helper\n    return x * RATE + helper.PLUS"
    )
    crosslane.load(con, package / "functions.py")
    assert value(con, "SELECT price(4)") == 13


def test_relative_imports_of_a_file_in_no_package(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("RATE = 3")
    path = tmp_path / "functions.py"
    path.write_text("from .helper import RATE")
    with pytest.raises(duckdb.Error, match="in no package: write `from helper import"):
        crosslane.load(con, path)


@dataclass
class Point:
    x: float
    y: float = 2.0


@LANES
def test_annotations_that_are_text_mean_what_they_mean_here(
    con: duckdb.DuckDBPyConnection, lane: Any
) -> None:
    def mirrored(point: Point) -> Point:
        return Point(point.y, point.x)

    crosslane.register(con, mirrored, lane=lane)
    assert value(con, "SELECT mirrored({'x': 1, 'y': 2})") == {"x": 2.0, "y": 1.0}


def test_a_function_that_wraps_itself_is_an_error() -> None:
    def circle(x: int) -> int:
        return x

    circle.__wrapped__ = circle
    with pytest.raises(ValueError, match="wrapper loop"):
        crosslane.udf(circle)
