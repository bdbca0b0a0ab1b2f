"""Kills workers at random under a running engine, and checks every answer.

    make soak                 one minute
    make soak SECONDS=600     ten

Two threads run queries over functions in Python, JavaScript and Ruby, while a third kills a random process below
the engine (SIGKILL) every few hundred milliseconds: lanes and zygotes alike. The database is closed and opened
again all the time. Each row is compared with what the function must give. The program ends with exit code 1 if
there was a wrong row, an error that a kill does not explain, a hang, a process that outlived its engine, or
memory or descriptors that grew.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import re
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import crosslane

ROWS = 250_000
#: A query that takes longer hangs.
HANG = 90.0
#: How long a database is used before it is closed and opened again.
CYCLE = 4.0
#: Seconds between two kills, at most.
PAUSE = 0.4
#: All processes below this one inherit it, whatever becomes of their parents.
MARK = f"CROSSLANE_SOAK={uuid.uuid4()}"

#: The same functions in each language; ``{p}`` is its prefix.
SOURCES = {
    "py": """
        from crosslane import udf
        import time
        @udf
        def py_next(x: int) -> int: return x + 1
        @udf
        def py_text(x: int) -> str: return f"{x}/{x * 7}" if x % 5 else "x" * (x % 300)
        @udf
        def py_list(x: int) -> list[int]: return [x, -x][: x % 3]
        @udf(on_error="null")
        def py_some(x: int) -> int: return x if x % 7 else 1 // 0
        @udf(retries=20)
        def py_sure(x: int) -> int:
            time.sleep(0.0002)
            return x * 3
    """,
    "js": """
        udf("js_next(x BIGINT) -> BIGINT", (x) => BigInt(x) + 1n);
        udf("js_text(x BIGINT) -> VARCHAR", (x) => Number(x) % 5 ? `${x}/${Number(x) * 7}` : "x".repeat(Number(x) % 300));
        udf("js_list(x BIGINT) -> BIGINT[]", (x) => [Number(x), -Number(x)].slice(0, Number(x) % 3));
        udf("js_some(x BIGINT) -> BIGINT", { on_error: "null" }, (x) => { if (Number(x) % 7) return x; throw Error("seven"); });
        udf("js_sure(x BIGINT) -> BIGINT", { retries: 20 }, (x) => { let y = 0; for (let i = 0; i < 3e4; i++) y += i; return y ? Number(x) * 3 : 0; });
    """,
    "rb": """
        udf("rb_next(x BIGINT) -> BIGINT") { |x| x + 1 }
        udf("rb_text(x BIGINT) -> VARCHAR") { |x| x % 5 == 0 ? "x" * (x % 300) : "#{x}/#{x * 7}" }
        udf("rb_list(x BIGINT) -> BIGINT[]") { |x| [x, -x].first(x % 3) }
        udf("rb_some(x BIGINT) -> BIGINT", on_error: "null") { |x| x % 7 == 0 ? raise("seven") : x }
        udf("rb_sure(x BIGINT) -> BIGINT", retries: 20) { |x| sleep 0.0002; x * 3 }
    """,
}

#: What each function gives, and the most rows that it is called with.
EXPECTED: dict[str, tuple[Callable[[int], object], int]] = {
    "next": (lambda x: x + 1, ROWS),
    "text": (lambda x: f"{x}/{x * 7}" if x % 5 else "x" * (x % 300), 60_000),
    "list": (lambda x: [x, -x][: x % 3], 30_000),
    "some": (lambda x: x if x % 7 else None, 30_000),
    "sure": (lambda x: x * 3, 1_000),
}

#: What a query may end with because its workers were killed.
EXPLAINED = re.compile(
    r"worker process (was killed|crashed|ended)|worker closed its connection|zygote|ended before it had loaded"
    r"|was not loaded|no worker|worker ended at once|process that loaded the file was killed"
)


@dataclass
class Tally:
    """What has happened so far."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: Counter[str] = field(default_factory=Counter)
    #: The first few of what must not happen.
    findings: list[str] = field(default_factory=list)
    #: When each thread began its query.
    running: dict[str, tuple[float, str]] = field(default_factory=dict)

    def add(self, what: str, count: int = 1) -> None:
        """Counts something."""
        with self.lock:
            self.counts[what] += count

    def found(self, what: str, text: str) -> None:
        """Counts something that must not happen."""
        with self.lock:
            self.counts[what] += 1
            if len(self.findings) < 10:
                self.findings.append(f"{what}: {text}")


def write_sources(folder: Path) -> list[Path]:
    """Writes the files of functions."""
    paths = [folder / f"soak.{language}" for language in SOURCES]
    for path, text in zip(paths, SOURCES.values()):
        lines = text.strip("\n").splitlines()
        margin = len(lines[0]) - len(lines[0].lstrip())
        path.write_text("\n".join(line[margin:] for line in lines) + "\n")
    return paths


def query(con: duckdb.DuckDBPyConnection, tally: Tally, chance: random.Random) -> None:
    """Runs one query and checks its rows."""
    kind, language = chance.choice(list(EXPECTED)), chance.choice(list(SOURCES))
    expected, most = EXPECTED[kind]
    first = chance.randrange(ROWS)
    count = min(int(most ** chance.random()), ROWS - first)
    sql = f"SELECT i, {language}_{kind}(i) FROM numbers WHERE i >= {first} AND i < {first + count}"
    name = threading.current_thread().name
    tally.running[name] = (time.monotonic(), sql)
    try:
        rows = con.execute(sql).fetchall()
    except duckdb.Error as error:
        if EXPLAINED.search(str(error)):
            tally.add("expected errors")
        else:
            tally.found("unexpected errors", f"{sql}: {error}")
        return
    finally:
        del tally.running[name]
        tally.add("queries")
    tally.add("rows", len(rows))
    if len(rows) != count:
        tally.found("wrong rows", f"{sql}: {len(rows)} rows instead of {count}")
    for i, result in rows:
        # A row on which its worker was killed is NULL, as one that raised.
        if result != expected(i) and not (kind == "some" and result is None):
            tally.found("wrong rows", f"{sql}: {result!r} for {i}")


