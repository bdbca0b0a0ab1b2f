"""Every wait ends at the right event, and at no event that belongs to another wait."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TextIO

import duckdb
import psutil
import pytest

import crosslane

from ..conftest import CPUS, Library, Load, error, eventually, kill, processes, value


@pytest.mark.timeout(60)
def test_a_timeout_ends_a_call_while_the_next_batch_finds_no_room(load: Load) -> None:
    con = load("@udf\ndef nothing(x: int) -> int: return x")
    con.execute("CALL crosslane_set('warm_lanes', '1')")
    load(
        """
        import time
        @udf(timeout=1)
        def size(text: str) -> int:
            time.sleep(1000 if text[0] == "h" else 0.03)
            return len(text)
        """
    )
    # A row costs so much that the engine sends each row alone. It sends the second row while the worker runs
    # the first. The second row would have to begin at the ring's start, which is taken.
    assert value(con, "SELECT size(repeat(c, 300000)) FROM (VALUES ('a')) t(c)") == 300000
    text = error(con, "SELECT size(repeat(c, 400000)) FROM (VALUES ('h'), ('h'), ('h')) t(c)")
    assert "timed out after 1" in text


@pytest.mark.timeout(60)
def test_rows_that_no_worker_took_are_sent_again(load: Load) -> None:
    con = load(
        """
        import os
        @udf(on_error="null", deterministic=False)
        def f(x: int) -> int: return x + 1
        @udf(deterministic=False)
        def g(x: int) -> int: return x + 1
        """
    )
    for function in ("f", "g"):
        assert value(con, "SELECT f(1)") == 2
        assert eventually(lambda: value(con, "SELECT idle FROM crosslane_pools()") == CPUS)
        # The zygote is killed, too, so that no process reports the ends of the others.
        kill(processes())
        assert eventually(lambda: not processes())
        assert value(con, f"SELECT sum({function}(i)) FROM range(100) r(i)") == 5050


SLEEPERS = """
    import time
    from pathlib import Path
    @udf(deterministic=False)
    def sleeps(seconds: float) -> float:
        time.sleep(seconds)
        return seconds
    @udf(deterministic=False)
    def reads(path: str) -> str: return Path(path).read_text()
    @udf(timeout=0.5)
    def late(path: str) -> int:
        with open(path, "a") as file: file.write("called\\n")
        time.sleep(1000)
        return 1
    @udf
    def raises(path: str) -> int:
        with open(path, "a") as file: file.write("called\\n")
        raise ValueError("no")
    @udf
    def waits(path: str) -> int:
        with open(path, "a") as file: file.write("called\\n")
        time.sleep(1000)
        return 1
