"""Random functions give the same results by columns as in CPython."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import programs

pytestmark = pytest.mark.any_duckdb


@pytest.mark.parametrize("seed", [1, 2])
def test_results_are_those_of_cpython(tmp_path: Path, seed: int) -> None:
    # These are more rows than a chunk has, and more than a batch of DuckDB has.
    compared, by_columns = programs.run(seed, 20, 2100, tmp_path)
    assert compared == 20 * 2100
    assert by_columns >= 15


#: Cases that random programs have found: the type of the result, and the last statement.
FOUND = [
    ("date", "return (d if b else d) - (timedelta(3, 7) // i)"),
    ("float", "return math.copysign(HOUR.total_seconds(), y / (x % -2.5 * math.nan))"),
    ("str", "return str(math.expm1(x))"),
    ("str", "return format(s, '-5')"),
    ("bool", "return i in (1, 7) and (x > 1) == (y > 1)"),
]


def test_known_differences_do_not_come_back(tmp_path: Path) -> None:
    programs.run_sources([programs.source(f"f{n}", *case) for n, case in enumerate(FOUND)], 3, 2100, tmp_path)
