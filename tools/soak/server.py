"""Kills clients, workers and lanes of a server at random, and checks every answer.

    make soak-server                 one minute
    make soak-server SECONDS=600     ten

`crosslane serve` has functions in Python, JavaScript and Ruby, at a Unix socket and a TCP port. Client processes attach
it in DuckDB, and run scalar, table, aggregate and stream queries with known rows. Meanwhile workers, zygotes and clients
are killed (SIGKILL) or stopped for a moment, and a proxy cuts or stalls connections of lanes. At the end:

- no connection and no call is left at the server, and it uses no more resources than before,
- a new client gets right answers,
- SIGTERM ends the server with exit code 0, and no process, file or socket is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from attacks import Attacker, Clients, Proxy
from client import check
from shared import (
    SOURCES,
    Tally,
    arguments,
    ask,
    make_numbers,
    mark,
    marked,
    report,
    wait_for_none,
    write_sources,
)

import crosslane

#: The most workers of each file.
WORKERS = 3
#: The most seconds between two attacks.
PAUSE = 0.3
#: The most seconds until the server is idle after its clients have gone.
REST = 60.0
#: The server is idle when nothing changes for this many seconds. A worker goes back to its pool after five
#: idle seconds, and the pool ends it after one more.
STILL = 7.0
#: The server's memory may grow by this many MB, because allocators keep some.
MEMORY = 100
#: The folder of files in shared memory.
SHARED_MEMORY = Path("/dev/shm")
#: In addition to the scalar functions: a table, an aggregate and a stream function in each language.
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


@dataclass
class Use:
    """The resources that a server uses."""

    descriptors: int
    threads: int
    processes: int
    memory: int

    @classmethod
    def of(cls, server: psutil.Process) -> Use:
        """The resources that this server uses now."""
        below = server.children(recursive=True)
        return cls(server.num_fds(), server.num_threads(), len(below), server.memory_info().rss >> 20)


def connections(server: psutil.Process, path: Path) -> int:
    """The number of a server's connections, without the sockets that listen."""
    tcp = [c for c in server.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
    unix = [c for c in server.net_connections("unix") if c.laddr == str(path)]
    return len(tcp) + max(0, len(unix) - 1)


@contextlib.contextmanager
def serving(files: list[Path], path: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server at a Unix socket and a port, and its addresses."""
    command = [sys.executable, "-P", "-m", "crosslane._cli", "serve", *map(str, files)]
    command += ["--listen", f"crosslane+unix://{path}", "--listen", "crosslane://127.0.0.1:0"]
    # Idle workers end soon, so that workers that remain are lost ones.
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
    """Calls a function of each kind in each language, on a new database. All results must be right."""
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
    """The resources of a server without clients, when they have not changed for `STILL` seconds."""
    use, since = Use.of(server), time.monotonic()
    end = since + REST
    while (now := time.monotonic()) < end and (now - since < STILL or connections(server, path)):
        time.sleep(0.1)
        if (used := Use.of(server)) != use:
            since = now if excess(used, use) or excess(use, used) else since
            use = used
    return use


def files_in(folders: list[Path]) -> set[str]:
    """The files in these folders."""
    return {str(file) for folder in folders for file in folder.rglob("*")}


def run(seconds: float, seed: int, contained: bool = False) -> bool:
    """Runs for this many seconds. Returns whether there were no findings.

    Only a contained run has the shared memory for itself, and checks it for files.
    """
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
    """The resources of which a server uses more than before."""
    more = [
        what
        for what in ("descriptors", "threads", "processes")
        if getattr(after, what) > getattr(before, what)
    ]
    return [*more, *(["memory"] if after.memory > before.memory + MEMORY else [])]


def contain() -> bool:
    """Continues in new namespaces, if the machine allows that. Returns whether it does.

    All processes end with the namespaces, and shared memory has no files of other programs.
    """
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if "CROSSLANE_SOAK" in os.environ:
        return True
    if shutil.which("unshare") is None:
        return False
    mount = f"mount -t tmpfs tmpfs {SHARED_MEMORY}"
    for space in (unshare, [*unshare, "--user", "--map-root-user"]):
        if subprocess.run([*space, *mount.split()], capture_output=True).returncode == 0:
            mark()
            # The first process of a namespace must wait for orphans. A shell does that.
            script = f'{mount} && "$@"; exit $?'
            os.execvp("unshare", [*space, "sh", "-c", script, "sh", sys.executable, *sys.argv])
    return False


def main() -> None:
    """The program."""
    seconds, seed = arguments(__doc__)
    contained = contain()
    print(f"seed {seed}", flush=True)
    sys.exit(0 if run(seconds, seed, contained) else 1)


if __name__ == "__main__":
    main()
