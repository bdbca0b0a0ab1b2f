"""Kills clients, workers and lanes of a server at random, and checks every answer.

    make soak-server                 one minute
    make soak-server SECONDS=600     ten

`crosslane serve` offers functions in Python, JavaScript and Ruby over a Unix socket and TCP. Client processes attach it, in
DuckDB, and run scalar, table, aggregate and stream queries whose rows are known. Meanwhile the workers and zygotes of the server and the
clients are killed (SIGKILL) or stopped for a moment, and the connections of lanes are cut or stalled by a proxy. At the end no connection
and no call may be left at the server; its descriptors, threads, processes and memory have to be about what they were before;
a new client has to get right answers; SIGTERM has to end the server with exit code 0; and no process, file or socket may stay behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import psutil
import soaking
from soaking import (
    SOURCES,
    Tally,
    ask,
    make_numbers,
    mark,
    marked,
    query_scalar,
    report,
    wait_for_none,
    write_sources,
)

import crosslane

#: Client processes at a time.
CLIENTS = 3
#: Workers of each file, at most.
WORKERS = 3
#: Seconds between two attacks, at most.
PAUSE = 0.3
#: Seconds in which the server has to come to rest when its clients are gone.
REST = 60.0
#: A worker that nobody has used for five seconds goes back to its pool, which ends it after one more.
STILL = 7.0
#: Growth of the server's memory that is no finding, in MB: allocators keep some.
MEMORY = 100
#: Where files are in memory that programs share.
SHARED_MEMORY = Path("/dev/shm")
#: Beside the scalar functions: a table, an aggregate and a stream function in each language.
MORE_SOURCES = {
    "py": """
        from crosslane import udaf, udtf
        @udtf("py_count(n BIGINT) -> TABLE(i BIGINT)")
        def py_count(n):
            for i in range(n): yield i * 2
        @udaf
        class py_total:
            def __init__(self): self.sum = 0
            def update(self, x: int) -> None: self.sum += x
            def merge(self, other: "py_total") -> None: self.sum += other.sum
            def finish(self) -> int: return self.sum
        @udtf("py_odd(t TABLE(i BIGINT)) -> TABLE(i BIGINT)")
        def py_odd(t):
            for row in t:
                if row.i % 2: yield row.i
    """,
    "js": """
        udtf("js_count(n BIGINT) -> TABLE(i BIGINT)", function* (n) { for (let i = 0; i < Number(n); i++) yield [i * 2]; });
        udaf("js_total(x BIGINT) -> BIGINT", {
          start: () => 0, update: (s, x) => s + Number(x), merge: (s, o) => s + o, finish: (s) => s });
        udtf("js_odd(t TABLE(i BIGINT)) -> TABLE(i BIGINT)", function* (t) { for (const { i } of t) if (Number(i) % 2) yield [i]; });
    """,
    "rb": """
        udtf("rb_count(n BIGINT) -> TABLE(i BIGINT)") { |n| (0...n).lazy.map { |i| i * 2 } }
        udaf("rb_total(x BIGINT) -> BIGINT", start: -> { 0 }, combine: ->(a, b) { a + b }) { |sum, x| sum + x }
        udtf("rb_odd(t TABLE(i BIGINT)) -> TABLE(i BIGINT)") { |t| t.select { |row| row.i.odd? }.map { |row| [row.i] } }
    """,
}

#: What a query may end with because of an attack.
EXPLAINED = re.compile(
    r"the server at \S+: (its worker|it closed the connection|Connection reset|Broken pipe|a worker process|the zygote"
    r"|.*(was killed|crashed|ended|lost))"
    r"|cannot connect to|no server of crosslane answered|worker process (was killed|crashed|ended)|was not loaded"
    r"|its worker ended at once|worker closed its connection"
)


# --- A client: a process that attaches the server and asks until it is told to stop. ---


def check(
    tally: Tally, sql: str, rows: list[tuple[object, ...]] | None, due: list[tuple[object, ...]]
) -> None:
    """Compares rows that were got, if there are any, with those that are due."""
    if rows is not None and sorted(rows) != due:
        tally.found("wrong rows", f"{sql}: {len(rows)} rows, such as {rows[:3]}, instead of {len(due)}")


def query(con: duckdb.DuckDBPyConnection, tally: Tally, chance: random.Random) -> None:
    """Runs a query of some kind."""
    language = chance.choice(list(SOURCES))
    count = int(30_000 ** chance.random())
    match chance.randrange(6):
        case 0:
            sql = f"FROM {language}_count({count})"
            due = [(i * 2,) for i in range(count)]
        case 1:
            # The rest is not wanted.
            sql = f"FROM {language}_count(1_000_000_000) LIMIT {min(count, 5000)}"
            due = [(i * 2,) for i in range(min(count, 5000))]
        case 2:
            sql = f"SELECT i % 3, {language}_total(i) FROM numbers WHERE i < {count} GROUP BY 1"
            due = [(k, sum(range(k, count, 3))) for k in range(min(3, count))]
        case 3:
            sql = f"FROM crosslane_map('SELECT i FROM numbers WHERE i < {count}', '{language}_odd')"
            due = [(i,) for i in range(1, count, 2)]
        case _:
            return query_scalar(con, tally, chance, EXPLAINED)
    check(tally, sql, ask(con, tally, sql, EXPLAINED), due)


def attach(con: duckdb.DuckDBPyConnection, tally: Tally, address: str) -> bool:
    """Attaches the server. An attack may make that fail, but not each time."""
    sql = f"CALL crosslane_attach('{address}')"
    for _ in range(20):
        if ask(con, tally, sql, EXPLAINED) is not None:
            return True
    tally.found("unexpected errors", f"{sql}: 20 times in turn")
    return False


def be_client(address: str, seed: int) -> None:
    """Asks from two threads until standard input ends, and tells on standard output what has happened."""
    tally, chance, stop = Tally(), random.Random(seed), threading.Event()
    con = crosslane.connect(config={"threads": 3})
    make_numbers(con)
    threads = []

    def work(cursor: duckdb.DuckDBPyConnection, seed: float) -> None:
        own = random.Random(seed)
        while not stop.is_set():
            query(cursor, tally, own)
        cursor.close()

    def tell() -> None:
        with tally.lock:
            counts, findings = dict(tally.counts), list(tally.findings)
            tally.counts.clear()
            tally.findings.clear()
        began = [began for began, _ in list(tally.running.values())]
        if any(time.monotonic() - since > soaking.HANG for since in began):
            findings.append(f"hangs: {list(tally.running.values())}")
            counts["hangs"] = 1
        print(json.dumps({"counts": counts, "findings": findings}), flush=True)

    def listen() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    if attach(con, tally, address):
        threads = [threading.Thread(target=work, args=(con.cursor(), chance.random())) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tell()
        stop.wait(0.2)
        if stop.is_set():
            threads[0].join(0.2)
    con.close()
    tell()


# --- The attacks. ---


class Proxy:
    """Passes connections on to the server, and cuts or stalls them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Set while data flow.
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
                # The other direction's thread may be about to use them: shut down, they tell it the end.
            else:
                for end in pair:
                    end.close()

    def cut(self, chance: random.Random) -> bool:
        """Cuts a connection, in the midst of whatever travels on it."""
        with self._lock:
            if not self._pairs:
                return False
            for end in chance.choice(self._pairs):
                # Both sides are sent a reset instead of an end.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        return True

    def stall(self, seconds: float) -> None:
        """Lets nothing pass for a while."""
        self._flows.clear()
        time.sleep(seconds)
        self._flows.set()

    def close(self) -> None:
        """Takes no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@dataclass
class Clients:
    """The client processes. One that was killed is followed by another."""

    addresses: list[str]
    tally: Tally
    chance: random.Random
    errors: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)

    def keep(self) -> None:
        """Starts those that are missing."""
        self.processes = [process for process in self.processes if process.poll() is None]
        while len(self.processes) < CLIENTS:
            address = self.chance.choice(self.addresses)
            self.processes.append(self.start(address))

    def start(self, address: str) -> subprocess.Popen[str]:
        """Starts one that asks at an address."""
        command = [
            sys.executable,
            __file__,
            "--client",
            address,
            "--seed",
            str(self.chance.randrange(1 << 32)),
        ]
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
            # The last line of one that is killed may be torn.
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
        """Lets one end what it is doing."""
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(soaking.HANG)
        except subprocess.TimeoutExpired:
            self.tally.found("hangs", f"a client does not end: {process.args}")
            process.kill()

    def end_all(self) -> None:
        """Lets all end, and hears their last words."""
        for process in self.processes:
            self.end(process)
        for reader in self.readers:
            reader.join()


@dataclass
class Attacker:
    """Does harm now and then, until it is stopped."""

    server: psutil.Process
    clients: Clients
    proxy: Proxy
    tally: Tally
    chance: random.Random

    def attack(self) -> None:
        """Does some harm."""
        harms = [self.kill_worker, self.cut, self.kill_client, self.stop_worker, self.stop_client, self.stall]
        [harm] = self.chance.choices(harms, [8, 8, 2, 2, 1, 1])
        harm()

    def _signal(self, pid: int | None, what: signal.Signals, name: str) -> psutil.Process | None:
        try:
            # psutil compares the time of its start, so that no stranger with the same number is hit.
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
        """Kills a worker, or a zygote."""
        if pid := self._worker():
            self._signal(pid, signal.SIGKILL, "kills of workers")

    def kill_client(self) -> None:
        """Kills a client with all its lanes."""
        self._signal(self.chance.choice(self.clients.processes).pid, signal.SIGKILL, "kills of clients")

    def cut(self) -> None:
        """Cuts a lane."""
        if self.proxy.cut(self.chance):
            self.tally.add("cuts of lanes")

    def stall(self) -> None:
        """Lets nothing pass on the lanes that use the proxy."""
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
        """Stops a client for a while: it does not read."""
        self._pause(self.chance.choice(self.clients.processes).pid, "stops of clients")


# --- The server, and what is left in it. ---


@dataclass
class Use:
    """What a server uses."""

    descriptors: int
    threads: int
    processes: int
    memory: int

    @classmethod
    def of(cls, server: psutil.Process) -> Use:
        """What this one uses now."""
        below = server.children(recursive=True)
        return cls(server.num_fds(), server.num_threads(), len(below), server.memory_info().rss >> 20)


def connections(server: psutil.Process, path: Path) -> int:
    """The connections that a server has, besides those that listen."""
    tcp = [c for c in server.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
    unix = [c for c in server.net_connections("unix") if c.laddr == str(path)]
    return len(tcp) + max(0, len(unix) - 1)


@contextlib.contextmanager
def serving(files: list[Path], path: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server at a Unix socket and a port, and its addresses."""
    command = [sys.executable, "-P", "-m", "crosslane._cli", "serve", *map(str, files)]
    command += ["--listen", f"crosslane+unix://{path}", "--listen", "crosslane://127.0.0.1:0"]
    # Workers that nobody uses end soon, so that what is left is what is lost.
    command += ["--workers", str(WORKERS), "--set", "idle_timeout=1"]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(2)]
        if not all(" at " in line for line in said):
            raise RuntimeError(f"the server did not start: {log.read_text()}")
        yield process, [line.split()[-1] for line in said]
    finally:
        process.kill()
        process.wait()


