"""The output of the programs: ratios, figures as text, and the table of lines with their targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .figures import Line

Item = TypeVar("Item")


def ratio(dividends: Iterable[float], divisors: Iterable[float]) -> float:
    """The median of the rounds' ratios.

    The machine's speed drifts from round to round. Within a round it is about the same for both.
    """
    return statistics.median(dividend / divisor for dividend, divisor in zip(dividends, divisors))


def in_turn(items: Sequence[Item], turn: int) -> list[Item]:
    """The items in the order of a round. Each round begins with another one.

    >>> [in_turn("abc", turn) for turn in range(4)]
    [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b'], ['a', 'b', 'c']]
    """
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def shown(value: float | None) -> str:
    """A figure with three digits, or a dash for one that the machine cannot measure.

    >>> shown(123456), shown(71.04), shown(0.98312), shown(0.0), shown(None)
    ('123,456', '71.0', '0.98', '0', '-')
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def wide_console() -> Console:
    """The terminal, or a wide one where the output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=180)


def progress(console: Console) -> Progress:
    """A bar that shows the running measurement."""
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)


def table_of(title: str | None, *texts: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table. Columns of texts come first, then columns of numbers."""
    table = Table(header_style="bold", title=title, title_justify="left")
    for head in texts:
        table.add_column(head)
    for head in numbers:
        table.add_column(head, justify="right")
    return table


def headed(table: Table, items: Iterable[Item], head: Callable[[Item], str]) -> Iterator[Item]:
    """The items, for a row each. A new section with the head begins where the head changes."""
    last = ""
    for item in items:
        if head(item) != last:
            last = head(item)
            table.add_section()
            table.add_row(f"[bold]{last}[/]")
        yield item


def targets(lines: Iterable[Line], title: str | None = None) -> Table:
    """The figure of each line, beside its target."""
    table = table_of(title, "work", "against", "Crosslane", "the other", numbers=("result", "target"))
    table.add_column("")
    for line in lines:
        sign = "≥" if line.unit == "x" else "≤"
        mark = "[green]✓[/]" if line.met else "[red]✗[/]"
        is_ratio = line.unit in ("x", "times")
        result = f"{line.value:.2f} x" if is_ratio else line.shown
        target = f"{sign} {line.target:g}{' x' if is_ratio else ''}"
        table.add_row(line.name, line.against, line.ours, line.theirs, result, target, mark)
    return table


def say_written(console: Console, *paths: Path) -> None:
    """Names the files that a run has written."""
    for path in paths:
        console.print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
