"""JavaScript functions, and isolates beside QuickJS."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

import crosslane

from ...figures import ROOT, Line
from ..engines import LIBRARIES, ROUNDS, Bench, compared, microseconds, story_of

#: The library that boots isolates, in Node's program.
GUESTS = ROOT / "bench" / "js" / "target" / "release" / "libcrosslane_bench_js.so"
NODE = ROOT / ".node" / "bin" / "node"


def js_numbers(bench: Bench) -> Iterator[Line]:
    """A JavaScript function of two numbers against the addition that is built in."""
    rows = 10_000_000
    runs = {
        name: lambda sum=sum: bench.seconds(bench.ours, f"SELECT bit_xor(({sum})::BIGINT) FROM doubles", 2)
        for name, sum in (("builtin", "a + b"), ("ours", "js_add(a, b)"))
    }
    taken = bench.alternate(runs)
    more = statistics.median(ours - builtin for ours, builtin in zip(taken["ours"], taken["builtin"]))
    rates = [f"{statistics.median(taken[name]) / rows * 1e9:.1f} ns/row" for name in ("ours", "builtin")]
    yield Line("JavaScript a+b, 2 threads", "DuckDB's own a+b", *rates, more / rows * 1e9, 4, "ns/row more")


def js_text(bench: Bench) -> Iterator[Line]:
    """A JavaScript function of text from one thread to two."""
    query = "SELECT sum(strlen(js_slugify(s))) FROM titles"
    taken = bench.alternate({str(n): lambda n=n: bench.seconds(bench.ours, query, n) for n in (1, 2)})
    yield compared("JavaScript slugify, 1 to 2 threads", "itself", taken["2"], taken["1"], 1.85)


def js_guests(bench: Bench) -> Iterator[Line]:
    """The JavaScript guest against QuickJS, its boot against one from source, its pool against a boot."""
    command = ["cargo", "build", "--release", "--locked", "--quiet"]
    subprocess.run(command, cwd=LIBRARIES.parent, check=True)
    program = [NODE, "--crosslane", crosslane.javascript_path(), LIBRARIES, str(ROUNDS)]
    environment = {**os.environ, "LD_PRELOAD": str(GUESTS)}
    run = subprocess.run(program, env=environment, check=True, capture_output=True)
    taken = json.loads(run.stdout)
    for key, name, against, target in (
        ("gcd", "JavaScript gcd, 1024 rows", "arrow-udf's QuickJS", 15),
        ("slugify", "JavaScript slugify, 1024 rows, 2 lanes", "arrow-udf's QuickJS", 22),
        ("boot", "isolate boot, 1.4 MB of libraries", "from source", 12),
        ("pool", "lane from a warm pool", "isolate boot", 20),
    ):
        ours, theirs = taken[key]["ours"], taken[key]["theirs"]
        task = "1,024 rows, JavaScript\ngcd of two integers"
        story = story_of(task, against, ours, theirs) if key == "gcd" else None
        yield compared(name, against, ours, theirs, target, shown=microseconds, story=story)


def js_memory(bench: Bench) -> Iterator[Line]:
    """What one more JavaScript lane takes."""

    def private(lanes: int) -> float:
        con = crosslane.connect()
        con.execute(f"CALL crosslane_set('warm_lanes', '{lanes}')")
        crosslane.load(con, LIBRARIES)
        # A library without calls keeps one lane warm.
        con.execute("SELECT bench_words('a b')").fetchall()
        begun = time.monotonic()
        while con.execute("SELECT idle FROM crosslane_pools()").fetchall()[0][0] < lanes:
            if time.monotonic() - begun > 60:
                sys.exit(f"there are no {lanes} warm JavaScript lanes after a minute")
            time.sleep(0.02)
        pid = con.execute("SELECT max(pid) FROM crosslane_lanes()").fetchall()[0][0]
        used = psutil.Process(pid).memory_full_info().uss / 1e6
        con.close()
        return used

    few, many = private(1), private(17)
    more = (many - few) / 16
    sizes = (f"{many:.0f} MB with 17", f"{few:.0f} MB with 1")
    yield Line("one more JavaScript lane", "a limit", *sizes, more, 8, "MB")
    yield Line("JavaScript host with one lane", "a limit", sizes[1], "", few, 60, "MB")
