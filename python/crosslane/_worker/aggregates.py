"""Aggregates: each group has an instance of the aggregate's class, which holds its state."""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from copyreg import __newobj__  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from crosslane._declare.classes import Aggregate
from crosslane._worker.loops import compile_loop

if TYPE_CHECKING:
    from crosslane._declare.signature.declared import Declared
    from crosslane._worker.groups import Slicer


class States:
    """What the native guest needs of an aggregate's instances besides their methods."""

    def __init__(self, declared: Declared) -> None:
        aggregate = declared.callable
        assert isinstance(aggregate, Aggregate)
        self.of = aggregate.class_
        self._declared = declared
        own = [base for base in self.of.__mro__ if base is not object]
        special = (
            "__reduce__",
            "__reduce_ex__",
            "__getstate__",
            "__setstate__",
            "__getnewargs__",
            "__getnewargs_ex__",
        )
        #: Whether an instance holds everything in its ``__dict__``.
        self._is_plain = self.of.__new__ is object.__new__ and not any(
            name in vars(base) or "__slots__" in vars(base) for base in own for name in special
        )
        #: Makes an empty instance, if the class has no methods of its own for saving instances.
        self.blank: Callable[[type], Any] | None = object.__new__ if self._is_plain else None

    def blame(self, error: BaseException, names: list[str], values: list[Any]) -> None:
        """Adds the arguments to the exception of a row that had waited for its call."""
        shown = ", ".join(f"{name} = {value!r}" for name, value in zip(names, values))
        error.add_note(f"in a row that waited, with {shown}")

    def sorted(self, chunks: list[list[Any]], order: bytes) -> list[Slicer]:
        """The columns of these arrays, with their rows in an order of 32-bit row numbers."""
        import pyarrow as pa

        from crosslane._worker.groups import slicers

        places = pa.Array.from_buffers(pa.uint32(), len(order) // 4, [None, pa.py_buffer(order)])
        return slicers(self._declared, [pa.concat_arrays(arrays).take(places) for arrays in zip(*chunks)])

    def run(self, slicers: list[Slicer], groups: Iterator[tuple[Any, int, int]]) -> None:
        """Updates the state of each group with its slice: first row and number of rows."""
        for state, begin, count in groups:
            state.update(*[rows(begin, count) for rows in slicers])

    def save(self, state: Any) -> bytes:
        """An instance as bytes, for :meth:`load` on any lane. The first byte says how it was saved."""
        try:
            if self._is_plain and type(state) is self.of:
                return b"p" + _held(state, state.__dict__)
            reduced = state.__reduce_ex__(4)
            if type(state) is self.of and reduced[:2] == (__newobj__, (self.of,)) and not any(reduced[3:]):
                # Nearly all classes. Only what the instance holds is saved, because the class is
                # known to all lanes.
                return b"s" + _held(state, reduced[2] if len(reduced) > 2 else None)
            return b"w" + _pickled(_Pickler, state)
        except (pickle.PicklingError, AttributeError, TypeError):
            # The instance has objects of classes that cannot be imported by name.
            import cloudpickle

            class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
                def persistent_id(self, thing: Any) -> int | None:
                    return 0 if thing is known else None

                def reducer_override(self, thing: Any) -> Any:
                    reduced = _compact(thing)
                    return super().reducer_override(thing) if reduced is NotImplemented else reduced

            known = self.of
            return b"v" + _pickled(Pickler, state)

    def copy(self, state: Any) -> Any:
        """A deep copy of an instance."""
        return self.load(self.save(state))

    def load(self, saved: bytes) -> Any:
        """A new instance from the bytes of :meth:`save`."""
        if saved[0] == ord("p"):
            state = self.of.__new__(self.of)
            state.__dict__.update(_into(state, saved))
            return state
        how, content = saved[:1], io.BytesIO(saved[1:])
        if how == b"w":
            return pickle.load(content)
        if how == b"v":
            unpickler = _Unpickler(content)
            unpickler.known = self.of
            return unpickler.load()
        state = self.of.__new__(self.of)
        held = _into(state, saved)
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


class _Pickler(pickle.Pickler):
    """Pickles an instance, with arrays of pyarrow copied to their own length."""

    def reducer_override(self, thing: Any) -> Any:
        return _compact(thing)


class _OwnPickler(_Pickler):
    """Pickles what an instance holds, with references to the instance itself."""

    state: Any

    def reducer_override(self, thing: Any) -> Any:
        return (_itself, ()) if thing is self.state else _compact(thing)


def _compact(thing: Any) -> Any:
    """Pickles a slice of an array without the rest of that array."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is None or not isinstance(thing, pyarrow.Array):
        return NotImplemented
    return pyarrow.concat_arrays([thing]).__reduce__()


def _pickled(pickler: Callable[[io.BytesIO, int], Any], thing: Any) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(thing)
    return buffer.getvalue()


#: The instance that a thread is loading, as its attribute ``state``.
_loading = threading.local()


def _itself() -> Any:
    return _loading.state


def _held(state: Any, held: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = _OwnPickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.state = state
    pickler.dump(held)
    return buffer.getvalue()


def _into(state: Any, saved: bytes) -> Any:
    """What a saved instance held. References to that instance become references to ``state``."""
    # Loading may call code of the user that loads other instances.
    around = getattr(_loading, "state", None)
    _loading.state = state
    try:
        return pickle.loads(memoryview(saved)[1:])
    finally:
        _loading.state = around


class _Unpickler(pickle.Unpickler):
    known: type

    def persistent_load(self, _: Any) -> type:
        return self.known


_SOURCE = """\
def around({variables}):
    def called(states):
        nonlocal result
        for state in states:
            state.update({names})
            result = None
    return called
"""


def loop(count: int) -> tuple[Any, Any, list[Any]]:
    """A new loop over rows with ``count`` arguments, as the loops of
    :mod:`crosslane._worker.loops`.

    Its iterator gives the instance that a row is for, and puts the arguments into their cells.
    Returns the loop, the cell of its result, and the cells of the arguments.
    """
    names = [f"value_{number}" for number in range(count)]
    return compile_loop(_SOURCE, names, names=", ".join(names))
