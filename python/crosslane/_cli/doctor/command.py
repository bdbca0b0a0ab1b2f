"""The command ``crosslane doctor``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.markup import escape
from rich.table import Table

from crosslane import __version__
from crosslane._cli.output import EXIT_CODES, print_table


@click.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, metavar="[FILE...]", type=click.Path(exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(files: tuple[str, ...], as_json: bool) -> None:
    """Says what works here, what is missing, and how to get it; of each Python FILE, which interpreter and
    packages it gets."""
    from crosslane._cli.doctor.examine import examine, examine_file

    findings = [examine_file(file) for file in files] if files else list(examine())
    healthy = all(finding.state != "bad" for finding in findings)
    if as_json:
        report = {"version": __version__, "healthy": healthy, "findings": list(map(asdict, findings))}
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        table = Table.grid(padding=(0, 1))
        table.add_column()
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for finding in findings:
            mark = {"good": "[green]✓[/]", "optional": "[yellow]-[/]", "bad": "[red]✗[/]"}[finding.state]
            text = escape(finding.text) + (f"\n[cyan]{escape(finding.advice)}[/]" if finding.advice else "")
            table.add_row(mark, finding.what, text)
        print_table(table)
    sys.exit(0 if healthy else 1)
