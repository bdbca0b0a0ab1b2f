"""The scheduler's echo server beside a bare epoll server and tokio: prints tables, saves the figures, draws a picture.

    make bench-sched                        about nine minutes
    make bench-sched SECONDS=1 ROUNDS=3     a shorter one: three rounds of runs of one second each

The servers take turns on the same two processors. The load generator runs there, too. The figures are medians of
the rounds. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from ..figures import RESULTS, ROOT, Line, machine
from ..report import headed, in_turn, progress, ratio, say_written, shown, table_of, targets, wide_console
from .pictures import Figures, Point, draw

PEERS = ROOT / "target" / "dist" / "crosslane-bench-echo"
EXAMPLE = ROOT / "target" / "dist" / "examples" / "echo"
PROCESSORS = 2
#: Seconds of the same load before each run.
WARM_UP = 0.5
#: A run is repeated if other programs took more than this share of the processors.
DISTURBED = 0.05
#: How many runs may be repeated, as a share of all runs.
SPARE = 0.25
OURS, OFF, RAW = "Crosslane", "Crosslane, priority off", "raw epoll"
TOKIO, SPAWN = "tokio", "tokio, a task per request"
PERCENTILES = ("avg", "p50", "p90", "p99", "p99.9", "p99.99", "max")
#: A run's report, as the load generator prints it.
Report = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """The requests that the load generator sends, and the servers that get them."""

    name: str
    options: tuple[str, ...]
    servers: tuple[str, ...] = (OURS, OFF, TOKIO, RAW)
    #: Requests per second at equal distances.
    rate: int | None = None


def uniform(rate: int) -> Load:
    """A load of this many requests per second, at equal distances."""
    return Load(f"{rate // 1000}k per second", ("--rate", str(rate)), rate=rate)


RATES = (10_000, 20_000, 50_000, 100_000)
POISSON = Load("50k per second, Poisson", ("--rate", "50000", "--arrivals", "poisson"))
CLOSED = Load("4 connections x 16", ("--outstanding", "16"), (OURS, OFF, TOKIO, SPAWN, RAW))
MIX = Load(
    "5k per second, 10 % spin 2 ms",
    ("--rate", "5000", "--heavy", "0.1", "--spin", "2000"),
    (OURS, OFF, TOKIO, SPAWN),
)
LOADS = (*map(uniform, RATES), POISSON, CLOSED, MIX)


def build(ours: Path | None) -> dict[str, list[str]]:
    """Builds the servers, and returns their commands."""
    cargo = ["cargo", "build", "--locked", "--profile", "dist", "--quiet"]
    builds = [[*cargo, "-p", "crosslane-bench-echo"]]
    if ours is None:
        builds.append([*cargo, "-p", "crosslane-sched", "--example", "echo"])
    for step in builds:
        if subprocess.run(step, cwd=ROOT).returncode:
            sys.exit(f"the servers cannot be built: {' '.join(step)}")
    command = [str(ours or EXAMPLE), f"workers={len(os.sched_getaffinity(0))}"]
    return {
        OURS: command,
        OFF: [*command, "priority=false"],
        TOKIO: [str(PEERS), "tokio"],
        SPAWN: [str(PEERS), "tokio-spawn"],
        RAW: [str(PEERS), "raw"],
    }


class Others:
    """The processor time that other programs, and other virtual machines of the host, use from now on."""

    def __init__(self) -> None:
        self._begun = self._now()

    def _now(self) -> tuple[float, float]:
        """The processor seconds so far: those that our children did not use, and all seconds, with idle
        ones."""
        every = psutil.cpu_times(percpu=True)
        times = [every[processor] for processor in os.sched_getaffinity(0)]
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        # The user's time includes the time of virtual machines.
        total = sum(sum(each) - each.guest - each.guest_nice for each in times)
        idle = sum(each.idle + each.iowait for each in times)
        return total - idle - ours.ru_utime - ours.ru_stime, total

    def share(self) -> float:
        """Their share of all processors since the beginning."""
        others, total = (now - then for now, then in zip(self._now(), self._begun))
        return others / total


class Runs:
    """The reports of all runs so far."""

    def __init__(self, commands: dict[str, list[str]], seconds: float, spare: int) -> None:
        self._commands = commands
        #: How many runs may still be repeated.
        self._spare = spare
        self._times = ("--seconds", str(seconds), "--warm-up", str(WARM_UP))
        self._reports: dict[tuple[str, str], list[Report]] = {}
        #: How many runs were disturbed and not repeated.
        self.disturbed = 0
        #: Whether the load generator had a higher priority than the servers in all open loops.
        self.goes_first = True

    def run(self, load: Load, server: str, seed: int) -> Report:
        """Measures a server once, and again if other programs were busy. The seed determines the requests."""
        command = [PEERS, "load", *self._times, *load.options, "--seed", str(seed)]
        while True:
            others = Others()
            done = subprocess.run([*command, "--", *self._commands[server]], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{server}, {load.name}: {done.stderr.strip()}")
            share = others.share()
            if share < DISTURBED:
                break
            if self._spare == 0:
                self.disturbed += 1
                break
            self._spare -= 1
        report = json.loads(done.stdout)
        self.goes_first &= report["goes_first"] or load.rate == RATES[-1] or report["work"] == "closed"
        self.add(load, server, report)
        return {"load": load.name, "server": server, "others": share, **report}

    def add(self, load: Load, server: str, report: Report) -> None:
        """Notes the report of a run."""
        self._reports.setdefault((load.name, server), []).append(report)

    def each(self, load: Load, server: str, figure: Callable[[Report], float | None]) -> list[float]:
        """A figure of each round. It is empty if the machine cannot measure it."""
        figures = [figure(report) for report in self._reports[load.name, server]]
        return [value for value in figures if value is not None]

    def median(self, load: Load, server: str, figure: Callable[[Report], float | None]) -> float | None:
        """The median of a figure over the rounds, or None if the machine cannot measure it."""
        figures = self.each(load, server, figure)
        return statistics.median(figures) if figures else None

    def point(self, load: Load, server: str, requests: str = "latency") -> Point:
        """The medians of a server under a load: of all requests, of the ``light``, or of the ``heavy`` ones."""

        def median(*path: str) -> float | None:
            def figure(report: Any) -> float | None:
                for key in path:
                    report = report and report[key]
                return report

            return self.median(load, server, figure)

        latency = {name: median(requests, f"{name}_us") or 0.0 for name in PERCENTILES}
        used = {name: median("used", name) for name in ("cpu_us", "switches", "migrations", "cycles", "ipc")}
        name = load.name if requests == "latency" else f"{load.name}: {requests} ones"
        return Point(
            name, server, load.rate, median("qps") or 0.0, median("lost") or 0.0, latency, median("late", "p99_us"), used
        )  # fmt: skip

    def line(
        self,
        name: str,
        load: Load,
        peer: str,
        figure: Callable[[Report], float],
        target: float,
        unit: str = "times",
    ) -> Line:
        """Our figure beside a peer's. With the unit ``x`` more is better. With all other units less is
        better."""
        texts = [shown(self.median(load, who, figure)) for who in (OURS, peer)]
        value = ratio(self.each(load, OURS, figure), self.each(load, peer, figure))
        return Line(f"{name}, {load.name}", peer, *texts, value, target, unit)

    def lines(self) -> list[Line]:
        """Everything that has a target."""

        def latency(percentile: str, requests: str = "latency") -> Callable[[Report], float]:
            return lambda report: report[requests][f"{percentile}_us"]

        ten, twenty, fifty, hundred = map(uniform, RATES)
        lines = []
        for load in (ten, twenty, fifty):
            lines.append(self.line("p50", load, RAW, latency("p50"), 1.15))
            lines.append(self.line("p99", load, RAW, latency("p99"), 1.3))
        lines += [
            self.line("p99", hundred, RAW, latency("p99"), 3),
            self.line("CPU per request", twenty, RAW, lambda report: report["used"]["cpu_us"], 1.6),
            self.line("context switches", twenty, RAW, lambda report: report["used"]["switches"], 1.3),
        ]
        for peer in (TOKIO, SPAWN):
            lines.append(self.line("answers", CLOSED, peer, lambda report: report["qps"], 1.2, "x"))
        for peer, target in ((TOKIO, 0.25), (SPAWN, 0.25), (OFF, 1)):
            lines.append(self.line("light p99", MIX, peer, latency("p99", "light"), target))
        return lines

    def points(self) -> list[Point]:
        """All servers under all loads."""
        return [
            self.point(load, server, requests)
            for load in LOADS
            for requests in (("light", "heavy") if load is MIX else ("latency",))
            for server in load.servers
        ]


def add_latencies(table: Table, points: list[Point], more: Callable[[Point], list[float | None]]) -> None:
    """Adds the points' servers, rates, latencies and `more` figures, with a heading for each load."""
    for point in headed(table, points, lambda point: point.load):
        lost = f" [red]({point.lost:.0f} lost)[/]" if point.lost else ""
        figures = [shown(figure) for figure in (*(point.latency[name] for name in PERCENTILES), *more(point))]
        table.add_row(point.server, f"{point.qps:,.0f}{lost}", *figures)


