"""Workers that die, hang, or misbehave give a clear error for that query alone. Calls have limits and
retries."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import psutil
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, kill, once_at_work, printed, processes, value

WAYS_TO_DIE = {
    "os._exit(3)": "its worker process ended with exit code 3",
    "os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL",
    "ctypes.string_at(0)": "SIGSEGV",
    "os.abort()": "SIGABRT",
    "os.kill(os.getpid(), signal.SIGTERM)": "SIGTERM",
    "sys.exit(4)": "SystemExit: 4",
    "(_ for _ in ()).throw(KeyboardInterrupt())": "KeyboardInterrupt",
    "recurse(0)": "RecursionError",
}


def test_a_worker_that_dies_ends_its_query_alone(load: Load, subtests: pytest.Subtests) -> None:
    text = "import ctypes, os, signal, sys\ndef recurse(n): return recurse(n + 1) + 1\n"
    for at, way in enumerate(WAYS_TO_DIE):
        text += f"@udf\ndef f{at}(x: int) -> int:\n    if x == 1500:\n        {way}\n    return x\n"
    con = load(text)
    con.execute("CREATE TABLE t AS SELECT i FROM range(2000) r(i)")
    for at, (way, message) in enumerate(WAYS_TO_DIE.items()):
        with subtests.test(way):
            for _ in range(2):
                shown = error(con, f"SELECT f{at}(i) FROM t")
                assert message in shown
                assert f"f{at}: " in shown
                assert "with x = 1500" in shown
            assert value(con, f"SELECT sum(f{at}(i)) FROM t WHERE i < 1000") == sum(range(1000))


@pytest.mark.any_duckdb
def test_a_crash_shows_where_it_happened(load: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = load(
        """
        import ctypes
        @udf
        def f(x: int) -> int:
            print("about to read address", x)
            return ctypes.string_at(0)
        """
    )
    text = error(con, "SELECT f(7)")
    assert "the last it printed" in text
    assert "about to read address 7" in text
    assert re.search(r'functions_1.py", line \d in f', text)


@pytest.mark.any_duckdb
def test_an_error_s_text_has_a_bound(load: Load, library: Library) -> None:
    con = load("@udf\ndef f(x: int) -> int: raise ValueError('begin' + 'é' * 10_000_000 + 'end')")
    path = library("raise ValueError('begin' + 'x' * 20_000_000 + 'end')")
    for query in ("SELECT f(1)", f"FROM crosslane_load('{path}')"):
        text = error(con, query)
        assert len(text.encode()) < 500_000
        assert "ValueError: begin" in text
        assert re.search(r"\.\.\. \d+ bytes are left out \.\.\.", text)
        assert "end" in text


@pytest.mark.any_duckdb
def test_a_crash_does_not_show_what_earlier_calls_printed(load: Load) -> None:
    con = load(
        """
        import os
        print("loaded", flush=True)
        @udf
        def f(x: int) -> int:
            # More than the engine reads in one turn, and less than a pipe takes.
            print(f"called with {x}\\n" * 3000 if x == 1 else f"called with {x}", flush=True)
            if x == 2: os._exit(1)
            return x
        """
    )
    con.execute("CALL crosslane_set('warm_lanes', '1')").fetchall()
    assert value(con, "SELECT f(i) FROM range(1, 2) r(i)") == 1
    text = error(con, "SELECT f(i) FROM range(2, 3) r(i)")
    assert "called with 2" in text
    assert "called with 1" not in text
    assert "loaded" not in text


@pytest.mark.any_duckdb
def test_what_a_function_prints_reaches_the_log_and_never_the_data(
    load: Load, capfd: pytest.CaptureFixture[str]
) -> None:
    con = load(
        """
        import os, sys
        @udf
        def noisy(x: int) -> int:
            print("a line from", x)
            os.write(1, b"\\x00\\xff garbage " * 1000 + b"\\n")
            print("an error line from", x, file=sys.stderr)
            return x
        """
    )
    assert value(con, "SELECT sum(noisy(i)) FROM range(50) r(i)") == sum(range(50))
    con.close()
    printed(capfd, *(f"{kind} line from {x}\n" for x in range(50) for kind in ("a", "an error")))


@pytest.mark.any_duckdb
def test_a_worker_that_closes_its_descriptors(load: Load) -> None:
    con = load(
        """
        import os, time
        @udf
        def f(x: int) -> int:
            if x == 1000:
                os.closerange(0, 1000)
                time.sleep(1000)
            return x
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(2000) r(i)")
    text = error(con, "SELECT sum(f(i)) FROM t")
    assert "its worker closed its connection to the engine" in text
    assert "with x = 1000" in text
    for _ in range(5):
        assert value(con, "SELECT sum(f(i)) FROM t WHERE i < 900") == sum(range(900))


