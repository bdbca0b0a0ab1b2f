"""The benchmark's aggregates and streams: a sum, row-wise and vectorized, and a light function of batches."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udaf


class Sum:
    """Adds integers."""

    def __init__(self) -> None:
        self.sum = 0

    def update(self, x: int) -> None:
        self.sum += x

    def merge(self, other: Sum) -> None:
        self.sum += other.sum

    def finish(self) -> int:
        return self.sum


sum_of_rows = udaf(name="sum_of_rows")(Sum)


@udaf(vectorized=True)
class SumOfColumns:
    """Adds columns of integers."""

    def __init__(self) -> None:
        self.sum = 0

    def update(self, x: pa.Int64Array) -> None:
        self.sum += pc.sum(x).as_py()

    def merge(self, other: SumOfColumns) -> None:
        self.sum += other.sum

    def finish(self) -> int:
        return self.sum


def in_python(rows: list[tuple[int, int]]) -> int:
    """The same loop in plain Python: the sum of the groups' sums."""
    groups: dict[int, Sum] = {}
    for group, x in rows:
        total = groups.get(group)
        if total is None:
            total = groups[group] = Sum()
        total.update(x)
    return sum(total.finish() for total in groups.values())


def light(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The cheapest function of a stream that looks at its rows."""
    return pa.record_batch({"i": pc.add(batch["i"], 1)})
