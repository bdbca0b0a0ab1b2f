"""The examples of docs/spark.md and of the README's section on Spark run as they are written.

Blocks for Spark are fenced by `~~~`. Blocks that are fenced by backticks are run by
python/tests/project/test_docs.py. The blocks of a page run in order, in one folder. Blocks in Python and SQL
are one program:

- A block whose first line is a comment with a file's name is written into that file, before anything else
runs.
- Python blocks are one program. SQL blocks run in its session, `spark`. The comments after a statement are
its rows.
- Console blocks are commands and their standard output.
- Text and shell blocks are only shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import conf

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^~~~(\w+)\n(.*?)^~~~$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:#|//) ([\w.]+)\n")
#: The number of blocks of each language on a page.
PAGES = {
    "README.md": {"python": 2},
    "docs/spark.md": {"python": 8, "ruby": 1, "js": 1, "sql": 2, "console": 1, "text": 5, "sh": 1},
}

#: The function with which a program checks its SQL blocks.
CHECK = """
def check(statement, shown):
    rows = [" | ".join("NULL" if cell is None else str(cell) for cell in row) for row in spark.sql(statement).collect()]
    assert rows == shown, f"{statement}\\n{rows}"
"""


def statements(block: str) -> list[tuple[str, list[str]]]:
    """The statements of an SQL block, with the rows that the block shows."""
    found = re.findall(r"(.+?);\n((?:-- [^\n]*\n)*)", block, re.DOTALL)
    return [(statement, [row.removeprefix("-- ") for row in rows.splitlines()]) for statement, rows in found]


def run(command: list[str | Path], folder: Path, environment: dict[str, str]) -> str:
    """The output of a program."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A reader's environment. In it, Spark prints little and leaves no files."""
    folder = tmp_path / "conf"
    folder.mkdir()
    lines = (f"{name} {value}\n" for name, value in conf(tmp_path).items())
    (folder / "spark-defaults.conf").write_text("".join(lines))
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (commands / "python3").chmod(0o755)
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "SPARK_CONF_DIR": str(folder), "PATH": path}


@pytest.mark.any_spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    blocks = FENCE.findall((ROOT / page).read_text())
    languages = [language for language, _ in blocks]
    assert {language: languages.count(language) for language in languages} == PAGES[page]
    program, consoles = [CHECK], []
    for language, text in blocks:
        if name := FILE.match(text):
            (tmp_path / name[1]).write_text(text)
        elif language == "python":
            program.append(text)
        elif language == "sql":
            shown = statements(text)
            assert shown
            program += [f"check({statement!r}, {rows!r})\n" for statement, rows in shown]
        elif language == "console":
            consoles.append(text)
        else:
            assert language in ("text", "sh")
    (tmp_path / "program.py").write_text("\n".join(program))
    run([sys.executable, "program.py"], tmp_path, environment)
    for text in consoles:
        lines = text.splitlines(keepends=True)
        # A line that is too long for the page continues on the next line.
        commands = re.findall(r"^\$ ((?:.*\\\n)*.*\n)", text, re.MULTILINE)
        printed = [line for line in lines if not line.startswith(("$ ", "    "))]
        assert run(["sh", "-ec", "".join(commands)], tmp_path, environment) == "".join(printed)
