"""What the benchmark of the server calls in Python."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udf


@udf
def py_nothing(x: int) -> int:
    """A function that does nothing."""
    return x


@udf
def py_spin(us: int) -> int:
    """Keeps a processor busy for so many microseconds."""
    end = time.perf_counter_ns() + us * 1000
    while time.perf_counter_ns() < end:
        pass
    return us


@udf
def py_add(x: int) -> int:
    """The cheapest function of rows."""
    return x + 1


@udf(vectorized=True)
def py_vectorized(x: pa.Int64Array) -> pa.Int64Array:
    """The cheapest function of columns."""
    return pc.add(x, 1)
