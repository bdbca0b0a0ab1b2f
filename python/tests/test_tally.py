"""The count at the end of `make test`: each runner's words, and a skip that CI does not accept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TALLY = Path(__file__).resolve().parents[2] / "tools" / "tally.py"
CARGO = "test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 2.25s"
MINITEST = "110 runs, 2000 assertions, 1 failures, 2 errors, 3 skips"
PYTEST = "641 passed, 4 skipped, 1 xfailed in 63.05s (0:01:03)"
PART = "skipped: Ruby, which is not there"


@pytest.mark.parametrize(
    ("printed", "closing"),
    {
        CARGO: "5 passed, 0 failed, 2 skipped",
        MINITEST: "104 passed, 3 failed, 3 skipped",
        PYTEST: "641 passed, 0 failed, 5 skipped",
        f"{PYTEST}\n{PART}": "641 passed, 0 failed, 6 skipped",
        "3 passed in 0.10s": "3 passed, 0 failed, 0 skipped",
        "nothing at all": "0 passed, 0 failed, 0 skipped",
    }.items(),
)
@pytest.mark.parametrize("ci", ["", "true"])
def test_what_was_printed_is_counted(tmp_path: Path, printed: str, closing: str, ci: str) -> None:
    (tmp_path / "printed").write_text(f"other words, 7 passed by\n{printed}\n")
    command = [sys.executable, TALLY, tmp_path / "printed"]
    outcome = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CI": ci})
    assert outcome.stdout.splitlines()[-1] == closing
    good = " 0 failed" in closing and not closing.startswith("0") and not (ci and " 0 skipped" not in closing)
    assert (outcome.returncode == 0) == good


def test_several_files_are_added_up(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(PYTEST.replace("4 skipped, 1 xfailed", "1 failed") + "\n")
    command = [sys.executable, TALLY, tmp_path / "one", tmp_path / "two"]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.stdout.splitlines()[-1] == "1282 passed, 2 failed, 0 skipped"
    assert outcome.returncode == 1
