"""The output of functions goes to the user's log. A log that cannot take it does no harm."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

pytestmark = pytest.mark.any_duckdb

FUNCTIONS = {
    "py": """
        from crosslane import udf
        @udf(deterministic=False)
        def f(x: int) -> int:
            print("printed " * 2000, flush=True)
            return x
        """,
    "js": """
        udf("f(x BIGINT) -> BIGINT", { deterministic: false }, (x) => { console.log("printed ".repeat(2000)); return x; });
        """,
    "rb": """
        udf("f(x BIGINT) -> BIGINT", deterministic: false) { |x| $stdout.puts "printed " * 2000; x }
        """,
}
#: A program that does not ignore these signals. Python ignores them, but DuckDB's shell does not.
PROGRAM = """
import signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(number, signal.SIG_DFL)
import crosslane
con = crosslane.connect(sys.argv[1], functions=sys.argv[2])
con.execute("CREATE OR REPLACE TABLE t AS SELECT i FROM range(200) r(i)")
con.execute("CHECKPOINT")
assert con.execute("SELECT sum(f(i)) FROM t").fetchall() == [(19900,)]
con.execute("INSERT INTO t SELECT 1 FROM range(1000)")
con.close()
print("done")
"""


@pytest.fixture(params=FUNCTIONS)
def chatty(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with a function that prints 16 KB for each row."""
    path = tmp_path / f"chatty.{request.param}"
    lines = FUNCTIONS[request.param].strip("\n").splitlines()
    path.write_text("\n".join(line[8:] for line in lines))
    return path


def command(database: Path | str, functions: Path) -> list[str]:
    """An engine that calls the function 200 times."""
    return [sys.executable, "-c", PROGRAM, str(database), str(functions)]


def test_what_is_printed_never_reaches_the_database(chatty: Path, tmp_path: Path) -> None:
    database = tmp_path / "data.duckdb"
    # Without a stderr, DuckDB's file gets descriptor 2.
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command(database, chatty)]
    for _ in range(2):
        outcome = subprocess.run(closed, stdout=subprocess.PIPE, text=True, timeout=120)
        assert (outcome.returncode, outcome.stdout) == (0, "done\n")
    with duckdb.connect(str(database)) as con:
        assert con.execute("SELECT count(*) FROM t").fetchall() == [(1200,)]
    assert b"printed printed" not in database.read_bytes()


def test_no_standard_descriptor_is_needed(chatty: Path, tmp_path: Path) -> None:
    database = tmp_path / "data.duckdb"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&- 3>&-', "sh", *command(database, chatty)]
    # Python has no stdout for "done", and reports that nowhere.
    assert subprocess.run(closed, timeout=120).returncode == 0
    with duckdb.connect(str(database)) as con:
        assert con.execute("SELECT count(*) FROM t").fetchall() == [(1200,)]


def test_a_log_without_a_reading_process_delays_no_query(chatty: Path) -> None:
    read, write = os.pipe()
    try:
        outcome = subprocess.run(
            command(":memory:", chatty), stdout=subprocess.PIPE, stderr=write, text=True, timeout=120
        )
        assert (outcome.returncode, outcome.stdout) == (0, "done\n")
        # The pipe contains as much text as fits into it.
        assert os.read(read, 16).startswith(b"printed ")
    finally:
        os.close(read)
        os.close(write)


def test_a_log_whose_reader_is_gone_ends_no_process(chatty: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    outcome = subprocess.run(
        command(":memory:", chatty), stdout=subprocess.PIPE, stderr=write, text=True, timeout=120
    )
    os.close(write)
    assert (outcome.returncode, outcome.stdout) == (0, "done\n")


def test_a_full_log_ends_no_process(chatty: Path, tmp_path: Path) -> None:
    def limit() -> None:
        # The limit is less than the printed text. It is more than a lane's memory, which counts as a file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))

    with (tmp_path / "log").open("wb") as log:
        outcome = subprocess.run(
            command(":memory:", chatty),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=120,
            preexec_fn=limit,
        )
    assert (outcome.returncode, outcome.stdout) == (0, "done\n")
    assert (tmp_path / "log").stat().st_size == 3_000_000


def test_what_is_printed_is_in_the_log(chatty: Path) -> None:
    outcome = subprocess.run(command(":memory:", chatty), capture_output=True, text=True, timeout=120)
    assert outcome.stdout == "done\n"
    assert outcome.stderr.count("printed ") == 200 * 2000
