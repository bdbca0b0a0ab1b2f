"""What the benchmark measures of stateful functions: one with a long set-up, and its twin without."""

from __future__ import annotations

import time

from crosslane import udf


@udf
class Stateful:
    """Adds what it has set up."""

    def __init__(self) -> None:
        time.sleep(1)
        self.one = 1

    def __call__(self, x: int) -> int:
        return x + self.one


@udf(inline=False)
def stateless(x: int) -> int:
    """Adds the same, called in the same way."""
    return x + 1
