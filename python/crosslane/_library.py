"""Libraries: the functions of a file, or one function that a program hands over."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from crosslane._signature import Declared, resolve
from crosslane._udf import Declaration, DeclarationError


def load_file(path: str | Path) -> list[Declared]:
    """Runs a file and collects the functions that it declares, in the order of their lines.

    Raises:
        DeclarationError: if it declares none, or the same name twice, or one that cannot work.
        Exception: whatever the file itself raises.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = _run(path)
    functions = [value for value in vars(module).values() if _declaration(value)]
    unique = list(dict.fromkeys(functions))
    if not unique:
        raise DeclarationError(
            f"{path}: declares no function; put `from crosslane import udf` and `@udf` before one"
        )
    return _resolved(unique)


def load_pickle(data: bytes) -> list[Declared]:
    """The function that :func:`crosslane.register` pickled, with its declaration."""
    import cloudpickle

    return [resolve(cloudpickle.loads(data))]


def _declaration(value: object) -> Declaration | None:
    declaration = getattr(value, "__crosslane__", None) if callable(value) else None
    return declaration if isinstance(declaration, Declaration) else None


def _resolved(functions: list[object]) -> list[Declared]:
    declared: dict[str, Declared] = {}
    for function in functions:
        declaration = _declaration(function)
        if declaration is None:
            continue
        item = resolve(declaration)
        other = declared.get(item.name.lower())
        if other:
            raise declaration.error(f"the name is taken by line {other.line} of {other.file}")
        declared[item.name.lower()] = item
    return list(declared.values())


def _run(path: Path) -> ModuleType:
    """Imports a file under its own name, unless another module has it."""
    path = path.resolve()
    name = (
        path.stem
        if path.stem.isidentifier() and path.stem not in sys.modules
        else f"crosslane_library_{path.stem}"
    )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path}: not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
