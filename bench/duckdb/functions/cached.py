"""The function of `costly.py` with a cache, in a file of its own, which the benchmark loads again."""

import tempfile
from pathlib import Path

from crosslane import udf

CACHE = Path(tempfile.gettempdir()) / "crosslane-bench-cache.db"


@udf(cache=CACHE)
def works_cached(x: int) -> int:
    """A function whose results stay after the program has ended."""
    import time

    end = time.perf_counter_ns() + 100_000
    while time.perf_counter_ns() < end:
        pass
    return x + 1
