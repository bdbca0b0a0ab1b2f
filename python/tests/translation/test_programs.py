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
