"""The command itself, and what it prints."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from crosslane._cli.check import github
from crosslane._cli.check.declared import Function, Unloadable, functions_of
from crosslane._cli.output import EXIT_CODES, complain, err, print_table
from crosslane._runtime.languages import is_python


@click.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--explain", is_flag=True, help="Say which Python functions are evaluated by columns, and why not."
)
@click.option(
    "--strict", is_flag=True, help="Warn of what is allowed and seldom meant, in Python files; see below."
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "github"]),
    default="table",
    help="What to print: the list of functions, or only what is wrong, as annotations for GitHub's workflows.",
)
def check(files: tuple[str, ...], explain: bool, strict: bool, style: str) -> None:
    """Lists the functions of FILEs as SQL will see them, or says what is wrong and where.

    With --strict, the exit code is also 1 if there is a warning. The comment
    `# crosslane: ignore[RULE]` on a line silences a rule for it.
    """
    table = Table(header_style="bold")
    for head in ("line", "signature", "kind", *(["evaluated"] if explain else [])):
        table.add_column(head, justify="right" if head == "line" else "left", overflow="fold")
    failed = False
    for file in files:
        functions: list[Function] | None = None
        try:
            functions = functions_of(file)
        except Unloadable as error:
            failed = True
            _show_error(file, error, style)
        else:
            if style == "table":
                _show_sandboxes(file, functions)
        for function in functions or []:
            cells = [*_cells(function), *([function.get("evaluated", "")] if explain else [])]
            table.add_row(*map(escape, cells))
        if strict and is_python(file):
            failed |= _show_warnings(file, functions, style)
    if table.row_count and style == "table":
        print_table(table)
    if failed:
        sys.exit(1)


def _show_error(file: str, error: Unloadable, style: str) -> None:
    name, message, traceback = error.args
    if style == "github":
        line = github.line_of(file, message, traceback)
        click.echo(github.annotation(_relative(file), line, name, f"{message}\n{traceback}".rstrip()))
        return
    complain(f"{name}: {message}", f" in {escape(file)}")
    if traceback:
        err.print(escape(traceback), highlight=False, soft_wrap=True)


def _show_sandboxes(file: str, functions: list[Function]) -> None:
    """Prints the sandboxes that a file and its functions ask for."""
    from crosslane import _guest

    asked = [(file, _guest.asked_by(file))]
    for function in functions:
        if own := function.get("own_sandbox"):
            asked.append((function["signature"], _guest.words_of_sandbox(json.dumps(own))))
    for what, words in asked:
        if words:
            text = f"[green]sandbox[/] of {escape(what)}: {escape(' '.join(words))}"
            err.print(text, highlight=False, soft_wrap=True)


def _show_warnings(file: str, functions: list[Function] | None, style: str) -> bool:
    """Prints what the rules find in a file. Returns whether there was anything."""
    from crosslane._cli.check.strict.rules import warnings_of

    warnings = warnings_of(file, functions)
    for line, rule, message in warnings:
        if style == "github":
            click.echo(github.annotation(_relative(file), line, rule, message))
        else:
            place = escape(f"{file}:{line}: {rule}: {message}")
            err.print(f"[yellow]warning[/] in {place}", highlight=False, soft_wrap=True)
    return bool(warnings)


def _cells(function: Function) -> tuple[str, str, str]:
    """The place, the signature and the kind of a function."""
    kind, calling = function.get("kind", "scalar"), function["calling"]
    said = ([kind] if kind != "scalar" else []) + ([calling] if kind == "scalar" or calling != "row" else [])
    place = f"{_relative(function['file'])}:{function['line']}"
    return place, _plain_signature(function["signature"]), ", ".join(said)


def _plain_signature(signature: str) -> str:
    from crosslane import _guest

    name, parameters, returns, variadic = _guest.parse_signature(signature)
    shown = [f"{parameter} {kind}" for parameter, kind in parameters]
    if variadic:
        shown[-1] = f"*{shown[-1]}"
    return f"{name}({', '.join(shown)}) -> {returns}"


def _relative(path: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
