from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import socketserver
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

#: A variable of the engine's environment that no function should see.
SECRET = "CROSSLANE_TEST_SECRET"
#: The folder of the ways out.
WAYS = Path(__file__).with_name("ways")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The targets of the ways out of a sandbox."""
    monkeypatch.setenv(SECRET, "of the engine")
    with contextlib.ExitStack() as stack:
        yield make_place(tmp_path / "outside", stack)


def make_place(outside: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Makes files, sockets and processes outside of a sandbox. They end with the stack."""
    (outside / "empty").mkdir(parents=True)
    for name in ("secret", "victim", "deleted", "moved", "database"):
        (outside / name).write_text(f"what is in {name}")
    with contextlib.closing(sqlite3.connect(outside / "sqlite")) as database:
        database.execute("CREATE TABLE t AS SELECT 42")
    tcp, udp, path, datagram, abstract = (
        stack.enter_context(socket.socket(family, kind))
        for family, kind in (
            (socket.AF_INET, socket.SOCK_STREAM),
            (socket.AF_INET, socket.SOCK_DGRAM),
            (socket.AF_UNIX, socket.SOCK_STREAM),
            (socket.AF_UNIX, socket.SOCK_DGRAM),
            (socket.AF_UNIX, socket.SOCK_STREAM),
        )
    )
    tcp.bind(("127.0.0.1", 0))
    udp.bind(("127.0.0.1", 0))
    # The path of a socket must be short.
    folder = stack.enter_context(_short_folder())
    path.bind(f"{folder}/stream")
    datagram.bind(f"{folder}/datagram")
    name = f"crosslane-way-out-{os.getpid()}"
    abstract.bind(f"\0{name}")
    for server in (tcp, path, abstract):
        server.listen(64)
    other = subprocess.Popen(["sleep", "1000"])
    stack.callback(other.wait)
    stack.callback(other.kill)
    names = ("secret", "victim", "deleted", "moved", "database", "sqlite", "empty")
    return {name: str(outside / name) for name in names} | {
        "folder": str(outside),
        "engine": os.getpid(),
        "other": other.pid,
        "tcp": tcp.getsockname()[1],
        "udp": udp.getsockname()[1],
        "socket": f"{folder}/stream",
        "datagram": f"{folder}/datagram",
        "abstract": name,
    }


@contextlib.contextmanager
def _short_folder() -> Iterator[str]:
    folder = f"/tmp/crosslane-{os.getpid()}"
    os.mkdir(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def library(source: Path, folder: Path, place: dict[str, Any]) -> Path:
    """A copy of a file of functions, with data in the same folder. ``place`` gets the path of a link in that
    folder."""
    folder.mkdir()
    shutil.copy(WAYS / "ways.py", folder)
    (folder / "data.csv").write_text("a,b\n")
    (folder / "link.txt").symlink_to(place["secret"])
    place["link"] = str(folder / "link.txt")
    return Path(shutil.copy(source, folder))


def arguments(place: dict[str, Any]) -> str:
    return json.dumps(place)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answered")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
