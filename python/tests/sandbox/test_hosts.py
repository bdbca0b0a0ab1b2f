"""Sandboxes that list hosts. Unchanged clients connect to these hosts, and to no others."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import error, eventually, value

pytestmark = pytest.mark.any_duckdb

CONTAINER = Path(__file__).with_name("container.py")


@pytest.fixture
def other_port() -> Iterator[int]:
    """A port that must not be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
        assert not select.select([server], [], [], 0)[0]


PYTHON = """
    import asyncio, http.client, subprocess, sys, urllib.request
    from crosslane import udf

    @udf(deterministic=False)
    def by_urllib(host: str, port: int) -> str:
        return urllib.request.urlopen(f"http://{host}:{port}/", timeout=60).read().decode()

    @udf(deterministic=False)
    def by_a_socket_that_waits(host: str, port: int) -> str:
        client = http.client.HTTPConnection(host, port)
        client.request("GET", "/")
        return client.getresponse().read().decode()

    @udf(deterministic=False)
    async def by_asyncio(host: str, port: int) -> str:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
        page = await reader.read()
        writer.close()
        return page.decode().rpartition("\\n")[2]

    @udf(deterministic=False)
    def by_a_program(host: str, port: int) -> str:
        code = f"import urllib.request as r; print(r.urlopen('http://{host}:{port}/').read().decode(), end='')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode:
            raise PermissionError(done.stderr)
        return done.stdout
    """
RUBY = """
    require "net/http"
    udf("by_net_http(host VARCHAR, port BIGINT) -> VARCHAR", deterministic: false) do |host, port|
      Net::HTTP.get(host, "/", port)
    end
    """
CLIENTS = {
    "by_urllib": PYTHON,
    "by_a_socket_that_waits": PYTHON,
    "by_asyncio": PYTHON,
    "by_a_program": PYTHON,
    "by_net_http": RUBY,
}


def connect(file: Path, text: str, hosts: object, **allowed: Any) -> duckdb.DuckDBPyConnection:
    file.write_text(textwrap.dedent(text))
    settings = {"sandbox": "on", "allow_net": hosts} | allowed
    return crosslane.connect(functions=[file], settings=settings, config={"threads": 2})


