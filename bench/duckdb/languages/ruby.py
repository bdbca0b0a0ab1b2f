"""Ruby functions and V8 contexts, which a Ruby program measures."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ...figures import RESULTS, ROOT, Line
from ...report import ratio
from ..engines import LIBRARIES, ROUNDS, Bench, compared, microseconds

PROGRAM = Path(__file__).parents[1] / "functions" / "ruby_program.rb"
#: The same libraries as scripts, for the contexts of a Ruby program.
SCRIPTED = ("lodash/lodash.js", "mathjs/lib/browser/math.js", "luxon/build/global/luxon.js")


def measured(part: str) -> dict[str, dict[str, list[float]]]:
    """What the Ruby program measures."""
    script = RESULTS / "libraries.js"
    modules = LIBRARIES.parent / "node_modules"
    script.write_text("\n".join((modules / path).read_text() for path in SCRIPTED))
    command = ["ruby", "-I", ROOT / "ruby" / "lib", PROGRAM, script, str(ROUNDS), part]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def ruby_lanes(bench: Bench) -> Iterator[Line]:
    """Ruby: host lanes and guests."""
    taken = measured("lanes")
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
        yield compared(name, against, taken[key]["ours"], taken[key]["theirs"], target)


def ruby_v8(bench: Bench) -> Iterator[Line]:
    """Ruby: V8 contexts off the lock."""
    taken = measured("v8")
    stall = taken["stall"]
    median = {who: statistics.median(times) for who, times in stall.items()}
    texts = microseconds(stall["ours"]), microseconds(stall["theirs"])
    name = "Ruby's longest stall while V8 boots"
    yield Line(name, "with the lock held", *texts, median["theirs"] / median["ours"], 10)
    line = ("V8 context from a warm pool, in Ruby", "context boot")
    yield compared(*line, taken["pool"]["ours"], taken["pool"]["theirs"], 20, shown=microseconds)
    ours, theirs = taken["call"]["ours"], taken["call"]["theirs"]
    texts = microseconds(ours), f"{microseconds(theirs)} by eval"
    yield Line("V8 call from Ruby, two integers", "a limit", *texts, statistics.median(ours) * 1e6, 5, "us")
    ours, theirs = taken["process"]["ours"], taken["process"]["theirs"]
    texts = microseconds(ours), f"{microseconds(theirs)} in the program"
    name = "the same in a process of its own"
    yield Line(name, "a limit", *texts, statistics.median(ours) * 1e6, 15, "us")
