"""What Crosslane needs, looked for on this machine."""

from __future__ import annotations

import importlib
import os
import platform
import resource
import sys
from collections.abc import Iterator
from functools import partial

from crosslane._cli.doctor import languages
from crosslane._cli.doctor.finding import Finding, optional, tried
from crosslane._cli.doctor.spark import examine_spark
from crosslane._runtime.languages import guests, is_python

OLDEST_PYTHON = (3, 11)


def examine() -> Iterator[Finding]:
    """Looks at everything; a thing comes after the things that it needs."""
    yield _platform()
    yield _python()
    yield tried("guest", _guest)
    engine = [tried("DuckDB", languages.find_duckdb)]
    if engine[-1].state == "good":
        engine.append(tried("extension", languages.load_extension))
    yield from engine
    looks = {
        "a function": languages.run_python,
        "JavaScript": languages.run_javascript,
        "Ruby": languages.run_ruby,
    }
    looks |= {guest.language: partial(languages.run_further, guest) for guest in guests()}
    for what, look in looks.items():
        if engine[-1].state == "good":
            yield tried(what, look)
        else:
            yield Finding("optional", what, f"not tried, without the {engine[-1].what}")
    yield optional("pyarrow", "vectorized functions", "pip install 'crosslane[vectorized]'")
    for name in ("numpy", "pandas", "polars"):
        yield optional(name, f"vectorized functions with {name}", f"pip install {name}")
    yield optional("cloudpickle", "crosslane.register", "pip install cloudpickle")
    yield from examine_spark()
    yield tried("sandbox", _sandbox)
    yield tried("open files", _descriptors)


def examine_file(file: str) -> Finding:
    """What a file of functions will run in."""
    from crosslane._runtime import environments

    if not is_python(file):
        return Finding("good", file, "runs in the host of its language, without an environment of its own")
    try:
        environment = environments.of(file)
    except environments.EnvironmentFailed as error:
        return Finding("bad", file, str(error), "mend its block `# /// script`, or see what uv says")
    if environment is None:
        return Finding("good", file, f"the interpreter of the database, such as {sys.executable}")
    locked = "pinned by its lock" if os.path.exists(environments.lock_of(file)) else "not pinned"
    packages = environment.packages()
    text = f"{environment.python}, with {len(packages)} packages, {locked}: {', '.join(packages)}"
    advice = "" if os.path.exists(environments.lock_of(file)) else f"crosslane lock {file}"
    return Finding("good", file, text, advice)


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


def _sandbox() -> Finding:
    guest = importlib.import_module("crosslane._guest")
    try:
        version, scopes_signals = guest.sandbox_of_this_machine()
    except OSError as error:
        return Finding(
            "optional", "sandbox", f"not possible here: {error}", "only needed for the setting sandbox"
        )
    signals = "signals" if scopes_signals else "signals (by fewer system calls, as before Linux 6.12)"
    text = f"Landlock {version} and seccomp restrict files, the network, programs and {signals}"
    if not scopes_signals:
        text += "; files without a sandbox can reach the database's process, which Linux 6.12 prevents"
    threads, seconds = guest.allowance_of_sandbox()
    text += (
        f"; the engine ends workers with more than {threads} threads and processes, or {seconds:g} s of processor"
        " time between calls; the kernel limits descriptors, timers and locked memory"
    )
    return Finding("good", "sandbox", text)


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A lane takes three or four descriptors in the engine, and there may be a lane for each core.
    wanted = 64 + 8 * (os.cpu_count() or 1)
    if soft >= wanted:
        return Finding("good", "open files", f"{soft} allowed")
    return Finding("bad", "open files", f"only {soft} allowed", f"ulimit -n {max(wanted, 1024)}")