def below() -> list[psutil.Process]:
    """The processes below this one."""
    return psutil.Process().children(recursive=True)


def kill_some(tally: Tally, stop: threading.Event, chance: random.Random) -> None:
    """Kills a random process below this one now and then."""
    while not stop.wait(chance.uniform(0.02, PAUSE)):
        if not (alive := below()):
            continue
        victim = chance.choice(alive)
        try:
            # psutil compares the time of its start, so that no stranger with the same number is hit.
            victim.kill()
            tally.add("kills")
        except psutil.NoSuchProcess:
            pass


def marked() -> list[int]:
    """The processes that this one, or one below it, has started, and that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and MARK.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def use(files: list[Path], seconds: float, tally: Tally, chance: random.Random) -> None:
    """Opens a database, queries it from two threads while workers are killed, and closes it."""
    con = crosslane.connect(config={"threads": 4})
    con.execute(f"CREATE TABLE numbers AS SELECT i FROM range({ROWS}) r(i)")
    for file in files:
        crosslane.load(con, file)
    end, stop = time.monotonic() + seconds, threading.Event()

    def work(cursor: duckdb.DuckDBPyConnection, seed: float) -> None:
        own = random.Random(seed)
        while time.monotonic() < end:
            query(cursor, tally, own)
        cursor.close()

    threads = [
        threading.Thread(target=work, args=(con.cursor(), chance.random()), name=f"caller {n}")
        for n in range(2)
    ]
    killer = threading.Thread(target=kill_some, args=(tally, stop, random.Random(chance.random())))
    for thread in [*threads, killer]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    killer.join()
    con.close()


def watch(tally: Tally) -> None:
    """Ends the program when a query hangs, and says where everyone is."""
    while True:
        time.sleep(1)
        for name, (began, sql) in list(tally.running.items()):
            if time.monotonic() - began > HANG:
                tally.found("hangs", f"{name}: {sql}")
                report(tally)
                faulthandler.dump_traceback()
                os._exit(1)


def wait_for_none(find: Callable[[], list[int]], seconds: float) -> list[int]:
    """What is still there after so many seconds."""
    end = time.monotonic() + seconds
    while (left := find()) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def settled(engine: psutil.Process) -> int:
    """The engine's descriptors when their number stands still: a closed database's last threads may be about to end."""
    count, since = engine.num_fds(), time.monotonic()
    end = since + 10
    while (now := time.monotonic()) - since < 0.5 and now < end:
        time.sleep(0.05)
        if (open_now := engine.num_fds()) != count:
            count, since = open_now, now
    return count


def report(tally: Tally, growth: dict[str, str] | None = None) -> None:
    """Prints what has happened."""
    table = Table("what", "count", title="soak")
    for what in ("queries", "rows", "kills", "expected errors", "databases"):
        table.add_row(what, f"{tally.counts[what]:,}")
    table.add_section()
    for what in ("wrong rows", "unexpected errors", "hangs", "orphans"):
        table.add_row(what, f"{tally.counts[what]:,}", style="red" if tally.counts[what] else "green")
    for what, text in (growth or {}).items():
        table.add_row(what, text)
    console = Console()
    console.print(table)
    for text in tally.findings:
        console.print(text, style="red", markup=False)


def run(seconds: float, seed: int) -> bool:
    """Runs for so many seconds. False if something happened that must not."""
    name, _, value = MARK.partition("=")
    os.environ[name] = value
    tally, chance = Tally(), random.Random(seed)
    threading.Thread(target=watch, args=(tally,), daemon=True).start()
    engine, begun, usage = psutil.Process(), time.monotonic(), []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, transient=True) as progress:
        task = progress.add_task("soak", total=seconds)
        files = write_sources(Path(folder))
        # Two at least: growth is what the last one leaves beyond the first.
        while (passed := time.monotonic() - begun) < seconds or len(usage) < 2:
            use(files, min(CYCLE, max(1.0, (seconds - passed) / 2)), tally, chance)
            tally.add("databases")
            if orphans := wait_for_none(marked, 10):
                tally.found("orphans", f"{len(orphans)} processes of a closed database: {orphans}")
                tally.add("orphans", len(orphans) - 1)
            usage.append((settled(engine), engine.memory_info().rss >> 20))
            counts = tally.counts
            bad = sum(counts[what] for what in ("wrong rows", "unexpected errors", "orphans"))
            text = f"{counts['queries']:,} queries, {counts['kills']:,} kills, {bad} findings"
            progress.update(task, completed=time.monotonic() - begun, description=text)
    # What the first databases leave is caches: of the allocator, of DuckDB, of Python.
    early = usage[: max(1, len(usage) // 4)]
    descriptors = usage[-1][0] - max(fds for fds, _ in early)
    memory = usage[-1][1] - max(rss for _, rss in early)
    growth = {
        "growth of descriptors": f"{descriptors:+d} ({usage[-1][0]} now)",
        "growth of memory": f"{memory:+d} MB ({usage[-1][1]} MB now)",
    }
    if descriptors > 0:
        tally.found("leaks", f"descriptors after each database: {[fds for fds, _ in usage]}")
    if memory > 100:
        tally.found("leaks", f"MB after each database: {[rss for _, rss in usage]}")
    report(tally, growth)
    return not tally.findings


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of an earlier run")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    sys.exit(0 if run(options.seconds, seed) else 1)


if __name__ == "__main__":
    main()
