"""Random functions on rows with extreme values: compares the results by columns with the results of CPython.

    python -m tests.translation.programs [--seconds 60] [--seed 1]

The program ends at the first difference, and prints the function, the row and both results.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import math
import random
import re
import struct
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import crosslane

#: The parameters of each function: their names, Python's types and SQL's types.
PARAMETERS = {
    "i": ("int", "BIGINT"), "j": ("int", "BIGINT"), "k": ("Annotated[int, 'INTEGER']", "INTEGER"),
    "x": ("float", "DOUBLE"), "y": ("float", "DOUBLE"), "b": ("bool", "BOOLEAN"),
    "s": ("str", "VARCHAR"), "t": ("str", "VARCHAR"), "n": ("int | None", "BIGINT"), "m": ("str | None", "VARCHAR"),
    "d": ("date", "DATE"), "u": ("datetime", "TIMESTAMP"), "o": ("date | None", "DATE"),
}  # fmt: skip
TYPES = {"int": "ij", "float": "xy", "bool": "b", "str": "st", "date": "d", "datetime": "u"}
_CLASSES = {
    "int": int, "float": float, "bool": bool, "str": str, "date": datetime.date, "datetime": datetime.datetime,
}  # fmt: skip
_HEAD = """import math
from datetime import date, datetime, timedelta
from typing import Annotated

from crosslane import udf

