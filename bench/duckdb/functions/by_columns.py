"""Typical functions of users, which are evaluated by columns."""

from __future__ import annotations

from datetime import date
from math import asin, cos, radians, sin, sqrt

from crosslane import udf

RATE = 2.35
PRICES = {"pear": 2.5, "plum": 0.2, "fig": 0.8, "kiwi": 0.5}
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
    """Makes a text from a text and a number."""
    return f"{name}: {number}"


@udf
def day_of_year(day: date) -> int:
    """The number of a day in its year."""
    return (day - date(day.year, 1, 1)).days + 1


@udf
def price(fruit: str, count: int) -> float:
    """A price of a table, and a rebate."""
    amount = PRICES.get(fruit, 1.0) * count
    return amount * 0.9 if count > 100 else amount


@udf
def amount(value: float) -> str:
    """An amount with commas and cents."""
    return f"{value:,.2f} USD"


@udf
def always_leaves(x: int) -> int:
    """A sum whose intermediate results never fit in 64 bits."""
    y = x + LARGE
    return y % 1000


@udf
def always_called(x: int) -> int:
    """The same sum, with a statement that costs nothing and is never evaluated by columns."""
    global RATE
    y = x + LARGE
    return y % 1000
