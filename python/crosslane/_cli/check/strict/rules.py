"""All rules, and the comments that silence them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crosslane._cli.check.strict.annotations import missing_annotations
from crosslane._cli.check.strict.calls import blocking_calls, changing_calls
from crosslane._cli.check.strict.source import Source, Unit
from crosslane._cli.check.strict.states import changed_globals, unpicklable_states
from crosslane._cli.check.strict.timeouts import swallowed_timeouts

#: A line, and what is the matter there.
Found = Iterator[tuple[int, str]]
#: What looks at a file and at the functions that it declares.
RULES: dict[str, Callable[[Source, list[Unit]], Found]] = {
    "blocking-call": blocking_calls,
    "changing-call": changing_calls,
    "changed-global": changed_globals,
    "swallowed-timeout": swallowed_timeouts,
    "unpicklable-state": unpicklable_states,
}
#: What looks at a file that cannot be loaded. All other files have their types.
UNLOADED: dict[str, Callable[[Source], Found]] = {"missing-annotation": missing_annotations}


def warnings_of(path: str, declared: list[dict[str, Any]] | None) -> list[tuple[int, str, str]]:
    """What the rules find in a Python file: lines, rules and messages, in the order of the lines.

    Args:
        path: the file. There is nothing to find in one that cannot be parsed.
        declared: what the engine is told of the file's functions; None if it cannot be loaded.
    """
    try:
        source = Source(path)
    except (OSError, SyntaxError):
        return []
    found: list[tuple[int, str, str]] = []
    if declared is None:
        for rule, look in UNLOADED.items():
            found += ((line, rule, message) for line, message in look(source))
    else:
        # A file may also declare functions of modules that it imports.
        own = [function for function in declared if function["file"] == os.path.realpath(path)]
        units = list(source.units(own))
        for rule, find in RULES.items():
            found += ((line, rule, message) for line, message in find(source, units))
    silenced = {(line, rule) for line, rules in source.ignored.items() for rule in rules}
    left = {one for one in found if one[:2] not in silenced}
    return sorted([*left, *_unknown_rules(source)])


def _unknown_rules(source: Source) -> Iterable[tuple[int, str, str]]:
    known = [*RULES, *UNLOADED]
    for line, rules in source.ignored.items():
        for rule in rules:
            if rule not in known:
                said = f"there is no rule {rule}" if rule else "the comment names no rule"
                yield line, "unknown-rule", f"{said}; the rules are {', '.join(known)}"
