"""`crosslane init`: what a folder of functions gets."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from crosslane._cli import main
from crosslane._runtime.languages import PACKAGE

pytestmark = pytest.mark.any_duckdb

TYPES = (PACKAGE / "crosslane.d.ts").read_text()


def init(folder: Path) -> Result:
    return CliRunner().invoke(main, ["init", str(folder)])


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "it's mine"
    result = init(folder)
    assert result.exit_code == 0
    written = contents(folder)
    assert set(written) == {"crosslane.d.ts", "functions.js", "functions.py", "jsconfig.json"}
    assert written["crosslane.d.ts"] == TYPES
    # The command that the output recommends works.
    command = shlex.split(result.output.splitlines()[-1].removeprefix("try: crosslane "))
    run = subprocess.run(
        [sys.executable, "-m", "crosslane._cli", *command, "--format", "csv"], capture_output=True, text=True
    )
    assert (run.stdout.splitlines()[1:], run.stderr) == (["119.0,hello-world"], "")
    again = init(folder)
    assert (again.exit_code, contents(folder)) == (0, written)
    assert again.output.count("is there already\n") == 2
    assert "try:" not in again.output


def test_files_stay_as_they_are(tmp_path: Path) -> None:
    before = {
        "crosslane.d.ts": "// of another version\n",
        "jsconfig.json": "{}\n",
        "shop.rb": "",
    }
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    result = init(tmp_path)
    assert result.exit_code == 0
    assert contents(tmp_path) == before
    assert "crosslane.d.ts is there already, with another content" in result.output
    assert "to renew crosslane.d.ts for this version of Crosslane, delete it" in result.output
    assert (
        'jsconfig.json is there already: if it has "include" or "files", add "crosslane.d.ts"'
        in result.output
    )


def test_a_folder_of_typescript(tmp_path: Path) -> None:
    (tmp_path / "tsconfig.json").write_text("{}")
    (tmp_path / "functions.js").write_text("// mine")
    result = init(tmp_path)
    assert set(contents(tmp_path)) == {"crosslane.d.ts", "functions.js", "tsconfig.json"}
    assert "tsconfig.json is there already: if it has" in result.output


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert init(tmp_path / "file").exit_code == 2
