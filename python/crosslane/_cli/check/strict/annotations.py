"""The rule ``missing-annotation``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from crosslane._cli.check.strict.source import Source

_DECORATORS = ("crosslane.udf", "crosslane.udtf", "crosslane.udaf")


def missing_annotations(source: Source) -> Iterator[tuple[int, str]]:
    """All parameters and results without a type: the load of a file names only the first."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if "udaf" not in (kind := _declared_by(source, node)) and kind:
                yield from _of_function(node, node.args.args, needs_result=True)
        elif isinstance(node, ast.ClassDef) and (kind := _declared_by(source, node)):
            methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
            called = ("update", "finish") if kind == "udaf" else ("__call__",)
            for name in called:
                if method := methods.get(name):
                    yield from _of_function(method, method.args.args[1:], needs_result=name != "update")


def _declared_by(source: Source, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """The decorator that declares something without a signature; empty if there is none."""
    for decorator in node.decorator_list:
        called = decorator if isinstance(decorator, ast.Call) else None
        path = source.path_of(called.func if called else decorator)
        if path in _DECORATORS and not (called and called.args):
            return path.removeprefix("crosslane.")
    return ""


def _of_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, parameters: list[ast.arg], *, needs_result: bool
) -> Iterator[tuple[int, str]]:
    rest = [node.args.vararg] if node.args.vararg else []
    for parameter in [*parameters, *rest]:
        if parameter.annotation is None:
            yield (
                parameter.lineno,
                f"parameter {parameter.arg} of {node.name} has no type; annotate it, or give a signature",
            )
    if needs_result and node.returns is None:
        yield node.lineno, f"the result of {node.name} has no type; annotate it, or give a signature"
