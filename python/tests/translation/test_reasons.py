"""The reasons why functions are called for each row."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosslane._declare import library as libraries
from crosslane._worker import translation

from ..conftest import Library, Load

pytestmark = pytest.mark.any_duckdb


#: The body of a function, and the reason, which names the line.
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
    "return (1, 2, 3)": "line 5: a collection that is neither returned nor looked up in",
    "return (1, 'a')[x]": "line 5: a look-up whose values have several types",
    "return x.bit_length()": "line 5: the method bit_length of a number",
    "if x: y = 1\n    return y": "line 6: the variable y: only one branch of a condition assigns it",
    "return (x, 1) == (1, x)": "line 5: a collection that is neither returned nor looked up in",
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


def test_a_function_with_a_memory_limit_is_called(library: Library) -> None:
    path = library("@udf(memory_limit='300MB')\ndef f(s: str) -> str:\n    return s.upper()\n")
    (declared,) = libraries.load_file(str(path))
    assert translation.reason_against(declared) == "it has a memory_limit, which counts what a call takes"


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
    assert {name for name, reason in reasons.items() if reason is None} == {"made", "plain", "pair"}
    assert "a call of Checked, which is more than its fields" in str(reasons["checked"])


def test_a_look_up_that_is_mentioned_often(library: Library) -> None:
    branches = "".join(f"    if x == {n}: return NAMES[x]\n" for n in range(30))
    path = library(
        f"NAMES = {{n: n for n in range(10000)}}\n@udf\ndef f(x: int) -> int:\n{branches}    return 0\n"
    )
    (declared,) = libraries.load_file(str(path))
    assert "look-ups in more than 200,000 constants" in str(translation.reason_against(declared))


def test_the_line_is_one_of_the_file(library: Library, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "\n" * 30 + "def listed(x):\n    return [x][0]\n\ndef text(x):\n    return str(x)\n"
    )
    path = library("""
        from other import listed, text

        @udf
        def one(x: int) -> int:
            return listed(x) + 1

        @udf
        def two(x: int) -> int:
            return x + text(x)
    """)
    one, two = (translation.reason_against(declared) for declared in libraries.load_file(str(path)))
    assert one == "line 7: an expression `list`: listed in line 32 of other.py"
    assert two == "line 11: an operand is a str, where a number is known"
