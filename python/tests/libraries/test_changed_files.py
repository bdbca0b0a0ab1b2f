"""A library runs the version that was loaded. A restarted process refuses a file that has changed."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import error, eventually, kill, processes, value

pytestmark = pytest.mark.any_duckdb

#: A file and a module that it imports. The tests change one and then the other.
FILES = {
    "py": (
        "from crosslane import udf\nimport helper\n@udf\ndef f(x: int) -> str: return '{0}' + helper.name\n",
        "helper.py",
        "name = '{0}'",
    ),
    "rb": (
        "require_relative 'helper'\nudf('f(x BIGINT) -> VARCHAR') {{ |x| '{0}' + NAME }}\n",
        "helper.rb",
        "NAME = '{0}'",
    ),
    "js": (
        "import {{ name }} from './helper.js';\nudf('f(x BIGINT) -> VARCHAR', (x) => '{0}' + name);\n",
        "helper.js",
        "export const name = '{0}';",
    ),
}


def kill_workers() -> None:
    def none_was_left() -> bool:
        left = processes()
        # One of the processes may have started another one meanwhile.
        kill(left)
        return not left

    assert eventually(none_was_left)


def answer(con: duckdb.DuckDBPyConnection) -> object:
    """The answer of a query. The first query may find a lane that was killed. Then the second query
    answers."""
    try:
        return value(con, "SELECT f(1)")
    except duckdb.Error:
        return value(con, "SELECT f(1)")


@pytest.mark.parametrize("language", FILES)
def test_a_file_that_has_changed_is_not_run(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, subtests: pytest.Subtests, language: str
) -> None:
    main, name, module = FILES[language]
    path, helper = tmp_path / f"functions.{language}", tmp_path / name
    path.write_text(main.format("a"))
    helper.write_text(module.format("b"))
    con.execute("CALL crosslane_set('warm_lanes', '1')").fetchall()
    crosslane.load(con, path)
    assert value(con, "SELECT f(1)") == "ab"
    # A file with the same text loads again.
    kill_workers()
    assert answer(con) == "ab"
    for changed, file, text, before, after in (
        ("the file", path, main.format("c"), "ab", "cb"),
        ("a module that it imports", helper, module.format("d"), "cb", "cd"),
    ):
        with subtests.test(changed):
            # Nothing changes while the process that has loaded the file runs.
            file.write_text(text)
            assert value(con, "SELECT f(1)") == before
            kill_workers()
            said = error(con, "SELECT f(i) FROM range(2) r(i)")
            if "has changed since it was loaded" not in said:
                # That query found a lane that had been killed.
                said = error(con, "SELECT f(i) FROM range(2) r(i)")
            # The next query fails with the same error.
            for shown in (said, error(con, "SELECT f(i) FROM range(2) r(i)")):
                assert "has changed since it was loaded" in shown
                assert f"CALL crosslane_load('{path}')" in shown
            crosslane.load(con, path)
            assert value(con, "SELECT f(1)") == after


def test_an_edit_within_the_same_second_is_seen(
    monkeypatch: pytest.MonkeyPatch, con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """Python's cache of compiled files recognizes a file by its size and by the second of its last change."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    main, name, module = FILES["py"]
    path, helper = tmp_path / "functions.py", tmp_path / name
    for first, second in [("a", "b"), ("c", "d")]:
        path.write_text(main.format(first))
        helper.write_text(module.format(second))
        for file in (path, helper):
            os.utime(file, (1_700_000_000, 1_700_000_000))
        crosslane.load(con, path)
        assert value(con, "SELECT f(1)") == first + second
