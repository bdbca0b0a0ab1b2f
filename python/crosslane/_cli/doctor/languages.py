"""Looks for the engine, and runs a function of each language in it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from crosslane._cli.doctor.finding import Finding, described
from crosslane._runtime.languages import Guest

OLDEST_DUCKDB = (1, 5, 6)


def find_duckdb() -> Finding:
    advice = "pip install 'duckdb>=1.5.6'"
    try:
        import duckdb
    except ImportError as error:
        return Finding("bad", "DuckDB", str(error), advice)
    version = tuple(int(part) for part in duckdb.__version__.split(".")[:3] if part.isdigit())
    if version < OLDEST_DUCKDB:
        return Finding("bad", "DuckDB", f"{duckdb.__version__} is too old", advice)
    return Finding("good", "DuckDB", duckdb.__version__)


def load_extension() -> Finding:
    import crosslane

    path = crosslane.extension_path()
    try:
        crosslane.connect().close()
    except Exception as error:
        return Finding("bad", "extension", f"{path}: {described(error)}", "pip install . again")
    text = f"{path}\nin any client: SET allow_unsigned_extensions at start, then LOAD '{path}'"
    return Finding("good", "extension", text)


def run_python() -> Finding:
    text = "from crosslane import udf\n@udf\ndef crosslane_doctor_guest() -> int: return 42\n"
    return _ran("a function", ".py", text, lambda value: f"ran in a worker and returned {value}")


def run_javascript() -> Finding:
    import crosslane

    host = crosslane.javascript_path()
    if not host.exists():
        advice = "pip install 'crosslane[javascript]', then pip install . again"
        return Finding("optional", "JavaScript", "built without the headers of Node.js", advice)
    asked = subprocess.run([host, "version"], capture_output=True, text=True)
    if asked.returncode != 0:
        what, _, advice = asked.stderr.strip().removeprefix("crosslane-js: ").partition(": ")
        return Finding("optional", "JavaScript", what, advice)

    def found(value: object) -> str:
        return f"{asked.stdout.strip()}; a function ran in an isolate and returned {value}"

    return _ran("JavaScript", ".js", 'udf("crosslane_doctor_guest() -> INTEGER", () => 42);', found)


def run_ruby() -> Finding:
    import crosslane

    if not crosslane.ruby_path().exists():
        advice = "install Ruby with its headers, then pip install . again"
        return Finding("optional", "Ruby", "built without Ruby", advice)
    if shutil.which("ruby") is None:
        return Finding("optional", "Ruby", "no ruby on PATH; only needed for Ruby functions", "install Ruby")
    text = 'udf("crosslane_doctor_guest() -> VARCHAR") { RUBY_VERSION }'
    return _ran("Ruby", ".rb", text, lambda version: f"Ruby {version}; a function ran in a worker")


def run_further(guest: Guest) -> Finding:
    if not guest.program.exists():
        reason, _, advice = guest.missing.partition("; ")
        return Finding("optional", guest.language, reason, advice)

    def found(version: object) -> str:
        return f"{version}; a function ran in a worker"

    return _ran(guest.language, guest.suffixes[0], guest.example, found)


def _ran(language: str, suffix: str, text: str, found: Callable[[object], str]) -> Finding:
    """Runs a function of a file in a language."""
    import crosslane

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"doctor{suffix}"
        file.write_text(text)
        try:
            con = crosslane.connect(functions=file)
            try:
                value = con.execute("SELECT crosslane_doctor_guest()").fetchall()[0][0]
            finally:
                con.close()
            return Finding("good", language, found(value))
        except Exception as error:
            advice = "see the message above; what the worker printed is on stderr"
            return Finding("bad", language, described(error), advice)
