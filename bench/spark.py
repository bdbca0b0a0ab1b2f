"""Functions in Spark over lanes beside Spark's own: prints tables, saves the figures, draws a picture.

    make bench-spark                       about eight minutes
    make bench-spark ROUNDS=2              a shorter one
    make bench-spark BENCH=vectorized      the works whose name contains "vectorized"

Each configuration has a Spark of its own, and they take turns. The figures are medians over the rounds; a ratio is the
median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from draw import ROOT, Line, machine
from draw_spark import Figures, Peak, Point, draw
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

with suppress(ModuleNotFoundError):
    # Only in Spark's environment, where the functions run.
    import pandas as pd

#: The interpreter of Spark's programs, and of its workers.
INTERPRETER = ROOT / ".venv-spark-4.3" / "bin" / "python"
RESULTS = ROOT / "bench" / "results"
MASTER = "local[2]"
#: Rounds that do not count.
WARM_UP = 5
#: How often each query runs while the memory is looked at, and how long until the next look.
REPEATS, PAUSE = 3, 0.05
MANY, FEW = 5_000_000, 1_000_000
DROP_IN = "spark.crosslane.pyspark.enabled"

#: The functions that run over lanes, by their files.
FILES = {
    "rows.py": """\
from crosslane import udf


@udf
def plus_one(x: int) -> int:
    return x + 1


@udf(inline=False)
def plus_one_called(x: int) -> int:
    return x + 1
""",
    "columns.py": """\
from typing import Annotated

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udf

Series = Annotated[pd.Series, "BIGINT"]


@udf(vectorized=True)
def vector_add(x: pa.Int64Array) -> pa.Int64Array:
    return pc.add(x, 1)


@udf(vectorized=True)
def vector_twice(x: pa.Int64Array) -> pa.Int64Array:
    return pc.multiply(x, 2)


@udf(vectorized=True)
def vector_less(x: pa.Int64Array) -> pa.Int64Array:
    return pc.subtract(x, 3)


@udf(vectorized=True)
def series_add(x: Series) -> Series:
    return x + 1


@udf(vectorized=True)
def series_twice(x: Series) -> Series:
    return x * 2


@udf(vectorized=True)
def series_less(x: Series) -> Series:
    return x - 3
""",
    "rows.js": """\
udf("js_plus_one(x BIGINT) -> BIGINT", (x) => x + 1);
""",
    "rows.rb": """\
udf("rb_plus_one(x BIGINT) -> BIGINT") { |x| x + 1 }
""",
}
PYTHON = ("rows.py", "columns.py")


def plus_one(x):
    """The cheapest function of rows, for Spark."""
    return x + 1


def arrow_add(x: pa.Array) -> pa.Array:
    """The cheapest function of columns, for Spark."""
    return pc.add(x, 1)


def pandas_add(x: pd.Series) -> pd.Series:
    """The first of three functions in one query."""
    return x + 1


def pandas_twice(x: pd.Series) -> pd.Series:
    """The second."""
    return x * 2


def pandas_less(x: pd.Series) -> pd.Series:
    """The third."""
    return x - 3


def registered(spark: Any) -> None:
    """Makes the functions of this program callable in a session, as Spark's own."""
    from pyspark.sql.functions import arrow_udf, pandas_udf, udf

    spark.udf.register("plain", udf(plus_one, "bigint"))
    spark.udf.register("pickled", udf(plus_one, "bigint", useArrow=False))
    spark.udf.register("arrow", udf(plus_one, "bigint", useArrow=True))
    spark.udf.register("arrow_add", arrow_udf(arrow_add, "bigint"))
    for function in (pandas_add, pandas_twice, pandas_less):
        spark.udf.register(function.__name__, pandas_udf(function, "bigint"))


