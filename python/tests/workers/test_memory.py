"""An engine that is short of memory. A value that the engine cannot hold is an error of one query, and the
next query works."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import error, value

pytestmark = pytest.mark.any_duckdb

#: The size of a string that a query asks for. There is only room for a part of the string, or of its copies.
SIZE = 100_000_000

FUNCTIONS = """
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crosslane import udf

@udf
def long_text(size: int) -> str:
    return "x" * size

@udf
def measured(text: str) -> int:
    return len(text)

@udf
def many(size: int) -> list[int]:
    return [7] * size

@udf("measured_array(text VARCHAR) -> BIGINT", vectorized=True)
def measured_array(text):
    return pc.binary_length(text)

@udf("wide(size BIGINT) -> HUGEINT[]", vectorized=True)
def wide(size):
    zeros = pa.py_buffer(np.zeros(size[0].as_py() * 32, np.uint8))
    numbers = pa.Array.from_buffers(pa.decimal256(39, 0), size[0].as_py(), [None, zeros])
    return pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers)

@udf
def refuse(text: str) -> int:
    raise ValueError("no")

@udf
def double(x: int) -> int:
    return 2 * x
"""

ENGINE = """
import resource, sys
import crosslane

con = crosslane.connect(config={"threads": 1})
if HERE:
    import functions
    for name in ("long_text", "measured", "many", "measured_array", "wide", "refuse", "double"):
        crosslane.register(con, getattr(functions, name), lane="thread")
else:
    crosslane.load(con, "functions.py")
con.execute("SET enable_progress_bar = false")
con.execute("SELECT double(1), measured('x'), long_text(1), many(1), measured_array('x'), wide(1)").fetchall()

def used():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()

size, answered = int(sys.argv[1]), 0
queries = {
    f"SELECT strlen(long_text({size} + range)) FROM range(1)": size,
    f"SELECT measured(repeat('x', {size} + range::INT)) FROM range(1)": size,
    f"SELECT len(many({size} // 40 + range)) FROM range(1)": size // 40,
    f"SELECT measured_array(repeat('x', {size} + range::INT)) FROM range(1)": size,
    f"SELECT len(wide({size} // 40 + range)) FROM range(1)": size // 40,
    f"SELECT refuse(repeat('x', {size} + range::INT)) FROM range(1)": None,
}
for query, expected in queries.items():
    for room in map(int, sys.argv[2:]):
        if room:
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (used() + room, most))
        try:
            assert con.execute(query).fetchone()[0] == expected
            answered += 1
        except Exception as error:
            text = str(error).lower()
            told = ("memory", "alloc", "valueerror: no", "its worker")
            assert any(part in text for part in told), text
        assert con.execute("SELECT double(21 + range) FROM range(3)").fetchall() == [(42,), (44,), (46,)]
        if room:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
print("lives", answered)
"""


def run(folder: Path, *arguments: int, limit: int = resource.RLIM_INFINITY, here: bool = False) -> str:
    """Runs the engine in another process, and returns its output."""
    (folder / "functions.py").write_text(FUNCTIONS)
    done = subprocess.run(
        [sys.executable, "-c", ENGINE.replace("HERE", str(here)), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


def test_only_the_engine_is_short_of_memory(tmp_path: Path) -> None:
    # The sizes go from too little for any allocation to enough for all. So each allocation is the failing one
    # in some run.
    rooms = [megabytes << 20 for megabytes in (40, 100, 150, 225, 350, 1000)]
    printed = run(tmp_path, SIZE, *rooms)
    assert printed.startswith("lives "), printed
    assert int(printed.split()[1]) >= 3


def test_an_engine_with_host_lanes_is_short_of_memory(tmp_path: Path) -> None:
    rooms = [megabytes << 20 for megabytes in (40, 100, 125, 150, 225, 350, 1000)]
    printed = run(tmp_path, SIZE, *rooms, here=True)
    assert int(printed.removeprefix("lives ")) >= 3


def test_the_workers_are_short_of_memory_too(tmp_path: Path) -> None:
    assert run(tmp_path, 4 * SIZE, 0, limit=1000 << 20).startswith("lives")


def test_a_batch_beyond_the_setting_is_an_error_that_names_it(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    con.execute("CALL crosslane_set('largest_batch', '1000000')")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    crosslane.load(con, tmp_path / "functions.py")
    for query in ("strlen(long_text(1_500_000 + range))", "measured(repeat('x', 1_500_000 + range::INT))"):
        assert "largest_batch" in error(con, f"SELECT {query} FROM range(1)")
    # The engine sends the arguments in parts that fit.
    rows = "SELECT sum(measured(repeat('x', 400_000 + range::INT))) FROM range(10)"
    assert value(con, rows) == 4_000_045
