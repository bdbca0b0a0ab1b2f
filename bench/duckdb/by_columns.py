"""Typical functions of users, which are evaluated by columns."""

from __future__ import annotations

from collections.abc import Iterator

from ..figures import Line
from .engines import Bench, compared


def by_columns(bench: Bench) -> Iterator[Line]:
    """Functions of numbers and texts, as users write them."""
    for name, call, table, rows, target in (
        ("a local variable and an if", "bit_xor(stepped(i))", "ints5", 5_000_000, 20),
        ("great-circle distance", "sum(distance(a * 90, b * 180, b * 90, a * 180))", "pairs", 5_000_000, 10),
        ("a fare", "sum(fare(miles, day))", "rides", 5_000_000, 12),
        ("two doubles, three operations", "sum(three_operations(a, b))", "pairs", 5_000_000, 25),
        ("a slug of 25 bytes", "sum(strlen(slug(s)))", "texts", 2_000_000, 15),
        ("a slug, one in ten is not ASCII", "sum(strlen(slug(s)))", "mixed", 2_000_000, 5),
        ("an f-string of a text and an int", "sum(strlen(label(s, i)))", "labels", 2_000_000, 10),
        ("days of a year, of a date", "sum(day_of_year(d))", "dates", 2_000_000, 10),
        ("a price of a dict", "sum(price(word, i))", "orders", 2_000_000, 10),
        ("an amount with commas", "sum(strlen(amount(a)))", "pairs", 5_000_000, 5),
    ):
        yield from bench.throughput(
            f"row function, {name}", f"SELECT {call} FROM {table}", rows, (None, target)
        )


def leaving(bench: Bench) -> Iterator[Line]:
    """A function whose rows all leave, beside the same function that is never evaluated by columns."""
    runs = {
        name: lambda name=name: bench.seconds(bench.ours, f"SELECT bit_xor({name}(i)) FROM ints5", 2)
        for name in ("always_leaves", "always_called")
    }
    taken = bench.alternate(runs)
    line = ("a function whose rows all leave", "only called")
    yield compared(*line, taken["always_leaves"], taken["always_called"], 0.97)
