"""The command ``crosslane check``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from crosslane._cli.output import EXIT_CODES, complain, err, print_table
from crosslane._runtime.languages import is_python


@click.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--explain", is_flag=True, help="Say which Python functions are evaluated by columns, and why not."
)
def check(files: tuple[str, ...], explain: bool) -> None:
    """Lists the functions of FILEs as SQL will see them, or says what is wrong and where."""
    table = Table(header_style="bold")
    for head in ("line", "signature", "kind", *(["evaluated"] if explain else [])):
        table.add_column(head, justify="right" if head == "line" else "left", overflow="fold")
    failed = False
    for file in files:
        examine = _check_python if is_python(file) else _check_guest
        try:
            _check_path(file)
            declared = examine(file)
        except _Unloadable as error:
            failed = True
            name, message, traceback = error.args
            complain(f"{name}: {message}", f" in {escape(file)}")
            if traceback:
                err.print(escape(traceback), highlight=False, soft_wrap=True)
            continue
        for place, signature, kind, way in declared:
            shown = [escape(place), escape(_plain_signature(signature)), kind]
            table.add_row(*shown, *([escape(way)] if explain else []))
    if table.row_count:
        print_table(table)
    if failed:
        sys.exit(1)


#: The place, the signature and the kind of a function, and how it is evaluated.
_Listed = tuple[str, str, str, str]


class _Unloadable(Exception):
    """A file cannot be loaded: the class, the message and the traceback of its exception."""


def _check_path(file: str) -> None:
    """Refuses a path that is not UTF-8, which engines refuse, too."""
    try:
        str(Path(file).resolve()).encode()
    except UnicodeEncodeError:
        raise _Unloadable("ValueError", "its path is not UTF-8; rename it", "") from None


def _check_python(file: str) -> list[_Listed]:
    """Lists the functions of a file in Python."""
    from crosslane._declare import library
    from crosslane._runtime import environments, errors, forks
    from crosslane._worker import translation

    try:
        environment = environments.of(file)
    except environments.EnvironmentFailed as error:
        raise _Unloadable("EnvironmentFailed", str(error), "") from None
    if environment is not None:
        return _checked(file, environment.command())
    try:
        declared = library.load_file(file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _Unloadable(*errors.describe(error)) from None
    _warn(file, forks.lost_threads())
    return _listed(file, [{**item.message(), "evaluated": translation.way(item)} for item in declared])


def _check_guest(file: str) -> list[_Listed]:
    """As :func:`_check_python`, by the guest of another language."""
    from crosslane._runtime.languages import command

    try:
        program = command(Path(file))
    except FileNotFoundError as error:
        raise _Unloadable("Error", str(error), "") from None
    return _checked(file, program)


def _warn(file: str, lost: list[str]) -> None:
    """Prints which threads of a file a fork would lose, if there are any."""
    from crosslane import _guest

    if lost:
        err.print(f"[yellow]note[/] on {escape(file)}: {escape(_guest.note(lost))}", highlight=False)


def _checked(file: str, guest: list[str]) -> list[_Listed]:
    """The functions of a file, which a guest prints as JSON on its last line."""
    # Ruby would look for a relative path in its own folders.
    command = [*guest, "check", str(Path(file).resolve())]
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise _Unloadable("Error", f"{command[0]}: {error.strerror}", "") from None
    if not run.stdout:
        raise _Unloadable("Error", f"{command[0]} gave up ({run.returncode}); see above", "")
    answer = json.loads(run.stdout.splitlines()[-1])
    if "failure" in answer:
        failure = answer["failure"]
        raise _Unloadable(failure["class"], failure["message"], failure["traceback"])
    _warn(file, answer.get("lost", []))
    return _listed(file, answer["functions"])


def _listed(file: str, functions: list[dict[str, Any]]) -> list[_Listed]:
    """Lists functions, if an engine would load all of them."""
    from crosslane import _guest

    wrong = _guest.wrong_functions(file, json.dumps(functions))
    if wrong:
        raise _Unloadable(*wrong)
    return [_declared(function) for function in functions]


def _declared(function: dict[str, Any]) -> _Listed:
    """A function in the list, by what the engine is told of it."""
    kind, calling = function.get("kind", "scalar"), function["calling"]
    said = ([kind] if kind != "scalar" else []) + ([calling] if kind == "scalar" or calling != "row" else [])
    place = f"{_relative(function['file'])}:{function['line']}"
    return place, function["signature"], ", ".join(said), function.get("evaluated", "")


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
