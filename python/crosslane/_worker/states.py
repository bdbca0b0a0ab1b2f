"""Sets up and tears down the stateful functions of a library on a lane."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from crosslane._declare.classes import Stateful
from crosslane._runtime.errors import LaneEnded, describe

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared


def set_up(functions: list[Declared], only: int | None) -> None:
    """Makes the instances of stateful functions of a library on this lane: of those that have no lanes
    of their own, or only of the one of this number.

    Raises:
        BaseException: the first that a set-up raised, after all were tried. A call of that function
            tries it again.
    """
    shared = (function for function in functions if not function.has_own_lanes())
    failures = _each(shared if only is None else [functions[only]], Stateful.callee)
    if failures:
        raise failures[0]


def tear_down(functions: Iterable[Declared]) -> None:
    """Closes the instances on this lane, in the opposite order.

    Raises:
        BaseException: the first that a ``close`` raised, after all were closed. The log has every
            one of them.
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
        # A file may have replaced the stream of the log by anything.
        with contextlib.suppress(Exception):
            print(
                f"{function.__name__}: {kind}: {message}\n  in the tear-down\n{shown}",
                file=sys.stderr,
                flush=True,
            )
        raise


def _each(functions: Iterable[Declared], do: Callable[[Stateful], Any]) -> list[BaseException]:
    failures: list[BaseException] = []
    # A function with defaults has several signatures, but one instance.
    stateful = {id(item.callable): item.callable for item in functions if isinstance(item.callable, Stateful)}
    for function in stateful.values():
        try:
            do(function)
        except LaneEnded:
            raise
        except BaseException as error:
            failures.append(error)
    return failures