def serve(session: str, folder: str, *files: str) -> None:
    """A Spark program that runs what it is asked for: line by line, JSON in and JSON out."""
    import pyspark
    from pyspark.sql import SparkSession

    # What Spark and workers print goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": f"{folder}/{session}",
        "spark.sql.warehouse.dir": f"{folder}/{session}/warehouse",
        "spark.log.level": "ERROR",
    }
    if session == "pipelined":
        conf["spark.python.udf.pipelined.enabled"] = "true"
    builder = SparkSession.builder.master(MASTER).config(map=conf)
    if session == "crosslane":
        import crosslane.spark

        builder = crosslane.spark.enable(builder, *files)
    spark = builder.getOrCreate()
    registered(spark)
    print(json.dumps({"version": pyspark.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if session == "crosslane":
                spark.conf.set(DROP_IN, str(asked["drop_in"]).lower())
            begun = time.perf_counter()
            frame = spark.sql(asked["query"])
            (row,) = frame.collect()
            seconds = time.perf_counter() - begun
            plan = frame._jdf.queryExecution().executedPlan().toString()
            answer = {"seconds": seconds, "values": list(row), "lanes": "CrosslaneEval" in plan}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


@dataclass(frozen=True)
class Run:
    """One configuration at a work: the functions that a query calls, and the Spark that runs it."""

    who: str
    session: str
    functions: tuple[str, ...]
    drop_in: bool = False

    @property
    def ours(self) -> bool:
        """Whether the functions run over lanes."""
        return self.session == "crosslane" and (self.drop_in or self.who != OFF)

    def query(self, rows: int) -> str:
        """The sums of the functions' results for so many rows."""
        sums = ", ".join(f"sum({function}(id))" for function in self.functions)
        return f"SELECT {sums} FROM range(0, {rows}, 1, 2)"

    def sums(self, rows: int) -> list[int]:
        """What that gives."""
        total = rows * (rows - 1) // 2
        return [total + rows, 2 * total, total - 3 * rows][: len(self.functions)]


@dataclass(frozen=True)
class Work:
    """What several configurations do alike."""

    name: str
    rows: int
    runs: tuple[Run, ...]


OURS, CALLED, ON, OFF = "Crosslane", "Crosslane, called for each row", "drop-in on", "drop-in off"
WITH_PANDAS, JAVASCRIPT, RUBY = "Crosslane, pandas", "Crosslane, JavaScript", "Crosslane, Ruby"


def theirs(kind: str, *functions: str) -> tuple[Run, Run]:
    """Spark's own functions of a kind, in both of its modes."""
    return Run(f"Spark, {kind}", "spark", functions), Run(f"Spark, {kind}, pipelined", "pipelined", functions)


PICKLED, ARROW = theirs("pickled", "pickled"), theirs("Arrow", "arrow")
ROWS = Work(
    "Python row function, 5M rows",
    MANY,
    (
        Run(OURS, "crosslane", ("plus_one",)),
        Run(CALLED, "crosslane", ("plus_one_called",)),
        # Pickled and pipelined takes half a minute; it is measured with fewer rows below.
        PICKLED[0],
        *ARROW,
    ),
)
COLUMNS = Work(
    "Python vectorized function, 5M rows",
    MANY,
    (Run(OURS, "crosslane", ("vector_add",)), *theirs("arrow_udf", "arrow_add")),
)
THREE = Work(
    "three functions in one query, 1M rows",
    FEW,
    (
        Run(OURS, "crosslane", ("vector_add", "vector_twice", "vector_less")),
        Run(WITH_PANDAS, "crosslane", ("series_add", "series_twice", "series_less")),
        *theirs("pandas_udf", "pandas_add", "pandas_twice", "pandas_less"),
    ),
)


def unchanged(kind: str, function: str) -> Work:
    """A program of PySpark's with the drop-in and without."""
    runs = Run(ON, "crosslane", (function,), drop_in=True), Run(OFF, "crosslane", (function,))
    return Work(f"unchanged PySpark program, {kind}, 5M rows", MANY, runs)


UNCHANGED, UNCHANGED_PANDAS = unchanged("udf", "plain"), unchanged("pandas_udf", "pandas_add")
LANGUAGES = Work(
    "JavaScript and Ruby row functions, 1M rows",
    FEW,
    (
        Run(JAVASCRIPT, "crosslane", ("js_plus_one",)),
        Run(RUBY, "crosslane", ("rb_plus_one",)),
        *PICKLED,
        *ARROW,
    ),
)
WORKS = (ROWS, COLUMNS, THREE, UNCHANGED, UNCHANGED_PANDAS, LANGUAGES)


@dataclass
class Taken:
    """What a run has taken: time, and the processors' time in the JVM and in the other processes, in seconds."""

    seconds: float
    jvm: float
    workers: float


class Session:
    """A Spark in a process of its own."""

    def __init__(self, name: str, folder: Path, files: tuple[str, ...] = tuple(FILES)) -> None:
        self.name = name
        self._log = RESULTS / f"spark-{name}.log"
        command = [INTERPRETER, __file__, "--serve", name, folder, *(folder / file for file in files)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.version = self._answer()["version"]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            sys.exit(
                f"{self.name}: Spark has ended; the log is in {self._log}\n{self._log.read_text()[-3000:]}"
            )
        return json.loads(line)

    def taken(self, run: Run, rows: int) -> Taken:
        """What a run takes; its result is checked, and that it runs over lanes if it shall, and only then."""
        asked = {"query": run.query(rows), "drop_in": run.drop_in}
        # Workers may have ended meanwhile.
        self._asked(run, {**asked, "query": run.query(100)})
        before = self._processors()
        answer = self._asked(run, asked)
        after = self._processors()
        if answer["values"] != run.sums(rows):
            sys.exit(f"{run.who}: {answer['values']} instead of {run.sums(rows)}")
        if answer["lanes"] != run.ours:
            sys.exit(f"{run.who}: {asked['query']} {'has' if answer['lanes'] else 'has not'} run over lanes")
        return Taken(answer["seconds"], *(then - now for then, now in zip(after, before)))

    def _asked(self, run: Run, question: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            sys.exit(f"{run.who}: {answer['error']}")
        return answer

    def _below(self) -> list[psutil.Process]:
        """The JVM, and all processes below it."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def _processors(self) -> tuple[float, float]:
        """The seconds of processors that the JVM and the other processes have taken so far."""
        jvm = others = 0.0
        for process in self._below():
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                if process.name() == "java":
                    jvm += used.user + used.system
                else:
                    # Those that have ended count for the one that began them.
                    others += sum(used[:4])
        return jvm, others

    def memory(self) -> tuple[float, float]:
        """What the JVM and all processes below it have, and the JVM alone, in MiB.

        A page that several of them share is counted once. The program that asks Spark is not counted.
        """
        total = jvm = 0
        for process in self._below():
            with suppress(OSError, psutil.NoSuchProcess):
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                size = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
                total += size
                jvm += size if process.name() == "java" else 0
        return total / 1024, jvm / 1024


class Look:
    """Looks at a session's memory again and again, and remembers the most."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = (0.0, 0.0)

    def __enter__(self) -> Look:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(PAUSE):
            self.most = max(self.most, self._session.memory())


@dataclass
class Results:
    """What was measured so far; each run is a line of a file, too."""

    written: IO[str]
    #: Round by round, by the work and the configuration.
    runs: dict[tuple[str, str], list[Taken]] = field(default_factory=dict)
    #: MiB of all processes and of the JVM, round by round.
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, work: Work, run: Run, taken: Taken) -> None:
        """Notes a run."""
        self.runs.setdefault((work.name, run.who), []).append(taken)
        self._write({"work": work.name, "who": run.who, **asdict(taken)})

    def add_memory(self, who: str, most: tuple[float, float]) -> None:
        """Notes the most memory that a session had."""
        self.memory[who].append(most)
        self._write({"who": who, "total": most[0], "jvm": most[1]})

    def _write(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self.written, flush=True)

    def median(self, work: Work, who: str) -> float:
        """The median of a configuration's seconds."""
        return statistics.median(self.seconds(work, who))

    def seconds(self, work: Work, who: str) -> list[float]:
        """A configuration's seconds, round by round."""
        return [taken.seconds for taken in self.runs[work.name, who]]

    def point(self, work: Work, run: Run) -> Point:
        """What is told of a configuration."""
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
        rounds = zip(self.seconds(work, peer), self.seconds(work, who))
        ratio = statistics.median(its / mine for its, mine in rounds)
        return Line(name, "itself, off" if peer == OFF else peer, *texts, ratio, target)

    def lines(self, works: tuple[Work, ...]) -> list[Line]:
        """Everything that has a target."""
        lines = [
            self.line(name, work, who, target)
            for name, work, who, target in (
                (ROWS.name, ROWS, OURS, 3),
                (COLUMNS.name, COLUMNS, OURS, 1.5),
                (THREE.name, THREE, OURS, 1.5),
                (UNCHANGED.name, UNCHANGED, ON, 2),
                (UNCHANGED_PANDAS.name, UNCHANGED_PANDAS, ON, 1.3),
                ("JavaScript row function, 1M rows", LANGUAGES, JAVASCRIPT, 2),
                ("Ruby row function, 1M rows", LANGUAGES, RUBY, 1.5),
            )
            if work in works
        ]
        if self.memory:
            medians = {
                who: statistics.median(total for total, _ in each) for who, each in self.memory.items()
            }
            peer = min((who for who in medians if who != OURS), key=medians.__getitem__)
            ours, its = self.memory[OURS], self.memory[peer]
            texts = [f"{medians[who]:.0f} MiB" for who in (OURS, peer)]
            ratio = statistics.median(mine[0] / other[0] for mine, other in zip(ours, its))
            lines.append(Line("peak memory of all processes", peer, *texts, ratio, 1, "times"))
        return lines

    def points(self, works: tuple[Work, ...]) -> list[Point]:
        """All configurations at all works."""
        return [self.point(work, run) for work in works for run in work.runs]

    def peaks(self) -> list[Peak]:
        """The memory of both sides."""
        return [
            Peak(who, who == OURS, *map(statistics.median, zip(*each)), [total for total, _ in each])
            for who, each in self.memory.items()
        ]


def rates(figures: Figures) -> Table:
    """Seconds and rows per second, work by work."""
    table = Table(header_style="bold", title=f"Spark {figures.spark}, {MASTER}", title_justify="left")
    table.add_column("configuration")
    for head in ("seconds", "fastest", "slowest", "M rows/s", "CPU ns/row: JVM", "workers"):
        table.add_column(head, justify="right")
    work = ""
    for point in figures.points:
        if point.work != work:
            work = point.work
            table.add_section()
            table.add_row(f"[bold]{work}[/]")
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
    """The memory, and whose it is."""
    table = Table(header_style="bold", title="peak memory in MiB", title_justify="left")
    table.add_column("configuration")
    for head in ("all", "JVM", "workers"):
        table.add_column(head, justify="right")
    for peak in figures.peaks:
        parts = peak.total, peak.jvm, peak.total - peak.jvm
        table.add_row(peak.who, *(f"{part:.0f}" for part in parts))
    return table


def targets(lines: list[Line]) -> Table:
    """What is reached, beside what shall be."""
    table = Table(header_style="bold")
    for head in ("work", "against", OURS, "the other", "result", "target", ""):
        table.add_column(head, justify="right" if head in ("result", "target") else "left")
    for line in lines:
        sign = "≥" if line.unit == "x" else "≤"
        mark = "[green]✓[/]" if line.met else "[red]✗[/]"
        result = f"{line.value:.2f} x"
        table.add_row(
            line.name, line.against, line.ours, line.theirs, result, f"{sign} {line.target:g} x", mark
        )
    return table


def measure(works: tuple[Work, ...], rounds: int, folder: Path, results: Results, progress: Progress) -> str:
    """Lets all configurations take turns; returns Spark's version."""
    names = dict.fromkeys(run.session for work in works for run in work.runs)
    task = progress.add_task(
        "starting Spark", total=(WARM_UP + rounds) * sum(len(work.runs) for work in works)
    )
    with ExitStack() as stack:
        sessions = {name: stack.enter_context(Session(name, folder)) for name in names}
        for turn in range(-WARM_UP, rounds):
            for work in works:
                # Who is first changes from round to round.
                first = turn % len(work.runs)
                for run in work.runs[first:] + work.runs[:first]:
                    progress.update(task, description=f"{work.name}: {run.who}")
                    taken = sessions[run.session].taken(run, work.rows)
                    if turn >= 0:
                        results.add(work, run, taken)
                    progress.advance(task)
        return sessions["crosslane"].version


def look(rounds: int, folder: Path, results: Results, progress: Progress) -> None:
    """Looks at the memory of fresh sessions, ours and Spark's, while they run functions of rows and of columns."""
    sides = ROWS.runs[0], *ARROW
    results.memory = {side.who: [] for side in sides}
    task = progress.add_task("", total=rounds * len(sides))
    for turn in range(rounds):
        first = turn % len(sides)
        for side in sides[first:] + sides[:first]:
            progress.update(task, description=f"peak memory: {side.who}")
            columns = next(run for run in COLUMNS.runs if run.session == side.session)
            with Session(side.session, folder, PYTHON) as session, Look(session) as seen:
                for run in (side, columns):
                    for _ in range(REPEATS):
                        session.taken(run, MANY)
            results.add_memory(side.who, seen.most)
            progress.advance(task)


def main() -> None:
    """Measures, and says what came out."""
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
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    RESULTS.mkdir(exist_ok=True)
    progress = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)
    lines = RESULTS / "spark.jsonl"
    with tempfile.TemporaryDirectory() as name, lines.open("w") as written, progress:
        folder, results = Path(name), Results(written)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        version = measure(works, arguments.rounds, folder, results, progress)
        if works == WORKS:
            look(arguments.rounds, folder, results, progress)
    figures = Figures(
        version, machine(), date.today().isoformat(), arguments.rounds, results.points(works), results.peaks(), results.lines(works)
    )  # fmt: skip
    console.print(rates(figures))
    if figures.peaks:
        console.print(peaks(figures))
    console.print(targets(figures.lines))
    saved, picture = RESULTS / "spark.json", RESULTS / "spark.png"
    figures.save(saved)
    draw(figures, picture)
    for path in (saved, lines, picture):
        console.print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