def ask_all(address: str, tally: Tally) -> None:
    """Calls a function of each kind in each language, on a new database: all must be right."""
    nothing = re.compile(r"(?!)")
    con = crosslane.connect(config={"threads": 2})
    make_numbers(con)
    ask(con, tally, f"CALL crosslane_attach('{address}')", nothing)
    for language in SOURCES:
        for sql, due in (
            (f"SELECT sum({language}_next(i)) FROM range(5000) r(i)", [(sum(range(5001)),)]),
            (f"SELECT count(*) FROM {language}_count(5000)", [(5000,)]),
            (f"SELECT {language}_total(i) FROM range(5000) r(i)", [(sum(range(5000)),)]),
            (
                f"SELECT count(*) FROM crosslane_map('SELECT i FROM numbers WHERE i < 5000', '{language}_odd')",
                [(2500,)],
            ),
        ):
            check(tally, sql, ask(con, tally, sql, nothing), due)
    con.close()


def at_rest(server: psutil.Process, path: Path) -> Use:
    """What a server uses that has no clients, as soon as that stands still for longer than it keeps unused workers."""
    use, since = Use.of(server), time.monotonic()
    end = since + REST
    while (now := time.monotonic()) < end and (now - since < STILL or connections(server, path)):
        time.sleep(0.1)
        if (used := Use.of(server)) != use:
            since = now if excess(used, use) or excess(use, used) else since
            use = used
    return use


