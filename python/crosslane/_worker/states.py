"""Stateful functions: classes whose instance is made once on each lane, before it is called for the first time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from crosslane._declare.classes import Stateful
from crosslane._runtime.errors import LaneEnded, describe

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared


def set_up(functions: Iterable[Declared]) -> None:
    """Prepares all functions of a library that need it, on this lane.

    Raises:
        BaseException: what the first of them raised, after all were prepared. A call tries it again.
    """
    failures = _each(functions, Stateful.callee)
    if failures:
        raise failures[0]


def tear_down(functions: Iterable[Declared]) -> None:
    """Ends what they have prepared on this lane, in the opposite order.

    Raises:
        BaseException: what the first of them raised, after all were ended. The log has all of it: who ends a lane waits for it alone.
    """
    failures = _each(reversed(list(functions)), _close)
    if failures:
        raise failures[0]


def _close(function: Stateful) -> None:
    try:
        function.close()
    except LaneEnded:
        raise
    except BaseException as error:
        kind, message, shown = describe(error)
        # The function may have put anything in the place of the log.
        with contextlib.suppress(Exception):
            print(
                f"{function.__name__}: {kind}: {message}\n  in the tear-down\n{shown}",
                file=sys.stderr,
                flush=True,
            )
        raise


def _each(functions: Iterable[Declared], do: Callable[[Stateful], Any]) -> list[BaseException]:
    failures: list[BaseException] = []
    # A function with defaults is declared in several ways.
    stateful = {id(item.callable): item.callable for item in functions if isinstance(item.callable, Stateful)}
    for function in stateful.values():
        try:
            do(function)
        except LaneEnded:
            raise
        except BaseException as error:
            failures.append(error)
    return failures