RATE = 2.5
SCALE = 7
WORDS = {"a": 1, "ab": 2, "": 3, "é": 63, "007": -1}
RATES = {0: 0.5, 1: -0.0, 7: 1e300, -1: math.inf, 2: None}
LABELS = {0: "zero", 1: "é", 2: None, 63: "", -1: "-"}
FLAGS = {"a": True, "b": False}
NAMES = ("Mon", "Tue", "é", "", "Fri")
SOME = {1, 7, 63}
LETTERS = ["a", "", "é"]
HOLIDAYS = frozenset({date(2024, 2, 29), date(1970, 1, 1)})
DAY = timedelta(days=1)
HOUR = timedelta(hours=-1, microseconds=1)
MOMENT = datetime(2000, 2, 29, 23, 59, 59, 999999)
"""
_TEXTS = ("", " ", "a", "A", "b", "ab", "-", "ß", "é", "00", "x y", "Ab", "\x1c", "\u3000")
_INDICES = ("0", "1", "3", "-1", "-2", "9", "<int>")
_BOUNDS = ("", *_INDICES)
_ONE_FLOAT = (
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "expm1", "log", "log2", "log10", "log1p",
    "sqrt", "radians", "degrees", "fabs", "asinh", "acosh", "atanh", "exp2", "erf", "erfc",
)  # fmt: skip
_ORDERS = ("<", "<=", "==", "!=", ">", ">=")


def _choices(kind: str) -> list[list[str]]:
    """Conditional expressions, and operands of `and` and `or`."""
    operands = [f"(<{kind}> {operator} <{kind}>)" for operator in ("and", "or")]
    return [[f"(<{kind}> if <bool> else <{kind}>)"], operands]


#: The forms of expressions of each type, in groups that are equally likely. `<int>` stands for an
#: expression of that type.
_FORMS: dict[str, list[list[str]]] = {
    "int": [
        *4 * [[f"(<int> {operator} <int>)" for operator in ("+", "-", "*", "//", "%", "&", "|", "^")]],
        # For ints of 2^60 bits, CPython would need minutes.
        [f"(<int> {operator} (<int> % 90 - 3))" for operator in ("<<", ">>")],
        [f"(<int> ** {exponent})" for exponent in range(4)],
        [f"{function}(<int>)" for function in ("-", "~", "+", "abs")],
        [f"{function}(<int>, <int>)" for function in ("min", "max", "math.gcd", "math.lcm")],
        [f"{function}(<float>)" for function in ("int", "round", "math.floor", "math.ceil", "math.trunc")],
        ["len(<str>)", "<str>.find(<str>)", "<str>.count(<str>)", "int(<str>)"],
        ["(<bool> + <int>)", "n", "(n if n is not None else <int>)"],
        ["math.isqrt(<int>)"],
        ["divmod(<int>, <int>)[0]", "divmod(<int>, <int>)[1]", "(<delta> // <delta>)"],
        ["WORDS[<str>]", "WORDS.get(<str>, <int>)", "WORDS.get(<str>, 0)"],
        [f"<date>.{part}" for part in ("year", "month", "day", "weekday()", "isoweekday()", "toordinal()")],
        [
            f"<datetime>.{part}"
            for part in ("year", "month", "day", "hour", "minute", "second", "microsecond")
        ],
        ["<delta>.days", "<delta>.seconds", "<delta>.microseconds", "<datetime>.weekday()"],
        ["(o.month if o is not None else <int>)"],
        *_choices("int"),
    ],
    "float": [
        *3 * [[f"(<float> {operator} <float>)" for operator in ("+", "-", "*", "/", "//", "%", "**")]],
        [f"(<float> {operator} <int>)" for operator in ("+", "-", "*", "/", "//", "%", "**")],
        ["(<int> / <int>)", "float(<int>)"],
        [f"math.{function}(<float>)" for function in _ONE_FLOAT],
        [f"{function}(<float>)" for function in ("-", "+", "abs")],
        [f"{function}(<float>, <float>)" for function in ("min", "max")],
        [f"math.{function}(<float>, <float>)" for function in ("atan2", "fmod", "copysign", "pow", "log")],
        [f"round(<float>, {digits})" for digits in range(5)],
        ["divmod(<float>, <float>)[0]", "divmod(<float>, <float>)[1]"],
        ["RATES[<int>]", "RATES.get(<int>)", "RATES.get(<int>, <float>)", "RATES[<date>.month % 3]"],
        ["<delta>.total_seconds()", "(<delta> / <delta>)"],
        *_choices("float"),
    ],
    "bool": [
        *[[f"(<{kind}> {order} <{kind}>)" for order in _ORDERS] for kind in ("int", "float", "str")],
        [f"(<int> {order} <float>)" for order in _ORDERS],
        [f"(<int> <= <int> {order} <float>)" for order in _ORDERS],
        [f"(not <{kind}>)" for kind in TYPES],
        [f"(<bool> {operator} <bool>)" for operator in ("&", "|", "^")],
        ["<str>.startswith(<str>)", "<str>.endswith(<str>)", "(<str> in <str>)", "(<str> not in <str>)"],
        ["(<int> in (1, 7, -1, 63))", "(<int> not in (1, 7, -1, 63))", "(<str> in ('a', '', 'é'))"],
        [
            f"<str>.{question}()"
            for question in ("isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower")
        ],
        [
            "(<int> in SOME)",
            "(<str> in LETTERS)",
            "(<str> in WORDS)",
            "(<date> in HOLIDAYS)",
            "(<date> not in (d,))",
        ],
        [
            "FLAGS.get(<str>, <bool>)",
            "<str>.startswith(('a', 'é'))",
            "<str>.endswith(('', 'b'))",
            "bool(<delta>)",
        ],
        [f"(<{kind}> {order} <{kind}>)" for kind in ("date", "datetime", "delta") for order in _ORDERS],
        ["(o is None)", "(o == <date>)"],
        [f"({name} {operator} None)" for name in "nm" for operator in ("is", "is not", "==", "!=")],
        [f"math.{question}(<float>)" for question in ("isnan", "isinf", "isfinite")],
        *_choices("bool"),
    ],
    "str": [
        [f"<str>.{method}()" for method in ("lower", "upper", "strip", "lstrip", "rstrip")],
        [f"<str>.replace({old!r}, {new!r})" for old in _TEXTS if old for new in _TEXTS],
        [f"<str>.{method}({what!r})" for method in ("strip", "rstrip") for what in ("a", "ab ", "-")],
        [f"<str>[{start}:{end}]" for start in _BOUNDS for end in _BOUNDS],
        [f"<str>[{index}]" for index in _INDICES],
        [f"<str>.split({separator!r})[{index}]" for separator in ("a", " ", "ab") for index in (0, 1, -1)],
        [f"{separator!r}.join(<str>.split())" for separator in ("-", "", "é")],
        ["(<str> + <str>)", "(<str> * 0)", "(<str> * 2)", "(<str> * -1)", "(<str> * SCALE)"],
        ["str(<int>)", 'f"{s}-{i}{t}"', 'f"{t}{k}"'],
        [f"str(<{kind}>)" for kind in ("float", "bool", "date", "datetime")],
        [f"<str>.{method}()" for method in ("capitalize", "title", "swapcase", "casefold")],
        [
            f"<str>.{method}"
            for method in ("zfill(5)", "ljust(4)", "rjust(6, '*')", "removeprefix('a')", "removesuffix('ab')")
        ],
        ["<str>.split()[0]", "<str>.split()[-1]", "','.join([<str>, <str>, <str>])", "<str>.join((<str>,))"],
        [
            f"format(<int>, '{spec}')"
            for spec in ("", "05", "d", ",", "+", ">8", "*<6", "^9", " ,d", ".2f", "=+6", ".0%")
        ],
        [
            f"format(<float>, '{spec}')"
            for spec in (".2f", ".0f", ",.3f", "012.1f", "+.1%", ">20f", "", "x^9.1f", "-.2f")
        ],
        [f"format(<str>, '{spec}')" for spec in ("", ">5", "<3", "^7", ".2", "-^6.1", "s")],
        [
            "LABELS[<int>]",
            "LABELS.get(<int>)",
            "LABELS.get(<int>, <str>)",
            "NAMES[<int>]",
            "NAMES[<date>.weekday()]",
        ],
        ["<date>.isoformat()", "<datetime>.isoformat()", "<date>.strftime('%Y/%m/%d %j')"],
        ["<datetime>.strftime('%d.%m.%y %H:%M:%S.%f%%')", 'f"{d:%Y-%m}{u:%H}"'],
        *_choices("str"),
    ],
    "date": [
        [f"(<date> {operator} <delta>)" for operator in "+-"],
        [
            "<datetime>.date()",
            "date.fromordinal(<int>)",
            "date.fromisoformat(<str>)",
            "date.fromisoformat(<date>.isoformat())",
        ],
        [
            f"<date>.replace({part})"
            for part in ("day=1", "month=<int>", "year=2023", "year=<int>, month=2, day=29")
        ],
        ["date(<int>, <int>, <int>)", "date(<date>.year, <date>.month, <int> % 32)", "date(2024, 2, 29)"],
        ["min(<date>, <date>)", "max(<date>, <date>, <date>)"],
        *_choices("date"),
    ],
    "datetime": [
        [f"(<datetime> {operator} <delta>)" for operator in "+-"],
        ["(<delta> + <datetime>)", "MOMENT"],
        [
            f"<datetime>.replace({part})"
            for part in ("day=31", "hour=0, minute=0, second=0, microsecond=0", "year=<int>")
        ],
        ["datetime(<date>.year, <date>.month, 1)", "datetime(2024, 2, 29, <int> % 25, microsecond=<int>)"],
        ["datetime.fromisoformat(<datetime>.isoformat())", "datetime.fromisoformat(str(<datetime>))"],
        ["datetime.strptime(<date>.isoformat(), '%Y-%m-%d')", "datetime.strptime(<str>, '%Y%m%d')"],
        ["datetime.strptime(str(<datetime>), '%Y-%m-%d %H:%M:%S')", "min(<datetime>, <datetime>)"],
        *_choices("datetime"),
    ],
    "delta": [
        ["(<date> - <date>)", "(<datetime> - <datetime>)"],
        [f"(<delta> {operator} <delta>)" for operator in ("+", "-", "%")],
        ["(<delta> * <int>)", "(<int> * <delta>)", "(<delta> // <int>)", "(-<delta>)"],
        [
            "timedelta(<int> % 1000)",
            "timedelta(hours=<int>, weeks=<int>)",
            "timedelta(0, <int>, microseconds=<int>)",
        ],
    ],
}
_HOLE = re.compile("<(int|float|bool|str|date|datetime|delta)>")


def source(name: str, returns: str, *body: str) -> str:
    """The source of a function that has all parameters."""
    parameters = ", ".join(f"{one}: {kind}" for one, (kind, _) in PARAMETERS.items())
    # A function is one expression, or it has several statements. The translation treats both differently.
    lines = "".join(f"    {line}\n" for line in body)
    return f'@udf(on_error="null")\ndef {name}({parameters}) -> {returns}:\n{lines}'


class Generator:
    """Writes random functions. Most of them can be evaluated by columns."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._variables: dict[str, list[str]] = {}

    def function(self, name: str) -> str:
        """The source of a function of all parameters."""
        self._variables = {kind: list(names) for kind, names in TYPES.items()}
        self._variables["int"].append("k")
        self._variables["delta"] = ["DAY", "HOUR", "timedelta(3, 7)"]
        returns = self._random.choice(list(TYPES))
        body = self._block(returns, self._random.randint(0, 3), 1)
        return source(name, returns, *body, f"return {self._value(returns, 3)}")

    def _block(self, returns: str, statements: int, depth: int) -> list[str]:
        return [line for _ in range(statements) for line in self._statement(returns, depth)]

    def _statement(self, returns: str, depth: int) -> list[str]:
        pick = self._random.random()
        if pick < 0.45 or depth > 2:
            kind = self._random.choice(list(TYPES))
            if pick < 0.15 and kind in ("int", "float", "str"):
                name = self._random.choice(self._variables[kind])
                return [
                    f"{name} {'+' if kind == 'str' else self._random.choice('+-*')}= {self._value(kind, 2)}"
                ]
            value = self._value(kind, 3)
            name = f"v{len(self._variables[kind])}_{kind}"
            if depth == 1:
                self._variables[kind].append(name)
            else:
                # Code after a branch does not know a variable of that branch only. So this assigns a known
                # variable.
                name = self._random.choice(self._variables[kind])
            return [f"{name} = {value}"]
        if pick < 0.5:
            return [f"if {self._value('bool', 2)}:", "    raise ValueError(i)"]
        if pick < 0.55:
            return [f"assert {self._value('bool', 2)}"]
        lines = [f"if {self._value('bool', 2)}:"]
        lines += self._branch(returns, depth)
        if self._random.random() < 0.4:
            lines += [f"elif {self._value('bool', 2)}:", *self._branch(returns, depth)]
        if self._random.random() < 0.5:
            lines += ["else:", *self._branch(returns, depth)]
        return lines

    def _branch(self, returns: str, depth: int) -> list[str]:
        lines = self._block(returns, self._random.randint(0, 2), depth + 1)
        if self._random.random() < 0.3:
            lines.append(
                f"return {self._value(returns, 2)}" if self._random.random() < 0.9 else "return None"
            )
        return [f"    {line}" for line in lines or ["pass"]]

    def _value(self, kind: str, depth: int) -> str:
        if depth <= 0 or self._random.random() < 0.15:
            return self._leaf(kind)
        form = self._random.choice(self._random.choice(_FORMS[kind]))
        return _HOLE.sub(lambda hole: self._value(hole[1], depth - 1), form)

    def _leaf(self, kind: str) -> str:
        if self._random.random() < 0.65:
            return self._random.choice(self._variables[kind])
        if kind == "int":
            return self._random.choice(
                ["0", "1", "-1", "2", "7", "63", "64", "SCALE", "9223372036854775807", "(1 << 53)"]
            )
        if kind == "float":
            return self._random.choice(
                ["0.0", "-0.0", "1.0", "-2.5", "0.1", "1e300", "RATE", "math.pi", "math.inf", "5e-324"]
            )
        if kind == "bool":
            return self._random.choice(["True", "False"])
        if kind in ("date", "datetime", "delta"):
            return self._random.choice(self._variables[kind])
        return repr(self._random.choice(_TEXTS))


