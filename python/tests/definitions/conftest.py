"""Tests of definitions in SQL."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from ..conftest import eventually


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tests read and write no file of the user."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def closed(path: Path) -> None:
    """Waits until another program may open the database's file with other settings."""

    def is_closed() -> bool:
        try:
            duckdb.connect(str(path), config={"threads": 3}).close()
        except duckdb.Error:
            return False
        return True

    assert eventually(is_closed)
