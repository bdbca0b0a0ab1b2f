"""The rules about what functions keep: ``changed-global`` and ``unpicklable-state``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from crosslane._cli.check.strict.source import Source, Unit, inside, is_local

_MUTABLE = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)
#: What makes mutable objects.
_MAKERS = {"bytearray", "Counter", "defaultdict", "deque", "dict", "list", "OrderedDict", "set"}
#: Methods that a cache needs to stay small.
_SHRINKING = {"clear", "pop", "popitem"}
_CHANGING = _SHRINKING | {
    *("add", "append", "appendleft", "discard", "extend", "extendleft", "insert", "popleft", "remove"),
    *("reverse", "rotate", "setdefault", "sort", "subtract", "update"),
}
_COPIES = (
    "each worker has a copy of its own, so results depend on the worker; "
    "an aggregate adds rows up, and memoize keeps results"
)
#: What cannot be pickled, by what makes it.
_UNPICKLABLE = {
    **dict.fromkeys(("builtins.open", "io.open", "gzip.open", "bz2.open", "lzma.open"), "an open file"),
    **dict.fromkeys(("threading.Lock", "threading.RLock", "threading.Condition"), "a lock"),
    **dict.fromkeys(("threading.Event", "threading.Semaphore"), "a lock"),
    **dict.fromkeys(("sqlite3.connect", "duckdb.connect"), "a connection"),
    **dict.fromkeys(("socket.socket", "socket.create_connection"), "a socket"),
}


def changed_globals(source: Source, units: list[Unit]) -> Iterator[tuple[int, str]]:
    """Changes of global variables, except for caches and for what is made at its first use."""
    mutable = set(_mutable_globals(source.tree))
    for body in (body for unit in units for body in unit.bodies()):
        nodes = list(inside(body))
        for node in nodes:
            if isinstance(node, ast.Global):
                for name in node.names:
                    if not _is_made_once(nodes, name):
                        yield (
                            node.lineno,
                            f"the function sets the global {name}: {_COPIES}",
                        )
        for name in mutable:
            if not is_local(body, name):
                yield from _changes(nodes, name)


def _mutable_globals(tree: ast.Module) -> Iterator[str]:
    """The variables of a module that hold a mutable object from the start."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_mutable(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        made = value.func
        name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
        return name in _MAKERS
    return isinstance(value, _MUTABLE)


def _is_made_once(nodes: list[ast.AST], name: str) -> bool:
    """Whether a function sets a variable only after it has asked whether it has a value."""
    for node in nodes:
        if isinstance(node, ast.Compare) and _is(node.left, name):
            nothing = isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None
            if nothing and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
                return True
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and _is(node.operand, name):
            return True
    return False


def _changes(nodes: list[ast.AST], name: str) -> Iterator[tuple[int, str]]:
    """The places where a global object is changed."""
    entries = [
        node
        for node in nodes
        if isinstance(node, ast.Assign) and any(_is_part(target, name) for target in node.targets)
    ]
    read = [node for node in nodes if _is(node, name)]
    computed = [entry for entry in entries if any(_is(inner, name) for inner in ast.walk(entry.value))]
    # A function that looks something up before it sets it keeps what it has computed.
    is_cache = bool(entries) and not computed and len(read) > len(entries)
    # `NAMES.setdefault(key, []).append(value)` changes what it finds.
    continued = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    for node in nodes:
        changed = (
            (isinstance(node, ast.Assign) and node in entries and not is_cache)
            or (isinstance(node, ast.AugAssign) and (_is_part(node.target, name) or _is(node.target, name)))
            or (
                isinstance(node, ast.Delete)
                and not is_cache
                and any(_is_part(one, name) for one in node.targets)
            )
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and _is(node.func.value, name)
                and node.func.attr in _CHANGING
                and not (is_cache and node.func.attr in _SHRINKING)
                and (node.func.attr != "setdefault" or node in continued)
            )
        )
        if changed:
            yield node.lineno, f"the function changes the global {name}: {_COPIES}"  # type: ignore[attr-defined]


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_part(node: ast.AST, name: str) -> bool:
    """Whether a node is an element of a variable."""
    return isinstance(node, ast.Subscript) and _is(node.value, name)


def unpicklable_states(source: Source, units: list[Unit]) -> Iterator[tuple[int, str]]:
    """What aggregates keep and workers cannot send to each other."""
    for unit in units:
        if unit.declared["kind"] != "aggregate" or not isinstance(unit.node, ast.ClassDef):
            continue
        methods = {node.name for node in ast.walk(unit.node) if isinstance(node, ast.FunctionDef)}
        if methods & {"__getstate__", "__reduce__", "__reduce_ex__"}:
            continue
        for node in ast.walk(unit.node):
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                what = _unpicklable(source, node.value)
                for target in targets:
                    if what and isinstance(target, ast.Attribute) and _is(target.value, "self"):
                        yield (
                            node.lineno,
                            f"{what} in self.{target.attr} cannot be pickled, so workers cannot merge their groups; "
                            "keep data only, or define __getstate__",
                        )


def _unpicklable(source: Source, value: ast.expr | None) -> str | None:
    if isinstance(value, ast.GeneratorExp):
        return "a generator"
    if not isinstance(value, ast.Call):
        return None
    is_open = isinstance(value.func, ast.Name) and value.func.id == "open"
    path = source.path_of(value.func) or ("builtins.open" if is_open else "")
    return _UNPICKLABLE.get(path)
