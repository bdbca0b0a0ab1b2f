"""The source of a Python file, as the rules read it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

#: What has a body that runs later than the code around it.
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_IGNORE = re.compile(r"#\s*crosslane:\s*ignore(?:\[([^\]]*)\])?")


@dataclass
class Unit:
    """The code of a function that SQL calls, and what the engine is told of it."""

    node: Defined | ast.ClassDef
    declared: dict[str, Any]

    def bodies(self) -> list[Defined]:
        """What is called for rows: the function, or the methods of a class without its set-up."""
        if not isinstance(self.node, ast.ClassDef):
            return [self.node]
        methods = [one for one in self.node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return [method for method in methods if method.name not in ("__init__", "__new__")]


class Source:
    """A file's syntax tree, its imports, and the comments that silence rules."""

    def __init__(self, path: str) -> None:
        """Reads a file.

        Raises:
            OSError: if it cannot be read.
            SyntaxError: if it is no Python, or not of this interpreter's version.
        """
        try:
            with tokenize.open(path) as file:
                text = file.read()
            self.tree = ast.parse(text, path)
        except ValueError as error:
            # Bytes that are no text, or a zero byte.
            raise SyntaxError(str(error)) from None
        self.imports = dict(_imported(self.tree))
        #: The rules that comments name, by their lines.
        self.ignored: dict[int, list[str]] = {}
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (found := _IGNORE.search(token.string)):
                named = [name.strip() for name in (found[1] or "").split(",")]
                self.ignored.setdefault(token.start[0], []).extend(named)

    def path_of(self, node: ast.expr) -> str | None:
        """The full name of something that the file has imported, such as ``time.sleep``."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id)
        if isinstance(node, ast.Attribute):
            above = self.path_of(node.value)
            return above and f"{above}.{node.attr}"
        return None

    def units(self, declared: list[dict[str, Any]]) -> Iterator[Unit]:
        """The code of declared functions. Of a stateful function or an aggregate, its class."""
        by_line = {function["line"]: function for function in declared}
        for node, classes in _definitions(self.tree):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            function = by_line.pop(first, None)
            if function is not None:
                has_state = function["kind"] == "aggregate" or function["set_up"]
                yield Unit(classes[-1] if has_state and classes else node, function)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that imports bind, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _definitions(
    node: ast.AST, classes: tuple[ast.ClassDef, ...] = ()
) -> Iterator[tuple[Defined, tuple[ast.ClassDef, ...]]]:
    """All functions in the order of the file, with the classes around each."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Defined):
            yield child, classes
        inner = (*classes, child) if isinstance(child, ast.ClassDef) else classes
        yield from _definitions(child, inner)


def inside(node: Defined | ast.ExceptHandler) -> Iterator[ast.AST]:
    """The nodes of a body, without decorators and defaults, which run once."""
    for part in _body(node):
        yield from ast.walk(part)


def own(node: Defined | ast.ExceptHandler) -> Iterator[ast.AST]:
    """As :func:`inside`, without the functions and classes in it."""
    for part in _body(node):
        yield from own_part(part)


def _body(node: Defined | ast.ExceptHandler) -> Sequence[ast.AST]:
    return [node.body] if isinstance(node, ast.Lambda) else node.body


def own_part(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without functions and classes."""
    if not isinstance(node, (*get_args(Defined), ast.ClassDef)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from own_part(child)


def is_local(node: ast.AST, name: str) -> bool:
    """Whether a function has a variable of this name."""
    inner = list(ast.walk(node))
    if any(isinstance(one, ast.Global) and name in one.names for one in inner):
        return False
    return any(
        (isinstance(one, ast.arg) and one.arg == name)
        or (isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store))
        for one in inner
    )
