"""The plugin of pytest, in separate runs of pytest."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

#: The entry point has the name of the module. So this name also works where the plugin is installed.
PLUGIN = "crosslane._testing.plugin"
TESTS = """
seen = []

def test_a_connection(crosslane_connection):
    seen.append(crosslane_connection)
    assert crosslane_connection.sql("FROM crosslane_functions()").fetchall() == []
    crosslane_connection.execute("CREATE TABLE t AS SELECT 1 AS x")

def test_files_and_a_new_database(crosslane_connection, crosslane_load):
    assert crosslane_load("twice.py", "slug.js") is crosslane_connection
    assert crosslane_connection.sql("SELECT slug('A') || twice(2)").fetchall() == [("a4",)]
    assert crosslane_connection.sql("SHOW TABLES").fetchall() == []

def test_the_first_connection_is_closed():
    try:
        seen[0].execute("SELECT 1")
    except Exception as error:
        assert "closed" in str(error)
    else:
        raise AssertionError
"""


def test_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "twice.py").write_text(
        "from crosslane import udf\n@udf\ndef twice(x: int) -> int:\n    return 2 * x\n"
    )
    (tmp_path / "slug.js").write_text(
        'udf("slug(title VARCHAR) -> VARCHAR", (title) => title.toLowerCase());'
    )
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "3 passed" in run.stdout, run.stdout + run.stderr


def test_pytest_finds_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def test_it_imports_no_engine() -> None:
    program = f"import sys, {PLUGIN}; print(*{{'duckdb', 'pyarrow', 'numpy', 'crosslane._guest'}} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("\n", "")
