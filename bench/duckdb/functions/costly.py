"""A function that takes 100 us, as a service or a model on this machine may."""

import time

from crosslane import udf


def works(x: int) -> int:
    """Keeps its core busy."""
    end = time.perf_counter_ns() + 100_000
    while time.perf_counter_ns() < end:
        pass
    return x + 1


@udf(deterministic=False)
def works_each(x: int) -> int:
    """A function that is called for each row."""
    return works(x)


@udf(memoize="200 MB")
def works_kept(x: int) -> int:
    """A function whose results are kept."""
    return works(x)
