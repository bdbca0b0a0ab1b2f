"""The guest program of each language. Further languages have manifests (docs/protocol.md)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

#: The folder of this package, which has the native programs.
PACKAGE = Path(__file__).parent.parent
#: The program that runs JavaScript functions, with the V8 of Node.js; missing if there were no headers of Node.js
#: when the package was built.
JAVASCRIPT = PACKAGE / "crosslane-js"
#: The suffixes of their files, as the engine knows them.
_JAVASCRIPT_FILES, _RUBY_FILES = (".js", ".mjs", ".cjs", ".ts"), ".rb"
#: The program that serves functions to other machines.
SERVER = PACKAGE / "crosslane-server"
#: The Ruby files of the gem; missing if there was no Ruby when the package was built.
RUBY = PACKAGE / "ruby"


@dataclass(frozen=True)
class Guest:
    """The guest of a language, by its manifest."""

    language: str
    #: The suffixes of files in the language, with dots.
    suffixes: tuple[str, ...]
    #: How a comment of one line begins, if files may have the block of PEP 723.
    comment: str | None
    #: The guest program; it may be missing.
    program: Path
    #: Why the program may be missing, and what to do.
    missing: str
    #: The text of a file with a function ``crosslane_doctor_guest`` without parameters.
    example: str


def guests() -> list[Guest]:
    """The languages with manifests that are in this package."""
    found = []
    for file in sorted(PACKAGE.glob("guests/*/guest.json")):
        manifest = json.loads(file.read_text())
        found.append(
            Guest(
                manifest["language"],
                tuple(f".{suffix}" for suffix in manifest["suffixes"]),
                manifest.get("comment"),
                file.parent / manifest["program"],
                manifest["missing"],
                manifest["example"],
            )
        )
    return found


def is_python(file: str) -> bool:
    """Whether a file is loaded as Python: its suffix belongs to no other language."""
    return Path(file).suffix not in suffixes() - {".py"}


def is_javascript(file: str) -> bool:
    """Whether a file is loaded as JavaScript or TypeScript."""
    return Path(file).suffix in _JAVASCRIPT_FILES


def comment(file: str) -> str | None:
    """How a comment begins in a file's language; None if its files have no blocks of PEP 723."""
    if is_javascript(file):
        return "//"
    suffix = Path(file).suffix
    return next((guest.comment for guest in guests() if suffix in guest.suffixes), "#")


def suffixes() -> frozenset[str]:
    """The suffixes of files of functions, in all languages."""
    others = (one for guest in guests() for one in guest.suffixes)
    return frozenset([".py", *_JAVASCRIPT_FILES, _RUBY_FILES, *others])


def command(file: Path) -> list[str]:
    """The command of the guest for a file.

    As it is, the command is a zygote. With the arguments ``check`` and a file, it prints the
    functions of the file.

    Raises:
        FileNotFoundError: if the guest is missing; says why.
    """
    suffix = file.suffix
    if suffix in _JAVASCRIPT_FILES:
        return [str(_there(JAVASCRIPT, "the package was built without the headers of Node.js"))]
    if suffix == _RUBY_FILES:
        gem = _there(RUBY, "the package was built without Ruby")
        return ["ruby", f"-I{gem}", "-rcrosslane/worker/zygote", "-e", "Crosslane::Zygote.run"]
    for guest in guests():
        if suffix in guest.suffixes:
            return [str(_there(guest.program, guest.missing))]
    return [sys.executable, "-P", "-m", "crosslane._worker.zygote"]


def _there(program: Path, missing: str) -> Path:
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing: {missing}")
    return program
