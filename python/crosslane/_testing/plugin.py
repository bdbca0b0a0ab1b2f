"""The plugin of pytest. It loads with every run of pytest, so it imports DuckDB only for a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import duckdb


@pytest.fixture
def crosslane_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a new database in memory with Crosslane, which the test's end closes."""
    import crosslane

    with crosslane.connect() as con:
        yield con


@pytest.fixture
def crosslane_load(
    crosslane_connection: duckdb.DuckDBPyConnection,
) -> Callable[..., duckdb.DuckDBPyConnection]:
    """Loads files of functions in any language, and returns ``crosslane_connection``."""
    import crosslane

    def load(*files: str | PathLike[str]) -> duckdb.DuckDBPyConnection:
        for file in files:
            crosslane.load(crosslane_connection, file)
        return crosslane_connection

    return load
