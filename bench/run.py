"""Crosslane beside its peers, in one run: prints a table, saves the figures, draws two pictures.

    make bench                  everything (about ten minutes)
    make bench BENCH=bigint     the lines whose name contains "bigint"

Every line compares two things that were measured alternately; the figures are medians.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import duckdb
import numpy
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from draw import Figures, Line, Story, draw, machine
from rich.console import Console
from rich.table import Table

import crosslane

HERE = Path(__file__).parent
FUNCTIONS = HERE / "functions.py"
SCRIPTS = HERE / "functions.js"
#: Libraries of 1.4 MB, to boot isolates with; and the program that boots them.
LIBRARIES = HERE / "js" / "libraries.js"
GUESTS = HERE / "js" / "target" / "release" / "crosslane-bench-js"
RESULTS = HERE / "results"
#: Calls over lanes that answer at once.
WORKERS = HERE.parent / "target" / "release" / "examples" / "workers"
#: The same libraries as scripts, for the contexts of a Ruby program.
SCRIPTED = ("lodash/lodash.js", "mathjs/lib/browser/math.js", "luxon/build/global/luxon.js")
ROUNDS = 11
#: The peer that most lines compare with.
PYTHON = "DuckDB's Python functions"
console = Console()


def ratio(theirs: list[float], ours: list[float]) -> float:
    """How many times faster: the median over the rounds, each compared with itself.

    The machine's speed drifts from round to round; within one it is about the same for both.
    """
    return statistics.median(their / our for their, our in zip(theirs, ours))


def milliseconds(times: list[float]) -> str:
    """The median of some seconds, as text."""
    return f"{statistics.median(times) * 1e3:.{0 if statistics.median(times) > 0.01 else 1}f} ms"


def microseconds(times: list[float]) -> str:
    """The median of some short times, as text."""
    median = statistics.median(times) * 1e6
    return f"{median:.1f} us" if median < 1000 else f"{median / 1000:.1f} ms"


def told(task: str, peer: str, ours: list[float], theirs: list[float]) -> Story:
    """What a user notices, of the medians."""
    return Story(task, peer, statistics.median(ours), statistics.median(theirs))


class Bench:
    """Both engines with the same tables and functions."""

    def __init__(self) -> None:
        self.ours = crosslane.connect(
            functions=[FUNCTIONS, SCRIPTS, HERE / "tables.py", HERE / "aggregates.py"]
        )
        #: Rows per second of streams, by their depths.
        self.depths: dict[int, float] = {}
        self.theirs = duckdb.connect()
        self._tables()
        self._native()

    def _tables(self) -> None:
        for con in (self.ours, self.theirs):
            con.execute("CREATE TABLE ints AS SELECT i FROM range(10000000) r(i)")
            con.execute("CREATE TABLE ints5 AS SELECT i FROM range(5000000) r(i)")
            con.execute("CREATE TABLE pairs AS SELECT random() AS a, random() AS b FROM range(5000000)")
            con.execute(
                "CREATE TABLE nulls AS SELECT CASE WHEN i % 10 > 0 THEN i END i FROM range(5000000) r(i)"
            )
            con.execute(
                "CREATE TABLE texts AS SELECT printf('row number %014d', i) AS s FROM range(2000000) r(i)"
            )
            con.execute("CREATE TABLE wide AS SELECT rpad(i || ' ', 1024, 'x') AS s FROM range(51200) r(i)")
            con.execute("CREATE TABLE doubles AS SELECT random() AS a, random() AS b FROM range(10000000)")
            con.execute(
                "CREATE TABLE titles AS SELECT 'Hello, World: this is title ' || i AS s FROM range(1000000) r(i)"
            )
            con.execute(
                "CREATE TABLE grouped AS SELECT i, (hash(i) % 1000)::BIGINT AS few, (hash(i) % 1000000)::BIGINT AS many "
                "FROM range(5000000) r(i)"
            )
            con.execute("CREATE TABLE quarter AS SELECT i FROM range(245760) r(i)")
            con.execute("CREATE TABLE small AS SELECT i FROM range(5000) r(i)")
            con.execute("CREATE TABLE waits AS SELECT i FROM range(10000) r(i)")

    def _native(self) -> None:
        sys.path.insert(0, str(HERE))
        import functions

        def wait(x: int) -> int:
            time.sleep(0.001)
            return x

        native = self.theirs.create_function
        native("plus_one", functions.plus_one, ["BIGINT"], "BIGINT")
        native("plus_one_called", functions.plus_one_called, ["BIGINT"], "BIGINT")
        native("plus_one_if", functions.plus_one_if, ["BIGINT"], "BIGINT")
        native("sum_of_two", functions.sum_of_two, ["DOUBLE", "DOUBLE"], "DOUBLE")
        native("bench_upper", functions.bench_upper, ["VARCHAR"], "VARCHAR")
        native("plus_one_vectorized", lambda x: pc.add(x, 1), ["BIGINT"], "BIGINT", type="arrow")
        native("heavy", functions.heavy, ["BIGINT"], "BIGINT")
        native("wait", wait, ["BIGINT"], "BIGINT")

    def seconds(self, con: duckdb.DuckDBPyConnection, query: str, threads: int) -> float:
        """The seconds that a query takes."""
        con.execute(f"SET threads = {threads}")
        started = time.perf_counter()
        con.execute(query).fetchall()
        return time.perf_counter() - started

    def alternate(self, runs: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
        """The seconds of runs that take turns, after one round that does not count."""
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for round in range(rounds + 1):
            for name, run in runs.items():
                seconds = run()
                if round > 0:
                    taken[name].append(seconds)
        return taken

    def throughput(
        self,
        name: str,
        query: str,
        rows: int,
        targets: tuple[float | None, float | None],
        task: str | None = None,
        peer: str = PYTHON,
    ) -> Iterator[Line]:
        """Our rows per second at one and two threads against the better thread count of theirs."""
        taken = self.alternate(
            {
                "theirs 1": lambda: self.seconds(self.theirs, query, 1),
                "ours 1": lambda: self.seconds(self.ours, query, 1),
                "theirs 2": lambda: self.seconds(self.theirs, query, 2),
                "ours 2": lambda: self.seconds(self.ours, query, 2),
            }
        )
        better = min("theirs 1", "theirs 2", key=lambda who: statistics.median(taken[who]))
        for threads, target in zip((1, 2), targets):
            if target:
                mine = taken[f"ours {threads}"]
                rates = [
                    f"{rows / statistics.median(times) / 1e6:.1f} M rows/s" for times in (mine, taken[better])
                ]
                plural = "s" if threads > 1 else ""
                label = f"{name}, {threads} thread{plural}"
                story = told(task, peer, mine, taken[better]) if threads == 2 and task else None
                yield Line(label, "DuckDB's own", *rates, ratio(taken[better], mine), target, story=story)

    def bigint(self) -> Iterator[Line]:
        """A row function on BIGINT."""
        query = "SELECT bit_xor(plus_one(i)) FROM ints5"
        task = "5 million integers,\nPython, row by row"
        yield from self.throughput("row function, bigint", query, 5_000_000, (1.7, 5), task)

    def varchar(self) -> Iterator[Line]:
        """A row function on VARCHAR."""
        query = "SELECT sum(strlen(bench_upper(s))) FROM texts"
        task = "2 million texts,\nPython, row by row"
        yield from self.throughput("row function, varchar", query, 2_000_000, (1.7, 5), task)

    def wide(self) -> Iterator[Line]:
        """A row function on VARCHAR of 1 KB, of which a chunk is larger than a ring."""
        query = "SELECT sum(strlen(bench_upper(s))) FROM wide"
        yield from self.throughput("row function, 1 KB varchar", query, 51_200, (None, 3))

    def rows(self) -> Iterator[Line]:
        """Row functions that are more than one expression of one column without NULLs."""
        for name, call, table, target in (
            ("called for each row", "plus_one_called(i)", "ints5", 3.5),
            ("with an if", "plus_one_if(i)", "ints5", 3.6),
            ("10 % NULLs", "plus_one(i)", "nulls", 3.4),
            ("two doubles", "sum_of_two(a, b)::BIGINT", "pairs", 3.6),
        ):
            query = f"SELECT bit_xor({call}) FROM {table}"
            yield from self.throughput(f"row function, {name}", query, 5_000_000, (None, target))

    def vectorized(self) -> Iterator[Line]:
        """A vectorized function."""
        query = "SELECT bit_xor(plus_one_vectorized(i)) FROM ints"
        task, peer = "10 million integers,\nPython with pyarrow", "DuckDB's Arrow functions"
        yield from self.throughput("vectorized, bigint", query, 10_000_000, (None, 2.5), task, peer)

    def scaling(self) -> Iterator[Line]:
        """A heavy function from one thread to two."""
        query = "SELECT bit_xor(heavy(i)) FROM quarter"
        runs = {str(n): lambda n=n: self.seconds(self.ours, query, n) for n in (1, 2)}
        taken = self.alternate(runs, 5)
        line = (
            "20 us function, 1 to 2 threads",
            "itself",
            milliseconds(taken["2"]),
            milliseconds(taken["1"]),
        )
        yield Line(*line, ratio(taken["1"], taken["2"]), 1.85)

    def fan_out(self) -> Iterator[Line]:
        """A heavy function over a small table."""
        query = "SELECT bit_xor(heavy(i)) FROM small"
        runs = {
            "theirs": lambda: self.seconds(self.theirs, query, 2),
            "ours": lambda: self.seconds(self.ours, query, 2),
        }
        taken = self.alternate(runs, 3 * ROUNDS)
        line = (
            "20 us function, 5,000 rows",
            "DuckDB's own",
            milliseconds(taken["ours"]),
            milliseconds(taken["theirs"]),
        )
        story = told("a small table, Python\nfunction of 20 us", PYTHON, taken["ours"], taken["theirs"])
        yield Line(*line, ratio(taken["theirs"], taken["ours"]), 1.8, story=story)

    def waiting(self) -> Iterator[Line]:
        """An async function that waits."""
        query = "SELECT bit_xor(wait(i)) FROM waits"
        theirs = self.seconds(self.theirs, query, 2)
        ours = self.alternate({"ours": lambda: self.seconds(self.ours, query, 2)})["ours"]
        line = ("1 ms of waiting, async", "DuckDB's own", milliseconds(ours), milliseconds([theirs]))
        story = told("10,000 requests\nof 1 ms, async", PYTHON, ours, [theirs])
        yield Line(*line, theirs / statistics.median(ours), 40, story=story)

    def spans(self) -> Iterator[Line]:
        """What a lane adds to a chunk of 2,048 rows."""
        for name, function, query, target in (
            ("bigint", "plus_one", "SELECT bit_xor(plus_one(i)) FROM ints5", 6),
            ("25-byte varchar", "bench_upper", "SELECT sum(strlen(bench_upper(s))) FROM texts", 20),
        ):
            for threads in (1, 2):
                totals = []
                for _ in range(9):
                    before = self._spans(function)
                    self.seconds(self.ours, query, threads)
                    after = self._spans(function)
                    calls = after[0] - before[0]
                    totals.append([(b - a) / calls for a, b in zip(before[1:], after[1:])])
                spans = [statistics.median(values) for values in zip(*totals)]
                detail = " + ".join(f"{span:.1f}" for span in spans)
                label = f"a lane's own time, {name}, {threads} thread{'s' if threads > 1 else ''}"
                yield Line(label, "a limit", detail, "in+ways+out", sum(spans), target, "us")

    def workers(self) -> Iterator[Line]:
        """What a call costs with many workers at once, over lanes that answer at once."""
        cargo = ["cargo", "build", "--locked", "--release", "--quiet"]
        subprocess.run([*cargo, "-p", "crosslane", "--example", "workers"], cwd=HERE.parent, check=True)

        def cost(workers: int) -> float:
            command = [WORKERS, str(workers), str(640_000 // workers)]
            return float(subprocess.run(command, check=True, capture_output=True).stdout) / 1e9

        taken = self.alternate({"one": lambda: cost(1), "many": lambda: cost(64)})
        texts = (f"{statistics.median(taken[name]) * 1e9:.0f} ns" for name in ("many", "one"))
        yield Line(
            "a call's cost, 64 workers", "one worker", *texts, ratio(taken["many"], taken["one"]), 2, "times"
        )

    def _spans(self, function: str) -> list[float]:
        row = self.ours.execute(
            "SELECT calls, copy_in_us, travel_us, copy_out_us FROM crosslane_stats() WHERE function = ?",
            [function],
        ).fetchall()[0]
        calls = row[0]
        return [calls, *((mean or 0) * calls for mean in row[1:])]

    def first_call(self) -> Iterator[Line]:
        """The first call on a warm pool against a cold start of Python."""

        def cold() -> float:
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import pyarrow"], check=True)
            return time.perf_counter() - started

        def warm() -> float:
            con = crosslane.connect(functions=FUNCTIONS)
            while con.execute("SELECT min(idle) FROM crosslane_pools()").fetchall()[0][0] < 1:
                time.sleep(0.01)
            time.sleep(0.2)
            started = time.perf_counter()
            con.execute("SELECT plus_one(i) FROM range(1) r(i)").fetchall()
            taken = time.perf_counter() - started
            con.close()
            return taken

        taken = self.alternate({"cold": cold, "warm": warm}, 7)
        line = (
            "first call, warm pool",
            "cold import pyarrow",
            milliseconds(taken["warm"]),
            milliseconds(taken["cold"]),
        )
        yield Line(*line, ratio(taken["cold"], taken["warm"]), 20)

    def stateful(self) -> Iterator[Line]:
        """A function with a long set-up on a warm pool, against one without: its first query."""

        def first_query(function: str) -> float:
            con = crosslane.connect(functions=HERE / "stateful.py")
            ready = "SELECT bool_and(idle >= 1 AND busy = 0) FROM crosslane_pools()"
            while not con.execute(ready).fetchall()[0][0]:
                time.sleep(0.01)
            taken = self.seconds(con, f"SELECT bit_xor({function}(i)) FROM range(1000000) r(i)", 2)
            con.close()
            return taken

        taken = self.alternate(
            {name: lambda name=name: first_query(name) for name in ("stateful", "stateless")}, 5
        )
        texts = (milliseconds(taken[name]) for name in ("stateful", "stateless"))
        # The same time, within a tenth.
        line = ("set-up of 1 s, warm pool: its first query", "without set-up")
        yield Line(*line, *texts, ratio(taken["stateless"], taken["stateful"]), 0.9)

    def tables(self) -> Iterator[Line]:
        """Python generators of rows and of batches against the same ones, read by DuckDB through pyarrow's RecordBatchReader."""
        import tables

        rows = 5_000_000
        for name, read, target in (
            ("some_rows", tables.read_rows, 2),
            ("some_batches", tables.read_batches, 0.9),
        ):
            query = "SELECT bit_xor(i), max(s) FROM "

            def theirs(read: Callable[[int], object] = read, query: str = query) -> float:
                self.theirs.register("reader", read(rows))
                return self.seconds(self.theirs, f"{query} reader", 2)

            def ours(name: str = name, query: str = query) -> float:
                return self.seconds(self.ours, f"{query} {name}({rows})", 2)

            taken = self.alternate({"theirs": theirs, "ours": ours}, 7)
            texts = (milliseconds(taken[side]) for side in ("ours", "theirs"))
            what = name.removeprefix("some_")
            line = (f"Python table function, {what}, 2 threads", "the generator in pyarrow's reader")
            yield Line(*line, *texts, ratio(taken["theirs"], taken["ours"]), target)
        limit = statistics.median(
            self.seconds(self.ours, "FROM billion() LIMIT 10", 2) for _ in range(ROUNDS)
        )
        yield Line(
            "LIMIT 10 of a billion rows",
            "a limit",
            milliseconds([limit]),
            "the median",
            limit * 1e3,
            50,
            "ms",
        )

    def aggregates(self) -> Iterator[Line]:
        """Sums of groups against pandas, against a loop in Python, and of many groups against few."""
        import aggregates

        expected = self.theirs.execute("SELECT sum(i) FROM grouped").fetchall()[0][0]

        def ours(function: str, groups: str) -> float:
            query = f"SELECT sum(s) FROM (SELECT {function}(i) AS s FROM grouped GROUP BY {groups})"
            self.ours.execute("SET threads = 2")
            started = time.perf_counter()
            ((total,),) = self.ours.execute(query).fetchall()
            seconds = time.perf_counter() - started
            assert total == expected, f"{function} by {groups}: {total} is not {expected}"
            return seconds

        def theirs(sum_all: Callable[[duckdb.DuckDBPyConnection], int]) -> float:
            self.theirs.execute("SET threads = 2")
            started = time.perf_counter()
            total = sum_all(self.theirs.execute("SELECT few, i FROM grouped"))
            seconds = time.perf_counter() - started
            assert total == expected, f"the peer: {total} is not {expected}"
            return seconds

        def by_pandas(rows: duckdb.DuckDBPyConnection) -> int:
            return int(rows.df().groupby("few")["i"].apply(lambda x: x.sum()).sum())

        def by_python(rows: duckdb.DuckDBPyConnection) -> int:
            return aggregates.in_python(rows.fetchall())

        for name, function, against, peer, target in (
            ("vectorized", "sum_of_columns", "pandas, groupby-apply", by_pandas, 2),
            ("row-wise", "sum_of_rows", "the loop in Python", by_python, 1.5),
        ):
            taken = self.alternate(
                {
                    "theirs": lambda peer=peer: theirs(peer),
                    "ours": lambda function=function: ours(function, "few"),
                },
                7,
            )
            texts = (milliseconds(taken[side]) for side in ("ours", "theirs"))
            line = (f"Python aggregate, {name}, 1,000 groups", f"{against}, rows exported")
            yield Line(*line, *texts, ratio(taken["theirs"], taken["ours"]), target)
        taken = self.alternate(
            {groups: lambda groups=groups: ours("sum_of_rows", groups) for groups in ("few", "many")}, 5
        )
        texts = (milliseconds(taken[groups]) for groups in ("many", "few"))
        line = ("Python aggregate, row-wise, 1,000,000 groups", "1,000 groups")
        yield Line(*line, *texts, ratio(taken["many"], taken["few"]), 3, "times")

    def streams(self) -> Iterator[Line]:
        """A light function of a stream whose worker finds the next batch when it is done with one, or not."""
        import aggregates

        rows = 20_000_000
        table = pa.table({"i": numpy.arange(rows)})

        def run(depth: int) -> float:
            with crosslane.map(table, aggregates.light, depth=depth, lanes=1) as results:
                batches = iter(results)
                # The worker starts before the first one.
                first = next(batches)
                started = time.perf_counter()
                total, count = pc.sum(first["i"]).as_py(), first.num_rows
                for batch in batches:
                    total += pc.sum(batch["i"]).as_py()
                    count += batch.num_rows
            seconds = time.perf_counter() - started
            assert (total, count) == (rows * (rows + 1) // 2, rows), f"depth {depth}: {total} of {count} rows"
            return seconds

        taken = self.alternate({str(depth): lambda depth=depth: run(depth) for depth in (1, 2, 4, 8)}, 7)
        self.depths = {int(depth): rows / statistics.median(times) for depth, times in taken.items()}
        texts = (f"{self.depths[depth] / 1e6:.0f} M rows/s" for depth in (2, 1))
        line = ("crosslane.map, light function, one worker, depth 2", "depth 1")
        yield Line(*line, *texts, ratio(taken["1"], taken["2"]), 1.3)

    def memory(self) -> Iterator[Line]:
        """The engine's memory over many streamed rows."""

        def peak(rows: int) -> float:
            program = (
                "import crosslane\n"
                f"con = crosslane.connect(functions={str(FUNCTIONS)!r})\ncon.execute('SET enable_progress_bar = false')\n"
                f"con.execute('SELECT bit_xor(plus_one(i)), count(bench_upper(i::VARCHAR)) FROM range({rows}) r(i)').fetchall()\n"
                "import re\n"
                "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024)"
            )
            return float(
                subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
            )

        few, many = peak(1_000_000), peak(50_000_000)
        growth = (many / few - 1) * 100
        yield Line(
            "engine memory, 50M rows", "1M rows", f"{many:.0f} MB", f"{few:.0f} MB", growth, 10, "% more"
        )

    def interrupt(self) -> Iterator[Line]:
        """How fast Ctrl-C ends a query inside a slow function."""
        path = RESULTS / "sleepy.py"
        path.write_text(
            "import time\nfrom crosslane import udf\n@udf\ndef sleepy(x: int) -> int: time.sleep(100)\n"
        )
        taken = []
        for _ in range(3):
            command = [
                sys.executable,
                "-m",
                "crosslane._cli",
                "sql",
                "-f",
                str(path),
                "SELECT sleepy(i) FROM range(3) r(i)",
            ]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(2)
            started = time.perf_counter()
            process.send_signal(signal.SIGINT)
            process.wait()
            taken.append(time.perf_counter() - started)
        worst = max(taken) * 1e3
        yield Line(
            "Ctrl-C inside a slow function", "a limit", f"{worst:.0f} ms", "the worst of 3", worst, 300, "ms"
        )

    def js_numbers(self) -> Iterator[Line]:
        """A JavaScript function of two numbers against the addition that is built in."""
        rows = 10_000_000
        runs = {
            name: lambda sum=sum: self.seconds(self.ours, f"SELECT bit_xor(({sum})::BIGINT) FROM doubles", 2)
            for name, sum in (("builtin", "a + b"), ("ours", "js_add(a, b)"))
        }
        taken = self.alternate(runs)
        more = statistics.median(ours - builtin for ours, builtin in zip(taken["ours"], taken["builtin"]))
        rates = [f"{statistics.median(taken[name]) / rows * 1e9:.1f} ns/row" for name in ("ours", "builtin")]
        yield Line(
            "JavaScript a+b, 2 threads", "DuckDB's own a+b", *rates, more / rows * 1e9, 12, "ns/row more"
        )

    def js_text(self) -> Iterator[Line]:
        """A JavaScript function of text from one thread to two."""
        query = "SELECT sum(strlen(js_slugify(s))) FROM titles"
        taken = self.alternate({str(n): lambda n=n: self.seconds(self.ours, query, n) for n in (1, 2)})
        times = (milliseconds(taken["2"]), milliseconds(taken["1"]))
        yield Line(
            "JavaScript slugify, 1 to 2 threads", "itself", *times, ratio(taken["1"], taken["2"]), 1.85
        )

    def js_guests(self) -> Iterator[Line]:
        """The JavaScript guest against QuickJS, its boot against one from source, its pool against a boot."""
        command = ["cargo", "build", "--release", "--locked", "--quiet"]
        subprocess.run(command, cwd=LIBRARIES.parent, check=True)
        run = subprocess.run(
            [GUESTS, crosslane.javascript_path(), LIBRARIES, str(ROUNDS)], check=True, capture_output=True
        )
        taken = json.loads(run.stdout)
        for key, name, against, target in (
            ("gcd", "JavaScript gcd, 1024 rows", "arrow-udf's QuickJS", 4),
            ("slugify", "JavaScript slugify, 1024 rows, 2 lanes", "arrow-udf's QuickJS", 6),
            ("boot", "isolate boot, 1.4 MB of libraries", "from source", 4),
            ("pool", "lane from a warm pool", "isolate boot", 20),
        ):
            ours, theirs = taken[key]["ours"], taken[key]["theirs"]
            texts = microseconds(ours), microseconds(theirs)
            task = "1,024 rows, JavaScript\ngcd of two integers"
            story = told(task, against, ours, theirs) if key == "gcd" else None
            yield Line(name, against, *texts, ratio(theirs, ours), target, story=story)

    def js_memory(self) -> Iterator[Line]:
        """What one more JavaScript lane takes."""

        def private(lanes: int) -> float:
            con = crosslane.connect()
            con.execute(f"CALL crosslane_set('warm_lanes', '{lanes}')")
            crosslane.load(con, LIBRARIES)
            while con.execute("SELECT idle FROM crosslane_pools()").fetchall()[0][0] < lanes:
                time.sleep(0.02)
            pid = con.execute("SELECT max(pid) FROM crosslane_lanes()").fetchall()[0][0]
            used = psutil.Process(pid).memory_full_info().uss / 1e6
            con.close()
            return used

        few, many = private(1), private(17)
        more = (many - few) / 16
        sizes = (f"{many:.0f} MB with 17", f"{few:.0f} MB with 1")
        yield Line("one more JavaScript lane", "a limit", *sizes, more, 10, "MB")

    def ruby(self, part: str) -> dict[str, dict[str, list[float]]]:
        """What the Ruby program measures."""
        script = RESULTS / "libraries.js"
        modules = LIBRARIES.parent / "node_modules"
        script.write_text("\n".join((modules / path).read_text() for path in SCRIPTED))
        command = ["ruby", "-I", HERE.parent / "ruby" / "lib", HERE / "ruby.rb", script, str(ROUNDS), part]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def ruby_lanes(self) -> Iterator[Line]:
        """Ruby: host lanes and guests."""
        taken = self.ruby("lanes")
        limit = ratio(taken["machine_scaling"]["theirs"], taken["machine_scaling"]["ours"])
        for key, name, against, target in (
            ("waiting_scalar", "Ruby block that sleeps, scalar, 4 threads", "itself, 1 thread", 3.8),
            ("waiting_table", "Ruby block that sleeps, table, 4 threads", "itself, 1 thread", 3.8),
            (
                "guest_scaling",
                "20 us Ruby guest, 1 to 2 threads",
                f"itself, 1 thread (plain processes: {limit:.2f} x)",
                1.85,
            ),
            ("guest_and_host", "20 us Ruby function, as a guest", "host lanes, 2 threads", 1.6),
            ("light", "x*2+1 host lane, 1 thread", "a Ruby loop, 1/1.6 of it", 1 / 1.6),
            ("upcase", "upcase Ruby guest, 2 threads", "a Ruby loop", 1.6),
        ):
            ours, theirs = taken[key]["ours"], taken[key]["theirs"]
            yield Line(name, against, milliseconds(ours), milliseconds(theirs), ratio(theirs, ours), target)

    def ruby_v8(self) -> Iterator[Line]:
        """Ruby: V8 contexts off the lock."""
        taken = self.ruby("v8")
        stall = taken["stall"]
        median = {who: statistics.median(times) for who, times in stall.items()}
        texts = microseconds(stall["ours"]), microseconds(stall["theirs"])
        name = "Ruby's longest stall while V8 boots"
        yield Line(name, "with the lock held", *texts, median["theirs"] / median["ours"], 10)
        ours, theirs = taken["pool"]["ours"], taken["pool"]["theirs"]
        texts = microseconds(ours), microseconds(theirs)
        yield Line("V8 context from a warm pool, in Ruby", "context boot", *texts, ratio(theirs, ours), 20)
        ours, theirs = taken["call"]["ours"], taken["call"]["theirs"]
        texts = microseconds(ours), f"{microseconds(theirs)} by eval"
        yield Line(
            "V8 call from Ruby, two integers", "a limit", *texts, statistics.median(ours) * 1e6, 5, "us"
        )

    def lines(self, wanted: str) -> Iterator[Line]:
        """All lines whose benchmark's name contains a text."""
        everything = [
            self.bigint, self.varchar, self.wide, self.rows, self.vectorized, self.scaling, self.fan_out, self.waiting,
            self.spans, self.workers, self.first_call, self.stateful, self.tables, self.aggregates,
            self.streams, self.memory, self.interrupt,
            self.js_numbers, self.js_text, self.js_guests, self.js_memory,
            self.ruby_lanes, self.ruby_v8,
        ]  # fmt: skip
        for measure in everything:
            if wanted in measure.__name__:
                with console.status(str(measure.__doc__)):
                    yield from measure()


def main() -> None:
    """Runs what was asked for."""
    RESULTS.mkdir(exist_ok=True)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    with console.status("making tables"):
        bench = Bench()
    table = Table(
        header_style="bold",
        title=f"DuckDB {duckdb.__version__}, {os.cpu_count()} cores",
        title_justify="left",
    )
    for head in ("work", "against", "Crosslane", "the other", "result", "target", ""):
        table.add_column(head, justify="right" if head in ("result", "target") else "left")
    figures = Figures(duckdb.__version__, machine(), date.today().isoformat())
    for line in bench.lines(wanted):
        figures.lines.append(line)
        console.print(f"[dim]{line.name}: {line.shown}[/]", highlight=False)
        sign = "≥" if line.unit == "x" else "≤"
        mark = "[green]✓[/]" if line.met else "[red]✗[/]"
        table.add_row(
            line.name, line.against, line.ours, line.theirs, line.shown, f"{sign} {line.target:g}", mark
        )
    console.print(table)
    figures.depths = bench.depths
    if figures.lines:
        saved = RESULTS / "figures.json"
        figures.save(saved)
        for path in [saved, *draw(figures, RESULTS)]:
            console.print(
                f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"
            )


if __name__ == "__main__":
    main()
