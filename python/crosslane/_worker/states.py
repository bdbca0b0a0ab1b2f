"""Stateful functions: classes whose instance is made once on each lane, before it is called for the first time."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from crosslane._runtime.errors import LaneEnded, describe

if TYPE_CHECKING:
    from crosslane._declare.signature.annotations import Declared


def is_stateful(function: object) -> bool:
    """Whether it is a class whose instances are called."""
    return isinstance(function, type) and any("__call__" in vars(base) for base in function.__mro__)


class Stateful:
    """A function that is a class: to make an instance is its set-up, its ``close`` is its tear-down.

    It looks like its ``__call__`` to those who ask for parameters and annotations.
    """

    def __init__(self, made_by: type) -> None:
        call = inspect.getattr_static(made_by, "__call__")
        self.made_by = made_by
        self.__wrapped__ = call
        self.__name__ = sql_name(made_by)
        self.__doc__ = inspect.getdoc(made_by)
        parameters = list(inspect.signature(call).parameters.values())
        self.__signature__ = inspect.signature(call).replace(parameters=parameters[1:])
        # Each lane is a thread, if it is no process.
        self._lane = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stateful, (self.made_by,)

    def __call__(self, *arguments: Any) -> Any:
        return self.callee()(*arguments)

    def callee(self) -> Callable[..., Any]:
        """The method of this lane's instance, which is made now if there is none."""
        if not hasattr(self._lane, "instance"):
            try:
                self._lane.instance = self.made_by()
            except LaneEnded:
                raise
            except BaseException as error:
                error.add_note(f"in the set-up of {self.__name__}, before its first row on this lane")
                raise
        return self._lane.instance.__call__  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends what this lane's instance has prepared, if there is one."""
        instance = self._lane.__dict__.pop("instance", None)
        close = getattr(instance, "close", None)
        if close is not None:
            close()


def needed(made_by: type) -> str:
    """The parameters that an instance of a class cannot be made without."""
    try:
        parameters = inspect.signature(made_by).parameters.values()
    except (TypeError, ValueError):
        return ""
    by_itself = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(
        item.name for item in parameters if item.default is item.empty and item.kind not in by_itself
    )


def sql_name(made_by: type) -> str:
    """What SQL calls a class.

    >>> class HTTPStatus2Text: ...
    >>> sql_name(HTTPStatus2Text)
    'http_status2_text'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", made_by.__name__).lower()


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
