"""The command itself."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from pathlib import Path

import click
from rich.markup import escape

from crosslane._cli.options import READABLE, SETTINGS
from crosslane._cli.output import EXIT_CODES, Failed, err, shown_errors, visible
from crosslane._cli.sandbox.draft import Draft, block, has_block
from crosslane._cli.sandbox.notes import Notes, recording
from crosslane._cli.sql.command import run_statements
from crosslane._cli.sql.query import DATABASE, FORMAT, QUERY, ROWS, THREADS, connect, query_of
from crosslane._runtime.languages import comment, is_javascript


@click.group(epilog=EXIT_CODES)
def sandbox() -> None:
    """Helps to write what a file of functions asks for."""


@sandbox.command(epilog=EXIT_CODES)
@click.argument("file", type=READABLE)
@QUERY
@DATABASE
@FORMAT
@ROWS
@THREADS
@SETTINGS
def run(
    file: str,
    query: str | None,
    database: str,
    style: str,
    rows: int,
    threads: int | None,
    settings: dict[str, str],
) -> None:
    """Runs QUERY with the functions of FILE WITHOUT a sandbox, records what they touch, and prints the
    options that would allow just that.

    The options are a first draft of the comments at the top of the file. Read them before you use them,
    and run only files that you trust: the file and its functions may do everything here. Without QUERY it
    is read from the input.
    """
    query = query_of(query)
    mark = comment(file)
    if mark is None:
        raise click.UsageError(f"files such as {file} cannot ask for a sandbox")
    started = time.perf_counter()
    failed = False
    with contextlib.ExitStack() as stack:
        # V8 restricts these functions itself.
        record = None if is_javascript(file) else stack.enter_context(recording(file))
        try:
            with shown_errors():
                con = connect(database, threads, functions=[file], settings=settings)
                with con:
                    run_statements(con, query, style, rows, started)
        except Failed:
            failed = True
        notes = record.notes() if record else Notes()
    sys.stdout.flush()
    _print_draft(file, mark, notes)
    if failed:
        raise Failed(1)


def _print_draft(file: str, mark: str, notes: Notes) -> None:
    """Prints the comments for the file to stdout, and what to do with them to stderr."""
    draft = Draft(Path(file), notes)
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    has_one = has_block(text, mark)
    click.echo(f"\n{block(draft.table(), mark, is_whole=not has_one)}", nl=False)
    sys.stdout.flush()
    for access in sorted(draft.never):
        _say(f"[yellow]no sandbox allows this[/]: {escape(visible(access, kept=''))}")
    if draft.left_out:
        paths = ", ".join(sorted(map(str, draft.left_out)))
        _say(
            f"left out, because libraries do without what the kernel says of the machine: {escape(visible(paths, kept=''))}"
        )
    if notes.is_full:
        _say("[yellow]warning[/]: more was touched than is recorded")
    if is_javascript(file):
        _say("V8 gives JavaScript functions nothing to touch, so a sandbox that allows nothing is enough")
    its_block = f"the block `{mark} /// script` of {escape(file)}"
    if not has_one:
        where = f"this block at the top of {escape(file)}"
    elif f"{mark} [tool.crosslane]" in text:
        where = f"these lines in place of \\[tool.crosslane] in {its_block}"
    else:
        where = f"these lines at the end of {its_block}"
    _say(f"[green]next[/]: put {where}, then run: crosslane check {escape(shlex.quote(file))}")


def _say(text: str) -> None:
    err.print(text, highlight=False, soft_wrap=True)
