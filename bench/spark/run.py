"""Functions in Spark over lanes beside Spark's own: prints tables, saves the figures, draws a picture.

    make bench-spark                       about a quarter of an hour
    make bench-spark ROUNDS=2              a shorter one
    make bench-spark BENCH=vectorized      the works whose name contains "vectorized"

Each configuration has its own Spark, and they take turns. The figures are medians of the rounds. A ratio is the
median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import IO, Any

from rich.progress import Progress
from rich.table import Table

from .. import report
from ..figures import RESULTS, Line, machine
from .pictures import Figures, Peak, Point, draw
from .session import Look, Session, Taken
from .works import (
    ARROW,
    COLUMNS,
    FILES,
    JAVASCRIPT,
    KINDS,
    LANGUAGES,
    MANY,
    MASTER,
    OFF,
    ON,
    OURS,
    PYTHON,
    ROWS,
    RUBY,
    THREE,
    UNCHANGED,
    UNCHANGED_PANDAS,
    WORKS,
    Run,
    Work,
)

#: Rounds before the first one that counts.
WARM_UP = 5
#: How often each query runs while the memory is measured.
REPEATS = 3


@dataclass
class Results:
    """What was measured so far. Each run is also written as a line of a file."""

    written: IO[str]
    #: The rounds of each work and configuration.
    runs: dict[tuple[str, str], list[Taken]] = field(default_factory=dict)
    #: MiB of all processes and of the JVM in each round, by the work and the configuration.
    memory: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)

    def add(self, work: Work, run: Run, taken: Taken) -> None:
        """Notes a run."""
        self.runs.setdefault((work.name, run.who), []).append(taken)
        self._write({"work": work.name, "who": run.who, **asdict(taken)})

    def add_memory(self, work: str, who: str, most: tuple[float, float]) -> None:
        """Notes the most memory that a session had."""
        self.memory.setdefault(work, {}).setdefault(who, []).append(most)
        self._write({"work": work, "who": who, "total": most[0], "jvm": most[1]})

    def _write(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self.written, flush=True)

    def median(self, work: Work, who: str) -> float:
        """The median of a configuration's seconds."""
        return statistics.median(self.seconds(work, who))

    def seconds(self, work: Work, who: str) -> list[float]:
        """A configuration's seconds, round by round."""
        return [taken.seconds for taken in self.runs[work.name, who]]

    def point(self, work: Work, run: Run) -> Point:
        """The figures of a configuration."""
        seconds = self.seconds(work, run.who)
        rate = work.rows / statistics.median(seconds)
        taken = self.runs[work.name, run.who]
        jvm = statistics.median(each.jvm for each in taken) / work.rows * 1e9
        workers = statistics.median(each.workers for each in taken) / work.rows * 1e9
        return Point(work.name, run.who, run.ours, work.rows, rate, jvm, workers, seconds)

    def best(self, work: Work) -> Run:
        """Spark's fastest configuration."""
        return min((run for run in work.runs if not run.ours), key=lambda run: self.median(work, run.who))

    def line(self, name: str, work: Work, who: str, target: float) -> Line:
        """Our rows per second beside those of Spark's fastest configuration."""
        peer = self.best(work).who
        texts = [f"{work.rows / self.median(work, each) / 1e6:.2f} M rows/s" for each in (who, peer)]
        ratio = report.ratio(self.seconds(work, peer), self.seconds(work, who))
        return Line(name, "itself, off" if peer == OFF else peer, *texts, ratio, target)

    def lines(self, works: tuple[Work, ...]) -> list[Line]:
        """Everything that has a target."""
        lines = [
            self.line(name, work, who, target)
            for name, work, who, target in (
                (ROWS.name, ROWS, OURS, 4),
                (COLUMNS.name, COLUMNS, OURS, 1.5),
                (THREE.name, THREE, OURS, 1.5),
                (UNCHANGED.name, UNCHANGED, ON, 2),
                (UNCHANGED_PANDAS.name, UNCHANGED_PANDAS, ON, 1.3),
                ("JavaScript row function, 1M rows", LANGUAGES, JAVASCRIPT, 2),
                ("Ruby row function, 1M rows", LANGUAGES, RUBY, 1.5),
                *((work.name, work, ON, target) for work, target in KINDS.items()),
            )
            if work in works
        ]
        lines.extend(self.memory_line(work, sides) for work, sides in self.memory.items())
        return lines

    def memory_line(self, work: str, sides: dict[str, list[tuple[float, float]]]) -> Line:
        """Our largest use of memory, compared with Spark's configuration that uses the least."""
        totals = {who: [total for total, _ in rounds] for who, rounds in sides.items()}
        ours = next(who for who in totals if who in (OURS, ON))
        peer = min((who for who in totals if who != ours), key=lambda who: statistics.median(totals[who]))
        texts = [f"{statistics.median(totals[who]):.0f} MiB" for who in (ours, peer)]
        return Line(
            f"peak memory, {work}", peer, *texts, report.ratio(totals[ours], totals[peer]), 1, "times"
        )

    def points(self, works: tuple[Work, ...]) -> list[Point]:
        """All configurations at all works."""
        return [self.point(work, run) for work in works for run in work.runs]

    def peaks(self) -> list[Peak]:
        """The memory of both sides."""
        return [
            Peak(
                who,
                who in (OURS, ON),
                *map(statistics.median, zip(*each)),
                [total for total, _ in each],
                work,
            )
            for work, sides in self.memory.items()
            for who, each in sides.items()
        ]


