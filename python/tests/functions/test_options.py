"""Options are checked at the declaration. A wrong one is an error with file and line, never a hang or another
meaning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Load, error, value

pytestmark = pytest.mark.any_duckdb

#: Values that each option refuses, in words of all languages.
REFUSED = {
    "timeout": ["INFINITY", "NAN", "-1", "0", "1e20", "'1'", "TRUE"],
    "retries": ["1.5", "10000000000", "-1", "'1'", "NONE", "TRUE"],
    "memory_limit": ["10e30", "-5", "0", "NAN", "'1.2.3 MB'", "'99999999999 GB'", "'lots'", "TRUE", "[1]"],
    "deterministic": ["'no'", "1", "NONE"],
    "vectorized": ["'no'", "1"],
    "concurrency": ["0", "1.5", "10000000000", "'4'", "TRUE"],
    "on_error": ["'ignore'", "1", "NONE", "[1]"],
    "nulls": ["'maybe'", "[1]"],
}
WORDS = {
    "py": {
        "INFINITY": "float('inf')",
        "NAN": "float('nan')",
        "TRUE": "True",
        "NONE": "None",
        "10e30": "10**30",
    },
    "rb": {
        "INFINITY": "Float::INFINITY",
        "NAN": "Float::NAN",
        "TRUE": "true",
        "NONE": "nil",
        "10e30": "10**30",
    },
    "js": {"INFINITY": "Infinity", "NAN": "NaN", "TRUE": "true", "NONE": "null"},
}
FILES = {
    "py": "from crosslane import udf\n\n@udf({option}={text})\n{kind}def f(x: int) -> int: return x\n",
    "rb": "\n\nudf('f(x BIGINT) -> BIGINT', {option}: {text}) {{ |x| x }}\n",
    "js": "\n\nudf('f(x BIGINT) -> BIGINT', {{ {option}: {text} }}, (x) => x);\n",
}
#: Parts of a file that notes the outcome of each declaration, and raises the notes. They are the first line,
#: the lines of a declaration, and the last line.
NOTING = {
    "py": (
        "from crosslane import udf; noted = []\n",
        "try:\n @udf({option}={text})\n {kind}def f(x: int) -> int: return x\n"
        "except BaseException as e: noted.append(type(e).__name__ + ': ' + str(e))\nelse: noted.append('accepted')\n",
        "raise ValueError('|'.join(noted))",
    ),
    "rb": (
        "noted = []\n",
        "begin\nudf('f(x BIGINT) -> BIGINT', {option}: {text}) {{ |x| x }}\n"
        "noted << 'accepted'\nrescue Exception => e\nnoted << e.class.name + ': ' + e.message\nend\n",
        "raise noted.join('|')",
    ),
    "js": (
        "const noted = [];\n",
        "try {{\nudf('f(x BIGINT) -> BIGINT', {{ {option}: {text} }}, (x) => x);\n"
        "noted.push('accepted');\n}} catch (e) {{\nnoted.push(e.name + ': ' + e.message + e.stack.split('\\n').at(-1));\n}}\n",
        "throw new Error(noted.join('|'));",
    ),
}


@pytest.mark.parametrize("language", FILES)
def test_an_option_that_cannot_be(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, subtests: pytest.Subtests, language: str
) -> None:
    path = tmp_path / f"functions.{language}"
    con.execute("CALL crosslane_set('load_timeout', '20')").fetchall()

    def refusal(text: str) -> str:
        path.write_text(text)
        with pytest.raises(duckdb.Error) as caught:
            crosslane.load(con, path)
        return str(caught.value)

    def declaration(form: str, option: str, text: str) -> str:
        kind = "async " if option == "concurrency" else ""
        return form.format(option=option, text=WORDS[language].get(text, text), kind=kind)

    begin, form, end = NOTING[language]
    # A long message of JavaScript would be cut.
    for options in [[option] for option in REFUSED] if language == "js" else [list(REFUSED)]:
        cases = [(option, text) for option in options for text in REFUSED[option]]
        declarations = [declaration(form, option, text) for option, text in cases]
        notes = refusal(begin + "".join(declarations) + end).split("|")
        assert len(notes) >= len(cases), notes
        for at, ((option, text), note) in enumerate(zip(cases, notes)):
            with subtests.test(f"{option}, {text}"):
                line = 3 + at * form.count("\n")
                assert "DeclarationError: " in note
                assert f"{option} is" in note
                assert re.search(rf"{re.escape(str(path))}:{line}\b", note), note
    # In this file, no code catches the error.
    message = refusal(declaration(FILES[language], "timeout", "INFINITY"))
    assert "DeclarationError" in message
    assert "timeout is" in message
    assert f"{path}:3" in message


def test_a_name_that_every_object_has_is_no_option(script: Load) -> None:
    with pytest.raises(duckdb.Error, match="there is no option"):
        script("udf('f(x BIGINT) -> BIGINT', { toString: 1 }, (x) => x)")


def test_the_largest_options(load: Load, ruby: Load, script: Load) -> None:
    options = "timeout{0} 1e9, retries{0} 1000000, memory_limit{0} '1000 GiB'"
    con = load(f"@udf({options.format('=')})\ndef f(x: int) -> int: return x")
    assert value(con, "SELECT f(1)") == 1
    con = ruby(f"udf('g(x BIGINT) -> BIGINT', {options.format(':')}) {{ |x| x }}")
    assert value(con, "SELECT g(1)") == 1
    con = script(f"udf('h(x BIGINT) -> BIGINT', {{ {options.format(':')} }}, (x) => x)")
    assert value(con, "SELECT h(1)") == 1


def assert_cut(text: str) -> None:
    """A text of millions of x is short, and says so."""
    assert "xxxx" in text
    assert re.search(r"\d{8} (bytes are left out|characters)", text)
    assert len(text) < 1_000_000


HUGE = {
    "py": "raise ValueError('x' * 70_000_000)",
    "rb": "raise ArgumentError, 'x' * 70_000_000",
    "js": "throw new Error('x'.repeat(70_000_000))",
}


@pytest.mark.parametrize("language", HUGE)
def test_a_huge_error_at_load_is_cut(con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str) -> None:
    path = tmp_path / f"functions.{language}"
    path.write_text(HUGE[language])
    with pytest.raises(duckdb.Error) as caught:
        crosslane.load(con, path)
    assert_cut(str(caught.value))


RAISING = {
    "py": "from crosslane import udf\n@udf\ndef f(x: int) -> int: raise ValueError('x' * x)",
    "rb": "udf('f(x BIGINT) -> BIGINT') { |x| raise 'x' * x }",
    "js": "udf('f(x BIGINT) -> BIGINT', (x) => { throw new Error('x'.repeat(x)) })",
}


@pytest.mark.parametrize("language", RAISING)
def test_a_huge_error_of_a_call_is_cut(con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str) -> None:
    path = tmp_path / f"functions.{language}"
    path.write_text(RAISING[language])
    crosslane.load(con, path)
    assert_cut(error(con, "SELECT f(30000000)"))


LANGUAGES = ["py", "rb", "js", "lua"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, whose name is no text, with a file for each language."""
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    for language in LANGUAGES:
        (folder / f"functions.{language}").touch()
    monkeypatch.chdir(folder)
    return folder