@pytest.mark.parametrize("client", CLIENTS)
def test_only_listed_hosts_are_reached(
    tmp_path: Path, port: int, other_port: int, client: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / ("functions.rb" if CLIENTS[client] is RUBY else "functions.py")
    hosts = [f"LOCALHOST:{port}", "[::1]:443"]
    with connect(file, CLIENTS[client], hosts, allow_run=[os.path.realpath(sys.executable)]) as con:
        for host in ("localhost", "127.0.0.1"):
            assert value(con, f"SELECT {client}('{host}', {port})") == "answered"
            assert "allow_net" in error(con, f"SELECT {client}('{host}', {other_port})")
        assert "allow_net" in error(con, f"SELECT {client}('example.org', 443)")
        assert value(con, f"SELECT count({client}('localhost', {port})) FROM range(20)") == 20
    said = capfd.readouterr().err
    assert f"{file}: refused: 127.0.0.1:{other_port}; allow_net lists localhost:{port}" in said
    assert "refused: the name example.org" in said


def test_a_file_with_threads_keeps_its_hosts(tmp_path: Path, port: int, other_port: int) -> None:
    """Its zygote starts itself anew, and each worker loads the file."""
    text = """
    import threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    """
    with connect(tmp_path / "functions.py", text + PYTHON, [f"localhost:{port}"]) as con:
        assert value(con, f"SELECT by_urllib('localhost', {port})") == "answered"
        assert "allow_net" in error(con, f"SELECT by_urllib('localhost', {other_port})")


@pytest.mark.parametrize(
    ("suffix", "double"), [("js", "(x) => 2 * x"), ("lua", "function(x) return 2 * x end")]
)
def test_languages_without_clients_have_lists_of_hosts(tmp_path: Path, suffix: str, double: str) -> None:
    text = f'udf("double(x BIGINT) -> BIGINT", {double})'
    with connect(tmp_path / f"functions.{suffix}", text, "api.example.com:443") as con:
        assert value(con, "SELECT double(21)") == 42


class Silent:
    """A server whose queue is full. New connections wait until the server takes the first one."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self.server.getsockname()[1]
        self.first = socket.create_connection(("127.0.0.1", self.port))

    def answer_second(self) -> None:
        """Takes the first connection, and one of the waiting connections. If more of them waited, the system
        could lose some."""
        self.server.accept()[0].close()
        with self.server.accept()[0] as taken:
            taken.sendall(b"answered")

    def close(self) -> None:
        """Refuses all waiting connections."""
        self.server.close()
        self.first.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


WAITS = """
    import socket, threading
    from concurrent.futures import ThreadPoolExecutor
    from crosslane import udf

    def read(port):
        client = socket.socket()
        client.connect(("127.0.0.1", port))
        with client:
            return client.recv(100).decode()

    @udf(deterministic=False)
    def waits(port: int) -> str:
        return read(port)

    @udf(deterministic=False, timeout=0.3)
    def waits_briefly(port: int) -> str:
        return read(port)

    @udf(deterministic=False)
    def waits_often(port: int, answering: int) -> list[str]:
        # The engine lets some of them wait, and refuses the others for now.
        refused = threading.Semaphore(0)
        def attempt(_):
            try:
                return read(port)
            except BlockingIOError:
                refused.release()
                return "refused for now"
            except ConnectionRefusedError:
                return "ended"
        with ThreadPoolExecutor(100) as pool:
            attempts = [pool.submit(attempt, i) for i in range(100)]
            for _ in range(36):
                refused.acquire()
            # This one waits itself, and not in the engine.
            socket.create_connection(("127.0.0.1", answering), timeout=60).close()
            return [attempt.result() for attempt in attempts]
    """


def test_a_caller_may_wait_for_its_host(tmp_path: Path, port: int, silent: Silent) -> None:
    with connect(tmp_path / "functions.py", PYTHON + WAITS, ["127.0.0.1"]) as con:
        answers: list[object] = []
        query = f"SELECT waits({silent.port})"
        waiting = threading.Thread(target=lambda: answers.append(value(con.cursor(), query)))
        waiting.start()
        assert eventually(lambda: waiting_for(silent.port) == 1)
        # Meanwhile, other callers are not stopped.
        assert value(con, f"SELECT by_a_socket_that_waits('127.0.0.1', {port})") == "answered"
        silent.answer_second()
        waiting.join()
        assert answers == ["answered"]


MISUSES = """
    import ctypes, os, socket, struct
    from crosslane import udf
    connect = ctypes.CDLL(None, use_errno=True).connect

    @udf(deterministic=False)
    def connects_a_file(path: str, port: int) -> bool:
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + bytes((127, 0, 0, 1)) + bytes(8)
        with open(path, "rb") as file:
            return connect(file.fileno(), address, len(address)) != 0

    @udf(deterministic=False)
    def connects_after_the_end(port: int) -> str:
        with socket.socket() as client:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            try:
                client.connect(("127.0.0.1", port))
            except OSError as error:
                return type(error).__name__
        return "connected"

    @udf(deterministic=False)
    def connects_with_a_limit(port: int) -> str:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
            try:
                client.connect(("127.0.0.1", port))
            except OSError as error:
                return type(error).__name__
        return "connected"
    """


def test_the_engine_keeps_its_locks(tmp_path: Path, port: int) -> None:
    """When a process closes a file, it loses all its locks on the file. That holds also if other code
    opened the file."""
    (tmp_path / "database").write_text("x")
    lock = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def is_locked() -> bool:
        command = [sys.executable, "-c", lock, tmp_path / "database"]
        return subprocess.run(command, capture_output=True).returncode != 0

    allowed = [tmp_path / "database"]
    with (
        connect(tmp_path / "functions.py", MISUSES, ["127.0.0.1"], allow_read=allowed) as con,
        (tmp_path / "database").open("r+") as database,
    ):
        assert not is_locked()
        fcntl.lockf(database, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_locked()
        assert value(con, f"SELECT connects_a_file('{tmp_path}/database', {port})") is True
        assert is_locked()


def test_a_socket_that_was_shut_down_connects_to_nothing(tmp_path: Path, silent: Silent) -> None:
    with connect(tmp_path / "functions.py", MISUSES, ["127.0.0.1"]) as con:
        assert value(con, f"SELECT connects_after_the_end({silent.port})") == "ConnectionAbortedError"


def test_a_socket_has_its_own_limit(tmp_path: Path, silent: Silent) -> None:
    with connect(tmp_path / "functions.py", MISUSES, ["127.0.0.1"]) as con:
        assert value(con, f"SELECT connects_with_a_limit({silent.port})") == "BlockingIOError"


def waiting_for(port: int) -> int:
    """The number of sockets that wait for a connection to a port of this machine."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    syn_sent = "02"
    return sum(to.endswith(f":{port:04X}") and state == syn_sent for _, _, to, state, *_ in sockets)


def test_callers_that_end_leave_nothing_behind(tmp_path: Path, silent: Silent) -> None:
    with connect(tmp_path / "functions.py", PYTHON + WAITS, ["127.0.0.1"]) as con:
        for _ in range(2):
            assert "0.3 s" in error(con, f"SELECT waits_briefly({silent.port})")
        assert eventually(lambda: waiting_for(silent.port) == 0)


def test_callers_that_wait_are_limited(tmp_path: Path, silent: Silent) -> None:
    """The engine holds one descriptor for each of them."""
    with connect(tmp_path / "functions.py", WAITS, ["127.0.0.1"]) as con:
        with socket.create_server(("127.0.0.1", 0)) as answering:
            end = threading.Thread(target=lambda: (answering.accept(), silent.close()))
            end.start()
            query = f"SELECT waits_often({silent.port}, {answering.getsockname()[1]})"
            answers = value(con, query)
            end.join()
        assert (answers.count("refused for now"), answers.count("ended")) == (36, 64)


@pytest.mark.parametrize("client", ["by_urllib", "by_a_socket_that_waits", "by_asyncio"])
def test_containers_may_forbid_to_take_descriptors(
    tmp_path: Path, port: int, other_port: int, client: str
) -> None:
    """Docker's default filter forbids it. Then the engine gives the worker a socket of its own."""
    done = contained(tmp_path, "pidfd_getfd,unshare", port, f"SELECT {client}('localhost', {port})")
    assert (done.stdout, done.returncode) == ("answered\n", 0)
    done = contained(tmp_path, "pidfd_getfd,unshare", port, f"SELECT {client}('localhost', {other_port})")
    assert "allow_net" in done.stderr


@pytest.mark.parametrize(
    ("call", "why"), [("process_vm_readv", "ptrace_scope"), ("listen", "true or false here")]
)
def test_containers_may_make_it_impossible(tmp_path: Path, port: int, call: str, why: str) -> None:
    done = contained(tmp_path, call, port, f"SELECT by_urllib('localhost', {port})")
    assert done.returncode
    assert why in done.stderr


def contained(folder: Path, call: str, port: int, query: str) -> subprocess.CompletedProcess[str]:
    file = folder / "functions.py"
    file.write_text(textwrap.dedent(PYTHON))
    command = [sys.executable, CONTAINER, call, file, f"localhost:{port}", query]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("hosts", ["https://api.example.com", "api.example.com:https", "a b"])
def test_what_is_no_host_is_an_error(hosts: str) -> None:
    with pytest.raises(duckdb.Error, match=r"allow_net.*api\.example\.com:443"):
        crosslane.connect(settings={"sandbox": "on", "allow_net": [hosts]})
