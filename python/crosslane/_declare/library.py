"""Libraries: the functions of a file, or those that a program hands over."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator

from crosslane._declare import decorators
from crosslane._declare.declaration import Declaration, DeclarationError
from crosslane._declare.decorators import declaration_of
from crosslane._declare.importing import Files, import_file
from crosslane._declare.signature.declared import Declared
from crosslane._declare.signature.resolve import resolve
from crosslane._runtime.errors import OURS

_loading = False


def load_file(path: str | os.PathLike[str], files: Files | None = None) -> list[Declared]:
    """Runs a file, and collects the functions that it declares in the order of its variables.

    Adds to ``files`` the path and the content of each file that was run: this one, and the files of
    its folder that it has imported.

    Raises:
        DeclarationError: if it declares no function, or one that cannot work.
        Exception: whatever the file itself raises.
    """
    path = os.path.normpath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    real = os.path.realpath(path)
    # A file that is loaded again declares its functions anew.
    decorators.declarations = [other for other in decorators.declarations or [] if other.file != real]
    with _is_loading():
        module = import_file(real, [] if files is None else files)
    # By identity: a callable need not be hashable.
    unique = {id(value): declaration_of(value) for value in vars(module).values()}
    declarations = _with_overloads([declaration for declaration in unique.values() if declaration])
    if not declarations:
        raise DeclarationError(
            f"{path}: declares no function; put `from crosslane import udf` and `@udf` before one"
        )
    return [item for declaration in declarations for item in resolve(declaration)]


def load_pickles(descriptor: int) -> list[Declared]:
    """The functions that :func:`crosslane.register` has pickled into a file."""
    functions: list[Declared] = []
    with open(f"/proc/self/fd/{descriptor}", "rb") as file, _is_loading():
        while file.peek(1):
            # In the program's order, so that a name means the same module here and there.
            folders = pickle.load(file)
            sys.path[:] = folders + [folder for folder in sys.path if folder not in folders]
            functions += pickle.load(file)
    return functions


def folders_of_pickles(descriptor: int) -> list[str]:
    """The folders with the modules of the first of these functions. Runs nothing of them.

    Raises:
        pickle.UnpicklingError: if they are something else than texts.
    """

    class Texts(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> None:
            raise pickle.UnpicklingError(f"folders are texts, and not {module}.{name}")

    with open(f"/proc/self/fd/{descriptor}", "rb") as file:
        return [str(folder) for folder in Texts(file).load()] if file.peek(1) else []


def refuse_while_loading() -> None:
    """Refuses to connect or to register while a file is loaded: each process would start the next,
    without end.

    Raises:
        DeclarationError: if a library is being loaded; it names the line that asked.
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
    """The declarations that a file's variables hold, and their overloads.

    Several ``def`` of one name leave only the last in the variable; the others are known from the
    decorator. Overloads of one name stand together, in the order in which they were declared.
    """
    groups: dict[tuple[str, str], list[Declaration]] = {}
    for declaration in decorators.declarations or []:
        groups.setdefault(_file_and_name(declaration), []).append(declaration)
    # A wrapper shares the options of the function that it wraps, and is called in its place.
    by_options = {id(declaration.given): declaration for declaration in found}
    result: dict[int, Declaration] = {}
    for declaration in found:
        group = groups.get(_file_and_name(declaration), [])
        if any(other.overload for other in group):
            group = [by_options.get(id(other.given), other) for other in group]
        else:
            group = [declaration]
        result |= {id(other): other for other in group}
    return list(result.values())


def _file_and_name(declaration: Declaration) -> tuple[str, str]:
    """The file and the name that overloads have in common."""
    return declaration.file, declaration.name.lower()
