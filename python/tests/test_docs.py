"""The documentation's examples, run as written."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What sets things up is run by those who run these tests.
SETUP = ("make ", "pip ", "git ")
#: What `crosslane.register` calls.
INTERNAL = ("crosslane_load_pickle", "crosslane_load_threads")


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a console block with their outputs."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


@pytest.mark.parametrize(
    ("page", "least"), [("README.md", 6), ("docs/javascript.md", 1), ("docs/ruby.md", 1)]
)
def test_pages(page: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "CROSSLANE": str(ROOT),
    }
    command = tmp_path / "crosslane"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m crosslane._cli "$@"\n')
    command.chmod(0o755)
    ran = 0
    for language, text in BLOCK.findall((ROOT / page).read_text()):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            if name:
                (tmp_path / name[1]).write_text(text)
            else:
                exec(compile(text, page, "exec"), {"__name__": "__main__"})
        elif language in ("js", "ruby"):
            name = re.match(r"(?://|#) (\w+\.(?:js|rb))\n", text)
            if name:
                (tmp_path / name[1]).write_text(text)
        elif language == "console":
            for line, expected in commands(text):
                if line.startswith(SETUP):
                    continue
                result = subprocess.run(
                    line, shell=True, capture_output=True, text=True, env=environment, timeout=60
                )
                output = (result.stdout + result.stderr).replace(f"{tmp_path}/", "")
                assert [line.rstrip() for line in output.splitlines()] == expected.splitlines(), line
                ran += 1
    assert ran >= least


@pytest.mark.parametrize("name", ["crosslane", "crosslane._duckdb", "crosslane._udf", "crosslane._signature"])
def test_docstrings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_flights_example() -> None:
    """The functions of the tour, the npm library among them."""
    import crosslane

    flights = ROOT / "examples" / "flights"
    con = crosslane.connect(functions=[flights / "functions.js", flights / "functions.rb"])
    query = "SELECT arrival('2013-01-02 03:30:00'::TIMESTAMP, 60, 'America/Chicago')"
    assert con.execute(query).fetchall() == [({"clock": "22:30", "weekday": "Tuesday", "next_day": False},)]
    assert con.execute("SELECT slug('Général Intl.'), round(headwind(30, 10, 30), 6)").fetchall() == [
        ("ge-ne-ral-intl", 10.0)
    ]
    query = "SELECT in_words('2013-03-12'::DATE), tail('N123AB').digits, tail('x'), round(great_circle_rb(0, 0, 0, 90))"
    assert con.execute(query).fetchall() == [("2nd Tuesday of March", 123, None, 6218.0)]
    assert con.execute("SELECT rank_in_batch(3)").fetchall() == [(0,)]
    con.close()


def test_every_setting_and_command_is_documented() -> None:
    import crosslane

    text = (ROOT / "docs" / "functions.md").read_text()
    con = crosslane.connect()
    names = [row[0] for row in con.execute("SELECT name FROM crosslane_settings()").fetchall()]
    query = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_name LIKE 'crosslane_%'"
    names += [row[0] for row in con.execute(query).fetchall() if row[0] not in INTERNAL]
    con.close()
    assert len(names) > 10
    assert [name for name in names if name not in text] == []
