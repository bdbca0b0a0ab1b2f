"""Values of settings."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any


def text_of(value: Any) -> str:
    """The text of a setting, as engines take it. A list means its items with commas between them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Iterable) and not isinstance(value, (str, PathLike)):
        return ",".join(map(str, value))
    return str(value)
