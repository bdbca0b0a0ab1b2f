"""The variables of nested functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cells(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables that a nested function takes from around it. Their values can be replaced."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or ()))  # type: ignore[attr-defined]
