"""Libraries: the functions of a file, or one function that a program hands over."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import CodeType, ModuleType
from typing import Any

from crosslane._declare import decorators
from crosslane._declare.decorators import Declaration, DeclarationError, declaration_of
from crosslane._declare.signature.annotations import Declared, resolve
from crosslane._runtime.errors import OURS

#: Paths and contents of files that were run.
Files = list[tuple[bytes, bytes]]

_loading = False


def load_file(path: str | os.PathLike[str], files: Files | None = None) -> list[Declared]:
    """Runs a file and collects the functions that it declares, in the order of their lines.

    ``files`` gets the path and the content of each file that was run: this one, and those of its folder
    that it imported.

    Raises:
        DeclarationError: if it declares none, or one that cannot work.
        Exception: whatever the file itself raises.
    """
    path = os.path.normpath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    real = os.path.realpath(path)
    # A file that is loaded again declares its functions anew.
    decorators.declarations = [other for other in decorators.declarations or [] if other.file != real]
    with _is_loading():
        module = _run(real, [] if files is None else files)
    # By identity: what is callable may not be hashable.
    unique = {id(value): declaration_of(value) for value in vars(module).values()}
    declarations = _with_overloads([declaration for declaration in unique.values() if declaration])
    if not declarations:
        raise DeclarationError(
            f"{path}: declares no function; put `from crosslane import udf` and `@udf` before one"
        )
    return [item for declaration in declarations for item in resolve(declaration)]


def load_pickles(descriptor: int) -> list[Declared]:
    """The functions that :func:`crosslane.register` pickled, with their declarations; reads the file from its beginning."""
    functions: list[Declared] = []
    with open(f"/proc/self/fd/{descriptor}", "rb") as file, _is_loading():
        while file.peek(1):
            # In the program's order, so that names mean the same modules.
            folders = pickle.load(file)
            sys.path[:] = folders + [folder for folder in sys.path if folder not in folders]
            functions += pickle.load(file)
    return functions


def refuse_while_loading() -> None:
    """Keeps a library from loading itself: each of its processes would start the next, without end.

    Raises:
        DeclarationError: if a library is being loaded; it names the place that asked.
    """
    if not _loading:
        return
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    raise DeclarationError(
        f"{frame.f_code.co_filename}:{frame.f_lineno}: this file is being loaded as a library of functions; put what "
        "connects under `if __name__ == '__main__':`"
    )


@contextlib.contextmanager
def _is_loading() -> Iterator[None]:
    global _loading
    _loading = True
    try:
        yield
    finally:
        _loading = False


def _with_overloads(found: list[Declaration]) -> list[Declaration]:
    """What a file's variables hold, and the overloads of it whose variables hold a later one now.

    Those of one name stand together, in the order in which they were declared.
    """
    groups: dict[tuple[str, str], list[Declaration]] = {}
    for declaration in decorators.declarations or []:
        groups.setdefault(_place(declaration), []).append(declaration)
    # A wrapper of a function shares its options, and is called in place of it.
    by_options = {id(declaration.given): declaration for declaration in found}
    result: dict[int, Declaration] = {}
    for declaration in found:
        group = groups.get(_place(declaration), [])
        if any(other.overload for other in group):
            group = [by_options.get(id(other.given), other) for other in group]
        else:
            group = [declaration]
        result |= {id(other): other for other in group}
    return list(result.values())


def _place(declaration: Declaration) -> tuple[str, str]:
    """The file and the name, by which overloads belong together."""
    return declaration.file, declaration.name.lower()


class _Reader(SourceFileLoader):
    """Runs the very text that it notes: what is cached of a file may be of an older text."""

    def __init__(self, name: str, path: str, files: Files) -> None:
        super().__init__(name, path)
        self._files = files

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        content = self.get_data(path)
        self._files.append((os.fsencode(path), content))
        return self.source_to_code(content, path)


class _Finder:
    """Has the modules of a folder read by a :class:`_Reader`."""

    def __init__(self, folder: str, files: Files) -> None:
        self._folder = folder
        self._files = files
        installed = map(os.path.normpath, sysconfig.get_paths().values())
        #: Where packages are installed in the folder.
        self._foreign = [place for place in installed if place != folder and _lies_in(place, folder)]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.origin and type(spec.loader) is SourceFileLoader and self._is_ours(spec.origin):
            spec.loader = _Reader(name, spec.origin, self._files)
        return spec

    def _is_ours(self, file: str) -> bool:
        file = os.path.normpath(file)
        return _lies_in(file, self._folder) and not any(_lies_in(file, place) for place in self._foreign)


def _lies_in(path: str, folder: str) -> bool:
    """Whether a path is a folder, or begins with it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


class _Spec(ModuleSpec):
    """That of a file which has its own name only, and may yet lie in a package, for relative imports."""

    def __init__(self, name: str, loader: SourceFileLoader, path: str, package: str) -> None:
        super().__init__(name, loader, origin=path)
        self.has_location = True
        self._package = package

    @property
    def parent(self) -> str:
        return self._package


def _packages(folder: str) -> tuple[list[str], str]:
    """The packages that the files of a folder lie in, the outermost first, and the folder where they are found."""
    packages: list[str] = []
    while os.path.basename(folder).isidentifier() and os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        packages.insert(0, package)
    return packages, folder


def _run(path: str, files: Files) -> ModuleType:
    """Imports a file under its own name, unless another module has it."""
    folder, file = os.path.split(path)
    stem, suffix = os.path.splitext(file)
    if suffix != ".py":
        raise DeclarationError(f"{path}: not a Python file (its name must end in .py)")
    name = stem if stem.isidentifier() and stem not in sys.modules else f"crosslane_library_{stem}"
    packages, root = _packages(folder)
    for place in (root, folder):
        if place not in sys.path:
            sys.path.insert(0, place)
    loader = _Reader(name, path, files)
    module = module_from_spec(_Spec(name, loader, path, ".".join(packages)))
    sys.modules[name] = module
    finder = _Finder(os.path.join(root, *packages[:1]), files)
    # Behind the finders of what is built in.
    before = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(before, finder)
    try:
        loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ImportError) and "no known parent package" in str(error):
            error.add_note(
                "the file lies in no package: write `from helper import ...`, which finds the files of its folder, "
                "or put an __init__.py there"
            )
        raise
    finally:
        sys.meta_path.remove(finder)
    return module