@pytest.mark.any_duckdb
def test_children_of_a_worker_end_with_it(load: Load, tmp_path: Path) -> None:
    # The tests of another version of DuckDB may run at the same time, and have such children, too.
    duration = f"1000.{os.getpid()}"
    con = load(
        f"""
        import os, pathlib, subprocess, time
        @udf
        def f(x: int) -> int:
            child = subprocess.Popen(["sleep", {duration!r}])
            if os.fork() == 0:
                time.sleep(1000)
            pathlib.Path({str(tmp_path / "started")!r}).touch()
            if x:
                os._exit(1)
            return child.pid
        """
    )
    value(con, "SELECT f(0)")
    assert "exit code 1" in error(con, "SELECT f(1)")
    con.close()
    assert (tmp_path / "started").exists()
    assert eventually(lambda: not processes())
    # None of the children has this process as an ancestor any more. So the test looks at all processes.
    assert eventually(
        lambda: not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", duration]]
    )


@pytest.mark.any_duckdb
def test_a_process_that_is_no_worker_is_not_ended(load: Load) -> None:
    """A library may replace `os.fork`. The number that its replacement returns is no process of the
    engine."""
    stranger = subprocess.Popen(["sleep", "1000"], process_group=0)
    try:
        con = load(
            f"""
            import os
            os.fork = lambda: {stranger.pid}
            @udf
            def f(x: int) -> int: return x
            """
        )
        assert "os.fork made no child" in error(con, "SELECT f(1)")
        con.close()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.any_duckdb
def test_timeout_ends_the_call_and_replaces_the_worker(load: Load) -> None:
    con = load(
        """
        import os, time
        @udf(timeout=0.3)
        def f(x: int) -> int:
            if x == 5:
                while True: pass
            return x
        @udf
        def pid() -> int: return os.getpid()
        """
    )
    text = error(con, "SELECT f(i) FROM range(10) r(i)")
    assert "f: timed out after 0.3 s" in text
    assert "with x = 5" in text
    assert value(con, "SELECT f(4)") == 4
    assert value(con, "SELECT lanes_lost FROM crosslane_stats() WHERE function = 'f'") == 1


STUCK = {
    "py": (
        """\
import time; from crosslane import udf
def waits(x):
    while x: {wait}
@udf{option}
def f(x: int) -> int:
    waits(x == 5)
    return x
""",
        "(timeout=0.3)",
        ("functions.py:6 in f", "functions.py:3 in waits"),
    ),
    "rb": (
        """\
def waits(x)
  loop {{ sleep 1 }} if x
end
udf("f(x BIGINT) -> BIGINT"{option}) do |x|
  waits(x == 5)
  x
end
""",
        ", timeout: 0.3",
        ("functions.rb:5 in ", "functions.rb:2 in "),
    ),
}


