"""What a file and its functions have touched, as the engine's recorder notes it."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: The variable that tells the engine of this process to record a file (`crosslane_sandbox::recorder`).
_ORDER = "CROSSLANE_RECORD"


@dataclass
class Notes:
    """What was touched that a sandbox does not allow by itself."""

    read: set[str] = field(default_factory=set)
    write: set[str] = field(default_factory=set)
    run: set[str] = field(default_factory=set)
    #: Such as ``api.example.com:443``.
    hosts: set[str] = field(default_factory=set)
    #: The names of hosts that were asked for.
    names: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    #: What no sandbox allows.
    never: set[str] = field(default_factory=set)
    #: Whether functions have made processes.
    forks: bool = False
    #: Whether more was touched than the engine notes.
    is_full: bool = False


class Recording:
    """A recording of a file, in memory that the engine writes."""

    def __init__(self, memory: int) -> None:
        self._memory = memory

    def notes(self) -> Notes:
        """What was noted so far."""
        size = os.fstat(self._memory).st_size
        lines = os.pread(self._memory, size, 0).splitlines()
        by_kind: dict[str, set[str]] = defaultdict(set)
        noted = [json.loads(line) for line in lines]
        has_network = any(note["kind"] in ("host", "name") for note in noted)
        for note in noted:
            if not (has_network and note.get("network")):
                by_kind[note["kind"]].add(note.get("what", ""))
        kinds = ("read", "write", "run", "host", "name", "variable", "never")
        return Notes(*(by_kind[kind] for kind in kinds), forks="fork" in by_kind, is_full="full" in by_kind)


@contextlib.contextmanager
def recording(file: str) -> Iterator[Recording]:
    """Makes engines of this process record a file that they load, and let it do everything."""
    memory = os.memfd_create("crosslane-notes")
    path = f"/proc/{os.getpid()}/fd/{memory}"
    os.environ[_ORDER] = json.dumps({"file": str(Path(file).resolve()), "notes": path})
    try:
        yield Recording(memory)
    finally:
        del os.environ[_ORDER]
        os.close(memory)
