"""The benchmark's stateful functions: one with a long set-up, and the same function without a set-up."""

from __future__ import annotations

import time

from crosslane import udf


@udf
class Stateful:
    """Adds the number that it has set up."""

    def __init__(self) -> None:
        time.sleep(1)
        self.one = 1

    def __call__(self, x: int) -> int:
        return x + self.one


@udf(inline=False)
def stateless(x: int) -> int:
    """Adds the same number, and is called in the same way."""
    return x + 1
