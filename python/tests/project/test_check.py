"""`make check` and `tools/test --repeat`: the tests that they choose to run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "testing")]

import check  # noqa: E402
import repeat  # noqa: E402


def test_the_tests_of_all_parts_exist() -> None:
    modules = {test.partition("::")[0] for tests in check.TESTS.values() for test in tests}
    assert [module for module in modules if not (ROOT / "python" / "tests" / module).exists()] == []
    assert [folder for folder in check.TESTS if not (ROOT / folder).exists()] == []


def test_a_change_in_a_crate_has_its_crate_and_its_language_tested() -> None:
    files = ["crates/crosslane-js/src/source.rs", "python/tests/workers/test_wide.py", "CHANGELOG.md"]
    commands = {name: command for name, command, _ in check.steps(files)}
    assert "crosslane-js" in commands["tests in Rust"]
    assert {"tests/javascript/test_javascript.py", "tests/workers/test_wide.py"} < set(
        commands["tests in Python"]
    )
    assert "tests in Ruby" not in commands


def test_a_change_that_nothing_tests() -> None:
    assert list(check.steps(["CHANGELOG.md"])) == []


@pytest.mark.parametrize(
    ("test", "words", "folder"),
    [
        ("python/tests/test_x.py::test_y[1]", ["-q", "tests/test_x.py::test_y[1]"], "python"),
        (
            "ruby/test/v8/test_values.rb:test_y",
            ["TEST=test/v8/test_values.rb", "TESTOPTS=--name=/test_y/"],
            "ruby",
        ),
        ("crosslane-ring:full", ["crosslane-ring", "full"], "."),
    ],
)
def test_each_runner_is_known(test: str, words: list[str], folder: str) -> None:
    command, cwd = repeat.command(test)
    assert command[-len(words) :] == words
    assert cwd == ROOT / folder


def test_how_often_a_test_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    counted = tmp_path / "counted"
    counted.write_text("0")
    fails = "count = int(counted.read_text())\n    counted.write_text(str(count + 1))\n    assert count % 2"
    text = f"import pathlib\ncounted = pathlib.Path({str(counted)!r})\ndef test_odd():\n    {fails}\n"
    (tmp_path / "tests" / "test_x.py").write_text(text)
    monkeypatch.setattr(
        repeat,
        "command",
        lambda test: ([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test], tmp_path),
    )
    assert repeat.repeat(3, ["tests/test_x.py"]) == {"tests/test_x.py": 2}


def test_wrong_arguments_of_repeat() -> None:
    asked = subprocess.run(
        [sys.executable, ROOT / "tools" / "testing" / "repeat.py", "often"], capture_output=True, text=True
    )
    assert (asked.returncode, asked.stderr) == (1, "usage: tools/test --repeat N TEST...\n")
