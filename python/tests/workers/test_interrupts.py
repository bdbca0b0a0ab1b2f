"""`con.interrupt()` and a Ctrl-C that reaches only the engine's process both end a function in the middle of
a chunk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import Load, error, eventually, value

#: Each call shows that it has begun. It takes an hour for all rows of a chunk.
FUNCTIONS = """
import pathlib, time
import pyarrow as pa
from crosslane import udaf, udf, udtf

def begin(path):
    pathlib.Path(path).touch()
    time.sleep(2)

@udf
def slow(path: str, x: int) -> int:
    begin(path)
    return x

@udf(vectorized=True)
def slow_columns(path: "pa.StringArray", x: "pa.Int64Array") -> "pa.Int64Array":
    begin(path[0].as_py())
    time.sleep(3600)

@udf(concurrency=8)
async def slow_async(path: str, x: int) -> int:
    import asyncio
    pathlib.Path(path).touch()
    await asyncio.sleep(3600)

@udtf("slow_rows(path VARCHAR) -> TABLE(x BIGINT)")
def slow_rows(path):
    for x in range(2000):
        begin(path)
        yield (x,)

@udaf
class SlowSum:
    def __init__(self):
        self.sum = 0

    def update(self, path: str, x: int) -> None:
        begin(path)
        self.sum += x

    def merge(self, other) -> None:
        self.sum += other.sum

    def finish(self) -> int:
        return self.sum

@udaf
class SlowEnd:
    def update(self, path: str, x: int) -> None:
        self.path = path

    def merge(self, other) -> None:
        self.path = other.path

    def finish(self) -> int:
        begin(self.path)
        return 0
"""
#: Queries that call the function, by the case that they test.
QUERIES = {
    "row": "SELECT slow('{}', i) FROM range(2000) r(i)",
    "row, many threads": "SELECT sum(slow('{}', i)) FROM numbers",
    "vectorized": "SELECT slow_columns('{}', i) FROM range(2000) r(i)",
    "async": "SELECT slow_async('{}', i) FROM range(2000) r(i)",
    "table": "FROM slow_rows('{}')",
    "while it is planned": "SELECT slow_async('{}', 1)",
    "aggregate": "SELECT slow_sum('{}', i) FROM range(2000) r(i)",
    "aggregate, groups": "SELECT slow_sum('{}', i) FROM numbers GROUP BY i % 10",
    "aggregate, ordered": "SELECT slow_sum('{}', i ORDER BY i DESC) FROM range(2000) r(i)",
    "aggregate, window": "SELECT slow_sum('{}', i) OVER (ORDER BY i ROWS 3 PRECEDING) FROM range(2000) r(i)",
    "aggregate, results": "SELECT slow_end('{}', i) FROM range(2000) r(i) GROUP BY i",
    "thread": "SELECT in_thread('{}', i) FROM range(2000) r(i)",
}


@pytest.fixture
def slow(load: Load) -> duckdb.DuckDBPyConnection:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE numbers AS SELECT range AS i FROM range(300_000)")

    def in_thread(path: str, x: int) -> int:
        Path(path).touch()
        time.sleep(2)
        return x

    crosslane.register(con, in_thread, "in_thread(path VARCHAR, x BIGINT) -> BIGINT", lane="thread")
    return con


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_an_interrupt_ends_a_call(slow: duckdb.DuckDBPyConnection, query: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(error(slow, query.format(begun))))
    thread.start()
    assert eventually(begun.exists)
    slow.interrupt()
    # The call alone would take an hour.
    thread.join(60)
    assert outcome[0].splitlines()[0].endswith((": cancelled", "Interrupted!")), outcome
    # A query that begins later is not ended.
    assert value(slow, "SELECT count(*) FROM numbers") == 300_000


@pytest.mark.parametrize("function", ["slow", "slow_sum"])
def test_an_interrupt_ends_the_queries_of_its_connection_alone(
    slow: duckdb.DuckDBPyConnection, function: str, tmp_path: Path
) -> None:
    begun = [tmp_path / "one", tmp_path / "other"]
    other = slow.cursor()
    outcomes: list[Any] = []
    query = f"SELECT {function}('{{}}', i) FROM range({{}}, 2000) r(i)"
    first = threading.Thread(target=lambda: outcomes.append(error(slow, query.format(begun[0], 0))))
    second = threading.Thread(target=lambda: outcomes.append(value(other, query.format(begun[1], 1999))))
    first.start()
    second.start()
    assert eventually(lambda: all(path.exists() for path in begun))
    slow.interrupt()
    first.join(60)
    second.join(60)
    outcomes.remove(1999)
    assert outcomes[0].splitlines()[0].endswith((": cancelled", "Interrupted!")), outcomes
    other.close()


LOADS = """
import pathlib, time
pathlib.Path({begun!r}).touch()
while True:
    try:
        time.sleep(3600)
    except KeyboardInterrupt:
        pass
"""


def test_an_interrupt_ends_the_loading_of_a_file(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    begun, file = tmp_path / "begun", tmp_path / "stubborn.py"
    file.write_text(LOADS.format(begun=str(begun)))
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(error(con, f"FROM crosslane_load('{file}')")))
    thread.start()
    assert eventually(begun.exists)
    con.interrupt()
    thread.join(60)
    assert "interrupted while its functions were loaded" in outcome[0] or "Interrupted!" in outcome[0]


@pytest.mark.parametrize(
    "statement",
    [
        "FROM crosslane_load('{file}')",
        *(query for name, query in QUERIES.items() if name != "thread" and "aggregate," not in name),
    ],
)
def test_ctrl_c_in_a_notebook(statement: str, tmp_path: Path) -> None:
    """Only the engine's process gets the signal, while its main thread waits in a call."""
    begun, file, functions = (tmp_path / name for name in ("begun", "stubborn.py", "functions.py"))
    file.write_text(LOADS.format(begun=str(begun)))
    functions.write_text(FUNCTIONS)
    program = f"""
        import crosslane, duckdb
        con = crosslane.connect(functions=[{str(functions)!r}], config={{"threads": 2}})
        con.execute("CREATE TABLE numbers AS SELECT range AS i FROM range(300_000)")
        print("ready", flush=True)
        try:
            try:
                con.execute({statement.format(begun, file=file)!r}).fetchall()
            except duckdb.Error:
                print("cancelled")
        except (KeyboardInterrupt, RuntimeError) as error:
            print(type(error).__name__)
    """
    engine = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert engine.stdout is not None
    try:
        assert engine.stdout.readline() == "ready\n"
        assert eventually(begun.exists, 30)
        os.kill(engine.pid, signal.SIGINT)
        # Python raises KeyboardInterrupt, unless DuckDB's own loop was the first to look at the signal.
        assert engine.communicate(timeout=60)[0].splitlines()[-1] in ("KeyboardInterrupt", "RuntimeError")
    finally:
        engine.kill()
