"""Imports a file of functions, and notes which files were run for it."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import CodeType, ModuleType
from typing import Any

from crosslane._declare.declaration import DeclarationError

#: The paths and contents of files that were run.
Files = list[tuple[bytes, bytes]]


class _Reader(SourceFileLoader):
    """Compiles the text that it notes: a cached compilation may be of an older text."""

    def __init__(self, name: str, path: str, files: Files) -> None:
        super().__init__(name, path)
        self._files = files

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        content = self.get_data(path)
        self._files.append((os.fsencode(path), content))
        return self.source_to_code(content, path)


class _Finder:
    """Finds modules as Python does, and has a :class:`_Reader` load those of a folder."""

    def __init__(self, folder: str, files: Files) -> None:
        self._folder = folder
        self._files = files
        installed = map(os.path.normpath, sysconfig.get_paths().values())
        #: Folders of installed packages inside it, such as those of a virtual environment.
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
    """Whether a path is a folder, or is inside it."""
    return path == folder or path.startswith(os.path.join(folder, ""))


class _Spec(ModuleSpec):
    """The spec of a file without a package in its name, which still has relative imports."""

    def __init__(self, name: str, loader: SourceFileLoader, path: str, package: str) -> None:
        super().__init__(name, loader, origin=path)
        self.has_location = True
        self._package = package

    @property
    def parent(self) -> str:
        return self._package


def _packages(folder: str) -> tuple[list[str], str]:
    """The packages around a folder, the outermost first, and the folder that has that one."""
    packages: list[str] = []
    while os.path.basename(folder).isidentifier() and os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        packages.insert(0, package)
    return packages, folder


def import_file(path: str, files: Files) -> ModuleType:
    """Imports a file under its own name, unless another module has that name already."""
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
    # Before the finder of files, and behind those of built-in and frozen modules.
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
