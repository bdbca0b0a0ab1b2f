"""Host lanes: functions run in this process, on threads."""

from __future__ import annotations

import asyncio
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import crosslane
from crosslane._engines.host_lanes import Host, _Lane, _this_process

from ..conftest import error, eventually, value


@pytest.fixture
def four() -> duckdb.DuckDBPyConnection:
    con = crosslane.connect(config={"threads": 4})
    con.execute("CREATE TABLE t AS SELECT i AS x FROM range(500000) r(i)")
    yield con
    con.close()


def test_workers_run_side_by_side_in_this_process(four: duckdb.DuckDBPyConnection) -> None:
    seen = set()
    state = {"calls": 0}
    end = time.monotonic() + 60

    def wait(x: int) -> int:
        seen.add(threading.get_ident())
        state["calls"] += 1
        # The first threads wait for a third one. Without that, they could do all the work before it wakes up.
        while len(seen) < 3 and time.monotonic() < end:
            time.sleep(0.001)
        if x % 1000 == 0:
            time.sleep(0.001)
        return x

    crosslane.register(four, wait, lane="thread")
    assert value(four, "SELECT sum(wait(x)) FROM t") == sum(range(500_000))
    assert len(seen) > 2
    assert state["calls"] == 500_000


def test_what_this_process_has(four: duckdb.DuckDBPyConnection) -> None:
    factor = [3]
    crosslane.register(four, lambda x: x * factor[0], "scale(x BIGINT) -> BIGINT", lane="thread")
    assert value(four, "SELECT scale(2)") == 6
    factor[0] = 5
    assert value(four, "SELECT scale(2)") == 10
    # Each of these ways to run a query releases the interpreter's lock.
    assert four.sql("SELECT scale(x) FROM t LIMIT 2").fetchall() == [(0,), (5,)]
    assert four.table("t").filter("scale(x) = 10").fetchall() == [(2,)]
    assert four.sql("SELECT scale(7)").project("scale(1)").fetchall() == [(5,)]


def test_errors_and_limits(four: duckdb.DuckDBPyConnection) -> None:
    def inverse(x: int) -> float:
        return 1 / x

    def stuck(x: int) -> int:
        while x >= 0:
            pass
        return x

    crosslane.register(four, inverse, lane="thread")
    crosslane.register(four, stuck, lane="thread", timeout=0.3)
    text = error(four, "SELECT inverse(x) FROM t")
    assert "inverse: ZeroDivisionError" in text
    assert "with x = 0" in text
    assert "stuck: timed out after 0.3 s" in error(four, "SELECT stuck(x) FROM t")
    with pytest.raises(crosslane.DeclarationError, match="memory_limit"):
        crosslane.register(four, inverse, lane="thread", memory_limit="1 GB")
    with pytest.raises(crosslane.DeclarationError, match="'process' or 'thread'"):
        crosslane.register(four, inverse, lane="fibre")


