"""The shared code of the files of ways out of a sandbox. It is copied to their folder."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from crosslane import udf

Way = Callable[[dict[str, Any]], object]
WAYS: dict[str, Way] = {}


class Refused(Exception):
    """There is nothing that the way could find."""


def way(function: Way) -> Way:
    """Adds a way. A way raises an exception if it does not lead out. Its argument names the paths, ports and
    processes that the test has made outside of the sandbox."""
    WAYS[function.__name__] = function
    return function


@contextlib.contextmanager
def opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@udf
def ways() -> list[str]:
    """The names of the ways."""
    return list(WAYS)


@udf(deterministic=False)
def attempt(name: str, place: str) -> str:
    """``out`` if a way leads out, or the reason why it does not. The place is JSON."""
    try:
        WAYS[name](json.loads(place))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "out"


@udf(deterministic=False, sandbox="on")
def attempt_alone(name: str, place: str) -> str:
    """Does the same as ``attempt``, in a sandbox of its own."""
    return attempt(name, place)
