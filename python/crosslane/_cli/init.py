"""The command ``crosslane init``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
from rich.markup import escape

from crosslane._cli.output import EXIT_CODES, out
from crosslane._runtime.languages import PACKAGE, suffixes

_TYPES = "crosslane.d.ts"
#: What an isolate has: the language of its V8, and nothing of browsers and of Node.js.
_JSCONFIG = {
    "compilerOptions": {
        "target": "ES2024",
        "lib": ["ESNext"],
        "module": "ESNext",
        "moduleResolution": "Bundler",
        "types": [],
        "checkJs": True,
        "strict": True,
        "noImplicitAny": False,
        "skipLibCheck": True,
        "noEmit": True,
    }
}
_EXAMPLES = {
    "functions.py": """from crosslane import udf


@udf
def gross(price: float, rate: float = 0.19) -> float:
    return round(price * (1 + rate), 2)
""",
    "functions.js": """udf("slug(title VARCHAR) -> VARCHAR", (title) =>
  title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, ""),
);
""",
}


@click.command(epilog=EXIT_CODES)
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Prepares FOLDER for functions: types for editors, and examples if it has no functions.

    Editors check JavaScript and TypeScript by `crosslane.d.ts` and `jsconfig.json`. Files that are
    there already stay as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    is_empty = not any(file.suffix in suffixes() for file in folder.iterdir() if file.name != _TYPES)
    types = (PACKAGE / _TYPES).read_text(encoding="utf-8")
    if not _write(folder / _TYPES, types):
        _say(f"to renew {_TYPES} for this version of Crosslane, delete it and run this command again")
    _configure(folder)
    if not is_empty:
        return
    for name, text in _EXAMPLES.items():
        _write(folder / name, text)
    files = " ".join(f"-f {shlex.quote(str(folder / name))}" for name in _EXAMPLES)
    _say(f"""try: crosslane sql {files} "SELECT gross(100), slug('Hello World')\"""")


def _configure(folder: Path) -> None:
    """Writes a configuration of editors, or says what another one needs."""
    text = json.dumps(_JSCONFIG, indent=2) + "\n"
    for other in (folder / "tsconfig.json", folder / "jsconfig.json"):
        if other.exists() and other.read_bytes() != text.encode():
            _say(
                f'{other} is there already: if it has "include" or "files", add "{_TYPES}"; '
                'functions have "lib": ["ESNext"] and "types": []'
            )
            return
    _write(folder / "jsconfig.json", text)


def _write(file: Path, text: str) -> bool:
    """Writes a file if there is none. Returns whether the file has this text now."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        is_same = file.is_file() and file.read_bytes() == text.encode()
        _say(f"{file} is there already" + ("" if is_same else ", with another content"))
        return is_same
    _say(f"wrote {file}")
    return True


def _say(text: str) -> None:
    out.print(escape(text), highlight=False, soft_wrap=True)