"""


BUSY = "SELECT count(*) FROM crosslane_lanes() WHERE busy"


class Query(threading.Thread):
    """Runs a query on another thread."""

    def __init__(self, con: duckdb.DuckDBPyConnection, query: str) -> None:
        super().__init__()
        self.con, self.query, self.outcome = con, query, ""
        self.start()

    def run(self) -> None:
        try:
            self.outcome = str(self.con.execute(self.query).fetchall())
        except duckdb.Error as error:
            self.outcome = str(error)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["connect", "load", "cursor", "sql"])
def test_cancelling_a_query_leaves_those_of_other_connections(
    library: Library, tmp_path: Path, way: str
) -> None:
    path = str(tmp_path / "calls.db")
    con = crosslane.connect(path, library(SLEEPERS))
    other = crosslane.connect(path)
    mine = {
        "connect": lambda: con,
        "load": lambda: duckdb.connect(path, config={"allow_unsigned_extensions": "true"}),
        "cursor": lambda: crosslane.cursor(con),
        "sql": con.cursor,
    }[way]()
    if way == "load":
        crosslane.load(mine, library("@udf\ndef unused(x: int) -> int: return x"))
    number = value(mine, "SELECT current_connection_id()")
    watch = other.cursor()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    queries = [Query(mine, "SELECT sleeps(1000)"), Query(other, f"SELECT reads('{pipe}')")]
    assert eventually(lambda: value(watch, BUSY) == 2)
    if way != "sql":
        crosslane.cancel(mine)
    else:
        assert value(watch, f"FROM crosslane_cancel_connection({number})") is True
        assert value(watch, "FROM crosslane_cancel_connection(-1)") is False
    queries[0].join()
    assert "cancelled" in queries[0].outcome or "nterrupt" in queries[0].outcome
    pipe.write_text("spared")
    queries[1].join()
    assert queries[1].outcome == "[('spared',)]"
    for connection in (watch, mine, other, con):
        connection.close()


@pytest.mark.timeout(60)
def test_a_connection_that_is_not_known_spares_the_others(load: Load, tmp_path: Path) -> None:
    con = load(SLEEPERS)
    unknown = con.cursor()
    watch = con.cursor()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    query = Query(con, f"SELECT reads('{pipe}')")
    assert eventually(lambda: value(watch, BUSY) == 1)
    with pytest.raises(ValueError, match=r"crosslane\.cursor\(con\)"):
        crosslane.cancel(unknown)
    pipe.write_text("spared")
    query.join()
    assert query.outcome == "[('spared',)]"


@pytest.mark.timeout(60)
def test_a_cancelled_query_is_the_last_that_is_cancelled(load: Load, tmp_path: Path) -> None:
    con = load(SLEEPERS)
    # All queries run on this thread.
    con.execute("SET threads = 1")
    log = tmp_path / "log"

    def cancel() -> None:
        # A worker may already be busy for a moment before it calls the function.
        with con.cursor() as watch:
            assert eventually(lambda: log.exists() and value(watch, BUSY) == 1)
        crosslane.cancel(con)

    for query in (f"SELECT waits('{log}')", "SELECT sleeps(1000)"):
        # The worker of the cancelled call may still be ending. The test would take it for the worker of the
        # next call.
        assert eventually(lambda: value(con, BUSY) == 0)
        canceller = threading.Thread(target=cancel)
        canceller.start()
        text = error(con, query)
        assert "cancelled" in text or "nterrupt" in text
        assert value(con, "SELECT sleeps(0)") == 0
        canceller.join()
    assert log.read_text() == "called\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("function", "words"), [("late", "timed out"), ("raises", "ValueError")])
def test_a_call_with_constants_that_fails_slowly_is_made_once(
    load: Load, tmp_path: Path, function: str, words: str
) -> None:
    con = load(SLEEPERS)
    log = tmp_path / "log"
    assert words in error(con, f"SELECT {function}('{log}')")
    # DuckDB plans in one or two attempts. The engine cannot tell a run of a prepared query from such an
    # attempt. So it repeats a call that fails quickly, and does not repeat one that takes long.
    calls = (3 if duckdb.__version__ >= "2" else 2) if function == "raises" else 1
    assert log.read_text() == "called\n" * calls
    # The next query does not know this failure.
    assert words in error(con, f"SELECT {function}('{log}')")
    assert log.read_text() == "called\n" * 2 * calls


@pytest.mark.timeout(60)
def test_the_time_of_writing_a_result_counts_for_its_row(load: Load) -> None:
    con = load(
        """
        import time
        class Lazy:
            def __init__(self, x): self.x = x
            def __iter__(self):
                time.sleep(1000 if self.x == 99 else 0.15)
                yield self.x
        @udf(timeout=1)
        def lazy(x: int) -> list[int]:
            return Lazy(x)
        @udf(timeout=1, concurrency=8)
        async def later(x: int) -> list[int]:
            return Lazy(x)
        """
    )
    con.execute("SET threads = 1")
    for function in ("lazy", "later"):
        # All rows together take longer than the timeout. No single row does.
        query = f"SELECT {function}(i)[1] FROM range(8) r(i)"
        assert con.execute(query).fetchall() == [(i,) for i in range(8)]
        text = error(con, f"SELECT {function}(i + 98) FROM range(8) r(i)")
        assert "timed out" in text
        assert "with x = 99" in text


@pytest.mark.timeout(60)
def test_the_time_of_getters_counts_for_their_row(script: Load) -> None:
    con = script(
        """
        const busy = (milliseconds) => { const end = Date.now() + milliseconds; while (Date.now() < end); };
        udf("lazy(x INTEGER) -> STRUCT(value INTEGER)", { timeout: 1 }, (x) => {
          busy(20);
          return { get value() { busy(150); return x; } };
        });
        """
    )
    con.execute("SET threads = 1")
    assert con.execute("SELECT lazy(i::INTEGER).value FROM range(8) r(i)").fetchall() == [
        (i,) for i in range(8)
    ]


#: A handler of a signal blocks the zygote of this file until the test lets it go on. Then the zygote reports
#: Ctrl-C with its time.
LATE = """
import os, signal
from pathlib import Path
Path({told!r} + ".pid").write_text(str(os.getpid()))
signal.signal(signal.SIGUSR1, lambda *_: Path({told!r}).read_text())
@udf(deterministic=False)
def waits(path: str) -> str: return Path(path).read_text()
"""

#: Runs each line as a query on a connection of its own, and prints how it ended.
ENGINE = """
import crosslane, os, signal, sys, threading
signal.signal(signal.SIGINT, lambda *_: None)
con = crosslane.connect(functions={path!r}, config={{"threads": 1}})
def run(cursor, query):
    try: outcome = cursor.execute(query).fetchall()
    except Exception as error: outcome = "cancelled" in str(error) or error
    # In one piece, whatever the other threads print.
    os.write(1, f"{{outcome}}\\n".encode())
