"""Results of statements, as a table, CSV, JSON or Markdown."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from crosslane._cli.output import out, print_table

#: A column of this width is readable even if its values are folded.
_READABLE = 20
#: The names and the types of the columns of a result.
Columns = list[tuple[str, str]]
#: A row of a result, with its values as DuckDB prints them.
Row = tuple[str | None, ...]
#: Matches strings, which stay as they are, and numbers that JSON does not have.
_NO_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|(-?)(nan|inf)(?:inity)?', re.IGNORECASE)


def _json(value: str | None) -> str:
    """A value of DuckDB's `to_json` as valid JSON."""
    if value is None:
        return "null"
    return _NO_JSON.sub(lambda found: f'"{found[1]}{found[2].lower()}"' if found[2] else found[0], value)


def _csv(value: str | None) -> str:
    if value is None:
        return ""
    if not value or any(mark in value for mark in ',"\r\n'):
        return '"' + value.replace('"', '""') + '"'
    return value


def _markdown(value: str | None) -> str:
    return "NULL" if value is None else value.replace("|", "\\|").replace("\n", "<br>")


def print_result(columns: Columns, rows: Iterator[Row], style: str, most: int) -> int:
    """Prints a result and returns the number of its rows."""
    names = [name for name, _ in columns]
    if style == "csv":
        return _print_lines(",".join(map(_csv, row)) for row in chain([names], rows)) - 1
    if style == "markdown":
        lines = chain([names], [["---"] * len(names)], rows)
        return _print_lines(f"| {' | '.join(map(_markdown, line))} |" for line in lines) - 2
    if style in ("json", "jsonl"):
        keys = [json.dumps(name, ensure_ascii=False) for name in names]
        objects = (
            "{" + ", ".join(f"{key}: {_json(value)}" for key, value in zip(keys, row)) + "}" for row in rows
        )
        return _print_lines(objects) if style == "jsonl" else _print_array(objects)
    return _print_table(columns, rows, most)


def _print_lines(lines: Iterable[str]) -> int:
    count = 0
    for line in lines:
        sys.stdout.write(line + "\n")
        count += 1
    return count


def _print_array(values: Iterable[str]) -> int:
    count = 0
    for value in values:
        sys.stdout.write(("[\n  " if count == 0 else ",\n  ") + value)
        count += 1
    sys.stdout.write("\n]\n" if count else "[]\n")
    return count


_NUMERIC = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "BIGNUM", "FLOAT", "DOUBLE", "DECIMAL")


def _print_table(columns: Columns, rows: Iterator[Row], most: int) -> int:
    shown = list(islice(rows, most or None))
    count = len(shown) + sum(1 for _ in rows)
    if [name for name, _ in columns] == ["explain_key", "explain_value"]:
        for _, plan in shown:
            sys.stdout.write(f"{plan}\n")
        return count
    table = Table(header_style="bold")
    for name, kind in columns:
        right = kind.split("(")[0].removeprefix("U") in _NUMERIC
        heading = Text.assemble(name, "\n", (kind.lower(), "dim not bold"))
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    cells = [[Text("NULL", "dim") if value is None else Text(value) for value in row] for row in shown]
    for row in cells:
        table.add_row(*row)
    if not out.is_terminal or _fits(table):
        print_table(table)
    else:
        _print_records(columns, cells)
    if count > len(shown):
        out.print(f"[dim]... {count - len(shown)} more rows (--rows 0 shows all)[/]", soft_wrap=True)
    return count


def _fits(table: Table) -> bool:
    """Whether all columns fit the terminal, even if values must be folded."""
    wide = out.options.update(max_width=sys.maxsize)
    widths = (
        max(Measurement.get(out, wide, cell).maximum for cell in [column.header, *column.cells])
        for column in table.columns
    )
    return 1 + sum(3 + min(width, _READABLE) for width in widths) <= out.width


def _print_records(columns: Columns, rows: list[list[Text]]) -> None:
    """Prints a line for each value, under the number of its row."""
    for number, row in enumerate(rows, 1):
        record = Table(show_header=False, title=f"row {number}", title_justify="left", title_style="bold")
        record.add_column(overflow="fold")
        record.add_column(overflow="fold")
        for (name, kind), value in zip(columns, row):
            record.add_row(Text.assemble(name, " ", (kind.lower(), "dim")), value)
        out.print(record)
