"""The documentation's examples run as they are written.

The language and the first line of a block decide what the test does with it. The blocks of a page run in
order, in one folder:

- A block whose first line is a comment with a file's name is written into that file. A later block must use
  the file. A YAML file needs no such block, because programs find it by themselves.
- The other Python blocks are one program. A block sees the variables of the blocks before it.
- SQL blocks run on one connection. The comments after a statement are its rows, or the beginning of its
  error. `/path/to` stands for the folder of the extension.
- Console blocks are commands and their outputs. The test only asks `make` whether it knows the target,
  because `make` runs these tests.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:#|//|--) ([\w./]+\.(?:ipy|java|js|lua|py|rb|sql|yml))\n")
#: The number of blocks on each page.
PAGES = {
    "README.md": 17,
    "CONTRIBUTING.md": 1,
    "docs/clients.md": 18,
    "docs/dataframes.md": 6,
    "docs/definitions.md": 3,
    "docs/functions.md": 18,
    "docs/javascript.md": 16,
    "docs/kinds.md": 8,
    "docs/lua.md": 2,
    "docs/migration/duckdb-python.md": 2,
    "docs/migration/mini-racer.md": 2,
    "docs/migration/ruby-duckdb.md": 2,
    "docs/ruby.md": 16,
    "docs/security.md": 4,
    "docs/streams.md": 4,
    "docs/testing.md": 4,
    "docs/tracing.md": 5,
    "docs/types.md": 5,
}
#: The output on these pages depends on DuckDB's version.
VERSIONED = (
    "README.md",
    "docs/clients.md",
    "docs/dataframes.md",
    "docs/functions.md",
    "docs/kinds.md",
    "docs/migration/duckdb-python.md",
    "docs/types.md",
)
#: These pages have drawings and a grammar, in blocks without a language. They have no programs.
DRAWN = (
    "docs/architecture.md",
    "docs/internals/javascript.md",
    "docs/internals/processes.md",
    "docs/internals/ruby.md",
    "docs/internals/server.md",
    "docs/internals/spark.md",
    "docs/protocol.md",
)
#: This page needs a program that runs at the same time. `test_server.py` follows this page.
SERVED = ("docs/server.md",)
#: This page has Rust, which the documentation tests of the crate compile.
RUST = ("docs/scheduler.md",)
#: The SQL functions that `crosslane.register` calls.
INTERNAL = ("crosslane_load_pickle", "crosslane_load_threads", "crosslane_outdated", "crosslane_renew")


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a console block with their outputs."""
    before, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert before == ""
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def statements(block: str) -> Iterator[tuple[str, list[str]]]:
    """The statements of an SQL block, with the rows that the block shows."""
    for statement, rows in re.findall(r"(.+?;\n)((?:-- [^\n]*\n)*)", block, re.DOTALL):
        yield statement, [row.removeprefix("-- ") for row in rows.splitlines()]


def headings(page: Path) -> set[str]:
    """The names by which links refer to the headings of a page."""
    lines = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


