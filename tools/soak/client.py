"""A client of the soak of a server: a process that attaches the server and sends queries until it is told to
stop.

python tools/soak/client.py ADDRESS SEED
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time

import duckdb
import shared
from shared import (
    SOURCES,
    Tally,
    ask,
    make_numbers,
    query_scalar,
)

import crosslane

#: The errors of queries that an attack explains.
EXPLAINED = re.compile(
    r"the server at \S+: (its worker|it closed the connection|Connection reset|Broken pipe|a worker process|the zygote"
    r"|.*(was killed|crashed|ended|lost))"
    r"|cannot connect to|no server of crosslane answered|worker process (was killed|crashed|ended)|was not loaded"
    r"|its worker ended at once|worker closed its connection"
)


def check(
    tally: Tally, sql: str, rows: list[tuple[object, ...]] | None, due: list[tuple[object, ...]]
) -> None:
    """Compares the rows of a query with the right ones. Without rows, an attack has ended the query."""
    if rows is not None and sorted(rows) != due:
        tally.found("wrong rows", f"{sql}: {len(rows)} rows, such as {rows[:3]}, instead of {len(due)}")


def query(con: duckdb.DuckDBPyConnection, tally: Tally, chance: random.Random) -> None:
    """Runs a query of a random kind."""
    language = chance.choice(list(SOURCES))
    count = int(30_000 ** chance.random())
    match chance.randrange(6):
        case 0:
            sql = f"FROM {language}_count({count})"
            due = [(i * 2,) for i in range(count)]
        case 1:
            # The query does not read the rest.
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
    """Attaches the server. Attacks may make some tries fail, but not all."""
    sql = f"CALL crosslane_attach('{address}')"
    for _ in range(20):
        if ask(con, tally, sql, EXPLAINED) is not None:
            return True
    tally.found("unexpected errors", f"{sql}: 20 times in turn")
    return False


def run(address: str, seed: int) -> None:
    """Queries from two threads until standard input ends, and prints its events to standard output."""
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
        if any(time.monotonic() - since > shared.HANG for since in began):
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


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
