"""Pickles functions for workers: by name what they can import, and by value all else."""

from __future__ import annotations

import functools
import io
import linecache
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from crosslane._declare.declaration import Declaration
    from crosslane._declare.signature.declared import Declared

_Cached = type(functools.lru_cache(len))

#: The most characters of a source that are sent.
_LONGEST_SOURCE = 1 << 20
#: cloudpickle's list of modules to pickle by value is for the whole process.
_one_at_a_time = threading.Lock()


def dump(declaration: Declaration, declared: list[Declared], *, is_near: bool = True) -> bytes:
    """The bytes of a function, and of the folders in which its program finds modules. Workers that are not
    near may have none of the program's files, and get the sources, too.

    :func:`crosslane._declare.library.load_pickles` reads them. The types are known already, because
    the names in annotations may be unknown in a worker.

    Raises:
        DeclarationError: if something that it refers to cannot be pickled; it names the thing.
    """
    folders = pickle.dumps([os.path.abspath(folder) for folder in sys.path])
    try:
        return folders + _pickled(declared, is_near)
    except Exception as error:
        what = _culprit(declaration.function, set()) or "it"
        raise declaration.error(
            f"{what} cannot be sent to a worker process: {type(error).__name__}: {error}; make it inside the function, "
            'or run the function in this very process: lane="thread"'
        ) from error


def _pickled(thing: object, is_near: bool = True) -> bytes:
    buffer = io.BytesIO()
    with _one_at_a_time:
        pickler = _Pickler(buffer, is_near)
        try:
            pickler.dump(thing)
        finally:
            pickler.close()
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Pickles functions and classes by value if a worker cannot import their module."""

    def __init__(self, file: io.BytesIO, is_near: bool) -> None:
        super().__init__(file)
        self._is_near = is_near
        self._seen: set[str] = set()
        self._sent: set[str] = set()
        self._by_value: list[ModuleType] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            self._note(obj.__name__)
        elif isinstance(obj, (FunctionType, type)):
            self._note(obj.__module__)
        elif isinstance(obj, _Cached):
            # By itself, it is pickled by name, which a worker does not find if it is a name of
            # `__main__`.
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        elif isinstance(obj, CodeType):
            # cloudpickle leaves out the file, which errors name.
            make, parts = self.dispatch_table[CodeType](obj)
            return _of_file, (obj.co_filename, self._source(obj.co_filename), make, parts)
        return super().reducer_override(obj)

    def _source(self, file: str) -> str | None:
        """The source in a file, or in a cell of a notebook. None if it was sent already, or is there."""
        if file in self._sent or (self._is_near and os.path.isfile(file)):
            return None
        self._sent.add(file)
        text = "".join(linecache.getlines(file))
        return text if len(text) < _LONGEST_SOURCE else None

    def _note(self, name: str) -> None:
        """Has a module pickled by value if a worker cannot import it."""
        module = sys.modules.get(name)
        if name in self._seen or name == "__main__" or not isinstance(module, ModuleType):
            return
        self._seen.add(name)
        if name not in cloudpickle.list_registry_pickle_by_value() and not _is_importable(module, name):
            cloudpickle.register_pickle_by_value(module)
            self._by_value.append(module)

    def close(self) -> None:
        """Takes back what was set for the whole process."""
        for module in self._by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


def _of_file(
    file: str, source: str | None, make: Callable[..., CodeType], parts: tuple[Any, ...]
) -> CodeType:
    if source and not os.path.isfile(file):
        # Tracebacks show the source there, and a worker reads what functions do.
        linecache.cache[file] = (len(source), None, io.StringIO(source).readlines(), file)
    return make(*parts).replace(co_filename=file)


def _is_importable(module: ModuleType, name: str) -> bool:
    """Whether a new process with the same folders finds this very module by its name."""
    place = getattr(module.__spec__, "origin", None) or getattr(module, "__file__", None)
    if place is not None and not place.endswith(".py"):
        # Compiled code cannot be pickled.
        return True
    spec, folders, full = None, None, ""
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        spec = _find(full, folders)
        if spec is None:
            return False
        folders = spec.submodule_search_locations
    return spec is not None and spec.origin == place


def _find(name: str, folders: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, folders)
        if spec is not None:
            return spec
    return None


def _culprit(thing: Any, seen: set[int]) -> str | None:
    """The innermost part of a thing that cannot be pickled, in words."""
    seen.add(id(thing))
    for what, part in _parts(thing):
        if id(part) in seen:
            continue
        try:
            _pickled(part)
        except Exception:
            return _culprit(part, seen) or what
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """The things that are pickled with a thing, each with its name for users."""
    if isinstance(thing, MethodType):
        yield f"the object {type(thing.__self__).__name__}", thing.__self__
        yield f"the function {thing.__func__.__name__}", thing.__func__
    elif isinstance(thing, functools.partial):
        yield "the function of partial", thing.func
        yield from (("an argument of partial", part) for part in (*thing.args, *thing.keywords.values()))
    elif isinstance(thing, FunctionType):
        of = f"of {thing.__name__}"
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or ()):
            try:
                yield f"the variable {name} {of}", cell.cell_contents
            except ValueError:  # It has no value yet.
                continue
        for name in _names(thing.__code__):
            if name in thing.__globals__:
                yield f"the variable {name} {of}", thing.__globals__[name]
        yield from ((f"a default {of}", part) for part in thing.__defaults__ or ())
        yield from ((f"the default {name} {of}", part) for name, part in (thing.__kwdefaults__ or {}).items())
    else:
        of = f"of {type(thing).__name__}"
        yield from (
            (f"the attribute {name} {of}", part) for name, part in getattr(thing, "__dict__", {}).items()
        )


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a function and the functions inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
