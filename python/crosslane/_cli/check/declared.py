"""What files declare, as an engine would be told of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from rich.markup import escape

from crosslane._cli.output import err
from crosslane._runtime.languages import is_python

#: What the engine is told of a function, and as ``evaluated`` how that is evaluated.
Function = dict[str, Any]


class Unloadable(Exception):
    """A file cannot be loaded: the class, the message and the traceback of its exception."""


def functions_of(file: str) -> list[Function]:
    """The functions of a file in any language.

    Raises:
        Unloadable: if an engine would not load all of them.
    """
    from crosslane import _guest

    _check_path(file)
    try:
        is_sandboxed = bool(_guest.asked_by(file))
    except ValueError as error:
        raise Unloadable("Error", str(error), "") from None
    return _check_python(file, is_sandboxed) if is_python(file) else _check_guest(file)


def _check_path(file: str) -> None:
    """Refuses a path that is not UTF-8, which engines refuse, too."""
    try:
        str(Path(file).resolve()).encode()
    except UnicodeEncodeError:
        raise Unloadable("ValueError", "its path is not UTF-8; rename it", "") from None


def _check_python(file: str, is_sandboxed: bool) -> list[Function]:
    """Lists the functions of a file in Python."""
    from crosslane._declare import library
    from crosslane._runtime import environments, errors, forks
    from crosslane._worker import translation

    try:
        if is_sandboxed and not environments.is_made(file):
            # To make it runs code of packages, and nothing restricts that code.
            raise Unloadable("Error", f"it needs an environment: `crosslane doctor {file}` makes it", "")
        environment = environments.of(file)
    except environments.EnvironmentFailed as error:
        raise Unloadable("EnvironmentFailed", str(error), "") from None
    if environment is not None:
        return _checked(file, environment.command())
    if is_sandboxed:
        # The guest enters it, and not this process.
        return _check_guest(file)
    try:
        declared = library.load_file(file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Unloadable(*errors.describe(error)) from None
    if any(item.own_sandbox for item in declared):
        # The guest prepares what their workers enter.
        return _check_guest(file)
    _warn(file, forks.lost_threads())
    return _loadable(file, [{**item.message(), "evaluated": translation.way(item)} for item in declared])


def _check_guest(file: str) -> list[Function]:
    """As :func:`_check_python`, by the guest of another language."""
    from crosslane._runtime.languages import command

    try:
        program = command(Path(file))
    except FileNotFoundError as error:
        raise Unloadable("Error", str(error), "") from None
    return _checked(file, program)


def _warn(file: str, lost: list[str]) -> None:
    """Prints which threads of a file a fork would lose, if there are any."""
    from crosslane import _guest

    if lost:
        err.print(f"[yellow]note[/] on {escape(file)}: {escape(_guest.note(lost))}", highlight=False)


def _checked(file: str, guest: list[str]) -> list[Function]:
    """The functions of a file, which a guest prints as JSON on its last line."""
    # Ruby would look for a relative path in its own folders.
    command = [*guest, "check", str(Path(file).resolve())]
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise Unloadable("Error", f"{command[0]}: {error.strerror}", "") from None
    if not run.stdout:
        raise Unloadable("Error", f"{command[0]} gave up ({run.returncode}); see above", "")
    answer = json.loads(run.stdout.splitlines()[-1])
    if "failure" in answer:
        failure = answer["failure"]
        raise Unloadable(failure["class"], failure["message"], failure["traceback"])
    _warn(file, answer.get("lost", []))
    return _loadable(file, answer["functions"])


def _loadable(file: str, functions: list[Function]) -> list[Function]:
    """Returns functions, if an engine would load all of them."""
    from crosslane import _guest

    wrong = _guest.wrong_functions(file, json.dumps(functions))
    if wrong:
        raise Unloadable(*wrong)
    return functions