def stuck(language: str, timeout: bool) -> tuple[str, tuple[str, str]]:
    """A file whose function does not end for 5, and the lines where the function then is. The innermost line
    is the last."""
    text, option, frames = STUCK[language]
    # If the test waits, the function leaves the processor to others.
    wait = "pass" if timeout else "time.sleep(0.01)"
    return text.format(option=option if timeout else "", wait=wait), frames


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", STUCK)
def test_a_timeout_says_where_the_function_was(tmp_path: Path, language: str) -> None:
    path = tmp_path / f"functions.{language}"
    text, (outer, inner) = stuck(language, timeout=True)
    path.write_text(text)
    with crosslane.connect(functions=str(path)) as con:
        shown = error(con, "SELECT f(i) FROM range(10) r(i)")
        assert "f: timed out after 0.3 s" in shown
        assert 0 < shown.index(outer) < shown.index(inner) < shown.index("where it was then")
        assert value(con, "SELECT f(4)") == 4


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", STUCK)
def test_a_call_without_a_timeout_that_is_stuck(tmp_path: Path, language: str) -> None:
    path, log = tmp_path / f"functions.{language}", tmp_path / "log"
    text, (outer, inner) = stuck(language, timeout=False)
    path.write_text(text)
    program = f"""
import crosslane, duckdb
con = crosslane.connect()
con.execute("CALL crosslane_set('stuck_timeout', 0.4)")
con.execute("CALL crosslane_set('end_stuck', true)")
crosslane.load(con, {str(path)!r})
try:
    con.execute("SELECT f(i) FROM range(10) r(i)").fetchall()
except duckdb.Error as error:
    print(error)
con.execute("CALL crosslane_set('end_stuck', false)")
con.execute("CREATE OR REPLACE TABLE t AS SELECT f(4)")
crosslane.load(con, {str(path)!r})
import threading, time
from pathlib import Path
def cancel():
    # Its stack is logged once, and it goes on, for longer than until then.
    while Path({str(log)!r}).read_text().count("makes no progress; its stack:") < 2: time.sleep(0.02)
    time.sleep(1)
    crosslane.cancel(con)
canceller = threading.Thread(target=cancel, daemon=True)
canceller.start()
try:
    con.execute("SELECT f(i) FROM range(10) r(i)").fetchall()
except duckdb.Error as error:
    print(error)
canceller.join()
"""
    with log.open("w") as stderr:
        run = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60
        )
    said = log.read_text()
    ended, cancelled = run.stdout.split("where it was then")
    assert "f: timed out after 0.4 s" in ended
    assert 0 < ended.index(outer) < ended.index(inner)
    assert "f: cancelled" in cancelled or "Interrupted!" in cancelled
    # There is one message for each call. The second call is logged, too, although no timeout ends it.
    assert said.count("makes no progress; its stack:") == 2
    assert said.count("Stack (most recent call first):") == 2


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    "own",
    [
        "signal.signal(signal.SIGQUIT, lambda *_: open(mark, 'w').close())",
        "faulthandler.register(signal.SIGQUIT, open(mark, 'w'))",
    ],
)
def test_a_function_s_own_handler_is_left_alone(load: Load, tmp_path: Path, own: str) -> None:
    mark = tmp_path / "mark"
    con = load(
        f"""
        import faulthandler, signal, time
        mark = {str(mark)!r}
        {own}
        @udf(timeout=0.3)
        def f(x: int) -> int:
            while True: time.sleep(1)
        """
    )
    text = error(con, "SELECT f(1)")
    assert "f: timed out after 0.3 s" in text
    assert "where it was" not in text
    assert not mark.exists() or not mark.read_text()


@pytest.mark.any_duckdb
def test_a_deep_stack_shows_its_innermost_frames(load: Load) -> None:
    con = load(
        """
        import time
        @udf(timeout=0.3)
        def f(x: int) -> int:
            if x == 0: time.sleep(1000)
            return f(x - 1)
        """
    )
    lines = error(con, "SELECT f(90)").splitlines()
    frames = [line for line in lines if line.endswith(" in f")]
    assert len(frames) == 20
    # The last frame is the one that hangs. In each of the others, the function calls itself.
    assert [frame.split(":")[1].split()[0] for frame in frames[-2:]] == ["7", "6"]


