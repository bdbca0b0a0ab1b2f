"""One line of the doctor's report, and looks that anything may break."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Finding:
    """One line of the report: ``state`` is ``good``, ``bad``, or ``optional`` (missing, but only some need it)."""

    state: str
    what: str
    text: str
    advice: str = ""


def tried(what: str, look: Callable[[], Finding]) -> Finding:
    """What a look at something finds, or what it failed with."""
    try:
        return look()
    except Exception as error:
        return Finding("bad", what, described(error), "pip install . again, or see the message above")


def described(error: Exception) -> str:
    return (
        str(error)
        if type(error).__module__.lstrip("_").startswith("duckdb")
        else f"{type(error).__name__}: {error}"
    )


def optional(name: str, purpose: str, advice: str) -> Finding:
    from crosslane._runtime.forks import lost_threads

    before = lost_threads()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return Finding("optional", name, f"not installed; only needed for {purpose}", advice)
    except Exception as error:
        text = f"is broken ({described(error)}); only needed for {purpose}"
        return Finding("optional", name, text, advice)
    version = getattr(module, "__version__", "installed")
    if lost_threads() != before:
        version += "\nits import starts threads: each worker loads a file that imports it anew"
    return Finding("good", name, version)
