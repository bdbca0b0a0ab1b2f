"""The functions that the benchmark of the server calls in Python."""

from __future__ import annotations

import re
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
    """Keeps a processor busy for this many microseconds."""
    end = time.perf_counter_ns() + us * 1000
    while time.perf_counter_ns() < end:
        pass
    return us


@udf
def py_add(x: int) -> int:
    """The cheapest function of rows."""
    return x + 1


@udf
def py_number(text: str) -> int:
    """Finds the number in a text such as `No. 1,234`, and adds 1."""
    return int(re.sub(r"\D+", "", text)) + 1


@udf(vectorized=True)
def py_vectorized(x: pa.Int64Array) -> pa.Int64Array:
    """The cheapest function of columns."""
    return pc.add(x, 1)
