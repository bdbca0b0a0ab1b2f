"""The folder of a profile, which the program and its workers share.

The program makes the folder, and names it in an environment variable of its workers. A worker that
begins writes a file ``PID.begun`` there, and every second its samples, as ``PID.json``. When the
program has written a file ``ended``, each worker writes its samples a last time, and removes
``PID.begun``.
"""

from __future__ import annotations

# Each worker imports this module, so it imports no more than the worker has anyway.
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

#: The environment variable that names the folder.
VARIABLE = "CROSSLANE_PROFILE"
#: The file that ends a profile, and the ends of the names of a worker's files.
_ENDED, _BEGUN, _SAMPLES = "ended", ".begun", ".json"


class Frame(NamedTuple):
    """A line of a function that runs."""

    function: str
    file: str
    line: int


#: The frames of a sample, the outermost first.
Stack = tuple[Frame, ...]


class Folder:
    """The folder of a profile."""

    def __init__(self, path: str) -> None:
        self._path = path

    def end(self) -> None:
        """Tells all workers that the profile ends."""
        self._touch(_ENDED)

    def has_ended(self) -> bool:
        """Whether the profile has ended."""
        return os.path.exists(self._file(_ENDED))

    def begin(self) -> None:
        """Tells the program that this worker takes samples."""
        self._touch(f"{os.getpid()}{_BEGUN}")

    def write(self, counts: list[tuple[Stack, int]]) -> None:
        """Writes how often this worker was found in each stack. A reader sees all or nothing of it."""
        new = self._file(f"{os.getpid()}.new")
        with open(new, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(counts, file)
        os.replace(new, self._file(f"{os.getpid()}{_SAMPLES}"))

    def leave(self) -> None:
        """Tells the program that this worker has written its last samples."""
        os.unlink(self._file(f"{os.getpid()}{_BEGUN}"))

    def is_awaited(self) -> bool:
        """Whether a living worker has not written its last samples."""
        names = os.listdir(self._path)
        return any(
            os.path.exists(f"/proc/{name.removesuffix(_BEGUN)}") for name in names if name.endswith(_BEGUN)
        )

    def read(self) -> Iterator[tuple[Stack, int]]:
        """The samples of all workers."""
        for name in sorted(os.listdir(self._path)):
            if name.endswith(_SAMPLES):
                with open(self._file(name), encoding="utf-8") as file:
                    for stack, count in json.load(file):
                        yield tuple(Frame(*frame) for frame in stack), count

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _touch(self, name: str) -> None:
        with open(self._file(name), "w"):
            pass
