"""Cells of a notebook that declare functions."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

#: A notebook. It runs its cells one after the other until one fails.
NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell()
for cell in {cells!r}:
    shell.run_cell(cell, store_history=True)
shell.history_manager.end_session()
"""


def said(tmp_path: Path, *cells: str) -> str:
    """The output of the cells, with errors."""
    program = tmp_path / "notebook.py"
    program.write_text(NOTEBOOK.format(cells=["%load_ext crosslane", *map(textwrap.dedent, cells)]))
    ended = subprocess.run(
        [sys.executable, program],
        env={"IPYTHONDIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("language", "first", "second"),
    [
        (
            "python",
            "factor = 3\n@udf\ndef scaled(x: int) -> int:\n    return factor * x",
            "@udf\ndef scaled(x: int) -> int:\n    return 100 * factor * x",
        ),
        (
            "javascript",
            'udf("scaled(x BIGINT) -> BIGINT", (x) => 3 * x);',
            'udf("scaled(x BIGINT) -> BIGINT", (x) => 300 * x);',
        ),
        (
            "ruby",
            'udf("scaled(x BIGINT) -> BIGINT") { |x| 3 * x }',
            'udf("other() -> BIGINT") { 1 }\nudf "scaled(x BIGINT) -> BIGINT" do |x| 300 * x end',
        ),
        (
            "lua",
            'udf("scaled(x BIGINT) -> BIGINT", function(x) return 3 * x end)',
            'udf("scaled(x BIGINT) -> BIGINT", function(x) return 300 * x end)',
        ),
    ],
)
def test_a_cell_that_is_run_again_replaces_its_functions(
    tmp_path: Path, language: str, first: str, second: str
) -> None:
    answer = 'print("answer", con.execute("SELECT scaled(14)").fetchone()[0])'
    shown = said(
        tmp_path,
        "import crosslane\ncon = crosslane.connect()",
        f"%%crosslane {language}\n{first}",
        answer,
        f"%%crosslane {language} con\n{second}",
        answer,
        f"%%crosslane {language} con\n{second}\n{{{{ broken",
        answer,
        "con.close()",
    )
    assert "scaled(x BIGINT) -> BIGINT" in shown
    assert "answer 42\n" in shown
    # A cell that cannot be run leaves the functions unchanged.
    assert shown.count("answer 4200\n") == 2


def test_cells_that_cannot_be_run_say_why(tmp_path: Path) -> None:
    shown = said(
        tmp_path,
        "%%crosslane python\nx = 1",
        "import crosslane\none = crosslane.connect()\ntwo = crosslane.connect()",
        "%%crosslane python\nx = 1",
        "%%crosslane cobol\nx",
        "%%crosslane python nope\nx",
        "%%crosslane python one\n@udf\ndef f(x) -> int: return x",
        "%%crosslane python one\n1 / 0",
        "%%crosslane javascript one\nudf('f(x BIGNT) -> BIGINT', (x) => x);",
        "one.close(); two.close()",
    )
    for part in [
        "there is no connection; make one: con = crosslane.connect()",
        "there are several connections (one, two); name one: %%crosslane python con",
        "the language is python, javascript, typescript, ruby, lua",
        "nope is no connection",
        "parameter x has no type",
        "ZeroDivisionError",
        "the cell failed, and none of its functions was registered",
        "SignatureError",
    ]:
        assert part in shown
