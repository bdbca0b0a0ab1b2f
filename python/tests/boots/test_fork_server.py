"""A zygote as a fork server: it imports modules, and forks zygotes that have them. The tests are its engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..conftest import Library, eventually, lives

pytestmark = pytest.mark.any_duckdb

#: The longest that a test waits for an answer, in seconds.
PATIENCE = 30


class Control:
    """The engine's end of a control socket."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(PATIENCE)
        self.socket = end

    def ask(self, message: dict[str, Any], descriptors: list[int]) -> None:
        text = json.dumps(message).encode()
        socket.send_fds(self.socket, [len(text).to_bytes(4, "little") + text], descriptors)

    def load(self, path: Path) -> dict[str, Any]:
        """The answer to a load."""
        self.ask({"op": "load", "source": {"kind": "file", "path": str(path)}, "seconds": PATIENCE}, [])
        length = int.from_bytes(self._read(4), "little")
        return json.loads(self._read(length))  # type: ignore[no-any-return]

    def _read(self, length: int) -> bytes:
        read = b""
        while len(read) < length:
            piece = self.socket.recv(length - len(read))
            assert piece, "the zygote has ended"
            read += piece
        return read


class Server:
    """A fork server, with a folder of modules."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        self.folder = folder
        self._control = Control(ours)
        self._zygotes: list[Control] = []
        command = f"exec {sys.executable} -P -m crosslane._worker.zygote 3<&{theirs.fileno()}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        with theirs:
            self.process = subprocess.Popen(
                ["bash", "-c", command], pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )

    def module(self, name: str, text: str) -> str:
        (self.folder / f"{name}.py").write_text(text)
        return name

    def zygote(self, *modules: str) -> tuple[Control, int]:
        """A new zygote, and the descriptor from which the test reads its output."""
        ours, theirs = socket.socketpair()
        printed, log = os.pipe()
        with theirs:
            self._control.ask({"op": "zygote", "modules": modules}, [theirs.fileno(), log])
        os.close(log)
        zygote = Control(ours)
        self._zygotes.append(zygote)
        assert ours.recv(1) == b"h"
        return zygote, printed

    def below(self) -> list[psutil.Process]:
        """The processes of the server and of its zygotes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        self._control.socket.close()
        self.process.wait(PATIENCE)
        for zygote in self._zygotes:
            zygote.socket.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with contextlib.closing(Server(tmp_path)) as server:
        yield server


#: A file that fails unless `{known}` says rightly whether a module is already imported.
KNOWS = """
import sys
assert ("{module}" in sys.modules) is {known}
@udf
def f(x: int) -> int:
    return x
"""


def test_zygotes_have_the_modules(server: Server, library: Library, tmp_path: Path) -> None:
    times = tmp_path / "times"
    module = server.module("counted", f"open({str(times)!r}, 'a').write('x')")
    path = library(KNOWS.format(module=module, known=True))
    for _ in range(2):
        zygote, _ = server.zygote(module)
        assert zygote.load(path)["op"] == "loaded"
    assert times.read_text() == "x"


def test_modules_that_fail_are_left_to_the_library(server: Server, library: Library) -> None:
    fails = server.module("fails", "raise ValueError('no')")
    fine = server.module("fine", "")
    zygote, _ = server.zygote("no_such_module", fails, fine)
    assert zygote.load(library(KNOWS.format(module=fine, known=True)))["op"] == "loaded"


def test_what_imports_print_goes_to_the_zygote_s_log(server: Server, library: Library) -> None:
    zygote, printed = server.zygote(server.module("speaks", "print('of the import')"))
    _, of_another = server.zygote()
    assert zygote.load(library("print('of the load')\n" + KNOWS.format(module="speaks", known=True)))
    zygote.socket.close()
    # A log ends with its zygote.
    with open(printed) as log:
        assert log.read().split("\n") == ["of the import", "of the load", ""]
    os.close(of_another)


def test_modules_with_threads_are_imported_by_each_zygote(server: Server, library: Library) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    module = server.module("threaded", text)
    # A forked process would have the module, but not the module's thread.
    zygote, _ = server.zygote(module)
    answer = zygote.load(library(KNOWS.format(module=module, known=False)))
    assert (answer["op"], answer["reloads"]) == ("loaded", False)


def test_a_ctrl_c_does_not_end_it(server: Server, library: Library) -> None:
    path = library(KNOWS.format(module="fine", known=True))
    fine = server.module("fine", "")
    server.zygote(fine)
    (process,) = psutil.Process(server.process.pid).children()
    os.kill(process.pid, signal.SIGINT)
    zygote, _ = server.zygote(fine)
    assert zygote.load(path)["op"] == "loaded"
    assert lives(process)


def test_its_zygotes_end_with_it(server: Server, library: Library) -> None:
    zygote, _ = server.zygote()
    assert zygote.load(library(KNOWS.format(module="none", known=False)))["op"] == "loaded"
    processes = server.below()
    assert len(processes) == 3
    server.close()
    assert eventually(lambda: not any(map(lives, processes)))
