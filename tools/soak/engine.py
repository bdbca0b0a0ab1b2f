"""Kills workers at random under a running engine, and checks every answer.

    make soak                 one minute
    make soak SECONDS=600     ten

Two threads run queries over functions in Python, JavaScript and Ruby. A third thread kills a random process
below the engine (SIGKILL) every few hundred milliseconds: lanes and zygotes. The database is closed and
opened again every few seconds. Each row is compared with the right result. The program ends with exit code 1
if it found something wrong: a wrong row, an error that a kill does not explain, or a hang. It also does so if
a process outlived its engine, or if memory or descriptors grew.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from shared import (
    BAD,
    SOURCES,
    Tally,
    arguments,
    make_numbers,
    mark,
    marked,
    query_scalar,
    report,
    wait_for_none,
    watch,
    write_sources,
)

import crosslane

#: Seconds until a database is closed and opened again.
CYCLE = 4.0
#: The most seconds between two kills.
PAUSE = 0.4

#: The errors of queries whose workers were killed.
EXPLAINED = re.compile(
    r"worker process (was killed|crashed|ended)|worker closed its connection|zygote|ended before it had loaded"
    r"|was not loaded|no worker|worker ended at once|process that loaded the file was killed"
)


def below() -> list[psutil.Process]:
    """The processes below this one."""
    return psutil.Process().children(recursive=True)


def kill_some(tally: Tally, stop: threading.Event, chance: random.Random) -> None:
    """Kills random processes below this one."""
    while not stop.wait(chance.uniform(0.02, PAUSE)):
        if not (alive := below()):
            continue
        victim = chance.choice(alive)
        try:
            # psutil compares the start time, so that it cannot hit another process with the same
            # number.
            victim.kill()
            tally.add("kills")
        except psutil.NoSuchProcess:
            pass


def use(files: list[Path], seconds: float, tally: Tally, chance: random.Random) -> None:
    """Opens a database, queries it from two threads while workers are killed, and closes it."""
    con = crosslane.connect(config={"threads": 4})
    make_numbers(con)
    for file in files:
        crosslane.load(con, file)
    end, stop = time.monotonic() + seconds, threading.Event()

    def work(cursor: duckdb.DuckDBPyConnection, seed: float) -> None:
        own = random.Random(seed)
        while time.monotonic() < end:
            query_scalar(cursor, tally, own, EXPLAINED)
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


def early(usage: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The usage after the first databases. It includes caches of the allocator, of DuckDB, and of Python."""
    return usage[: max(1, len(usage) // 4)]


def settled(engine: psutil.Process, known: int | None) -> int:
    """The engine's descriptors, when there are no more than `known`, or after ten seconds.

    Without a known number, it waits until the number does not change for half a second. The last threads of a closed
    database may wait for a processor before they end.
    """
    count, since = engine.num_fds(), time.monotonic()
    end = since + 10
    while (now := time.monotonic()) < end and (now - since < 0.5 if known is None else count > known):
        time.sleep(0.05)
        if (open_now := engine.num_fds()) != count:
            count, since = open_now, now
    return count


def run(seconds: float, seed: int) -> bool:
    """Runs for this many seconds. Returns whether there were no findings."""
    mark()
    tally, chance = Tally(), random.Random(seed)
    threading.Thread(target=watch, args=(tally,), daemon=True).start()
    engine, begun, usage = psutil.Process(), time.monotonic(), []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, transient=True) as progress:
        task = progress.add_task("soak", total=seconds)
        files = write_sources(Path(folder), SOURCES)
        # At least two databases: growth is the difference between the last and the first ones.
        while (passed := time.monotonic() - begun) < seconds or len(usage) < 2:
            use(files, min(CYCLE, max(1.0, (seconds - passed) / 2)), tally, chance)
            tally.add("databases")
            if orphans := wait_for_none(marked, 10):
                tally.found("orphans", f"{len(orphans)} processes of a closed database: {orphans}")
                tally.add("orphans", len(orphans) - 1)
            known = max((fds for fds, _ in early(usage)), default=None)
            usage.append((settled(engine, known), engine.memory_info().rss >> 20))
            counts = tally.counts
            bad = sum(counts[what] for what in BAD)
            text = f"{counts['queries']:,} queries, {counts['kills']:,} kills, {bad} findings"
            progress.update(task, completed=time.monotonic() - begun, description=text)
    descriptors = usage[-1][0] - max(fds for fds, _ in early(usage))
    memory = usage[-1][1] - max(rss for _, rss in early(usage))
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
    seconds, seed = arguments(__doc__)
    print(f"seed {seed}", flush=True)
    sys.exit(0 if run(seconds, seed) else 1)


if __name__ == "__main__":
    main()