def files_in(folders: list[Path]) -> set[str]:
    """What programs have made in these folders."""
    return {str(file) for folder in folders for file in folder.rglob("*")}


def run(seconds: float, seed: int, contained: bool = False) -> bool:
    """Runs for so many seconds. False if something happened that must not. Others use the shared memory, too, unless it is contained."""
    mark()
    tally, chance = Tally(), random.Random(seed)
    growth: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, scratch = Path(name), Path(name) / "tmp"
        scratch.mkdir()
        os.environ["TMPDIR"] = str(scratch)
        folders = [scratch, SHARED_MEMORY] if contained else [scratch]
        sources = {language: text + MORE_SOURCES[language] for language, text in SOURCES.items()}
        files, path, log = write_sources(folder, sources), folder / "soak.sock", folder / "server.log"
        with serving(files, path, log) as (process, addresses):
            server = psutil.Process(process.pid)
            for address in addresses:
                ask_all(address, tally)
            before = at_rest(server, path)
            proxy = Proxy(int(addresses[1].rpartition(":")[2]))
            places = [addresses[0], proxy.address, f"{proxy.address}, {addresses[0]}"]
            clients = Clients(places, tally, random.Random(chance.random()), folder / "clients.log")
            attacker = Attacker(server, clients, proxy, tally, random.Random(chance.random()))
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0 and not tally.findings:
                clients.keep()
                time.sleep(min(left, chance.uniform(0.02, PAUSE)))
                if process.poll() is not None:
                    tally.found("unexpected errors", f"the server ended with {process.returncode}")
                    break
                attacker.attack()
            clients.end_all()
            proxy.close()
            if not tally.findings:
                after = at_rest(server, path)
                for what in excess(before, after):
                    tally.found("leaks", f"{what}: {before} before, and {after} after")
                if left := connections(server, path):
                    tally.found("leaks", f"{left} connections of clients that are gone")
                for address in addresses:
                    ask_all(address, tally)
                growth["the server's descriptors"] = f"{before.descriptors}, then {after.descriptors}"
                growth["the server's memory"] = f"{before.memory} MB, then {after.memory} MB"
            process.terminate()
            try:
                code = process.wait(45)
            except subprocess.TimeoutExpired:
                tally.found("hangs", "the server does not end after SIGTERM")
            else:
                if code:
                    tally.found("unexpected errors", f"the server ended with exit code {code}")
        for errors in (log, folder / "clients.log"):
            if errors.exists() and "panicked" in (text := errors.read_text()):
                tally.found("unexpected errors", text[text.index("panicked") - 200 :][:2000])
        if orphans := wait_for_none(marked, 10):
            tally.found("orphans", f"processes {orphans}")
        if remains := files_in(folders) | ({str(path)} if path.exists() else set()):
            tally.found("leaks", f"files {sorted(remains)}")
    report(tally, growth)
    return not tally.findings


