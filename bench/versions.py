"""Compares this version with another one in one run: how long the same queries take in each.

    make bench-versions OTHER=/path/of/another/checkout

The other checkout must be built (`make setup` there). Each version runs in its own process. The two take turns at
every query, so that a change of the machine's speed affects both. The figure of a line is the median of the rounds'
ratios. Above 1, this version is faster.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 15

TABLES = [
    "CREATE TABLE ints AS SELECT i FROM range(5000000) r(i)",
    "CREATE TABLE texts AS SELECT printf('row number %014d', i) AS s FROM range(1000000) r(i)",
    "CREATE TABLE doubles AS SELECT random() AS a, random() AS b FROM range(5000000)",
    "CREATE TABLE titles AS SELECT 'Hello, World: this is title ' || i AS s FROM range(250000) r(i)",
    "CREATE TABLE middle AS SELECT i FROM range(61440) r(i)",
    "CREATE TABLE small AS SELECT i FROM range(5000) r(i)",
]
#: Name, query, threads.
QUERIES = [
    ("Python row function, bigint", "SELECT bit_xor(plus_one(i)) FROM ints", 1),
    ("Python row function, bigint", "SELECT bit_xor(plus_one(i)) FROM ints", 2),
    ("Python row function, varchar", "SELECT sum(strlen(bench_upper(s))) FROM texts", 1),
    ("Python row function, varchar", "SELECT sum(strlen(bench_upper(s))) FROM texts", 2),
    ("Python vectorized", "SELECT bit_xor(plus_one_vectorized(i)) FROM ints", 1),
    ("Python vectorized", "SELECT bit_xor(plus_one_vectorized(i)) FROM ints", 2),
    ("Python 20 us function, fanned out", "SELECT bit_xor(heavy(i)) FROM small", 2),
    ("Python 20 us function", "SELECT bit_xor(heavy(i)) FROM middle", 2),
    ("Python async, 1 ms", "SELECT bit_xor(wait(i)) FROM small", 2),
    ("JavaScript a + b", "SELECT bit_xor(js_add(a, b)::BIGINT) FROM doubles", 1),
    ("JavaScript a + b", "SELECT bit_xor(js_add(a, b)::BIGINT) FROM doubles", 2),
    ("JavaScript slugify", "SELECT sum(strlen(js_slugify(s))) FROM titles", 2),
    ("Ruby upcase", "SELECT sum(strlen(rb_up(s))) FROM texts", 1),
    ("Ruby upcase", "SELECT sum(strlen(rb_up(s))) FROM texts", 2),
    ("Ruby 20 us function", "SELECT bit_xor(rb_work(i)) FROM middle", 2),
    ("connect, load and close", "", 2),
]


def serve() -> None:
    """A version's process: reads numbers of queries from standard input, and prints the seconds of each."""
    import time

    import crosslane

    folder = ROOT / "bench" / "duckdb" / "functions"
    functions = [folder / f"scalar.{suffix}" for suffix in ("py", "js", "rb")]
    con = crosslane.connect(functions=functions)
    for table in TABLES:
        con.execute(table)
    for line in sys.stdin:
        _, query, threads = QUERIES[int(line)]
        con.execute(f"SET threads = {threads}")
        started = time.perf_counter()
        if query:
            con.execute(query).fetchall()
        else:
            fresh = crosslane.connect(functions=functions[0])
            fresh.execute("SELECT plus_one(1)").fetchall()
            fresh.close()
        print(time.perf_counter() - started, flush=True)


class Version:
    """A checkout's process."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "python")}
        # The path must not have this file's folder, because the folder `duckdb` in it is not the module of
        # that name.
        command = [sys.executable, "-P", __file__, "serve"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, query: int) -> float:
        """The seconds that a query takes."""
        assert self._process.stdin
        assert self._process.stdout
        print(query, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit("a version's process ended; what it printed is above")
        return float(answer)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def main(other: Path) -> None:
    """Runs all queries in both versions and prints the table."""
    if not list((other / "python" / "crosslane").glob("_guest*.so")):
        sys.exit(f"{other} is no checkout that was built: run `make setup` there")
    versions = {"this": Version(ROOT), "other": Version(other)}
    console = Console()
    table = Table("work", "threads", "this", "other", "faster", title=f"this version beside {other}")
    ratios = []
    for number, (name, _, threads) in enumerate(track(QUERIES, "measuring", console=console)):
        taken: dict[str, list[float]] = {who: [] for who in versions}
        for round in range(ROUNDS + 1):
            # The order changes from round to round. The first round is a warm-up and does not
            # count.
            order = list(versions) if round % 2 else list(reversed(versions))
            for who in order:
                seconds = versions[who].seconds(number)
                if round > 0:
                    taken[who].append(seconds)
        ratio = statistics.median(b / a for a, b in zip(taken["this"], taken["other"]))
        ratios.append(ratio)
        figures = [f"{statistics.median(taken[who]) * 1e3:.1f} ms" for who in versions]
        table.add_row(name, str(threads), *figures, f"{ratio:.2f} x")
    for version in versions.values():
        version.close()
    table.add_section()
    table.add_row("geometric mean", "", "", "", f"{statistics.geometric_mean(ratios):.2f} x")
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    elif len(sys.argv) == 2 and sys.argv[1]:
        main(Path(sys.argv[1]).resolve())
    else:
        sys.exit(__doc__)