class Page:
    """A page that the test follows as a reader would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        self.unused: set[str] = set()

    def close(self) -> None:
        """Closes what the page has opened."""
        self._con.close()

    def run(self, language: str, text: str) -> None:
        """Runs or writes a block."""
        self.unused -= {name for name in self.unused if name in text}
        if name := FILE.match(text):
            file = self._folder / name[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            if file.suffix != ".yml":
                self.unused.add(name[1])
        elif language == "python":
            exec(compile(text, "<block>", "exec"), self._names)
        elif language == "sql":
            self._sql(text)
        elif language == "console":
            self._console(text)
        else:
            pytest.fail(f"nobody runs this block of {language!r}:\n{text}")

    def _sql(self, text: str) -> None:
        parts = list(statements(text.replace("/path/to", str(crosslane.extension_path().parent))))
        assert parts, text
        for statement, shown in parts:
            if shown and shown[0].startswith("Error: "):
                with pytest.raises(duckdb.Error) as caught:
                    self._con.execute(statement).fetchall()
                message = self._without_folder(f"Error: {caught.value}").splitlines()
                assert message[: len(shown)] == shown
                continue
            rows = self._con.execute(statement).fetchall()
            if shown:
                assert [
                    " | ".join("NULL" if cell is None else str(cell) for cell in row) for row in rows
                ] == shown

    def _without_folder(self, text: str) -> str:
        return text.replace(f"{self._folder}/", "")

    def _console(self, text: str) -> None:
        for command, shown in commands(text):
            if command.startswith("make "):
                subprocess.run(["make", "-n", command.split()[1]], cwd=ROOT, check=True, capture_output=True)
                continue
            result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
            printed = self._without_folder(result.stdout + result.stderr)
            assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines(), command


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in VERSIONED else pytest.mark.any_duckdb) for page in PAGES]
)
def test_pages(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, command in (("crosslane", "-m crosslane._cli"), ("python3", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
        (commands / name).chmod(0o755)
    # Programs of Python packages are in the interpreter's folder. The packages of Node.js are beside
    # package.json.
    monkeypatch.setenv("PATH", f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NODE_PATH", f"{ROOT / 'node_modules'}:{os.environ.get('NODE_PATH', '')}")
    monkeypatch.setenv("CLASSPATH", str(ROOT / ".jdbc" / "duckdb_jdbc.jar"))
    # IPython writes a history. dbt would send its makers a message about the run.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    # A reader's tools compile their modules only once. dbt, IPython and Ibis have thousands of modules.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    # Code that a page trusts is not trusted for the user of these tests.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # A variable that the page exports in one command is set in the next.
    monkeypatch.setenv("EXTENSION", str(crosslane.extension_path()))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    # An editable installation may be older than the plugin.
    monkeypatch.setenv("PYTEST_PLUGINS", "crosslane._testing.plugin")
    monkeypatch.setenv("CROSSLANE", str(ROOT))
    blocks = FENCE.findall((ROOT / page).read_text())
    assert len(blocks) == PAGES[page]
    reader = Page(tmp_path)
    try:
        for language, text in blocks:
            reader.run(language, text)
    finally:
        reader.close()
    assert reader.unused == set()


def test_every_page_is_run() -> None:
    pages = {str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
    with_blocks = {page for page in pages if FENCE.search((ROOT / page).read_text())}
    assert with_blocks == {*PAGES, *DRAWN, *RUST, *SERVED}
    for page in DRAWN:
        assert {language for language, _ in FENCE.findall((ROOT / page).read_text())} == {""}


#: Paths in the text of a page, relative to the repository.
NAMED = re.compile(r"`((?:bench|conformance|crates|docs|examples|python|ruby|spark|tools)/[\w./*-]+)")
#: Paths that a build or a run makes. They may be missing.
MADE = ("bench/results", "ruby/pkg/")


@pytest.mark.any_duckdb
def test_named_files_exist() -> None:
    """Each path that a page names exists: a page that keeps an old name fails here."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "conformance" / "README.md"]
    wrong = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        if page.name != "CHANGELOG.md"
        for name in NAMED.findall(page.read_text())
        if not name.startswith(MADE) and not any(ROOT.glob(name.rstrip("/.")))
    ]
    assert wrong == []


@pytest.mark.any_duckdb
def test_links_lead_somewhere() -> None:
    """Each link within the documentation names a file that exists, and a heading of it."""
    wrong = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        text = FENCE.sub("", page.read_text())
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            place, _, heading = link.partition("#")
            if "://" in link:
                continue
            target = page.parent / place if place else page
            if not target.exists() or (heading and heading not in headings(target)):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == []


@pytest.mark.parametrize(
    "name",
    [
        "crosslane",
        "crosslane._arrow.sql_types",
        "crosslane._cli.check.github",
        "crosslane._client.map",
        "crosslane._declare.classes",
        "crosslane._declare.declaration",
        "crosslane._declare.signature.annotations",
        "crosslane._engines.dataframes.functions",
        "crosslane._engines.duckdb",
        "crosslane._runtime.sql",
    ],
)
def test_docstrings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_pictures_of_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    pictures = importlib.import_module("bench.duckdb.pictures")
    assert doctest.testmod(pictures) == (0, 1)
    figures = pictures.Figures.load(ROOT / "bench" / "duckdb" / "figures.json")
    copy = tmp_path / "figures.json"
    figures.save(copy)
    assert pictures.Figures.load(copy) == figures
    stories = [line.story for line in figures.lines if line.story]
    assert len(stories) == 6
    assert all(0 < story.ours < story.theirs for story in stories)
    assert f"DuckDB {figures.duckdb}" in (ROOT / "docs" / "benchmarks.md").read_text()
    assert figures.date in (ROOT / "docs" / "benchmarks.md").read_text()
    if importlib.util.find_spec("matplotlib"):  # DuckDB 1.5's environment draws nothing.
        figures.depths = {1: 1e8, 2: 1.5e8, 8: 2e8}
        figures.save(copy)
        assert pictures.Figures.load(copy) == figures
        drawn = [path.name for path in pictures.draw(figures, tmp_path)]
        assert drawn == ["targets.png", "peers.png", "depths.png"]


def test_every_setting_and_command_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    con = crosslane.connect()
    names = [row[0] for row in con.execute("SELECT name FROM crosslane_settings()").fetchall()]
    query = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_name LIKE 'crosslane_%'"
    names += [row[0] for row in con.execute(query).fetchall() if row[0] not in INTERNAL]
    con.close()
    assert len(names) > 10
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("command", ["stats", "pools", "lanes"])
def test_the_columns_of_statistics_are_documented(command: str) -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    (table,) = re.findall(
        rf"^\| column of `crosslane_{command}\(\)` \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    documented = re.findall(r"^\| `(\w+)` \| (?:\S+ )?\| \S", table, re.MULTILINE)
    con = crosslane.connect()
    columns = con.sql(f"FROM crosslane_{command}()").columns
    con.close()
    assert documented == columns
