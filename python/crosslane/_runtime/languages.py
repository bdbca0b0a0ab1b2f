"""Languages, and the guest of each. Further ones have a folder with a guest and its manifest (``docs/protocol.md``)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

#: The folder of this package, which has the native programs.
PACKAGE = Path(__file__).parent.parent
#: The program that runs JavaScript functions, which lies beside the extension; missing if V8 could not be built in.
JAVASCRIPT = PACKAGE / "crosslane-js"
#: The program that offers functions to other machines, which lies beside the extension.
SERVER = PACKAGE / "crosslane-server"
#: The gem's Ruby files, which lie beside the extension; missing if there was no Ruby to build it with.
RUBY = PACKAGE / "ruby"


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
    for file in sorted(PACKAGE.glob("guests/*/guest.json")):
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


def command(file: Path) -> list[str]:
    """The guest for a file: without further words it is a zygote, with ``check`` and a file it says what that declares.

    Raises:
        FileNotFoundError: if it is not there; says why.
    """
    suffix = file.suffix
    if suffix in (".js", ".mjs", ".cjs", ".ts"):
        return [str(_there(JAVASCRIPT, "the package was built without V8"))]
    if suffix == ".rb":
        gem = _there(RUBY, "the package was built without Ruby")
        return ["ruby", f"-I{gem}", "-rcrosslane/zygote", "-e", "Crosslane::Zygote.run"]
    for guest in guests():
        if suffix in guest.suffixes:
            return [str(_there(guest.program, guest.missing))]
    return [sys.executable, "-P", "-m", "crosslane._worker.zygote"]


def _there(program: Path, missing: str) -> Path:
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing: {missing}")
    return program
