"""The count at the end of `make test`: it reads the output of each runner, and reports a skip that CI does
not accept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

TALLY = Path(__file__).resolve().parents[3] / "tools" / "testing" / "tally.py"
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
        "2 passed, 7 subtests passed in 0.33s": "9 passed, 0 failed, 0 skipped",
        "2 failed, 1 passed, 6 subtests passed in 0.72s": "7 passed, 2 failed, 0 skipped",
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


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (
            "FAILED tests/test_x.py::test_y[1.5] - assert 1 == 2\n1 failed, 2 passed in 0.10s",
            "FAILED tests/test_x.py::test_y[1.5] - assert 1 == 2",
        ),
        (
            "SUBFAILED[case 2] tests/test_x.py::test_y - assert 1 == 2\n1 failed, 2 passed in 0.10s",
            "SUBFAILED[case 2] tests/test_x.py::test_y - assert 1 == 2",
        ),
        (
            "  1) Failure:\nTableTest#test_rows [test/test_table.rb:12]:\nExpected: 1\n  Actual: 2\n"
            "4 runs, 9 assertions, 1 failures, 0 errors, 0 skips",
            "FAILED TableTest#test_rows [test/test_table.rb:12] - Expected: 1",
        ),
        (
            "  1) Error:\nTableTest#test_rows:\nNameError: undefined\n4 runs, 9 assertions, 0 failures, 1 errors, 0 skips",
            "FAILED TableTest#test_rows - NameError: undefined",
        ),
        (
            "thread 'ring::is_full' (7) panicked at src/ring.rs:5:9:\nleft is not right\n"
            "test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.25s",
            "FAILED ring::is_full - left is not right",
        ),
    ],
)
def test_what_failed_is_named_at_the_end(tmp_path: Path, printed: str, told: str) -> None:
    (tmp_path / "printed").write_text(printed + "\n")
    outcome = subprocess.run([sys.executable, TALLY, tmp_path / "printed"], capture_output=True, text=True)
    assert outcome.stdout.splitlines()[1] == told
    assert " 1 failed" in outcome.stdout.splitlines()[-1]


def test_a_step_that_failed_without_a_test_is_named(tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(
        f"took 61 s: rust: linters\nfailed after 58 s: models: a soak\n{PYTEST}\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, TALLY, tmp_path / "printed"]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.stdout.splitlines()[-4:] == [
        "",
        "failed: models: a soak",
        "",
        "641 passed, 0 failed, 5 skipped",
    ]
    assert "  0:58  models: a soak" in outcome.stdout
    assert outcome.returncode == 1


def test_steps_and_slow_tests_are_told_with_their_times(tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(
        "took 61 s: rust: linters\n2.50s call     tests/test_x.py::test_y\n3.00s setup    tests/test_x.py::test_z[a b]\n"
        f"{PYTEST}\n"
    )
    outcome = subprocess.run([sys.executable, TALLY, tmp_path / "printed"], capture_output=True, text=True)
    assert outcome.stdout.splitlines()[:6] == [
        "",
        "minutes  step",
        "  1:01  rust: linters",
        "",
        "seconds  slowest tests",
        "   3.0  tests/test_x.py::test_z[a b]",
    ]