def run(*command: str, **variables: str) -> str:
    """The output of a program that fails."""
    environment = {**os.environ, **variables}
    run = subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )
    assert run.returncode != 0
    return run.stderr


def test_a_path_that_is_no_text(
    con: duckdb.DuckDBPyConnection, folder: Path, subtests: pytest.Subtests
) -> None:
    """The path may be relative, and `check` reports the same error as an engine."""
    for language in LANGUAGES:
        with subtests.test(language):
            with pytest.raises(duckdb.Error, match="its path is not UTF-8"):
                crosslane.load(con, f"functions.{language}")
            cli = ("-P", "-c", "from crosslane._cli import main; main()")
            assert "its path is not UTF-8" in run(*cli, "check", f"functions.{language}")


def test_a_path_that_is_no_text_at_load(folder: Path) -> None:
    """The path of a file at LOAD may be any bytes; the message of a load is text."""
    program = (
        "import duckdb, crosslane\n"
        "con = duckdb.connect(config={'allow_unsigned_extensions': 'true'})\n"
        "con.execute(f\"LOAD '{crosslane.extension_path()}'\")\n"
    )
    for name in ("functions.py", str(folder / "functions.py")):
        assert "its path is not UTF-8" in run("-c", program, CROSSLANE_LOAD=name, VIRTUAL_ENV=sys.prefix)


def test_a_path_that_is_no_text_in_a_server_and_a_map(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="its path is not UTF-8"):
        crosslane.map([], "functions.py")
    cli = ("-P", "-c", "from crosslane._cli import main; main()")
    assert "its path is not UTF-8" in run(*cli, "serve", "functions.py")
