"""Ways out of a sandbox. Each is refused in the sandbox, and leads out without a sandbox."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import crosslane

from ..conftest import SECRET, WAYS, arguments, library, make_place

FILES = ("ways_by_files.py", "ways_by_processes.py", "ways_out.rb", "ways_by_hosts.py")
#: The smallest number of ways in each file.
COUNTS = dict(zip(FILES, (30, 60, 50, 15)))
ON = {"sandbox": "on"}
#: Nothing listens at these hosts.
HOSTS = ON | {"allow_net": ["127.0.0.3", "host.invalid:443"]}
#: Ways that may be refused without a sandbox: by the container, the kernel or the user's rights.
MAY_BE_REFUSED = {
    "trace another", "keys", "add a key", "ring of the kernel", "namespace of users", "namespace of mounts",
    "namespace of another", "compare with the engine", "read attributes", "take a handle", "further filters",
    "signal with a value", "priority of the engine", "scheduling of the engine", "fork by clone3", "read by openat2",
    "signal to the group of the engine", "memory of the engine", "further rules", "another personality",
    "move memory of the engine", "read memory of the engine", "write memory of the engine", "connect by several paths",
    "send with the first packet", "send a message with the first packet", "turn packets elsewhere",
}  # fmt: skip


#: Ways that are refused to files without a sandbox, too, from Linux 6.12 on.
REFUSED_TO_ALL = {
    "signal to the engine", "signal to a thread of the engine", "signal to another", "memory of the engine",
    "trace another",
}  # fmt: skip


#: The first words of the outcomes of refused ways.
REFUSALS = (
    "PermissionError:",
    "URLError: <urlopen error [Errno 1] Operation not permitted>",
    "URLError: <urlopen error [Errno 13] Permission denied>",
    "gaierror: [Errno -2] Name or service not known",
    "OSError: [Errno 38] Function not implemented",
    "OperationalError: unable to open database file",
    "Errno::EACCES:",
    "Errno::EPERM:",
    "Refused:",
)


def not_refused(found: dict[str, str]) -> dict[str, str]:
    """The ways that lead out, and the ways that fail with an error that is no refusal."""
    return {name: outcome for name, outcome in found.items() if not outcome.startswith(REFUSALS)}


def outcomes(
    file: Path,
    place: dict[str, Any],
    settings: dict[str, Any],
    only: Iterable[str] = (),
    function: str = "attempt",
) -> dict[str, str]:
    """The outcome of each way. If a way ends its worker, the next way has another worker."""
    with crosslane.connect(functions=[file], settings=settings, config={"threads": 1}) as con:
        (names,) = con.execute("SELECT ways()").fetchone() or ([],)
        found = {}
        for name in [name.replace(" ", "_") for name in only] or names:
            try:
                (found[name.replace("_", " ")],) = con.execute(
                    f"SELECT {function}(?, ?)", [name, arguments(place)]
                ).fetchone() or ("",)
            except Exception as error:
                found[name.replace("_", " ")] = f"{type(error).__name__}: {error}"
        return found


@pytest.mark.any_duckdb
@pytest.mark.parametrize("name", FILES)
def test_no_way_leads_out(name: str, tmp_path: Path, place: dict[str, Any]) -> None:
    file = library(WAYS / name, tmp_path / "library", place)
    found = outcomes(file, place, HOSTS if "hosts" in name else ON)
    assert len(found) >= COUNTS[name]
    assert not not_refused(found)


@pytest.mark.any_duckdb
@pytest.mark.parametrize("settings", [{}, HOSTS], ids=["free", "sandboxed"])
@pytest.mark.parametrize("name", ["ways_by_files.py", "ways_by_processes.py"])
def test_no_way_leads_out_of_the_sandbox_of_a_function(
    name: str, settings: dict[str, Any], tmp_path: Path, place: dict[str, Any]
) -> None:
    file = library(WAYS / name, tmp_path / "library", place)
    found = outcomes(file, place, settings, function="attempt_alone")
    assert len(found) >= COUNTS[name]
    # The memory of the file's process has all variables.
    known = {"environment", "environment in c"} if not settings else set()
    assert not_refused(found).keys() == known & found.keys()


@pytest.mark.any_duckdb
def test_a_list_of_hosts_opens_no_other_way(tmp_path: Path, place: dict[str, Any]) -> None:
    file = library(WAYS / "ways_by_processes.py", tmp_path / "library", place)
    # This way makes a socket of version 6, but does not connect it.
    assert not not_refused(outcomes(file, place, HOSTS)).keys() - {"socket of version 6"}


@pytest.mark.parametrize("name", FILES)
def test_each_way_leads_out_without_a_sandbox(name: str, tmp_path: Path, place: dict[str, Any]) -> None:
    file = library(WAYS / name, tmp_path / "library", place)
    found = outcomes(file, place, {})
    refused = {name: outcome for name, outcome in found.items() if outcome != "out"}
    assert not {name: refused[name] for name in refused.keys() - MAY_BE_REFUSED - REFUSED_TO_ALL}


def test_files_without_a_sandbox_do_not_reach_the_engine(tmp_path: Path, place: dict[str, Any]) -> None:
    """Without Crosslane, each of these ways leads out, unless the machine forbids it anyway."""
    file = library(WAYS / "ways_by_processes.py", tmp_path / "library", place)
    _, protects = importlib.import_module("crosslane._guest").sandbox_of_this_machine()
    found = outcomes(file, place, {}, REFUSED_TO_ALL)
    led_out = {name for name, outcome in found.items() if outcome == "out"}
    assert led_out == set() or not protects
    code = "import json, sys, ways_by_processes as file; print([file.attempt(n, sys.argv[1]) for n in sys.argv[2:]])"
    names = sorted(REFUSED_TO_ALL - MAY_BE_REFUSED)
    command = [sys.executable, "-c", code, arguments(place), *(name.replace(" ", "_") for name in names)]
    run = subprocess.run(command, cwd=file.parent, capture_output=True, text=True)
    assert run.stdout.strip() == str(["out"] * len(names)), run.stderr


def _as_nobody() -> None:
    """Runs the ways in a sandbox and prints their outcomes."""
    os.environ[SECRET] = "of the engine"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = make_place(folder / "outside", stack)
        results = {}
        for name in FILES:
            file = library(WAYS / name, folder / f"library of {name}", place)
            results[name] = outcomes(file, place, HOSTS if "hosts" in name else ON)
        print(json.dumps(results))


@pytest.mark.parametrize("name", FILES)
def test_no_way_leads_out_for_another_user(name: str) -> None:
    if os.getuid() != 0:
        # The other tests have run as a user that is not root.
        return
    program = "from tests.sandbox.ways.test_ways_out import _as_nobody; _as_nobody()"
    # The user may still read this tree and the interpreter, which may be below root's home.
    reads = [f"--{kind}=+dac_read_search" for kind in ("inh-caps", "ambient-caps")]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads]
    environment = {**os.environ, "HOME": "/tmp"}
    done = subprocess.run(
        [*user, sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])[name]
    assert len(found) >= COUNTS[name]
    assert not not_refused(found)
