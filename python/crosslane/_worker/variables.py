"""Tells the recorder of an engine which variables of the environment are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import AnyStr, cast

from crosslane import _guest


def note() -> None:
    """Notes the variables that are read from now on."""
    for variables in (os.environ, os.environb):
        variables.__class__ = _Noted


class _Listed(str):
    """A name that a program has got by a list of all variables, such as for a copy."""


class _ListedBytes(bytes):
    pass


class _Noted(os._Environ[AnyStr]):
    """Notes the variables that are read by their names. What goes through all variables reads none by its
    name."""

    def __getitem__(self, name: AnyStr) -> AnyStr:
        if isinstance(name, (str, bytes)) and not isinstance(name, (_Listed, _ListedBytes)):
            _guest.note_variable(os.fsdecode(name))
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[AnyStr]:
        for name in super().__iter__():
            yield cast(AnyStr, _Listed(name) if isinstance(name, str) else _ListedBytes(name))
