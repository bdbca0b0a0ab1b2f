"""What Crosslane needs, looked for on this machine."""

from __future__ import annotations

import importlib
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST_DUCKDB = (1, 5, 6)
OLDEST_PYTHON = (3, 11)


@dataclass
class Finding:
    """One line of the report: ``state`` is ``good``, ``optional`` (missing, but only some need it) or ``bad``."""

    state: str
    what: str
    text: str
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Looks at everything, in the order in which one thing needs the other."""
    yield _platform()
    yield _python()
    yield _guest()
    yield from _duckdb()
    yield _javascript()
    yield _ruby()
    yield _optional("pyarrow", "vectorized functions", "pip install 'crosslane[vectorized]'")
    for name in ("numpy", "pandas", "polars"):
        yield _optional(name, f"vectorized functions with {name}", f"pip install {name}")
    yield _optional("cloudpickle", "crosslane.register", "pip install cloudpickle")
    yield _descriptors()


def _platform() -> Finding:
    here = f"{platform.system()} {platform.release()} on {platform.machine()}, {os.cpu_count()} cores"
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        return Finding("good", "platform", here)
    return Finding("bad", "platform", here, "Crosslane runs on Linux on x86-64 and arm64")


def _python() -> Finding:
    here = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("bad", "Python", here, "install Python 3.11 or newer")
    return Finding("good", "Python", here)


def _guest() -> Finding:
    try:
        guest = importlib.import_module("crosslane._guest")
    except ImportError as error:
        return Finding(
            "bad", "guest", str(error), "the native part was built for another Python: pip install . again"
        )
    return Finding("good", "guest", f"native loop {guest.__version__}")


def _duckdb() -> Iterator[Finding]:
    try:
        import duckdb
    except ImportError:
        yield Finding("bad", "DuckDB", "not installed", "pip install 'duckdb>=1.5.6'")
        return
    version = tuple(int(part) for part in duckdb.__version__.split(".")[:3] if part.isdigit())
    if version < OLDEST_DUCKDB:
        yield Finding("bad", "DuckDB", f"{duckdb.__version__} is too old", "pip install 'duckdb>=1.5.6'")
        return
    yield Finding("good", "DuckDB", duckdb.__version__)
    import crosslane

    path = crosslane.extension_path()
    try:
        con = crosslane.connect()
    except Exception as error:
        yield Finding("bad", "extension", f"{path}: {error}", "pip install . again")
        return
    yield Finding(
        "good",
        "extension",
        f"{path}\nin any client: SET allow_unsigned_extensions at start, then LOAD '{path}'",
    )
    try:
        crosslane.register(con, _answer, "crosslane_doctor() -> INTEGER", name="crosslane_doctor")
        value = con.execute("SELECT crosslane_doctor()").fetchall()[0][0]
        yield Finding("good", "a function", f"ran in a worker and returned {value}")
    except Exception as error:
        yield Finding("bad", "a function", str(error), "see the message above; the worker's log is on stderr")
    finally:
        con.close()


def _javascript() -> Finding:
    import crosslane

    host = crosslane.javascript_path()
    if not host.exists():
        return Finding("optional", "JavaScript", "built without V8", "run tools/v8, then pip install . again")

    def found(value: object) -> str:
        version = subprocess.run([host, "version"], capture_output=True, text=True).stdout.strip()
        return f"{version}; a function ran in an isolate and returned {value}"

    return _ran("JavaScript", ".js", 'udf("crosslane_doctor_guest() -> INTEGER", () => 42);', found)


def _ruby() -> Finding:
    import crosslane

    if not crosslane.ruby_path().exists():
        advice = "install Ruby with its headers, then pip install . again"
        return Finding("optional", "Ruby", "built without Ruby", advice)
    text = 'udf("crosslane_doctor_guest() -> VARCHAR") { RUBY_VERSION }'
    return _ran("Ruby", ".rb", text, lambda version: f"Ruby {version}; a function ran in a worker")


def _ran(language: str, suffix: str, text: str, found: Callable[[object], str]) -> Finding:
    """Runs a function of a file in that language."""
    import crosslane

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"doctor{suffix}"
        file.write_text(text)
        try:
            con = crosslane.connect(functions=file)
            value = con.execute("SELECT crosslane_doctor_guest()").fetchall()[0][0]
            con.close()
            return Finding("good", language, found(value))
        except Exception as error:
            return Finding("bad", language, str(error), "see the message above")


def _answer() -> int:
    return 42


def _optional(name: str, purpose: str, advice: str) -> Finding:
    try:
        module = importlib.import_module(name)
    except ImportError:
        return Finding("optional", name, f"not installed; only needed for {purpose}", advice)
    return Finding("good", name, getattr(module, "__version__", "installed"))


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A lane takes three or four in the engine, and a machine may have many cores.
    wanted = 64 + 8 * (os.cpu_count() or 1)
    if soft >= wanted:
        return Finding("good", "open files", f"{soft} allowed")
    return Finding("bad", "open files", f"only {soft} allowed", f"ulimit -n {max(wanted, 1024)}")