def rows(seed: int, count: int) -> pa.Table:
    """Rows with extreme values, and with ordinary ones."""
    chance = random.Random(seed)
    ints = [
        0,
        1,
        -1,
        2,
        7,
        10,
        63,
        64,
        1 << 31,
        (1 << 53) - 1,
        1 << 53,
        (1 << 53) + 1,
        (1 << 63) - 1,
        -(1 << 63),
    ]
    floats = [
        0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.125, 2.675, 1.005, 1e-310, 5e-324, 1e16, 2.0**53, 2.0**63, 1e300,
        -1e300, math.inf, -math.inf, math.nan, math.pi, 32.152,
    ]  # fmt: skip
    texts = [
        "",
        " ",
        "a",
        "ab",
        "  Ab c ",
        "A-b-a",
        "é",
        "ß",
        "Ünï",
        "İ",
        "日本",
        "007",
        "-12",
        "+5",
        " 42 ",
        "1_0",
        "٣",
        "a\x1c",
        "\u3000x",
    ]

    moments = [
        datetime.datetime(*parts)
        for parts in (
            (1, 1, 1), (9999, 12, 31, 23, 59, 59, 999999), (1970, 1, 1), (1969, 12, 31, 23, 59, 59, 999999),
            (2024, 2, 29), (2000, 2, 29, 12), (1900, 3, 1), (999, 12, 31), (2023, 12, 31, 0, 0, 0, 1),
        )
    ]  # fmt: skip

    def an_int(bits: int = 64) -> int:
        if chance.random() < 0.5:
            return chance.randint(-1000, 1000)
        value = chance.choice(ints) if chance.random() < 0.7 else chance.getrandbits(64) - (1 << 63)
        return value if bits == 64 else (value + (1 << 31)) % (1 << 32) - (1 << 31)

    def a_float() -> float:
        pick = chance.random()
        if pick < 0.35:
            return round(chance.uniform(-1000, 1000), chance.randint(0, 4))
        if pick < 0.7:
            return chance.choice(floats)
        if pick < 0.85:
            return chance.uniform(-10, 10)
        (value,) = struct.unpack("=d", struct.pack("=Q", chance.getrandbits(64)))
        return float(value)

    def a_text() -> str:
        if chance.random() < 0.5:
            return chance.choice(texts)
        return "".join(chance.choice("abAB -0é") for _ in range(chance.randint(0, 12)))

    def a_moment() -> datetime.datetime:
        if chance.random() < 0.3:
            return chance.choice(moments)
        years = chance.choice([1, 60, 8000])
        micros = chance.randint(-years * 31_556_952_000_000, years * 31_556_952_000_000)
        start = datetime.datetime(2000 if years < 8000 else 5000, 1, 1)
        with contextlib.suppress(OverflowError):
            start += datetime.timedelta(microseconds=micros)
        return start

    def or_null(value: Any, often: float) -> Any:
        return None if chance.random() < often else value

    columns = {
        "i": [or_null(an_int(), 0.02) for _ in range(count)],
        "j": [or_null(an_int(), 0.02) for _ in range(count)],
        "k": [an_int(32) for _ in range(count)],
        "x": [or_null(a_float(), 0.02) for _ in range(count)],
        "y": [a_float() for _ in range(count)],
        "b": [or_null(chance.random() < 0.5, 0.02) for _ in range(count)],
        "s": [or_null(a_text(), 0.02) for _ in range(count)],
        "t": [a_text() for _ in range(count)],
        "n": [or_null(an_int(), 0.3) for _ in range(count)],
        "m": [or_null(a_text(), 0.3) for _ in range(count)],
        "d": [or_null(a_moment().date(), 0.02) for _ in range(count)],
        "u": [or_null(a_moment(), 0.02) for _ in range(count)],
        "o": [or_null(a_moment().date(), 0.3) for _ in range(count)],
    }
    types = {
        "BIGINT": pa.int64(),
        "INTEGER": pa.int32(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "VARCHAR": pa.string(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us"),
    }
    return pa.table({name: pa.array(values, types[PARAMETERS[name][1]]) for name, values in columns.items()})


def expected(function: Callable[..., Any], returns: str, arguments: tuple[Any, ...]) -> Any:
    """CPython's result for a row. NULL stands for errors and for values that do not fit."""
    values = dict(zip(PARAMETERS, arguments))
    if any(value is None and name not in "nmo" for name, value in values.items()):
        return None
    try:
        result = function(*arguments)
    except Exception:
        return None
    if returns == "float" and type(result) in (int, bool):
        # A column of floats takes ints.
        try:
            return float(result)
        except OverflowError:
            return None
    if type(result) is not _CLASSES[returns]:
        return None
    return None if returns == "int" and not -(1 << 63) <= result < 1 << 63 else result


def same(one: Any, other: Any) -> bool:
    """Whether two results have the same bits. All NaN count as equal."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("=d", one) == struct.pack("=d", other) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


def loaded(path: Path) -> Any:
    """The module of a file, with undecorated functions."""
    spec = importlib.util.spec_from_file_location(f"programs_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


def run(seed: int, programs: int, count: int, folder: Path) -> tuple[int, int]:
    """Compares some random programs, as :func:`run_sources` does."""
    generator = Generator(seed)
    return run_sources([generator.function(f"f{number}") for number in range(programs)], seed, count, folder)


def run_sources(sources: list[str], seed: int, count: int, folder: Path) -> tuple[int, int]:
    """Compares the functions ``f0``, ``f1`` and so on. Returns how many pairs of a program and a row were
    compared, and how many programs are evaluated by columns."""
    from crosslane._declare import library
    from crosslane._worker import translation

    names = [f"f{number}" for number in range(len(sources))]
    path = folder / f"programs_{seed}.py"
    path.write_text(_HEAD + "".join(f"\n\n{one}" for one in sources))
    table = rows(seed, count)
    arguments = list(zip(*(column.to_pylist() for column in table.columns)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        declared = {one.name: one for one in library.load_file(str(path))}
        by_columns = sum(translation.reason_against(one) is None for one in declared.values())
    connection = crosslane.connect()
    with contextlib.closing(connection):
        connection.execute("SET threads = 1")
        connection.execute(f"CALL crosslane_load('{path}')")
        connection.register("rows", table)
        connection.execute(
            "CREATE TABLE t AS SELECT row_number() OVER () AS number, * FROM rows ORDER BY number"
        )
        for name in names:
            compare(connection, path, name, declared[name], arguments)
    return len(sources) * count, by_columns


def compare(
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    name: str,
    declared: Any,
    arguments: list[tuple[Any, ...]],
) -> None:
    """Compares the results of one program."""
    sql = declared.signature.rpartition("-> ")[2]
    returns = next(kind for kind, one in PARAMETERS.values() if one == sql)
    query = f"SELECT {name}({', '.join(PARAMETERS)}) FROM t ORDER BY number"
    got = [row[0] for row in connection.execute(query).fetchall()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row, (one, values) in enumerate(zip(got, arguments, strict=True)):
            other = expected(declared.callable, returns, values)
            if not same(one, other):
                source = path.read_text()
                begin = source.index(f"def {name}(")
                text = source[begin : source.find("@udf", begin) if "@udf" in source[begin:] else None]
                shown = ", ".join(f"{key}={value!r}" for key, value in zip(PARAMETERS, values))
                raise AssertionError(f"{text}\nrow {row}: {shown}\ngot {one!r}, CPython gives {other!r}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to compare (60)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    asked = parser.parse_args()
    begun, pairs, programs, by_columns = time.monotonic(), 0, 0, 0
    for seed in seeds(asked.seed, begun + asked.seconds):
        with tempfile.TemporaryDirectory() as folder:
            compared, translated = run(seed, 50, 2500, Path(folder))
        pairs, programs, by_columns = pairs + compared, programs + 50, by_columns + translated
        print(
            f"seed {seed}: {pairs:,} pairs, {programs:,} programs, {by_columns / programs:.0%} by columns",
            flush=True,
        )


def seeds(first: int, until: float) -> Iterator[int]:
    while time.monotonic() < until:
        yield first
        first += 1


if __name__ == "__main__":
    main()
