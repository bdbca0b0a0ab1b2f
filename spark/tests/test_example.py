"""The example that compares Spark with DuckDB."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "compare.py"


@pytest.mark.any_spark
@pytest.mark.timeout(900)
def test_duckdb_and_spark_give_the_same_rows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    lines = re.findall(r"│ +([\d,]+) │ (\S+)", done.stdout)
    assert len(lines) == 14
    assert {found for _, found in lines} == {"equal"}
    assert sum(int(rows.replace(",", "")) for rows, _ in lines) > 50_000


@pytest.mark.any_spark
@pytest.mark.parametrize(
    ("duck", "spark", "found"),
    [
        ([(1, "a"), (2, None)], [(2, None), (1, "a")], None),
        ([(1, 0.1 + 0.2)], [(1, 0.3)], None),
        ([(1, float("nan"))], [(1, float("nan"))], None),
        ([(1, 0.3)], [(1, 0.300001)], "DuckDB: (1, 0.3)\nSpark: (1, 0.300001)"),
        ([(1,), (2,)], [(1,)], "DuckDB: (2,)\nSpark: None"),
        ([(1,)], [(1,), (1,)], "DuckDB: None\nSpark: (1,)"),
        ([(1,)], [(None,)], "DuckDB: (1,)\nSpark: (None,)"),
        ([(1,)], [(1.0,)], "DuckDB: (1,)\nSpark: (1.0,)"),
        ([(1, "a")], [(1,)], "DuckDB: (1, 'a')\nSpark: (1,)"),
    ],
)
def test_a_difference_is_found(duck: list[tuple], spark: list[tuple], found: str | None) -> None:
    spec = importlib.util.spec_from_file_location("compare", EXAMPLE)
    compare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compare)
    assert compare.difference(duck, spark) == found
