"""What `tools/setup` requires of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).parents[3]
#: The programs of a small machine, without those that a test adds.
PRESENT = ("bash", "dirname", "uname", "id", "env", "cc", "python3", "ruby")


def setup(folder: Path, purpose: str, *present: str) -> str:
    """The output of `tools/setup` on a machine without some programs, where apt-get always fails."""
    for name in {*PRESENT, *present}:
        (folder / name).symlink_to(shutil.which(name) or "/bin/true")
    for name in ("apt-get", "sudo"):
        (folder / name).write_text(f'#!/bin/bash\necho "{name} $*"\nexit 7\n')
        (folder / name).chmod(0o755)
    result = subprocess.run(
        [ROOT / "tools" / "setup", purpose],
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 7, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("purpose", ["demo", "test", "bench"])
def test_packages_are_named_with_reasons_before_they_are_installed(purpose: str, tmp_path: Path) -> None:
    said, _, done = setup(tmp_path, purpose).partition("apt-get update")
    assert done
    assert "g++: compiles the part around V8" in said
    assert f"make {purpose} needs them" in said
    assert ("rubocop: checks the Ruby code" in said) == (purpose == "test")
    for package in ("default-jdk-headless: compiles Spark's plugin", "maven: builds Spark's plugin"):
        assert (package in said) == (purpose != "demo")


def test_what_only_the_tests_need_is_installed_for_them_only(tmp_path: Path) -> None:
    assert "g++" not in setup(tmp_path, "test", "c++")


def test_an_unknown_purpose() -> None:
    usage = subprocess.run([ROOT / "tools" / "setup", "nonsense"], capture_output=True, text=True, timeout=60)
    assert (usage.returncode, usage.stderr) == (2, "usage: tools/setup [demo|spark|test|bench|sparks]\n")
