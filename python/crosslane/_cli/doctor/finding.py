"""The lines of the doctor's report."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Finding:
    """A line of the report. Its ``state`` is ``good``, ``bad`` or ``optional`` (may be missing)."""

    state: str
    what: str
    text: str
    advice: str = ""


def tried(what: str, look: Callable[[], Finding]) -> Finding:
    """The finding of a look, or its exception as a finding."""
    try:
        return look()
    except Exception as error:
        return Finding("bad", what, described(error), "pip install . again, or see the message above")


def described(error: Exception) -> str:
    """An exception as text; errors of DuckDB have the name of their class in their message."""
    return (
        str(error)
        if type(error).__module__.lstrip("_").startswith("duckdb")
        else f"{type(error).__name__}: {error}"
    )


def optional(name: str, purpose: str, advice: str) -> Finding:
    """Looks for a Python module that only some need."""
    from crosslane._runtime.forks import lost_threads

    before = Counter(lost_threads())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return Finding("optional", name, f"not installed; only needed for {purpose}", advice)
    except Exception as error:
        text = f"is broken ({described(error)}); only needed for {purpose}"
        return Finding("optional", name, text, advice)
    version = getattr(module, "__version__", "installed")
    # Threads of the checks before may end meanwhile.
    if Counter(lost_threads()) - before:
        version += "\nits import starts threads: each worker loads a file that imports it anew"
    return Finding("good", name, version)
