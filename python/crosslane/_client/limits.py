"""How many calls may run at a time, and how many batches a worker may have."""

from __future__ import annotations

import os

_MOST_LANES = 1024
_MOST_DEPTH = 64


def check_lanes(lanes: int | None) -> int:
    """The number of lanes; by default one per processor that this process may use.

    Raises:
        ValueError: if it is no number, or out of range.
    """
    return _checked(
        "lanes", min(len(os.sched_getaffinity(0)), _MOST_LANES) if lanes is None else lanes, _MOST_LANES
    )


def check_depth(depth: int) -> int:
    """The number of batches that a worker has at most.

    Raises:
        ValueError: if it is no number, or out of range.
    """
    return _checked("depth", depth, _MOST_DEPTH)


def _checked(option: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{option} is a whole number from 1 to {most}, not {value!r}")
    return value
