"""What the functions of a query have cost."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from crosslane._cli.output import out, print_table


def print_stats(con: Any) -> None:
    """Prints what the functions have cost since the database was opened."""
    cursor = con.cursor()
    rows = cursor.execute(
        "SELECT function, rows, calls, by_columns, reused, errors, retries, lanes_lost, fanned_out, guest_seconds,"
        " ns_per_row, copy_in_us, travel_us, copy_out_us FROM system.main.crosslane_stats() WHERE calls > 0"
    ).fetchall()
    # Counters that are 0 for all functions get no column.
    rare = ["by columns", "reused", "errors", "retries", "workers lost", "fanned out"]
    shown = [index for index in range(len(rare)) if any(row[3 + index] for row in rows)]
    table = Table(title="what the functions cost", title_justify="left", header_style="bold")
    table.add_column("function")
    for head in [
        "rows",
        "batches",
        *(rare[index] for index in shown),
        "in the function",
        "per row",
        "lane per batch",
    ]:
        table.add_column(head, justify="right")
    for function, count, calls, *rest in rows:
        seconds, per_row, *spans = rest[len(rare) :]
        table.add_row(
            escape(function),
            f"{count:,}",
            f"{calls:,}",
            *(f"{rest[index]:,}" for index in shown),
            f"{seconds:.2f} s",
            f"{per_row / 1e3:.2f} us" if per_row else "",
            "+".join(f"{span:.0f}" for span in spans) + " us",
        )
    print_table(table)
    out.print("[dim]lane per batch: copy in + both ways + copy out[/]", soft_wrap=True)
    totals = "SELECT system.main.sum(booted), system.main.sum(waited) FROM system.main.crosslane_pools()"
    lanes = cursor.execute(totals).fetchall()
    if lanes and lanes[0][0] is not None:
        text = f"[dim]workers: {lanes[0][0]} started, {lanes[0][1]} times a query had to wait for one[/]"
        out.print(text, soft_wrap=True)
