"""The benchmark's scalar functions. Each has a counterpart in DuckDB's own Python functions."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udf


@udf
def plus_one(x: int) -> int:
    """The cheapest function there is."""
    return x + 1


@udf(inline=False)
def plus_one_called(x: int) -> int:
    """The same, called for each row."""
    return x + 1


@udf
def plus_one_if(x: int) -> int:
    """The cheapest function with a statement in it."""
    if x < 0:
        return 0
    return x + 1


@udf
def sum_of_two(a: float, b: float) -> float:
    """The cheapest function of two parameters."""
    return a + b


@udf
def bench_upper(s: str) -> str:
    """The cheapest function on strings."""
    return s.upper()


@udf(vectorized=True)
def plus_one_vectorized(x: pa.Int64Array) -> pa.Int64Array:
    """The cheapest function on columns."""
    return pc.add(x, 1)


@udf
def heavy(x: int) -> int:
    """About 20 us of work."""
    total = x
    for i in range(400):
        total ^= i * i
    return total


@udf(concurrency=64)
async def wait(x: int) -> int:
    """A service that takes 1 ms to answer."""
    await asyncio.sleep(0.001)
    return x
