"""Environments of Python files that name what they need, in inline script metadata (PEP 723).

uv resolves the needs, or reads the lock beside the file. An environment belongs to what was resolved,
so files that need the same share one. It is made in a folder that nobody else knows, then gets its
name, and is never changed afterwards. The engine finds it by a *note*
(`crates/crosslane-process/src/zygote/environment.rs`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from crosslane import _guest

# Modules that only a new environment needs are imported where it is made.

#: The package of this module, which an environment's interpreter imports, too.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
#: Runs the zygote in another interpreter, which gets this package and nothing else from here.
_PROGRAM = """\
import os, sys
for name in ("PYTHONPATH", "VIRTUAL_ENV"):
    given = os.environ.pop(name, "").split(os.pathsep)
    sys.path[:] = [folder for folder in sys.path if folder not in given]
sys.path.insert(0, {folder!r})
from crosslane._worker import zygote
sys.argv[0] = zygote.__file__
zygote.main(in_environment=True)
"""
#: Asks an interpreter which one it is.
_QUESTION = """\
import sys, sysconfig
print(sys.implementation.name, sys.version_info[0], sys.version_info[1], sysconfig.get_config_var("Py_GIL_DISABLED") or 0)
print(sys.version)
"""
#: Settings of uv for other programs, which would give another interpreter, or no environment.
_FOREIGN = (
    "UV_FROZEN", "UV_LOCKED", "UV_MANAGED_PYTHON", "UV_NO_MANAGED_PYTHON", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON", "UV_PYTHON_PREFERENCE", "UV_SYSTEM_PYTHON", "UV_WORKING_DIRECTORY", "VIRTUAL_ENV",
)  # fmt: skip
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
        """The path of what was resolved."""
        return f"{self.folder}/requirements.txt"

    def is_whole(self) -> bool:
        """Whether its interpreter and its list of packages are there."""
        return os.access(self.python, os.X_OK) and os.path.exists(self.requirements)

    def packages(self) -> list[str]:
        """What was resolved, such as ``humanize==4.17.0``."""
        with open(self.requirements) as file:
            return [line.split()[0] for line in file if line[:1].isalnum()]

    def command(self) -> list[str]:
        """The command of a zygote in it."""
        # -P: a file in the working directory must not replace a module. -s: no packages of the user.
        return [self.python, "-P", "-s", "-c", _PROGRAM.format(folder=_own_folder())]


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
        _folder("notes")
        with _alone(note):
            made = _noted(note) or _make(file, metadata, note)
    return made


def lock(file: str, *, upgrade: bool = False, offline: bool = False) -> str:
    """Resolves what a file needs, and writes that beside it. Returns the path of the lock.

    Args:
        file: its path.
        upgrade: whether newer versions take the place of those in an existing lock.
        offline: whether only packages count that uv has in its cache.

    Raises:
        EnvironmentFailed: if the file names no needs, or they cannot be resolved.
    """
    needs = _needs(file, sys.executable)
    if needs is None:
        raise EnvironmentFailed(f"{file} has no inline script metadata (`# /// script`), so it needs no lock")
    _parsed(file, needs[0])
    options = [*(["--upgrade"] if upgrade else []), *(["--offline"] if offline else [])]
    _uv(file, "lock", *options, "--script", os.path.abspath(file), shows=True)
    return lock_of(file)


def lock_of(file: str) -> str:
    """The path of a file's lock, whether it is there or not."""
    return f"{file}.lock"


def is_made(file: str, interpreter: str = sys.executable) -> bool:
    """Whether a file has the environment that it needs, if it needs one."""
    needs = _needs(file, interpreter)
    return needs is None or _noted(needs[1]) is not None


def _needs(file: str, interpreter: str) -> tuple[str, str] | None:
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
        raise EnvironmentFailed(f"the block `# /// script` of {file} is not TOML: {error}") from None


def _key(*parts: str) -> str:
    """A name for texts. Other texts have another one."""
    import hashlib

    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