def tables(points: list[Point]) -> Table:
    """Latencies and the servers' use of the machine, load by load."""
    known = any(point.used["cycles"] is not None for point in points)
    counted = ("cycles", "IPC") if known else ()
    heads = ("per second", *PERCENTILES, "late p99", "CPU us", "switches", "migrations/s", *counted)
    table = table_of("latency in us, and the server's use per request", "server", numbers=heads)

    def use(point: Point) -> list[float | None]:
        migrations = point.used["migrations"]
        cycles = [point.used["cycles"], point.used["ipc"]] if known else []
        used = [point.used["cpu_us"], point.used["switches"], migrations and migrations * point.qps]
        return [point.late, *used, *cycles]

    add_latencies(table, points, use)
    if not known:
        table.caption = "cycles and IPC: this machine has no counters for us"
    return table


def steps(rounds: int) -> Table:
    """How long single steps of the schedulers take: the medians of this many runs."""
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        done = subprocess.run([PEERS, "micro"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"single steps: {done.stderr.strip()}")
        for line in map(json.loads, done.stdout.splitlines()):
            times.setdefault((line["work"], line["who"]), []).append(line["ns"])
    table = table_of("single steps", "step", "of", numbers=["ns"])
    for (work, who), nanoseconds in times.items():
        table.add_row(work, who, shown(statistics.median(nanoseconds)))
    return table


def main() -> None:
    """Measures, prints the results, and saves them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3, help="the measured time of each run (3)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each server has its turn (5)")
    parser.add_argument(
        "--ours", type=Path, help="the echo server to measure, instead of building this version's"
    )
    arguments = parser.parse_args()
    console = wide_console()
    RESULTS.mkdir(exist_ok=True)
    processors = sorted(os.sched_getaffinity(0))[:PROCESSORS]
    os.sched_setaffinity(0, processors)
    with console.status("building the servers"):
        commands = build(arguments.ours)
    total = arguments.rounds * sum(len(load.servers) for load in LOADS)
    runs = Runs(commands, arguments.seconds, round(SPARE * total))
    reports = RESULTS / "scheduler.jsonl"
    with progress(console) as bar, reports.open("w") as written:
        task = bar.add_task("", total=total)
        for turn in range(arguments.rounds):
            for load in LOADS:
                for server in in_turn(load.servers, turn):
                    bar.update(task, description=f"{load.name}: {server}")
                    print(json.dumps(runs.run(load, server, seed=turn + 1)), file=written, flush=True)
                    bar.advance(task)
    figures = Figures(
        machine(), date.today().isoformat(), arguments.seconds, arguments.rounds, runs.points(), runs.lines()
    )
    console.print(tables(figures.points))
    console.print(targets(figures.lines))
    with console.status("single steps"):
        table = steps(arguments.rounds)
    console.print(table)
    if not runs.goes_first:
        console.print(
            "[red]The load generator must not have a real-time priority here: beside heavy requests it is late itself "
            "(column late p99). Run this as root.[/]"
        )
    if runs.disturbed:
        console.print(
            f"[red]Other programs were busy during {runs.disturbed} of {total} runs: run this again without them.[/]"
        )
    saved = RESULTS / "scheduler.json"
    figures.save(saved)
    say_written(console, saved, reports, *draw(figures, RESULTS))


if __name__ == "__main__":
    main()
