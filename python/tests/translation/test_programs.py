"""Random functions give by columns what CPython gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import programs

pytestmark = pytest.mark.any_duckdb


@pytest.mark.parametrize("seed", [1, 2])
def test_results_are_those_of_cpython(tmp_path: Path, seed: int) -> None:
    # More rows than a chunk has, and than a batch of DuckDB's.
    compared, by_columns = programs.run(seed, 20, 2100, tmp_path)
    assert compared == 20 * 2100
    assert by_columns >= 15


#: Cases that random programs have found: what a function returns, and its last statement.
FOUND = [
    ("date", "return (d if b else d) - (timedelta(3, 7) // i)"),
    ("float", "return math.copysign(HOUR.total_seconds(), y / (x % -2.5 * math.nan))"),
    ("str", "return str(math.expm1(x))"),
    ("str", "return format(s, '-5')"),
    ("bool", "return i in (1, 7) and (x > 1) == (y > 1)"),
]


def test_what_was_found_stays_mended(tmp_path: Path) -> None:
    programs.run_sources([programs.source(f"f{n}", *case) for n, case in enumerate(FOUND)], 3, 2100, tmp_path)
