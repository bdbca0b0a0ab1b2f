"""Environments of files that name what they need, in inline script metadata (PEP 723).

uv resolves the needs, or reads the lock beside the file. An environment belongs to what was resolved,
so files that need the same share one. It is made once, under a lock that all programs of the user
take, and is never changed afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from crosslane import _guest

# Modules that only a new environment needs are imported where it is made: each load of a file with an
# environment would wait for them.

#: The package of this module, which an environment's interpreter imports, too.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
#: Runs the zygote in another interpreter, which gets this package and nothing else from here.
_PROGRAM = """\
import os, sys
for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
    os.environ.pop(name, None)
sys.path.append({folder!r})
from crosslane._worker.zygote import main
main(in_environment=True)
"""
#: How many lines of uv's output an error has.
_LINES = 12


class EnvironmentFailed(Exception):
    """The environment of a file cannot be made; the message says why."""


class Environment(NamedTuple):
    """An environment of a file."""

    folder: str

    @property
    def python(self) -> str:
        """Its interpreter."""
        return f"{self.folder}/bin/python"

    @property
    def requirements(self) -> str:
        """The path of what was resolved. It is there once the environment is complete."""
        return f"{self.folder}/requirements.txt"

    def packages(self) -> list[str]:
        """What was resolved, such as ``humanize==4.17.0``."""
        with open(self.requirements) as file:
            return [line.split()[0] for line in file if line[:1].isalnum()]

    def command(self) -> list[str]:
        """The command of a zygote in it."""
        return [self.python, "-I", "-c", _PROGRAM.format(folder=_own_folder())]


def of(file: str, interpreter: str = sys.executable) -> Environment | None:
    """The environment of a file, which is made if it is not there. None if the file names no needs.

    Args:
        file: its path.
        interpreter: the one that would load it without an environment.

    Raises:
        EnvironmentFailed: if it cannot be made.
    """
    needs = _needs(file, interpreter)
    if needs is None:
        return None
    metadata, note = needs
    made = _noted(note)
    if made is None:
        os.makedirs(os.path.dirname(note), exist_ok=True)
        with _alone(note):
            made = _noted(note) or _make(file, _parsed(file, metadata), note)
    return made


def lock(file: str, *, offline: bool = False) -> str:
    """Resolves what a file needs, and writes that beside it. Returns the path of the lock.

    Raises:
        EnvironmentFailed: if the file names no needs, or they cannot be resolved.
    """
    needs = _needs(file)
    if needs is None:
        raise EnvironmentFailed(f"{file} has no inline script metadata (`# /// script`), so it needs no lock")
    _parsed(file, needs[0])
    _uv(file, "lock", "-q", "--script", file, *(["--offline"] if offline else []))
    return lock_of(file)


def lock_of(file: str) -> str:
    """The path of a file's lock, whether it is there or not."""
    return f"{file}.lock"


def _needs(file: str, interpreter: str = sys.executable) -> tuple[str, str] | None:
    """The metadata of a file, as TOML, and the path of the note of its environment."""
    try:
        return _guest.environment_needs(file, interpreter)
    except ValueError as error:
        raise EnvironmentFailed(f"{file}: {error}") from None


def _parsed(file: str, needs: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(needs)
    except tomllib.TOMLDecodeError as error:
        raise EnvironmentFailed(f"the block `# /// script` of {file} is no TOML: {error}") from None


def _key(*parts: str) -> str:
    """A name for texts. Other texts have another one."""
    import hashlib

    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _make(file: str, needs: dict[str, Any], note: str) -> Environment:
    """Makes an environment, and notes where it is."""
    import shutil

    print(f"crosslane: making the environment of {file}", file=sys.stderr, flush=True)
    frozen = ["--frozen"] if os.path.exists(lock_of(file)) else []
    resolved = _uv(file, "export", "-q", "--no-header", "--no-annotate", *frozen, "--script", file)
    spec = str(needs.get("requires-python") or "")
    made = Environment(
        f"{_cache('environments')}/{_key(sys.version, spec, json.dumps(needs.get('tool')), resolved)}"
    )
    with _alone(made.folder):
        if not os.path.exists(made.requirements):
            shutil.rmtree(made.folder, ignore_errors=True)
            # The interpreter of this program, if it is one that the file may have.
            _uv(file, "venv", "-q", "--no-project", "-p", spec or _base(), made.folder)
            _uv(file, "sync", "-q", "--active", *frozen, "--script", file, active=made.folder)
            with open(f"{made.requirements}.new", "w") as requirements:
                requirements.write(resolved)
            os.replace(f"{made.requirements}.new", made.requirements)
    print(f"crosslane: {made.folder} has {len(made.packages())} packages", file=sys.stderr, flush=True)
    with open(f"{note}.new", "w") as content:
        json.dump(made.command(), content)
    os.replace(f"{note}.new", note)
    return made


def _uv(file: str, *words: str, active: str | None = None) -> str:
    """What uv prints. It works in an environment, if one is active."""
    import subprocess

    path = f"{os.path.dirname(_base())}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": path, "UV_PYTHON_PREFERENCE": "system"}
    environment.pop("VIRTUAL_ENV", None)
    if active:
        environment["VIRTUAL_ENV"] = active
    done = subprocess.run(
        [_program(), *words], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-_LINES:])
        raise EnvironmentFailed(f"the environment of {file} cannot be made: uv says\n{said}")
    return done.stdout


def _program() -> str:
    """The path of uv: that of its package, or the first on PATH."""
    import shutil

    with contextlib.suppress(ImportError, FileNotFoundError):
        import uv

        return str(uv.find_uv_bin())
    found = shutil.which("uv")
    if found is None:
        raise EnvironmentFailed("there is no uv, which makes environments of files: pip install uv")
    return found


def _base() -> str:
    """The interpreter of this program, outside of any environment."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _cache(part: str) -> str:
    """A folder of what is made for this user."""
    folder = f"{_guest.cache()}/{part}"
    os.makedirs(folder, exist_ok=True)
    return folder


def _noted(note: str) -> Environment | None:
    with contextlib.suppress(OSError), open(note) as content:
        python = json.load(content)[0]
        return Environment(os.path.dirname(os.path.dirname(python))) if os.access(python, os.X_OK) else None
    return None


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Holds the lock of a path that is being made."""
    import fcntl

    with open(f"{path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _own_folder() -> str:
    """A folder in which this package is, and nothing else."""
    folder = _cache(f"packages/{_key(_PACKAGE)}")
    with contextlib.suppress(FileExistsError):
        os.symlink(_PACKAGE, f"{folder}/crosslane")
    return folder
