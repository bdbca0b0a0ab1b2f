"""Functions as people write them, which are evaluated by columns."""

from __future__ import annotations

from math import asin, cos, radians, sin, sqrt

from crosslane import udf

RATE = 2.35
LARGE = 9_223_372_036_854_775_807


@udf
def distance(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Miles along a great circle."""
    a, b = radians(lat1), radians(lat2)
    h = sin((b - a) / 2) ** 2 + cos(a) * cos(b) * sin(radians(lon2 - lon1) / 2) ** 2
    return 2 * 3958.7613 * asin(sqrt(h))


@udf
def fare(miles: float, day: int) -> float:
    """The price of a ride: two branches, a surcharge at weekends, cents."""
    if miles < 2:
        price = 6.5
    elif miles < 10:
        price = 3.5 + miles * RATE
    else:
        price = 22.0 + (miles - 10) * 1.9
    if day % 7 in (5, 6):
        price = price * 1.25
    return round(price, 2)


@udf
def stepped(x: int) -> int:
    """A local variable and a condition."""
    y = x * 3
    if y % 2 == 0:
        y = y + 1
    return y - 7


@udf
def three_operations(a: float, b: float) -> float:
    """Three operations of two parameters."""
    return (a + b) * a - b


@udf
def slug(title: str) -> str:
    """A title as a part of an address."""
    return title.lower().strip().replace(" ", "-")


@udf
def label(name: str, number: int) -> str:
    """A text of a text and a number."""
    return f"{name}: {number}"


@udf
def always_leaves(x: int) -> int:
    """A sum that never has 64 bits."""
    y = x + LARGE
    return y % 1000


@udf
def always_called(x: int) -> int:
    """The same, with a statement that is never evaluated by columns, and costs nothing."""
    y: int
    y = x + LARGE
    return y % 1000
