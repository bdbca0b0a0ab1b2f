"""The soak, for a few seconds. It kills lanes and zygotes at random, and every answer stays right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

SOAK = Path(__file__).resolve().parents[3] / "tools" / "soak" / "engine.py"


def test_a_short_soak_finds_nothing() -> None:
    outcome = subprocess.run([sys.executable, SOAK, "8"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "wrong rows" in outcome.stdout


def test_the_soak_finds_wrong_rows() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SOAK.parent)!r}); import engine, shared\n"
        # On a busy machine, each thread may run only a few queries.
        "shared.EXPECTED.update(dict.fromkeys(shared.EXPECTED, (lambda x: -7, 100)))\n"
        "sys.exit(0 if engine.run(3, 1) else 1)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "wrong rows: SELECT" in outcome.stdout


def test_the_soak_of_a_server_finds_wrong_rows() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SOAK.parent)!r}); import server, shared\n"
        "shared.SOURCES['py'] = shared.SOURCES['py'].replace('{x * 7}', '{x * 8}')\n"
        "sys.exit(0 if server.run(60, 1) else 1)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "wrong rows: SELECT i, py_text(i)" in outcome.stdout
