"""Further languages: each has a folder with a guest and its manifest (``docs/protocol.md``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Guest:
    """What a manifest says of a language."""

    language: str
    #: Of the files that are loaded in the language, with their dots.
    suffixes: tuple[str, ...]
    #: The guest; it may be missing.
    program: Path
    #: Why it may be, and what to do.
    missing: str
    #: A file with a function ``crosslane_doctor_guest`` without parameters.
    example: str


def guests() -> list[Guest]:
    """The languages that came with this package, or were put beside them."""
    found = []
    for file in sorted(Path(__file__).parent.glob("guests/*/guest.json")):
        manifest = json.loads(file.read_text())
        found.append(
            Guest(
                manifest["language"],
                tuple(f".{suffix}" for suffix in manifest["suffixes"]),
                file.parent / manifest["program"],
                manifest["missing"],
                manifest["example"],
            )
        )
    return found