def rates(figures: Figures) -> Table:
    """Seconds and rows per second, work by work."""
    heads = ("seconds", "fastest", "slowest", "M rows/s", "CPU ns/row: JVM", "workers")
    table = report.table_of(f"Spark {figures.spark}, {MASTER}", "configuration", numbers=heads)
    for point in report.headed(table, figures.points, lambda point: point.work):
        times = statistics.median(point.seconds), min(point.seconds), max(point.seconds)
        table.add_row(
            point.who,
            *(f"{seconds:.3f}" for seconds in times),
            f"{point.rate / 1e6:.2f}",
            f"{point.jvm:.0f}",
            f"{point.workers:.0f}",
        )
    return table


def peaks(figures: Figures) -> Table:
    """The memory of each configuration: of all its processes, of the JVM, and of the workers."""
    table = report.table_of("peak memory in MiB", "configuration", numbers=("all", "JVM", "workers"))
    for peak in report.headed(table, figures.peaks, lambda peak: peak.work):
        parts = peak.total, peak.jvm, peak.total - peak.jvm
        table.add_row(peak.who, *(f"{part:.0f}" for part in parts))
    return table


def measure(works: tuple[Work, ...], rounds: int, folder: Path, results: Results, progress: Progress) -> str:
    """Measures all configurations in turn. Returns Spark's version."""
    names = dict.fromkeys(run.session for work in works for run in work.runs)
    task = progress.add_task(
        "starting Spark", total=(WARM_UP + rounds) * sum(len(work.runs) for work in works)
    )
    with ExitStack() as stack:
        sessions = {name: stack.enter_context(Session(name, folder)) for name in names}
        for turn in range(-WARM_UP, rounds):
            for work in works:
                if not -work.rounds <= turn < work.rounds:
                    progress.advance(task, len(work.runs))
                    continue
                for run in report.in_turn(work.runs, turn):
                    progress.update(task, description=f"{work.name}: {run.who}")
                    # The JVM's compiler does not need all rows of a slow program.
                    rows = work.rows // 10 if run.program and turn < 0 else work.rows
                    taken = sessions[run.session].taken(work, run, rows)
                    if turn >= 0:
                        results.add(work, run, taken)
                    progress.advance(task)
        return sessions["crosslane"].version


def look(works: tuple[Work, ...], rounds: int, folder: Path, results: Results, progress: Progress) -> None:
    """Measures the memory of fresh sessions, ours and Spark's: with functions of rows and of columns, and with each of PySpark's kinds."""
    sides = (ROWS.runs[0], *ARROW) if ROWS in works and COLUMNS in works else ()
    kinds = [work for work in works if work in KINDS]
    task = progress.add_task("", total=rounds * len(sides) + sum(len(work.runs) for work in kinds))
    for turn in range(rounds if sides else 0):
        for side in report.in_turn(sides, turn):
            columns = next(run for run in COLUMNS.runs if run.session == side.session)
            progress.update(task, description=f"peak memory: {side.who}")
            with Session(side.session, folder, PYTHON) as session, Look(session) as seen:
                for run in (side, columns):
                    for _ in range(REPEATS):
                        session.taken(COLUMNS, run, MANY)
            results.add_memory("functions of rows and columns", side.who, seen.most)
            progress.advance(task)
    for work in kinds:
        for run in work.runs:
            progress.update(task, description=f"peak memory: {work.name}, {run.who}")
            # A program of PySpark's alone has no files of functions.
            with Session(run.session, folder, ()) as session, Look(session) as seen:
                session.taken(work, run, work.rows)
            results.add_memory(work.name, run.who, seen.most)
            progress.advance(task)


def main() -> None:
    """Measures, prints the results, and saves them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="how often each configuration has its turn (7)")
    parser.add_argument("work", nargs="?", default="", help="only the works whose name contains this")
    arguments = parser.parse_args()
    works = tuple(work for work in WORKS if arguments.work.lower() in work.name.lower())
    if not works:
        sys.exit(
            f"no work's name contains {arguments.work!r}; there are: {', '.join(work.name for work in WORKS)}"
        )
    console = report.wide_console()
    RESULTS.mkdir(exist_ok=True)
    progress = report.progress(console)
    lines = RESULTS / "spark.jsonl"
    with tempfile.TemporaryDirectory() as name, lines.open("w") as written, progress:
        folder, results = Path(name), Results(written)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        version = measure(works, arguments.rounds, folder, results, progress)
        look(works, arguments.rounds, folder, results, progress)
    figures = Figures(
        version, machine(), date.today().isoformat(), arguments.rounds, results.points(works), results.peaks(), results.lines(works)
    )  # fmt: skip
    console.print(rates(figures))
    if figures.peaks:
        console.print(peaks(figures))
    console.print(report.targets(figures.lines))
    saved = RESULTS / "spark.json"
    figures.save(saved)
    report.say_written(console, saved, lines, *draw(figures, RESULTS))


if __name__ == "__main__":
    main()