def test_a_host_sleeps_while_an_abandoned_call_still_runs(
    four: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
    swept: queue.SimpleQueue[Host] = queue.SimpleQueue()

    def told(method: Callable[[Any], None], calls: queue.SimpleQueue[Any]) -> Callable[[Any], None]:
        def call(self: Any) -> None:
            method(self)
            calls.put(self)

        return call

    monkeypatch.setattr(_Lane, "end", told(_Lane.end, ended))
    monkeypatch.setattr(Host, "_sweep", told(Host._sweep, swept))
    others = set(_this_process()._hosts)
    enough = threading.Event()
    crosslane.register(
        four, lambda x: enough.wait(), "stuck(x BIGINT) -> BOOLEAN", lane="thread", timeout=0.2
    )
    (host,) = set(_this_process()._hosts) - others
    assert "stuck: timed out" in error(four, "SELECT stuck(1)")
    while (lane := ended.get(timeout=30)) not in host.lanes():
        pass
    # The host runs again, and does not find the same ended lane. If it did, it would run for ever.
    for _ in range(3):
        os.write(host._waker, b".")
        while swept.get(timeout=30) is not host:
            pass
    assert lane not in [ended.get() for _ in range(ended.qsize())]
    enough.set()


def test_on_error_and_retries(four: duckdb.DuckDBPyConnection) -> None:
    tries: list[int] = []

    def odd(x: int) -> int:
        tries.append(x)
        if x % 2 == 0:
            raise ValueError(x)
        return x

    crosslane.register(four, odd, lane="thread", on_error="null", retries=1)
    assert four.execute("SELECT odd(x) FROM t WHERE x < 4 ORDER BY x").fetchall() == [
        (None,),
        (1,),
        (None,),
        (3,),
    ]
    assert sorted(tries) == [0, 0, 1, 2, 2, 3]


PROGRAM = """
import os, signal
import crosslane, duckdb
con = crosslane.connect(config={"threads": 2})
def same(x: int) -> int:
    return x
crosslane.register(con, same, lane="thread")
assert con.execute("SELECT same(1)").fetchall() == [(1,)]
"""


def run(program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(program)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_a_program_ends_without_closing() -> None:
    with run("print('done')") as program:
        assert program.communicate(timeout=30)[0] == "done\n"
    assert program.returncode == 0


def test_a_fork_says_what_to_do_and_its_parent_goes_on() -> None:
    text = """
        pid = os.fork()
        if pid == 0:
            try:
                con.cursor().execute("SELECT same(2)").fetchall()
            except Exception as error:
                print(error, flush=True)
            # Its Ctrl-C is not its parent's.
            print(signal.set_wakeup_fd(-1), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(con.execute("SELECT same(3)").fetchall())
    """
    with run(text) as program:
        out = program.communicate(timeout=30)[0]
    assert "this process was forked after the functions were loaded" in out
    assert out.endswith("\n-1\n[(3,)]\n")


#: A program that reports when its function runs.
AT_WORK = """
    import threading, time
    ran = []
    def stays(x: int) -> int:
        if x == 5:
            ran.append(threading.current_thread())
            print("begun", flush=True)
            {body}
        return x
    crosslane.register(con, stays, lane="thread")
    con.execute("SET threads = {threads}")
    query = "SELECT sum(stays(x)) FROM range({rows}) r(x)"
"""


@pytest.mark.parametrize(("threads", "rows"), [(1, 10), (2, 10), (2, 500_000)])
@pytest.mark.parametrize("body", ["time.sleep(1000)", "while True: pass"])
def test_ctrl_c_ends_a_query(body: str, threads: int, rows: int) -> None:
    text = (
        AT_WORK
        + """
    try:
        try:
            con.execute(query).fetchall()
        except duckdb.Error:
            # The error is of the call, which was ended; the signal is next.
            threading.Event().wait()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Where DuckDB sees the signal itself, it raises a RuntimeError.
        print(type(error).__name__, error)
    if "while" in {body!r}:
        ran[0].join()
    print(con.execute("SELECT same(3)").fetchall(), flush=True)
    con.close()
    """
    )
    with run(text.format(body=body, threads=threads, rows=rows)) as program:
        assert program.stdout
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGINT)
        outcome, rows_after = program.communicate(timeout=30)[0].splitlines()
    assert outcome in ("KeyboardInterrupt ", "RuntimeError Query interrupted")
    assert threads == 2 or outcome == "KeyboardInterrupt "
    assert rows_after == "[(3,)]"
    assert program.returncode == 0


@pytest.mark.parametrize("body", ["time.sleep(1000)", "while True: pass"])
def test_ctrl_c_ends_a_program(body: str) -> None:
    with run(AT_WORK.format(body=body, threads=1, rows=10) + "    con.execute(query)") as program:
        assert program.stdout
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=30)
    # The program ends by the query's error, or by an earlier KeyboardInterrupt, but not by an abort.
    assert program.returncode in (1, -signal.SIGINT)


