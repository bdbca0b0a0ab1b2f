"""The rules about what functions call: ``blocking-call`` and ``changing-call``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from crosslane._cli.check.strict.source import Defined, Source, Unit, inside, is_local, own

#: Calls that make all rows of a worker wait, with what waits for one row only.
_BLOCKING = {
    "time.sleep": "await asyncio.sleep(...)",
    "os.system": "await asyncio.create_subprocess_shell(...)",
    **dict.fromkeys(
        [f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "getoutput")],
        "await asyncio.create_subprocess_exec(...)",
    ),
    **dict.fromkeys(
        [
            "socket.create_connection",
            "urllib.request.urlopen",
            *(
                f"{library}.{method}"
                for library in ("requests", "httpx")
                for method in ("delete", "get", "head", "options", "patch", "post", "put", "request")
            ),
        ],
        "an asynchronous client, or await asyncio.to_thread(...)",
    ),
}
#: Calls whose results differ from call to call.
_CHANGING = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.urandom",
    "time.time",
    "time.time_ns",
    "uuid.uuid1",
    "uuid.uuid4",
}
#: Modules whose functions all do so, except these.
_RANDOM = ("random", "secrets", "numpy.random")
_SEEDS = ("seed", "setstate", "set_state")
_OTHERS = (*_SEEDS, "getstate", "get_state", "compare_digest")
#: Generators of these modules begin with a seed, if they are given one.
_GENERATORS = (
    "Generator",
    "Random",
    "RandomState",
    "SeedSequence",
    "default_rng",
    "MT19937",
    "PCG64",
    "PCG64DXSM",
    "Philox",
    "SFC64",
)


def blocking_calls(source: Source, units: list[Unit]) -> Iterator[tuple[int, str]]:
    """Calls in ``async`` functions that make the rows of all calls wait."""
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for call, (module, name) in _calls(source, function, own(function)):
            path = f"{module}.{name}"
            if path in _BLOCKING:
                yield (
                    call.lineno,
                    f"{path} blocks the event loop, so all rows of the worker wait; use {_BLOCKING[path]}",
                )


def changing_calls(source: Source, units: list[Unit]) -> Iterator[tuple[int, str]]:
    """Calls in deterministic functions whose results change."""
    for unit in units:
        declared = unit.declared
        # A table is only made again by `retries`.
        if not declared["deterministic"] or (declared["kind"] != "scalar" and not declared["retries"]):
            continue
        calls = []
        for body in unit.bodies():
            nodes = list(inside(body))
            measuring = _durations(source, nodes)
            calls += [found for found in _calls(source, body, nodes) if found[0] not in measuring]
        seeded = {module for _, (module, name) in calls if name in _SEEDS}
        what = (
            "equal rows may share the result of one call"
            if declared["kind"] == "scalar"
            else "a failed scan that is done again must make the same rows"
        )
        for call, (module, name) in calls:
            if _changes(call, module, name, module in seeded):
                yield (
                    call.lineno,
                    f"{module}.{name} changes from call to call, and {what}; declare the function with deterministic=False",
                )


def _changes(call: ast.Call, module: str, name: str, is_seeded: bool) -> bool:
    if module not in _RANDOM:
        return f"{module}.{name}" in _CHANGING
    if name in _GENERATORS:
        return not (call.args or call.keywords)
    return name not in _OTHERS and not is_seeded


def _durations(source: Source, nodes: list[ast.AST]) -> list[ast.expr]:
    """The calls that only measure how long something takes: ``started = time.time()``, and
    ``time.time() - started``.
    """
    starts = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and _is_clock(source, node.value)
    }
    found: list[ast.expr] = []
    for name, start in starts.items():
        uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
        ends = [
            node.left
            for node in nodes
            if isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Sub)
            and node.right in uses
            and _is_clock(source, node.left)
        ]
        # Beside the ends, only the start uses the variable.
        if len(uses) == len(ends) + 1:
            found += [start, *ends]
    return found


def _is_clock(source: Source, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and source.path_of(node.func) in ("time.time", "time.time_ns")


def _calls(
    source: Source, function: Defined, nodes: Iterable[ast.AST]
) -> Iterator[tuple[ast.Call, tuple[str, str]]]:
    """Calls of what the file has imported, with the module or class and the name of the callee."""
    for node in nodes:
        if not isinstance(node, ast.Call) or (path := source.path_of(node.func)) is None:
            continue
        first = next(one.id for one in ast.walk(node.func) if isinstance(one, ast.Name))
        if not is_local(function, first):
            module, _, name = path.rpartition(".")
            yield node, (module, name)
