"""Aggregates: classes whose instances hold what was accumulated of a group."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable
from copyreg import __newobj__  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from crosslane._state import needed, sql_name

if TYPE_CHECKING:
    from crosslane._signature import Declared

_METHODS = {
    "update": "update(self, x, ...) adds a row",
    "merge": "merge(self, other) adds what another instance holds",
    "finish": "finish(self) gives the result",
}


def is_aggregate(function: object) -> bool:
    """Whether it is a class with the methods of an aggregate."""
    return isinstance(function, type) and all(callable(getattr(function, name, None)) for name in _METHODS)


class Aggregate:
    """An aggregate function that is a class.

    It looks like its ``update`` to those who ask for parameters and annotations.
    """

    def __init__(self, made_by: type) -> None:
        self.made_by = made_by
        self.__name__ = sql_name(made_by)
        self.__doc__ = inspect.getdoc(made_by)
        update = getattr(made_by, "update", None)
        if inspect.isfunction(update):
            self.__wrapped__ = update
            parameters = list(inspect.signature(update).parameters.values())
            self.__signature__ = inspect.signature(update).replace(parameters=parameters[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        return Aggregate, (self.made_by,)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.__name__} is an aggregate: SQL gives it the rows of a group")

    def wrong(self) -> str | None:
        """Why this class can be no aggregate, if it cannot."""
        for name, meaning in _METHODS.items():
            method = inspect.getattr_static(self.made_by, name, None)
            if method is None:
                return f"an aggregate's class has a method {name}: {meaning}"
            if not inspect.isfunction(method):
                return f"{name} is a plain method, as in: {meaning}"
            if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
                return f"{name} is a plain method, neither async nor a generator"
        for name, arguments in (("merge", "so"), ("finish", "s")):
            try:
                inspect.signature(getattr(self.made_by, name)).bind(*arguments)
            except TypeError as error:
                return f"{_METHODS[name]}; this one cannot be called so: {error}"
        missing = needed(self.made_by)
        if missing:
            return f"each group makes an instance without arguments; this class needs {missing}"
        return None


class States:
    """What a lane does with the instances of an aggregate beside their methods."""

    def __init__(self, declared: Declared) -> None:
        aggregate = declared.callable
        assert isinstance(aggregate, Aggregate)
        self.new: Callable[[], Any] = aggregate.made_by
        self._class = aggregate.made_by
        self._declared = declared
        own = [base for base in self._class.__mro__ if base is not object]
        special = (
            "__reduce__",
            "__reduce_ex__",
            "__getstate__",
            "__setstate__",
            "__getnewargs__",
            "__getnewargs_ex__",
        )
        #: Whether all that an instance holds is in its ``__dict__``.
        self._is_plain = self._class.__new__ is object.__new__ and not any(
            name in vars(base) or "__slots__" in vars(base) for base in own for name in special
        )
        #: Of the groups of :meth:`run`, the one at work.
        self.at = 0

    def sorted(self, chunks: list[list[Any]], order: bytes) -> list[Any]:
        """Columns as the class wants them, with the rows of these arrays in this order, which is of 32-bit numbers."""
        import pyarrow as pa

        from crosslane._vectors import into

        places = pa.Array.from_buffers(pa.uint32(), len(order) // 4, [None, pa.py_buffer(order)])
        columns = [pa.concat_arrays(arrays).take(places) for arrays in zip(*chunks)]
        return into(self._declared, columns)

    def run(self, columns: list[Any], groups: list[tuple[Callable[..., Any], int, int]], first: int) -> None:
        """Gives each group, from one on, its part of the columns."""
        for at in range(first, len(groups)):
            self.at = at
            update, begin, end = groups[at]
            update(*[column[begin:end] for column in columns])

    def save(self, state: Any) -> bytes:
        """An instance as bytes, for :meth:`load` on any lane."""
        try:
            if self._is_plain and type(state) is self._class:
                return b"p" + pickle.dumps(state.__dict__, pickle.HIGHEST_PROTOCOL)
            reduced = state.__reduce_ex__(4)
            if (
                type(state) is self._class
                and reduced[:2] == (__newobj__, (self._class,))
                and not any(reduced[3:])
            ):
                # Nearly all: what the instance holds. Its class is known, and need not be found by its name.
                return b"s" + pickle.dumps(reduced[2] if len(reduced) > 2 else None, pickle.HIGHEST_PROTOCOL)
            return b"w" + pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError):
            # Of classes that cannot be found by name.
            import cloudpickle

            class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
                def persistent_id(self, thing: Any) -> int | None:
                    return 0 if thing is known else None

            known, buffer = self._class, io.BytesIO()
            Pickler(buffer).dump(state)
            return b"v" + buffer.getvalue()

    def copy(self, state: Any) -> Any:
        """A copy of an instance that shares nothing with it that may change."""
        return self.load(self.save(state))

    def load(self, saved: bytes) -> Any:
        """A new instance from bytes that :meth:`save` gave."""
        if saved[0] == ord("p"):
            state = self._class.__new__(self._class)
            state.__dict__.update(pickle.loads(memoryview(saved)[1:]))
            return state
        how, content = saved[:1], io.BytesIO(saved[1:])
        if how == b"w":
            return pickle.load(content)
        if how == b"v":
            unpickler = _Unpickler(content)
            unpickler.known = self._class
            return unpickler.load()
        held = pickle.load(content)
        state = self._class.__new__(self._class)
        if held is None:
            return state
        if hasattr(state, "__setstate__"):
            state.__setstate__(held)
            return state
        held, slots = held if isinstance(held, tuple) else (held, None)
        if held:
            state.__dict__.update(held)
        for name, value in (slots or {}).items():
            setattr(state, name, value)
        return state


class _Unpickler(pickle.Unpickler):
    known: type

    def persistent_load(self, _: Any) -> type:
        return self.known


_SOURCE = """\
def around({variables}):
    def called(updates):
        nonlocal result
        for update in updates:
            update({names})
            result = None
    return called
"""


def loop(count: int) -> tuple[Any, Any, list[Any]]:
    """A new loop over rows of so many arguments, as those of :mod:`crosslane._loop`: its iterator gives the method that a row is
    for, and puts the arguments into their cells."""
    names = [f"value_{number}" for number in range(count)]
    variables = [*names, "result"]
    source = _SOURCE.format(variables=", ".join(variables), names=", ".join(names))
    namespace: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), namespace)
    called = namespace["around"](*variables)
    cells = dict(zip(called.__code__.co_freevars, called.__closure__))
    return called, cells["result"], [cells[name] for name in names]
