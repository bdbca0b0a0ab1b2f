"""Functions on New York's flights of 2013, one of each kind."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import asin, atan2, cos, degrees, exp, radians, sin, sqrt
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udaf, udf, udtf

EARTH_RADIUS_MILES = 3958.7613
SHORT = {"intl": "International", "rgnl": "Regional", "muni": "Municipal", "co": "County", "fld": "Field"}


@udf
def great_circle(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Miles along the surface between two places (the haversine formula)."""
    a, b = radians(lat1), radians(lat2)
    h = sin((b - a) / 2) ** 2 + cos(a) * cos(b) * sin(radians(lon2 - lon1) / 2) ** 2
    return 2 * EARTH_RADIUS_MILES * asin(sqrt(h))


@udf
def full_name(airport: str) -> str:
    """An airport's name without abbreviations."""
    return " ".join(SHORT.get(word.lower(), word) for word in airport.split())


@udf
def registration(tailnum: str | None) -> str:
    """A tail number as N-12345-XX, and "unknown" where there is none."""
    if tailnum is None or not tailnum.startswith("N"):
        return "unknown"
    digits = tailnum[1:].rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    letters = tailnum[1 + len(digits) :]
    return f"N-{digits}-{letters}" if letters else f"N-{digits}"


class Waypoint(NamedTuple):
    """A place on the way."""

    mile: float
    lat: float
    lon: float


@udtf
def waypoints(lat1: float, lon1: float, lat2: float, lon2: float, every: float = 500) -> Iterator[Waypoint]:
    """The places along the great circle between two, so many miles apart."""
    miles = great_circle(lat1, lon1, lat2, lon2)
    arc = miles / EARTH_RADIUS_MILES
    start, end = _on_sphere(lat1, lon1), _on_sphere(lat2, lon2)
    for mile in (*range(0, int(miles), int(every)), miles):
        part = mile / EARTH_RADIUS_MILES
        x, y, z = ((sin(arc - part) * a + sin(part) * b) / sin(arc) for a, b in zip(start, end, strict=True))
        yield Waypoint(float(mile), degrees(asin(z)), degrees(atan2(y, x)))


def _on_sphere(lat: float, lon: float) -> tuple[float, float, float]:
    a, b = radians(lat), radians(lon)
    return cos(a) * cos(b), cos(a) * sin(b), sin(a)


@dataclass
class Leg:
    """What a flight was like."""

    mph: float
    made_up: int
    verdict: str


@udf
def leg(miles: float, minutes: float, departure_delay: int, arrival_delay: int) -> Leg:
    """Speed, minutes made up in the air, and a word about it."""
    made_up = departure_delay - arrival_delay
    verdict = "late" if arrival_delay > 15 else "early" if arrival_delay < -15 else "on time"
    return Leg(miles / minutes * 60, made_up, verdict)


@udf(vectorized=True)
def wind_chill(fahrenheit: pa.DoubleArray, mph: pa.DoubleArray) -> pa.DoubleArray:
    """How cold it feels (the US National Weather Service's formula of 2001), where that is defined."""
    blowing = pc.power(mph, 0.16)
    felt = pc.add(
        pc.subtract(pc.add(35.74, pc.multiply(0.6215, fahrenheit)), pc.multiply(35.75, blowing)),
        pc.multiply(pc.multiply(0.4275, fahrenheit), blowing),
    )
    defined = pc.and_(pc.less_equal(fahrenheit, 50), pc.greater_equal(mph, 3))
    return pc.if_else(defined, felt, fahrenheit)


_session: aiohttp.ClientSession | None = None


@udf(concurrency=64, timeout=5, retries=2, on_error="null")
async def time_zone(airport_code: str) -> str:
    """What the demo's HTTP service says; each worker keeps its connections open."""
    return await _asked(airport_code)


@udf(memoize="1 MB", concurrency=64, timeout=5, retries=2)
async def kept_time_zone(airport_code: str) -> str:
    """The same. The service is asked once for each airport."""
    return await _asked(airport_code)


async def _asked(airport_code: str) -> str:
    global _session
    if _session is None:
        _session = aiohttp.ClientSession(os.environ["FLIGHTS_SERVICE"])
    async with _session.get(f"/zone/{airport_code}") as response:
        response.raise_for_status()
        return (await response.json())["zone"]


@udaf
class DelayOfNineInTen:
    """The delay that nine of ten flights stay below. What it keeps grows with the delays that there are, not with the flights."""

    def __init__(self) -> None:
        self.flights: Counter[int] = Counter()

    def update(self, delay: float) -> None:
        self.flights[round(delay)] += 1

    def merge(self, other: DelayOfNineInTen) -> None:
        self.flights.update(other.flights)

    def finish(self) -> float | None:
        below, nine_in_ten = 0, 0.9 * self.flights.total()
        for delay in sorted(self.flights):
            below += self.flights[delay]
            if below >= nine_in_ten:
                return float(delay)
        return None


@udf
class LateRisk:
    """How likely a flight leaves more than 30 minutes late (the model that train.py has made)."""

    def __init__(self) -> None:
        self.weights = json.loads(Path(__file__).with_name("delay_model.json").read_text())

    def __call__(self, carrier: str, hour: int, wind: float, visibility: float, rain: float) -> float:
        w = self.weights
        score = w["one"] + w["hour"] * hour / 24 + w["hour_squared"] * (hour / 24) ** 2
        score += w["wind"] * wind / 10 + w["haze"] * (1 - visibility / 10) + w["wet"] * (rain > 0)
        return 1 / (1 + exp(-score - w.get(f"carrier {carrier}", 0)))
