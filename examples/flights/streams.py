"""A function of the stream of New York's flights of 2013, for crosslane.map."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from crosslane import udtf

HOUR = timedelta(hours=1)


@udtf("aloft(flights TABLE(took_off TIMESTAMP, minutes DOUBLE)) -> TABLE(hour TIMESTAMP, minutes DOUBLE)")
def aloft(flights: list) -> Iterator[tuple[datetime, float]]:
    """The minutes that each flight was in the air in each hour that it touched."""
    for took_off, minutes in flights:
        landed = took_off + timedelta(minutes=minutes)
        hour = took_off.replace(minute=0, second=0, microsecond=0)
        while hour < landed:
            within = min(landed, hour + HOUR) - max(took_off, hour)
            yield hour, within.total_seconds() / 60
            hour += HOUR