def test_a_program_that_asks_for_its_signals_gets_them() -> None:
    text = """
        import signal
        reader, writer = os.pipe2(os.O_NONBLOCK)
        assert signal.set_wakeup_fd(writer) != -1
        crosslane.register(con, same, lane="thread")
        print(signal.set_wakeup_fd(-1) == writer)
    """
    with run(text) as program:
        assert program.communicate(timeout=30)[0] == "True\n"


def test_threads_end_with_the_database(four: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(four, lambda x: x, "same(x BIGINT) -> BIGINT", lane="thread")
    assert value(four, "SELECT sum(same(x)) FROM t") == sum(range(500_000))

    def lanes() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("crosslane-")]

    assert lanes()
    four.close()
    assert eventually(lambda: not lanes())


def test_what_was_registered_leaves_no_descriptors() -> None:
    this = psutil.Process()

    def once() -> None:
        con = crosslane.connect(config={"threads": 1})
        for _ in range(2):
            crosslane.register(con, lambda x: x, "same(x BIGINT) -> BIGINT", lane="thread")
            assert value(con, "SELECT same(7)") == 7
        con.close()
        assert eventually(lambda: not hosts())

    def hosts() -> list[str]:
        return [it.name for it in threading.enumerate() if it.name.startswith("crosslane-")]

    once()
    before = this.num_fds()
    for _ in range(3):
        once()
    assert eventually(lambda: this.num_fds() <= before), (before, this.num_fds())


def test_a_host_that_gets_no_descriptors_says_so_and_lives_on() -> None:
    host = Host(None)
    lane = socket.socketpair()
    sent = [os.dup(lane[1].fileno()) for _ in range(3)]
    request = b'{"op": "fork", "lane": 1, "spin_microseconds": 0}'
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Descriptors above the limit stay open, and the process can open no more.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
    try:
        for _ in range(2):
            socket.send_fds(host.engine, [len(request).to_bytes(4, "little") + request], sent)
            assert b'"unforked"' in host.engine.recv(4096)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        for descriptor in sent:
            os.close(descriptor)
        for end in (*lane, host.engine):
            end.close()


def test_vectorized_and_async(four: duckdb.DuckDBPyConnection) -> None:
    def double(x: pa.Int64Array) -> pa.Int64Array:
        return pc.multiply(x, 2)

    async def later(x: int) -> int:
        await asyncio.sleep(0.001)
        return x

    crosslane.register(four, double, lane="thread", vectorized=True)
    crosslane.register(four, later, lane="thread", concurrency=100)
    assert value(four, "SELECT sum(double(x)) FROM t") == 2 * sum(range(500_000))
    assert value(four, "SELECT sum(later(x)) FROM t WHERE x < 5000") == sum(range(5000))


def _lanes() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("crosslane-")]


def test_a_host_ends_where_there_are_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    this = psutil.Process()
    before = this.num_fds()
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        con = crosslane.connect(config={"threads": 1})
        crosslane.register(con, lambda x: x, "same(x BIGINT) -> BIGINT", lane="thread")
        assert value(con, "SELECT same(7)") == 7
        con.close()
        assert eventually(lambda: not _lanes())
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert eventually(lambda: this.num_fds() <= before), (before, this.num_fds())


def test_a_lane_that_is_dropped_before_it_has_begun_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = threading.Event()
    live = Host._live

    def later(self: Host, *arguments: object) -> None:
        begin.wait()
        live(self, *arguments)

    monkeypatch.setattr(Host, "_live", later)
    this = psutil.Process()
    before = this.num_fds()
    host = Host([])
    lane = socket.socketpair()
    request = b'{"op": "fork", "lane": 1, "spin_microseconds": 0}'
    sent = [lane[1].fileno()] * 3
    socket.send_fds(host.engine, [len(request).to_bytes(4, "little") + request], sent)
    assert b'"forked"' in host.engine.recv(4096)
    for end in (*lane, host.engine):
        end.close()
    assert eventually(lambda: all(lane.told for lane in host._lanes.values()))
    begin.set()
    assert eventually(lambda: not _lanes())
    assert eventually(lambda: this.num_fds() <= before), (before, this.num_fds())
