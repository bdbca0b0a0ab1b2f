"""The folder of a profile, which the program and its workers share.

The program makes the folder, and names it in an environment variable of its workers. Each worker
writes a file of samples there every second (``crosslane._worker.sampler``). When the program has
written a file ``ended``, each worker writes its samples a last time, with ``is_last``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: The environment variable that names the folder.
VARIABLE = "CROSSLANE_PROFILE"
#: The file that ends a profile.
ENDED = "ended"


class Frame(NamedTuple):
    """A line of a function that runs."""

    function: str
    file: str
    line: int


#: The frames of a sample, the outermost first.
Stack = tuple[Frame, ...]


class Samples(NamedTuple):
    """How often a worker was found in each stack."""

    process: int
    counts: list[tuple[Stack, int]]
    is_last: bool

    def write(self, folder: Path) -> None:
        """Writes the file of the worker, so that a reader sees all or nothing of it."""
        path = folder / f"{self.process}.json"
        new = folder / f"{self.process}.new"
        new.write_text(json.dumps(self), encoding="utf-8", errors="backslashreplace")
        os.replace(new, path)


def read(folder: Path) -> Iterator[Samples]:
    """The samples of all workers."""
    for path in sorted(folder.glob("*.json")):
        process, counts, is_last = json.loads(path.read_text(encoding="utf-8"))
        yield Samples(
            process,
            [(tuple(Frame(*frame) for frame in stack), count) for stack, count in counts],
            is_last,
        )
