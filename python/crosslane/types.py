"""Python types for the SQL types that the standard library has no type for."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """A SQL INTERVAL: three numbers that cannot be added up, because months and days vary."""

    months: int = 0
    days: int = 0
    microseconds: int = 0


class TimestampNs(datetime):
    """A TIMESTAMP_NS: a datetime with a ``nanosecond`` of 0 to 999, as pandas.Timestamp has it."""

    nanosecond: int

    def __new__(cls, *parts: Any, nanosecond: int = 0, **named: Any) -> TimestampNs:
        if len(parts) == 8:
            *parts, nanosecond = parts  # type: ignore[assignment]
        self = super().__new__(cls, *parts, **named)
        self.nanosecond = nanosecond
        return self

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.nanosecond == getattr(other, "nanosecond", 0)

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.nanosecond))

    def __repr__(self) -> str:
        return f"TimestampNs({self.isoformat(timespec='microseconds')}{self.nanosecond:03d})"


def json_text(value: Any) -> str:
    """A value as JSON text; NaN and infinities, which JSON lacks, raise ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
