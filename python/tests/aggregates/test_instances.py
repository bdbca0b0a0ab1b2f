"""Instances of unusual classes as states of aggregates."""

from __future__ import annotations

import duckdb
import pytest

from ..conftest import Load, eventually
from .test_aggregates import at_rest

ODD = """
from crosslane import udaf
import itertools

class Lists:
    def __init__(self):
        self.rows = []
    def update(self, x: str) -> None:
        self.rows.append(x)
    def merge(self, other) -> None:
        self.rows += other.rows
    def finish(self) -> str:
        return f"{len(self.rows)} {sum(map(int, self.rows))}"

class Plain:
    "What holds nothing but plain values."
    def __init__(self):
        self.count, self.sum, self.mean, self.last, self.some, self.none = 0, 0, 0.0, "", False, None
    def update(self, x: str) -> None:
        self.count, self.sum, self.mean, self.last, self.some = self.count + 1, self.sum + int(x), 0.5, x, True
    def merge(self, other) -> None:
        assert vars(other).keys() == vars(self).keys()
        assert (other.mean, other.last.isdigit(), other.some, other.none) == (0.5, True, True, None)
        self.count, self.sum = self.count + other.count, self.sum + other.sum
    def finish(self) -> str:
        return f"{self.count} {self.sum}"

@udaf
class PlainValues(Plain): ...

@udaf
class Large(Plain):
    "Numbers beyond 64 bits, a text that has no UTF-8, and a long name."
    def __init__(self):
        super().__init__()
        self.sum, self.half = 2**70, chr(0xD800)
        setattr(self, "n" * 300, 1)
    def merge(self, other) -> None:
        assert other.half == chr(0xD800) and getattr(other, "n" * 300) == 1
        self.count, self.sum = self.count + other.count, self.sum + other.sum - 2**70
    def finish(self) -> str:
        return f"{self.count} {self.sum - 2**70}"

@udaf
class Slots(Lists):
    __slots__ = ("sum",)
    def __init__(self):
        super().__init__()
        self.sum = 0
    def update(self, x: str) -> None:
        super().update(x)
        self.sum += int(x)
    def merge(self, other) -> None:
        super().merge(other)
        self.sum += other.sum
    def finish(self) -> str:
        return f"{len(self.rows)} {self.sum}"

@udaf
class OwnState(Lists):
    def __getstate__(self):
        return tuple(self.rows)
    def __setstate__(self, rows):
        self.rows = list(rows)

@udaf
class Reduced(Lists):
    def __reduce__(self):
        return made, (self.rows,)

def made(rows):
    reduced = Reduced.class_() if hasattr(Reduced, "class_") else Reduced()
    reduced.rows = list(rows)
    return reduced

@udaf
class Cycle(Lists):
    "Refers to itself, and has the same list twice."
    def __init__(self):
        super().__init__()
        self.me, self.same = self, self.rows
    def merge(self, other) -> None:
        assert other.me is other and other.same is other.rows and other.rows is not self.rows
        super().merge(other)

@udaf
class Property(Lists):
    @property
    def rows(self):
        return self.__dict__["rows"]
    @rows.setter
    def rows(self, rows):
        self.__dict__["rows"] = rows

@udaf
class Shadowed(Lists):
    "Its instances have methods of their own."
    def __init__(self):
        super().__init__()
        self.update = self.first
    def first(self, x):
        del self.update
        self.rows.append(x)
    def update(self, x: str) -> None:
        self.rows.append(x)
    def merge(self, other) -> None:
        super().merge(other)

@udaf
class Other(Lists):
    "Its instances are those of other classes."
    classes = itertools.cycle([0, 1])
    def __new__(cls):
        return object.__new__(cls if next(Other_.classes) else Child)
Other_ = Other.class_ if hasattr(Other, "class_") else Other
class Child(Other_):
    def update(self, x: str) -> None:
        self.rows = [*self.rows, x]

@udaf
class Changed(Lists):
    "Its update is another one after some rows."
    def update(self, x: str) -> None:
        Changed_.update = changed
        self.rows.append(x)
Changed_ = Changed.class_ if hasattr(Changed, "class_") else Changed
def changed(self, x):
    self.rows += [x]
"""


ODD_ONES = [
    "plain_values",
    "large",
    "slots",
    "own_state",
    "reduced",
    "cycle",
    "property",
    "shadowed",
    "other",
    "changed",
]


@pytest.mark.any_duckdb
def test_instances_of_unusual_classes_are_states(load: Load, subtests: pytest.Subtests) -> None:
    con = load(ODD)
    con.execute("SET threads = 2")
    con.execute("PRAGMA verify_parallelism")
    con.execute("CREATE TABLE data AS SELECT i, i::VARCHAR AS x FROM range(30000) t(i)")
    for function in ODD_ONES:
        with subtests.test(function):
            instances_pass(con, function)


def instances_pass(con: duckdb.DuckDBPyConnection, function: str) -> None:
    expected = "count(*) || ' ' || sum(i)"
    # The states go from lane to lane. They have many rows each, then few, and then about as many rows as may
    # wait.
    for groups in (7, 1000, 1700, 9000):
        query = f"SELECT i % {groups} AS g, {{}} AS s FROM data GROUP BY g ORDER BY g"
        assert (
            con.execute(query.format(f"{function}(x)")).fetchall()
            == con.execute(query.format(expected)).fetchall()
        )
    # The engine copies these states, and combines each copy with several others.
    for before in (3, 60):
        query = f"SELECT {{}} OVER (ORDER BY i ROWS {before} PRECEDING) FROM data WHERE i < 2200"
        framed = (
            "SELECT count(*) OVER w || ' ' || sum(i) OVER w FROM data WHERE i < 2200 "
            f"WINDOW w AS (ORDER BY i ROWS {before} PRECEDING)"
        )
        assert con.execute(query.format(f"{function}(x)")).fetchall() == con.execute(framed).fetchall()
    assert eventually(lambda: at_rest(con))