def excess(before: Use, after: Use) -> list[str]:
    """What a server uses more of than before."""
    more = [
        what
        for what in ("descriptors", "threads", "processes")
        if getattr(after, what) > getattr(before, what)
    ]
    return [*more, *(["memory"] if after.memory > before.memory + MEMORY else [])]


def contain() -> bool:
    """Runs on in namespaces of its own, if there can be any: whatever happens, all that was started ends with them, and files in shared
    memory are its own. Whether it does."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if "CROSSLANE_SOAK" in os.environ:
        return True
    if shutil.which("unshare") is None:
        return False
    mount = f"mount -t tmpfs tmpfs {SHARED_MEMORY}"
    for space in (unshare, [*unshare, "--user", "--map-root-user"]):
        if subprocess.run([*space, *mount.split()], capture_output=True).returncode == 0:
            mark()
            # A shell waits for orphans, as the first process of a namespace has to.
            script = f'{mount} && "$@"; exit $?'
            os.execvp("unshare", [*space, "sh", "-c", script, "sh", sys.executable, *sys.argv])
    return False


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of an earlier run")
    parser.add_argument("--client", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    if options.client:
        return be_client(options.client, seed)
    contained = contain()
    print(f"seed {seed}", flush=True)
    sys.exit(0 if run(options.seconds, seed, contained) else 1)


if __name__ == "__main__":
    main()