def _make(file: str, metadata: str, note: str) -> Environment:
    """Makes an environment, and notes where it is."""
    import shutil
    import tempfile

    needs = _parsed(file, metadata)
    print(f"crosslane: making the environment of {file}", file=sys.stderr, flush=True)
    script, is_locked = os.path.abspath(file), os.path.exists(lock_of(file))
    with tempfile.TemporaryDirectory(
        dir=_folder("environments"), prefix=".new-", ignore_cleanup_errors=True
    ) as new:
        made = Environment(f"{new}/environment")
        # The interpreter of this program, if it is one that the file may have.
        spec = str(needs.get("requires-python") or "") or _base()
        _uv(file, "venv", "--no-project", "--relocatable", "-p", spec, made.folder)
        version = _version(file, made.python)
        exact = ["-p", made.python, "--script", script]
        resolved = _uv(
            file, "export", "--no-header", "--no-annotate", *(["--locked"] if is_locked else []), *exact
        )
        _refuse_paths(file, resolved)
        # What other indexes and folders have may be other packages of the same names.
        where = [metadata, os.path.dirname(os.path.realpath(file))] if "tool" in needs else []
        named = Environment(f"{_folder('environments')}/{_key(version, resolved, *where)}")
        with _alone(named.folder):
            if not named.is_whole():
                frozen = ["--frozen"] if is_locked else []
                _uv(file, "sync", "--active", *frozen, *exact, active=made.folder, shows=True)
                with open(made.requirements, "w") as requirements:
                    requirements.write(resolved)
                shutil.rmtree(named.folder, ignore_errors=True)
                os.rename(made.folder, named.folder)
    print(f"crosslane: {named.folder} has {len(named.packages())} packages", file=sys.stderr, flush=True)
    content = {
        "version": _guest.__version__, "package": _PACKAGE, "folder": named.folder, "command": named.command(),
    }  # fmt: skip
    with open(f"{note}.new", "w") as file_of_note:
        json.dump(content, file_of_note)
    os.replace(f"{note}.new", note)
    return named


def _version(file: str, python: str) -> str:
    """The version of an interpreter, which must be one that this package works in."""
    import subprocess

    asked = subprocess.run([python, "-I", "-c", _QUESTION], capture_output=True, text=True)
    words, _, version = asked.stdout.partition("\n")
    match words.split():
        case ["cpython", major, minor, "0"] if (int(major), int(minor)) >= (3, 11):
            return version
    said = version.strip() or asked.stderr.strip()
    raise EnvironmentFailed(
        f"{file} gets the interpreter {said}, but functions need CPython 3.11 or newer, with its lock: change "
        "`requires-python`, or install such a Python"
    )


def _refuse_paths(file: str, resolved: str) -> None:
    for line in resolved.splitlines():
        if line.startswith((".", "/", "-e ")) or "file:" in line:
            raise EnvironmentFailed(
                f"{file} needs {line.split(' ;')[0]}, but an environment is never changed: take it from an index, or "
                "import it from the file's own folder"
            )


def _uv(file: str, *words: str, active: str | None = None, shows: bool = False) -> str:
    """What uv prints. It works in an environment, if one is active. At a terminal, it may show how far it is."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    environment["PATH"] = f"{os.path.dirname(_base())}{os.pathsep}{environment.get('PATH', os.defpath)}"
    environment["UV_PYTHON_PREFERENCE"] = "system"
    if active:
        environment["VIRTUAL_ENV"] = active
    # uv's own files in the file's folder count, and not those of whatever folder the database is in.
    folder = os.path.dirname(os.path.abspath(file))
    shows = shows and sys.stderr.isatty()
    done = subprocess.run(
        [_program(), *words, *([] if shows else ["-q"])],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if shows else subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        said = "\n".join((done.stderr or "what is above").strip().splitlines()[-_LINES:])
        advice = f"\n`crosslane lock {file}` makes a new lock" if "--locked" in words else ""
        raise EnvironmentFailed(f"the environment of {file} cannot be made: uv says\n{said}{advice}")
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


def _folder(part: str) -> str:
    """A folder of what is made for this user."""
    cache = _guest.cache()
    folder = f"{cache}/{part}"
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        os.makedirs(folder, exist_ok=True)
        is_ours = os.stat(cache).st_uid == os.geteuid()
    except OSError as error:
        raise EnvironmentFailed(
            f"environments of files are kept in {cache}, which cannot be used: {error.strerror}; set XDG_CACHE_HOME to "
            "another folder"
        ) from None
    if not is_ours:
        raise EnvironmentFailed(
            f"{cache} belongs to another user; set XDG_CACHE_HOME to a folder of your own"
        )
    return folder


def _noted(note: str) -> Environment | None:
    """The environment of a note; None if there is no note, or another one is needed."""
    try:
        with open(note) as content:
            read = json.load(content)
        made = Environment(read["folder"])
        same = (read["version"], read["package"]) == (_guest.__version__, _PACKAGE)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return made if same and made.is_whole() else None


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Holds the lock of a path that is being made."""
    import fcntl

    with open(f"{path}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("crosslane: another program makes this environment", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _own_folder() -> str:
    """A folder in which this package is, and nothing else."""
    folder = _folder(f"packages/{_key(_PACKAGE)}")
    with contextlib.suppress(FileExistsError):
        os.symlink(_PACKAGE, f"{folder}/crosslane")
    return folder