for line in sys.stdin:
    threading.Thread(target=run, args=(con.cursor(), line)).start()
"""


def pending(process: psutil.Process) -> bool:
    """Whether a process has a pending signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return any(int(line.split()[1], 16) for line in status.splitlines() if "Pnd:" in line)


@pytest.mark.timeout(60)
def test_ctrl_c_ends_what_began_before_it_on_all_connections(library: Library, tmp_path: Path) -> None:
    pipes = [str(tmp_path / name) for name in ("first", "second", "later", "told")]
    for path in pipes:
        os.mkfifo(path)
    first, second, later, told = pipes
    program = ENGINE.format(path=str(library(LATE.format(told=told))))
    engine = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert engine.stdin
    assert engine.stdout
    with contextlib.ExitStack() as stack:
        stack.enter_context(engine)
        stack.callback(engine.kill)

        def opened(path: str) -> TextIO:
            # The call returns when the other end is open, too.
            return stack.enter_context(open(path, "w"))

        def begin(query: str, path: str) -> TextIO:
            print(query, file=engine.stdin, flush=True)
            return opened(path)

        idle, *_ = [begin(f"SELECT waits('{path}')", path) for path in (later, first, second)]
        # This starts a worker for the later query. The zygote makes no worker while its handler blocks it.
        idle.close()
        assert engine.stdout.readline() == "[('',)]\n"
        process = psutil.Process(int(Path(f"{told}.pid").read_text()))
        process.send_signal(signal.SIGUSR1)
        zygote = opened(told)
        os.killpg(engine.pid, signal.SIGINT)
        assert eventually(lambda: not pending(process) and process.status() == psutil.STATUS_SLEEPING)
        # The second call of this query begins after the cancellation.
        spared = begin(f"SELECT waits('{later}') || waits('/dev/null')", later)
        zygote.close()
        assert [engine.stdout.readline() for _ in (first, second)] == ["True\n", "True\n"]
        spared.write("spared")
        spared.close()
        assert engine.stdout.readline() == "[('spared',)]\n"
