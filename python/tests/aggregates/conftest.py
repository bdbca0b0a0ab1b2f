"""The file of aggregates that tests in this folder share."""

from __future__ import annotations

import duckdb
import pytest

from ..conftest import Load

TOTALS = """
from crosslane import udaf
@udaf
class Total:
    "Adds integers."
    def __init__(self):
        self.sum = 0
    def update(self, x: int) -> None:
        self.sum += x
    def merge(self, other) -> None:
        self.sum += other.sum
    def finish(self) -> int:
        return self.sum

@udaf("things(x VARCHAR[]) -> VARCHAR[][]")
class Things:
    def __init__(self):
        self.all = []
    def update(self, x):
        self.all.append(x)
    def merge(self, other):
        self.all += other.all
    def finish(self):
        return self.all

@udaf
class Newest:
    "Slots, two parameters, and NULL."
    __slots__ = ("value", "rows")
    def __init__(self):
        self.value = None
        self.rows = 0
    def update(self, x: float | None, weight: int) -> None:
        self.rows += weight
        if x is not None:
            self.value = x
    def merge(self, other: "Newest") -> None:
        self.rows += other.rows
        self.value = other.value if self.value is None else self.value
    def finish(self) -> str:
        return f"{self.value} {self.rows}"
"""


@pytest.fixture
def totals(load: Load) -> duckdb.DuckDBPyConnection:
    con = load(TOTALS)
    con.execute("SELECT setseed(0.5)")
    con.execute(
        "CREATE TABLE data AS SELECT i, (random() * 100)::BIGINT AS few, (random() * 10000)::BIGINT AS many, "
        "CASE WHEN random() < 0.9 THEN (random() * 1000)::BIGINT END AS x FROM range(60000) t(i)"
    )
    return con
