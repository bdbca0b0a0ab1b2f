"""The clients of the soak of a server, and the attacks on them, on the server and on connections."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import shared
from shared import (
    Tally,
)

#: The number of client processes at a time.
CLIENTS = 3
#: The program of a client.
CLIENT = Path(__file__).parent / "client.py"


class Proxy:
    """Forwards connections to the server, and cuts or stalls them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Set unless the connections are stalled.
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"crosslane://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            pair = (client, server)
            for end in pair:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append(pair)
            for source, target in (pair, pair[::-1]):
                threading.Thread(target=self._pass, args=(pair, source, target), daemon=True).start()

    def _pass(
        self, pair: tuple[socket.socket, socket.socket], source: socket.socket, target: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                self._flows.wait()
                target.sendall(piece)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
                # The thread of the other direction may still use the sockets. They are shut down,
                # so it ends.
            else:
                for end in pair:
                    end.close()

    def cut(self, chance: random.Random) -> bool:
        """Cuts a connection, even in the middle of a message."""
        with self._lock:
            if not self._pairs:
                return False
            for end in chance.choice(self._pairs):
                # Both sides get a reset instead of an orderly end.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        return True

    def stall(self, seconds: float) -> None:
        """Forwards nothing for a while."""
        self._flows.clear()
        time.sleep(seconds)
        self._flows.set()

    def close(self) -> None:
        """Accepts no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@dataclass
class Clients:
    """The client processes. A new one replaces each that was killed."""

    addresses: list[str]
    tally: Tally
    chance: random.Random
    errors: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)

    def keep(self) -> None:
        """Starts missing clients."""
        self.processes = [process for process in self.processes if process.poll() is None]
        while len(self.processes) < CLIENTS:
            address = self.chance.choice(self.addresses)
            self.processes.append(self.start(address))

    def start(self, address: str) -> subprocess.Popen[str]:
        """Starts a client of an address."""
        command = [sys.executable, CLIENT, address, str(self.chance.randrange(1 << 32))]
        with self.errors.open("a") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        reader = threading.Thread(target=self._read, args=(process,))
        reader.start()
        self.readers.append(reader)
        self.tally.add("clients")
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            # The last line of a killed client may be incomplete.
            with contextlib.suppress(json.JSONDecodeError):
                told = json.loads(line)
                with self.tally.lock:
                    self.tally.counts.update(told["counts"])
                    self.tally.findings = (self.tally.findings + told["findings"])[:10]
        code = process.wait()
        if code not in (0, -signal.SIGKILL):
            self.tally.found(
                "unexpected errors", f"a client ended with {code}; see {self.errors.read_text()[-2000:]}"
            )

    def end(self, process: subprocess.Popen[str]) -> None:
        """Lets a client finish its queries and end."""
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(shared.HANG)
        except subprocess.TimeoutExpired:
            self.tally.found("hangs", f"a client does not end: {process.args}")
            process.kill()

    def end_all(self) -> None:
        """Lets all clients end, and reads their last lines."""
        for process in self.processes:
            self.end(process)
        for reader in self.readers:
            reader.join()


@dataclass
class Attacker:
    """Attacks the server, its workers, its clients and their connections."""

    server: psutil.Process
    clients: Clients
    proxy: Proxy
    tally: Tally
    chance: random.Random

    def attack(self) -> None:
        """Runs a random attack."""
        attacks = [
            self.kill_worker,
            self.cut,
            self.kill_client,
            self.stop_worker,
            self.stop_client,
            self.stall,
        ]
        [attack] = self.chance.choices(attacks, [8, 8, 2, 2, 1, 1])
        attack()

    def _signal(self, pid: int | None, what: signal.Signals, name: str) -> psutil.Process | None:
        try:
            # psutil compares the start time, so that it cannot hit another process with the same
            # number.
            process = psutil.Process(pid)
            process.send_signal(what)
        except psutil.NoSuchProcess:
            return None
        self.tally.add(name)
        return process

    def _worker(self) -> int | None:
        below = self.server.children(recursive=True)
        return self.chance.choice(below).pid if below else None

    def kill_worker(self) -> None:
        """Kills a worker or a zygote."""
        if pid := self._worker():
            self._signal(pid, signal.SIGKILL, "kills of workers")

    def kill_client(self) -> None:
        """Kills a client with all its lanes."""
        self._signal(self.chance.choice(self.clients.processes).pid, signal.SIGKILL, "kills of clients")

    def cut(self) -> None:
        """Cuts the connection of a lane."""
        if self.proxy.cut(self.chance):
            self.tally.add("cuts of lanes")

    def stall(self) -> None:
        """Stalls the lanes that use the proxy."""
        self.proxy.stall(self.chance.uniform(0.05, 1))
        self.tally.add("stalls of lanes")

    def _pause(self, pid: int | None, name: str) -> None:
        if stopped := self._signal(pid, signal.SIGSTOP, name):
            time.sleep(self.chance.uniform(0.05, 1))
            with contextlib.suppress(psutil.NoSuchProcess):
                stopped.send_signal(signal.SIGCONT)

    def stop_worker(self) -> None:
        """Stops a worker for a while."""
        if pid := self._worker():
            self._pause(pid, "stops of workers")

    def stop_client(self) -> None:
        """Stops a client for a while, so that it does not read."""
        self._pause(self.chance.choice(self.clients.processes).pid, "stops of clients")
