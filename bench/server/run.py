"""The server beside local lanes, a bare echo server and itself: prints tables, saves the figures, draws a picture.

    make bench-server                        about ten minutes
    make bench-server SECONDS=1 ROUNDS=2     a shorter one: two rounds of runs of one second each
    make bench-server BENCH="query heavy"    only these comparisons: query, echo, heavy, flight

All that is compared takes turns on the same two processors. The load generator runs there, too. The figures are
medians of the rounds. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from rich.table import Table

import crosslane
from crosslane._cli.load_test import measure

from ..figures import RESULTS, ROOT, Line, machine
from ..report import in_turn, ratio, say_written, shown, table_of, targets, wide_console
from ..scheduler.pictures import Point
from ..scheduler.run import PEERS, PERCENTILES, PROCESSORS, WARM_UP, Report, add_latencies
from . import flight
from .pictures import BARE, Figures, draw

SERVED = [Path(__file__).parent / "functions" / f"functions.{suffix}" for suffix in ("py", "js", "rb")]
NOTHING = {"Python": "py_nothing(1)", "JavaScript": "js_nothing(1)", "Ruby": "rb_nothing(1)"}
SPIN = {"Python": "py_spin(2000)", "Ruby": "rb_spin(2000)"}
ADD = {
    "Python function that cleans text": "py_number(text)",
    "Python row function": "py_add(i)",
    "Python vectorized function": "py_vectorized(i)",
    "JavaScript row function": "js_add(i)",
    "Ruby row function": "rb_add(i)",
}
CONNECTIONS = 4
RATES = (1_000, 5_000, 10_000, 20_000)
ECHO = 20_000
#: Calls per second, and the share of heavy calls among them.
MIXED, HEAVY = 5_000, 0.1
ROWS = 1_000_000
TEXT = "format(' No. {:,} ', i)"
WORKS = ("query", "echo", "heavy", "flight")


@dataclass
class Compared:
    """Two things that took turns, with a figure of each for each round."""

    name: str
    against: str
    target: float
    #: The unit of the figures: ``s`` or ``us`` (less is better), or ``rows/s`` (more is better).
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def line(self) -> Line:
        """Our figure beside the other."""
        texts = [self._shown(statistics.median(figures)) for figures in (self.ours, self.theirs)]
        unit = "x" if self.unit == "rows/s" else "times"
        return Line(self.name, self.against, *texts, ratio(self.ours, self.theirs), self.target, unit)

    def _shown(self, value: float) -> str:
        if self.unit == "rows/s":
            return f"{value / 1e6:.2f} M rows/s"
        return f"{value * 1e3:.1f} ms" if self.unit == "s" else f"{shown(value)} us"


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, str]]:
    """``crosslane serve`` with all functions. Gives its two addresses: a Unix socket and a port."""
    unix = f"crosslane+unix://{folder}/server.sock"
    workers = 2 * len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "crosslane._cli", "serve", *map(str, SERVED)]
    options = ["--listen", unix, "--listen", "crosslane://127.0.0.1:0", "--workers", str(workers)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline().strip() for _ in range(2)]
            if not all(" at " in line for line in said):
                sys.exit("the server did not start")
            yield unix, said[1].rpartition(" ")[2]
        finally:
            process.terminate()


class Bench:
    """All comparisons with a server."""

    def __init__(self, unix: str, port: str, seconds: float, rounds: int, say: Callable[[str], None]) -> None:
        self._unix = unix
        self._port = port
        self._seconds = seconds
        self._rounds = rounds
        self._say = say
        self.compared: list[Compared] = []
        #: The reports of each server at each rate.
        self.reports: dict[tuple[str, int], list[Report]] = {}

    def query(self) -> None:
        """A query over a million rows: over a server at a Unix socket, and over the engine's own lanes."""

        def connection(*files: Path) -> Any:
            con = crosslane.connect(functions=files, config={"threads": PROCESSORS})
            con.execute(f"CREATE TABLE numbers AS SELECT i, {TEXT} AS text FROM range({ROWS}) r(i)")
            return con

        local, remote = connection(*SERVED), connection()
        remote.execute(f"CALL crosslane_attach('{self._unix}')")

        def timed(con: Any, call: str) -> float:
            begun = time.perf_counter()
            (total,) = con.execute(f"SELECT sum({call})::BIGINT FROM numbers").fetchone()
            took = time.perf_counter() - begun
            if total != ROWS * (ROWS + 1) // 2:
                sys.exit(f"{call}: the sum is {total}")
            return took

        for name, call in ADD.items():
            compared = Compared(f"{name}, 1M rows at a Unix socket", "local lanes", 1.5, "s")
            self.compared.append(compared)
            for con in (local, remote):
                timed(con, call)
            self._take_turns(
                name,
                lambda to=compared.ours, call=call: to.append(timed(remote, call)),
                lambda to=compared.theirs, call=call: to.append(timed(local, call)),
            )
        local.close()
        remote.close()

    def echo(self) -> None:
        """A function that does nothing, and a bare echo server, at several rates."""
        for rate in RATES:
            runs = [lambda rate=rate: self._note(BARE, rate, self._raw(rate))]
            for language, call in NOTHING.items():
                runs.append(
                    lambda language=language, call=call, rate=rate: self._note(
                        language, rate, self._calls(call, rate)
                    )
                )
            self._take_turns(f"echo, {rate // 1000}k per second", *runs)
        self.compared += self.echoes()

    def echoes(self) -> list[Compared]:
        """The comparisons of each language with the bare echo server. The fastest language comes first."""

        def figures(who: str, percentile: str) -> list[float]:
            return [report["latency"][f"{percentile}_us"] for report in self.reports[who, ECHO]]

        best = sorted(NOTHING, key=lambda language: statistics.median(figures(language, "p50")))
        return [
            Compared(
                f"echo {percentile}, {ECHO // 1000}k per second, {language}", BARE, 1.3, "us",
                figures(language, percentile), figures(BARE, percentile),
            )
            for language in best
            for percentile in ("p50", "p99")
        ]  # fmt: skip

    def heavy(self) -> None:
        """Calls of light functions, with and without calls of heavy functions of the same file beside them."""
        for language, spin in SPIN.items():
            name = f"light p99 beside {HEAVY:.0%} heavy calls, {language}"
            compared = Compared(name, "without the heavy ones", 3, "us")
            self.compared.append(compared)
            call = NOTHING[language]
            alone = round(MIXED * (1 - HEAVY))

            def light(report: Report) -> float:
                return report["light"]["p99_us"]

            self._take_turns(
                name,
                lambda to=compared.ours, call=call, spin=spin: to.append(
                    light(self._calls(call, MIXED, spin))
                ),
                lambda to=compared.theirs, call=call, alone=alone: to.append(light(self._calls(call, alone))),
            )

    def flight(self) -> None:
        """Batches over Arrow Flight, to our server and to arrow-udf's own."""
        compared = Compared("a batch of 2,048 BIGINT through Flight", "arrow-udf's server", 1.0, "rows/s")
        compared.ours, compared.theirs = flight.measure(self._rounds)
        self.compared.append(compared)

    def _take_turns(self, what: str, *runs: Callable[[], None]) -> None:
        for turn in range(self._rounds):
            self._say(f"{what}: round {turn + 1} of {self._rounds}")
            for run in in_turn(runs, turn):
                run()

    def _note(self, who: str, rate: int, report: Report) -> None:
        self.reports.setdefault((who, rate), []).append(report)

    def _calls(self, light: str, rate: int, heavy: str | None = None) -> Report:
        """A run of calls at the port."""
        plan = {
            "address": self._port,
            "light": measure.Call.parse(light).message(),
            "heavy": [measure.Call.parse(heavy).message()] if heavy else [],
            "heavy_share": HEAVY,
            "rates": [rate],
            "seconds": self._seconds,
            "warm_up": WARM_UP,
            "patience": 5.0,
            "connections": CONNECTIONS,
        }
        try:
            (report,) = measure.measure(plan, lambda _step, _part: None)
        except measure.Failed as error:
            sys.exit(f"{light}: {error}")
        if report["failed"]:
            sys.exit(f"{light}: {report['first_failure']}")
        return report

    def _raw(self, rate: int) -> Report:
        """A run of the bare echo server."""
        options = ["--rate", str(rate), "--connections", str(CONNECTIONS), "--seconds", str(self._seconds)]
        command = [PEERS, "load", *options, "--warm-up", str(WARM_UP), "--", PEERS, "raw"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{BARE}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def points(self) -> list[Point]:
        """The medians of all servers at all rates."""
        points = []
        for (who, rate), reports in sorted(self.reports.items(), key=lambda item: (item[0][1], item[0][0])):

            def median(read: Callable[[Report], float], reports: list[Report] = reports) -> float:
                return statistics.median(map(read, reports))

            latency = {
                name: median(lambda report, name=name: report["latency"][f"{name}_us"])
                for name in PERCENTILES
            }
            load = f"{rate // 1000}k per second"
            late = median(lambda report: report["late"]["p99_us"])
            qps = median(lambda report: report["qps"])
            lost = median(lambda report: report["lost"])
            points.append(Point(load, who, rate, qps, lost, latency, late, {}))
        return points


def latencies(points: list[Point]) -> Table:
    """Latencies, rate by rate."""
    table = table_of("latency in us", "server", numbers=("per second", *PERCENTILES, "late p99"))
    add_latencies(table, points, lambda point: [point.late])
    return table


def build() -> None:
    """Builds the bare echo server and its load generator."""
    step = ["cargo", "build", "--locked", "--profile", "dist", "--quiet", "-p", "crosslane-bench-echo"]
    if subprocess.run(step, cwd=ROOT).returncode:
        sys.exit(f"the bare echo server cannot be built: {' '.join(step)}")


def main() -> None:
    """Measures, prints the results, and saves them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3, help="the measured time of each run (3)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each has its turn (5)")
    parser.add_argument("works", nargs="*", help=f"only these: {', '.join(WORKS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.works) - set(WORKS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    works = [work for work in WORKS if work in (arguments.works or WORKS)]
    console = wide_console()
    RESULTS.mkdir(exist_ok=True)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    if "echo" in works:
        with console.status("building the bare echo server"):
            build()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (unix, port):
        with console.status("") as status:
            bench = Bench(unix, port, arguments.seconds, arguments.rounds, status.update)
            for work in works:
                getattr(bench, work)()
    if not bench.compared:
        sys.exit("nothing was measured")
    lines = [compared.line() for compared in bench.compared]
    figures = Figures(
        machine(), date.today().isoformat(), arguments.seconds, arguments.rounds, bench.points(), lines
    )
    if figures.points:
        console.print(latencies(figures.points))
    console.print(targets(figures.lines))
    saved = RESULTS / "server.json"
    figures.save(saved)
    say_written(console, saved, *draw(figures, RESULTS))


if __name__ == "__main__":
    main()
