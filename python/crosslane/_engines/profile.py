"""Profiles of a program's workers: which lines of Python functions took the time."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crosslane._runtime.profiles import VARIABLE, Folder, Frame, Stack

#: How long a worker may take for its last samples, in seconds.
_PATIENCE = 2.0
#: How often the program looks whether they are there.
_GLANCE = 0.01
#: The most lines of a profile. Those with the fewest samples are left out.
MOST = 5_000


@dataclass
class Line:
    """A line of a function, and what it called."""

    frame: Frame | None = None
    samples: int = 0
    called: dict[Frame, Line] = field(default_factory=dict)

    def add(self, stack: Stack, count: int) -> None:
        """Counts samples of a stack below this line."""
        line = self
        line.samples += count
        for frame in stack:
            line = line.called.setdefault(frame, Line(frame))
            line.samples += count

    def tree(self, least: int) -> dict[str, Any]:
        """The line with what it called, for a page; without lines of fewer samples."""
        called = sorted(self.called.values(), key=lambda line: -line.samples)
        tree: dict[str, Any] = {
            "samples": self.samples,
            "called": [line.tree(least) for line in called if line.samples >= least],
        }
        if self.frame is not None:
            tree |= {"name": self.frame.function, "file": self.frame.file, "line": self.frame.line}
        return tree

    def counts(self) -> Iterator[int]:
        """The samples of all lines."""
        yield self.samples
        for line in self.called.values():
            yield from line.counts()


class Profile:
    """Samples of the workers that were started in a block."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def end(self) -> dict[str, Any]:
        """Ends the samples, and returns them as the tree of a page."""
        self._folder.end()
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self._folder.is_awaited():
            time.sleep(_GLANCE)
        root = Line()
        for stack, count in self._folder.read():
            root.add(stack, count)
        counts = sorted(root.counts(), reverse=True)
        return root.tree(counts[MOST] + 1 if len(counts) > MOST else 1)


@contextlib.contextmanager
def profiled() -> Iterator[Profile]:
    """Samples the Python functions of files that are loaded in the block."""
    path = tempfile.mkdtemp(prefix="crosslane-profile-")
    os.environ[VARIABLE] = path
    try:
        yield Profile(Folder(path))
    finally:
        # Another thread may have begun a profile of another database meanwhile.
        if os.environ.get(VARIABLE) == path:
            del os.environ[VARIABLE]
        deadline = time.monotonic() + _PATIENCE
        # A worker that has just started may write meanwhile. It stops when its folder is gone.
        while os.path.exists(path) and time.monotonic() < deadline:
            shutil.rmtree(path, ignore_errors=True)