@pytest.mark.any_duckdb
def test_a_timeout_counts_for_each_row_and_not_for_the_batch(load: Load) -> None:
    con = load(
        """
        import time
        @udf(timeout=0.5)
        def f(x: int) -> int:
            time.sleep(0.02)
            return x
        """
    )
    con.execute("CALL crosslane_set('fan_out', 'false')")
    assert value(con, "SELECT sum(f(i)) FROM range(60) r(i)") == sum(range(60))


def test_errors_as_null(load: Load) -> None:
    con = load(
        """
        import os, time
        @udf(on_error="null")
        def raises(x: int) -> int: return 10 // (x % 5)
        @udf(on_error="null")
        def dies(x: int) -> int:
            if x == 700: os._exit(1)
            return x
        @udf(on_error="null", timeout=0.2)
        def hangs(x: int) -> int:
            if x == 3: time.sleep(1000)
            return x
        @udf(on_error="null")
        def wrong(x: int) -> int: return "x" if x == 2 else x
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(1000) r(i)")
    assert con.execute("SELECT count(*), count(raises(i)) FROM t").fetchall() == [(1000, 800)]
    assert con.execute("SELECT i FROM t WHERE dies(i) IS NULL").fetchall() == [(700,)]
    assert con.execute("SELECT hangs(i) FROM range(6) r(i)").fetchall() == [
        (0,),
        (1,),
        (2,),
        (None,),
        (4,),
        (5,),
    ]
    assert con.execute("SELECT wrong(i) FROM range(4) r(i)").fetchall() == [(0,), (1,), (None,), (3,)]
    assert value(con, "SELECT errors FROM crosslane_stats() WHERE function = 'raises'") == 200


@pytest.mark.any_duckdb
def test_retries(load: Load, tmp_path: Path) -> None:
    con = load(
        f"""
        import os, pathlib
        def first(name):
            path = pathlib.Path({str(tmp_path)!r}) / name
            try:
                path.touch(exist_ok=False)
                return True
            except FileExistsError:
                return False
        @udf(retries=2)
        def raises_once(x: int) -> int:
            if first(f"raise-{{x}}"): raise ConnectionError("try again")
            return x
        @udf(retries=1)
        def dies_once(x: int) -> int:
            if x == 3 and first("die"): os._exit(1)
            return x
        @udf(retries=1)
        def always(x: int) -> int: raise ConnectionError("never")
        """
    )
    assert value(con, "SELECT sum(raises_once(i)) FROM range(4) r(i)") == 6
    assert value(con, "SELECT sum(dies_once(i)) FROM range(6) r(i)") == 15
    assert "ConnectionError: never" in error(con, "SELECT always(1)")
    assert value(con, "SELECT retries FROM crosslane_stats() WHERE function = 'raises_once'") == 4


@pytest.mark.any_duckdb
def test_memory_limit(load: Load) -> None:
    con = load(
        """
        import pyarrow as pa
        @udf(memory_limit="100 MB")
        def hog(megabytes: int) -> int:
            return len(bytes(megabytes * 10**6))
        @udf(memory_limit="100 MB", vectorized=True)
        def hogs(megabytes: pa.Int64Array) -> pa.Int64Array:
            pa.allocate_buffer(max(megabytes.to_pylist()) * 10**6)
            return megabytes
        @udf
        def free(megabytes: int) -> int:
            return len(bytes(megabytes * 10**6))
        """
    )
    assert value(con, "SELECT hog(50)") == 50_000_000
    assert "MemoryError" in error(con, "SELECT hog(300)")
    assert "hogs: pyarrow.lib.ArrowMemoryError: malloc of size 300000000 failed" in error(
        con, "SELECT hogs(300)"
    )
    assert value(con, "SELECT hogs(10)") == 10
    # The limit belongs to one function. The worker of the next function does not inherit it.
    assert value(con, "SELECT free(300)") == 300_000_000
    assert value(con, "SELECT hog(50)") == 50_000_000


@pytest.mark.any_duckdb
def test_async_functions(load: Load) -> None:
    con = load(
        """
        import asyncio, contextlib
        running = most = 0
        @udf(concurrency=8)
        async def f(x: int) -> int:
            global running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            running -= 1
            return most
        @udf
        async def late(x: int) -> int:
            await asyncio.sleep(0.01 * (5 - x))
            return x
        @udf
        async def fails(x: int | None) -> int:
            await asyncio.sleep(0)
            return 1 // x
        @udf(timeout=0.1, on_error="null")
        async def slow(x: int) -> int:
            await asyncio.sleep(10 if x == 2 else 0)
            return x
        @udf(timeout=0.1)
        async def stuck(x: int) -> int:
            while True: pass
        @udf(retries=3)
        async def flaky(x: int) -> int:
            seen.add(x) if x not in seen else None
            if len(seen) < 4: raise ConnectionError
            return x
        seen = set()
        """
    )
    con.execute("CALL crosslane_set('fan_out', 'false')")
    assert value(con, "SELECT max(f(i)) FROM range(100) r(i)") == 8
    assert con.execute("SELECT late(i) FROM range(5) r(i)").fetchall() == [(i,) for i in range(5)]
    text = error(con, "SELECT fails(2 - i) FROM range(5) r(i)")
    assert "ZeroDivisionError" in text
    assert "with x = 0" in text
    assert "TypeError" in error(con, "SELECT fails(NULL)")
    assert con.execute("SELECT slow(i) FROM range(4) r(i)").fetchall() == [(0,), (1,), (None,), (3,)]
    assert "timed out after 0.1 s" in error(con, "SELECT stuck(1)")
    assert value(con, "SELECT sum(flaky(i)) FROM range(4) r(i)") == 6


def test_cancel_ends_a_slow_function_at_once(load: Load) -> None:
    con = load(
        """
        import time
        @udf
        def sleepy(x: int) -> int:
            time.sleep(1000)
            return x
        @udf
        def busy(x: int) -> int:
            while True: pass
        """
    )
    for function in ("sleepy", "busy"):
        with (
            once_at_work(con, lambda: crosslane.cancel(con)),
            pytest.raises(duckdb.Error, match=r"cancelled|[Ii]nterrupt"),
        ):
            con.execute(f"SELECT {function}(1)").fetchall()
    assert value(con, "SELECT 1") == 1


@pytest.mark.any_duckdb
def test_a_zygote_that_is_started_again_runs_what_was_loaded(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library("@udf\ndef f(x: int) -> str: return 'f'\n@udf\ndef g(x: int) -> str: return 'g'")
    crosslane.load(con, path)
    assert value(con, "SELECT f(i) FROM range(1) r(i)") == "f"
    text = path.read_text()
    path.write_text(text.replace("def f", "def h").replace("def g", "def f").replace("def h", "def g"))
    kill(processes())
    answer = "worker closed its connection"
    while "worker closed its connection" in answer:
        # This answer came from a lane that had been killed while it was idle.
        answer = error(con, "SELECT f(i) FROM range(1) r(i)")
    assert f"{path} has changed since it was loaded" in answer
    assert f"CALL crosslane_load('{path}')" in answer
    crosslane.load(con, path)
    assert value(con, "SELECT f(i) FROM range(1) r(i)") == "g"


def test_a_killed_zygote_is_started_again(load: Load) -> None:
    con = load("@udf\ndef f(x: int) -> int: return x + 1")
    assert value(con, "SELECT f(1)") == 2
    kill(processes())
    assert eventually(lambda: not processes())
    # The warm lanes died with the zygote, and had begun no call.
    assert value(con, "SELECT f(1)") == 2


@pytest.mark.any_duckdb
def test_a_worker_found_dead_while_idle(library: Library) -> None:
    con = crosslane.connect(functions=library("import os\n@udf\ndef pid() -> int: return os.getpid()"))
    pid = value(con, "SELECT pid()")
    os.kill(int(str(pid)), signal.SIGKILL)
    time.sleep(0.2)
    assert value(con, "SELECT pid()") != pid
    con.close()
