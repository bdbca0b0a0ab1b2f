"""Profiles: which lines of Python functions took the time of a trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import Library, value

pytestmark = pytest.mark.any_duckdb

COMMAND = [sys.executable, "-m", "crosslane._cli"]


#: A function that works until the profiler has taken samples of it.
WORKS = """
import os
from pathlib import Path

def is_sampled():
    path = Path(os.environ["CROSSLANE_PROFILE"], f"{os.getpid()}.json")
    return path.exists() and "inner" in path.read_text()

def inner(count):
    # Python switches to the thread that takes samples only between two instructions.
    for _ in range(count):
        pass

@udf(deterministic=False)
def works(x: int) -> int:
    while not is_sampled():
        inner(1_000_000)
    return x

@udf(deterministic=False)
async def pauses(x: int) -> int:
    import asyncio
    await asyncio.sleep(0.001)
    return x
"""


def profile_of(page: Path) -> dict[str, Any]:
    """The samples on the page of a trace."""
    text = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert text
    return json.loads(text[1])["profile"]


def names(line: dict[str, Any]) -> set[str]:
    """The functions that are called from a line of a profile."""
    return {line.get("name", "")}.union(*map(names, line["called"]))


def test_a_profile_has_the_lines_of_functions(library: Library, tmp_path: Path) -> None:
    page, path = tmp_path / "a.html", library(WORKS)
    query = "SELECT sum(works(i)), sum(pauses(i)) FROM range(3) r(i)"
    subprocess.run([*COMMAND, "trace", "--profile", "-o", page, "-f", path, query], check=True)
    profile = profile_of(page)
    works = [line for line in profile["called"] if line["name"] == "works"]
    assert works
    text = path.read_text().splitlines()
    for line in works:
        assert line["file"] == str(path)
        assert text[line["line"] - 1].strip() in ("inner(1_000_000)", "while not is_sampled():")
    assert "inner" in names(profile)
    # The profile shows nothing of Crosslane, and its folder is deleted.
    assert all("/crosslane/" not in line["file"] for line in profile["called"])
    assert profile["samples"] == sum(line["samples"] for line in profile["called"])


def test_a_profile_of_a_block(con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    with crosslane.trace(con, page, profile=True):
        crosslane.load(con, library(WORKS))
        assert value(con, "SELECT works(i) FROM range(1) r(i)") == 0
    assert "inner" in names(profile_of(page))
    assert "CROSSLANE_PROFILE" not in os.environ
    # Without a profile, the page has no samples.
    with crosslane.trace(con, page):
        value(con, "SELECT 1")
    assert profile_of(page) is None


def test_a_worker_that_died_ends_no_profile(library: Library, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    path = library("import os\n@udf\ndef dies(x: int) -> int: os._exit(3)")
    done = subprocess.run(
        [*COMMAND, "trace", "--profile", "-o", page, "-f", path, "SELECT dies(i) FROM range(1) r(i)"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "exit code 3" in done.stderr
    assert profile_of(page)["samples"] >= 0


def test_a_function_that_calls_itself_often_has_a_profile(library: Library, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    path = library("""
        import os
        from pathlib import Path
        def dive(depth):
            if depth > 0:
                return dive(depth - 1)
            path = Path(os.environ["CROSSLANE_PROFILE"], f"{os.getpid()}.json")
            while not (path.exists() and "dive" in path.read_text()):
                for _ in range(1_000_000):
                    pass
            return 0
        @udf
        def dives(x: int) -> int:
            return dive(900)
        """)
    query = "SELECT dives(i) FROM range(1) r(i)"
    subprocess.run([*COMMAND, "trace", "--profile", "-o", page, "-f", path, query], check=True)
    assert {"dives", "dive"} <= names(profile_of(page))


def test_a_profile_is_shown_by_a_page(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"ends with \.html"),
        crosslane.trace(con, tmp_path / "a.json", profile=True),
    ):
        pass
    done = subprocess.run(
        [*COMMAND, "trace", "--profile", "-o", tmp_path / "a.json", "SELECT 1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "ends with .html" in done.stderr
