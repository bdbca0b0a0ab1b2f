"""Classes that are declared as functions: stateful functions, and aggregates."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from typing import Any

from crosslane._runtime.errors import LaneEnded


def is_stateful(function: object) -> bool:
    """Whether a function is a class whose instances can be called."""
    return isinstance(function, type) and any("__call__" in vars(base) for base in function.__mro__)


class DeclaredClass:
    """A class as a function. ``inspect`` sees the parameters and annotations of one of its methods."""

    def __init__(self, class_: type, method: Any) -> None:
        self.class_ = class_
        self.__name__ = sql_name(class_)
        self.__doc__ = inspect.getdoc(class_)
        if method is not None:
            self.__wrapped__ = method
            signature = inspect.signature(method)
            self.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.class_,)


class Stateful(DeclaredClass):
    """A class as a function: making an instance is its set-up, and the method ``close`` is its
    tear-down.

    ``inspect`` sees the parameters and annotations of the method ``__call__``.
    """

    def __init__(self, class_: type) -> None:
        super().__init__(class_, inspect.getattr_static(class_, "__call__"))
        # A host lane is a thread of this process, and has an instance of its own.
        self._lane = threading.local()

    def __call__(self, *arguments: Any) -> Any:
        return self.callee()(*arguments)

    def callee(self) -> Callable[..., Any]:
        """The method ``__call__`` of this lane's instance. The first call makes the instance."""
        if not hasattr(self._lane, "instance"):
            try:
                self._lane.instance = self.class_()
            except LaneEnded:
                raise
            except BaseException as error:
                error.add_note(f"in the set-up of {self.__name__}, before its first row on this lane")
                raise
        return self._lane.instance.__call__  # type: ignore[no-any-return]

    def close(self) -> None:
        """Closes this lane's instance, if there is one."""
        instance = self._lane.__dict__.pop("instance", None)
        close = getattr(instance, "close", None)
        if close is not None:
            close()


_METHODS = {
    "update": "update(self, x, ...) adds a row",
    "merge": "merge(self, other) adds what another instance holds",
    "finish": "finish(self) gives the result",
}


def is_aggregate(function: object) -> bool:
    """Whether a function is a class with the methods of an aggregate."""
    return isinstance(function, type) and all(callable(getattr(function, name, None)) for name in _METHODS)


class Aggregate(DeclaredClass):
    """A class as an aggregate function.

    ``inspect`` sees the parameters and annotations of the method ``update``.
    """

    def __init__(self, class_: type) -> None:
        update = getattr(class_, "update", None)
        super().__init__(class_, update if inspect.isfunction(update) else None)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.__name__} is an aggregate: SQL gives it the rows of a group")

    def wrong(self) -> str | None:
        """Why this class cannot be an aggregate; None if it can."""
        for name, meaning in _METHODS.items():
            method = inspect.getattr_static(self.class_, name, None)
            if method is None:
                return f"an aggregate's class has a method {name}: {meaning}"
            if not inspect.isfunction(method):
                return f"{name} is a plain method, as in: {meaning}"
            if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
                return f"{name} is a plain method, neither async nor a generator"
        for name, arguments in (("merge", "so"), ("finish", "s")):
            try:
                inspect.signature(getattr(self.class_, name)).bind(*arguments)
            except TypeError as error:
                return f"{_METHODS[name]}; this one cannot be called so: {error}"
        missing = needed(self.class_)
        if missing:
            return f"each group makes an instance without arguments; this class needs {missing}"
        return None

    def takes_any(self) -> bool:
        """Whether ``update`` has a parameter besides ``self``."""
        return len(inspect.signature(self.class_.update).parameters) > 1


def needed(class_: type) -> str:
    """The required parameters for an instance of a class, with commas between them."""
    try:
        parameters = inspect.signature(class_).parameters.values()
    except (TypeError, ValueError):
        return ""
    by_itself = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(
        item.name for item in parameters if item.default is item.empty and item.kind not in by_itself
    )


def sql_name(class_: type) -> str:
    """The name of a class in SQL, in snake case.

    >>> class HTTPStatus2Text: ...
    >>> sql_name(HTTPStatus2Text)
    'http_status2_text'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_.__name__).lower()
