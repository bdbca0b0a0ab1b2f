"""JavaScript functions that run out of control, and the effects on their isolates and on the process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import psutil
import pytest

import crosslane

from ..conftest import CPUS, Load, error, eventually, kill, lives, once_at_work, processes, ready, value

pytestmark = pytest.mark.any_duckdb


def lanes(con: duckdb.DuckDBPyConnection) -> list[tuple[int, int]]:
    return con.execute("SELECT lane, pid FROM crosslane_lanes() ORDER BY lane").fetchall()


#: The code of a function, its options, and the error with which it ends.
RUNAWAYS = {
    "for (;;) {}": ("timeout: 0.2", "TimeoutError: timed out after 0.2 s"),
    "for (;;) { try { for (;;) {} } catch {} finally {} }": ("timeout: 0.2", "TimeoutError"),
    "/^(a+)+$/.test('a'.repeat(50) + 'b')": ("timeout: 0.2", "TimeoutError"),
    "[...(function* () { for (;;) yield 1; })()].length": ("timeout: 0.2", "TimeoutError"),
    "new Promise(async () => { for (;;) await null; })": ("timeout: 0.2", "TimeoutError"),
    "new Promise((done) => setTimeout(done, 1e6))": ("timeout: 0.2", "TimeoutError"),
    "(function f(n) { return f(n + 1) + 1; })(0)": ("", "RangeError: Maximum call stack size exceeded"),
    "{ let a = []; for (let i = 0; i < 1e6; i++) a = [a]; return JSON.stringify(a).length; }": (
        "",
        "RangeError: Maximum call stack size exceeded",
    ),
    "new RegExp('('.repeat(1e5) + ')'.repeat(1e5))": ("", "Invalid regular expression"),
    "{ let s = 'abc'; for (;;) s += s; }": ("", "RangeError: Invalid string length"),
    "{ const all = []; for (;;) all.push('x'.repeat(1 << 24) + all.length); }": (
        "memory_limit: '100 MB'",
        "100 MB were used",
    ),
    "{ const all = []; for (;;) all.push({ all }); }": ("memory_limit: '50 MB'", "more than 50 MB were used"),
    "{ const all = []; for (;;) all.push(1.5); }": ("memory_limit: '50 MB'", "more than 50 MB were used"),
    "{ const all = []; for (;;) all.push(new Uint8Array(1e6)); }": (
        "memory_limit: '50 MB'",
        "more than 50 MB",
    ),
    "new Uint8Array(2 ** 31).length": (
        "",
        "more than 537 MB were used; the option memory_limit changes this limit",
    ),
    "{ globalThis.kept = []; for (;;) kept.push({ a: 1 }); }": (
        "memory_limit: '50 MB'",
        "more than 50 MB were used",
    ),
    "new Array(-1).length": ("", "RangeError: Invalid array length"),
    "{ let n = 2n; for (;;) n *= n; }": ("timeout: 0.3", "TimeoutError"),
}


@pytest.fixture
def runaways(script: Load) -> duckdb.DuckDBPyConnection:
    lines = []
    for index, (body, (options, _)) in enumerate(RUNAWAYS.items()):
        block = body if body.startswith(("{", "for")) else f"return {body};"
        lines.append(
            f"udf('f{index}(x BIGINT) -> BIGINT', {{ {options} }}, (x) => {{ if (x !== 2) return x; {block} }});"
        )
    return script("\n".join(lines))


def test_runaways_end_as_errors_and_their_lanes_go_on(runaways: duckdb.DuckDBPyConnection) -> None:
    con = runaways
    con.execute("SET threads = 1")
    assert value(con, "SELECT f0(1)") == 1
    assert eventually(lambda: len(lanes(con)) == CPUS)
    before = lanes(con)
    for index, (body, (_, message)) in enumerate(RUNAWAYS.items()):
        text = error(con, f"SELECT f{index}(x) FROM range(4) r(x)")
        assert message in text, body
        assert "in row 3 of the batch, with x = 2" in text, body
        assert value(con, f"SELECT sum(f{index}(x)) FROM range(2) r(x)") == 1
        # The isolate is usable afterwards, or it was replaced in its lane. The lane and its process are the
        # same.
        assert lanes(con) == before, body


def test_a_timeout_tells_the_place(script: Load) -> None:
    con = script(
        """
        function spin() {
          while (true) {}
        }
        udf("f(x BIGINT) -> BIGINT", { timeout: 0.2 }, (x) => {
          spin();
        });
        """
    )
    text = error(con, "SELECT f(1)")
    assert "at spin (" in text
    assert "functions.js:2:" in text
    assert "functions.js:5:" in text


def test_runaways_become_null_where_asked(script: Load) -> None:
    con = script(
        """
        udf("loops(x BIGINT) -> BIGINT", { timeout: 0.1, on_error: "null" }, (x) => { while (x === 2) {} return x; });
        udf("hogs(x BIGINT) -> BIGINT", { memory_limit: "30 MB", on_error: "null" }, (x) => { const all = []; while (x === 2) all.push({ x }); return x; });
        udf("waits(x BIGINT) -> BIGINT", { timeout: 0.2, on_error: "null", concurrency: 4 }, async (x) => {
          if (x === 2) await new Promise((done) => setTimeout(done, 1e6));
          return x;
        });
        udf("retried(x BIGINT) -> BIGINT", { timeout: 0.1, retries: 2, on_error: "null" }, (x) => { while (x === 2) {} return x; });
        """
    )
    for name in ("loops", "hogs", "waits", "retried"):
        rows = con.execute(f"SELECT {name}(x) FROM range(5) r(x)").fetchall()
        assert rows == [(0,), (1,), (None,), (3,), (4,)], name
    stats = con.execute("SELECT function, errors, retries, lanes_lost FROM crosslane_stats()").fetchall()
    assert stats == [("loops", 1, 0, 0), ("hogs", 1, 0, 0), ("waits", 1, 0, 0), ("retried", 1, 2, 0)]


#: Code that fills memory without ever reaching a check of V8.
GREEDY = (
    "new Array(2 ** 27).fill(1.1)",
    "new Array(1e9).fill(0)",
    "Array.from({ length: 3e8 })",
    "[...new Array(1e9).keys()]",
    "'a'.repeat(5e7).match(/a/g)",
    "(() => { const a = []; a.length = 4294967295; return a; })()",
    "Object.keys('a'.repeat(3e8))",
    "Object.entries(Object('a'.repeat(3e8)))",
    "new Map(new Array(1e8).entries())",
    # V8 does not count this memory, because it is outside of V8's heap.
    "JSON.parse('[' + '1,'.repeat(1e8) + '1]')",
    "'a,'.repeat(1e8).split(',')",
    "'a\u0301'.repeat(2e8).normalize()",
    "new RegExp('a'.repeat(1e8))",
    "new RegExp('(?:' + 'a|'.repeat(1e7) + 'b)').test('c')",
    "Function('return [' + '1,'.repeat(3e7) + ']')()",
    # This is one string, and not an array of strings.
    "'a'.repeat(5e8).toUpperCase()",
)


def test_code_that_fills_memory_without_a_check_of_v8_is_ended(
    script: Load, subtests: pytest.Subtests
) -> None:
    con = script(
        "\n".join(
            f'udf("greedy{at}(x BIGINT) -> BIGINT[]", {{ memory_limit: "60 MB" }}, (x) => (x === 2 ? {body} : [x]));'
            for at, body in enumerate(GREEDY)
        )
        + '\nudf("fine(x BIGINT) -> BIGINT", (x) => x + 1);'
    )
    for at, body in enumerate(GREEDY):
        with subtests.test(body):
            assert value(con, f"SELECT greedy{at}(1)") == [1]
            text, peak = measured(con, f"SELECT greedy{at}(2)")
            assert "60 MB were used" in text or "a call used up its memory and could not be ended" in text
            # A call that nothing ended used up to 6.3 GB.
            assert peak < 400e6
            assert value(con, "SELECT fine(1)") == 2


def measured(con: duckdb.DuckDBPyConnection, query: str) -> tuple[str, int]:
    """The error with which a query ends, and the peak of the memory of the lanes' process during the
    query."""
    host = psutil.Process(lanes(con)[0][1])
    peak, over = 0, threading.Event()

    def measure() -> None:
        nonlocal peak
        while not over.wait(0.01):
            try:
                peak = max(peak, host.memory_info().rss)
            except psutil.Error:
                return

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        text = error(con, query)
    finally:
        over.set()
        thread.join()
    return text, peak


def test_the_error_says_whether_memory_or_room_is_missing(script: Load) -> None:
    con = script(
        """
        udf("filled(x BIGINT) -> BIGINT", { memory_limit: "3 GB" }, (x) => {
          for (const all = []; x === 2; ) all.push(new Array(1e6).fill(1.5));
          return x;
        });
        udf("parts(x BIGINT) -> BIGINT", (x) => (x === 2 ? "a".repeat(3e8) : "a").split("").length);
        """
    )
    assert value(con, "SELECT filled(1)") == 1
    text = error(con, "SELECT parts(2)")
    assert "its process had to be ended: a value exceeds V8's largest size" in text
    assert value(con, "SELECT filled(1)") == 1
    # No isolate shall start during the call. V8 ends a process that has no room for a new isolate.
    con.execute("CALL crosslane_set('warm_lanes', '2')").fetchall()
    assert eventually(lambda: value(con, "SELECT idle FROM crosslane_pools()") == 2)
    con.execute("CALL crosslane_set('warm_lanes', '1')").fetchall()
    host = psutil.Process(lanes(con)[0][1])
    # V8 reserves 128 MB for the code of the next isolate, and first frees the 128 MB of this one.
    host.rlimit(psutil.RLIMIT_AS, (host.memory_info().vms + (100 << 20),) * 2)
    text = error(con, "SELECT filled(2)")
    assert "RangeError: V8 found no memory for its heap: the system gives the process no more\n" in text
    assert value(con, "SELECT filled(1)") == 1


def test_a_list_of_cpp_for_which_there_is_no_memory_ends_its_call(script: Load) -> None:
    # V8's parser of JSON keeps lists outside of V8's heap.
    con = script(
        """
        let text = "";
        udf("parsed(x BIGINT) -> BIGINT", { memory_limit: "3 GB" }, (x) => {
          text ||= "[" + "1,".repeat(3e7) + "1]";
          return x === 1 ? text.charCodeAt(5) : JSON.parse(text).length;
        });
        """
    )
    assert value(con, "SELECT parsed(1)") == 49
    host = psutil.Process(lanes(con)[0][1])
    host.rlimit(psutil.RLIMIT_AS, (host.memory_info().vms + (200 << 20),) * 2)
    text = error(con, "SELECT parsed(2)")
    assert "its process had to be ended: the system gives the process no more memory" in text
    assert value(con, "SELECT parsed(1)") == 49


def test_the_memory_of_a_failed_call_is_freed(script: Load) -> None:
    con = script(
        """
        let kept = [];
        udf("hog(x BIGINT) -> BIGINT", { memory_limit: "50 MB" }, (x) => { for (;;) kept.push({ x }); });
        udf("kept(x BIGINT) -> BIGINT", { deterministic: false }, (x) => kept.length);
        """
    )
    con.execute("SET threads = 1")
    assert "more than 50 MB" in error(con, "SELECT hog(1)")
    assert value(con, "SELECT kept(1)") == 0


def test_v8_giving_up_ends_only_its_process(script: Load) -> None:
    # This array is larger than the largest array of V8. V8 ends the process, and raises no exception.
    con = script(
        """
        udf("fatal(x BIGINT) -> BIGINT", { memory_limit: "8 GB" }, (x) => "x".repeat(2 ** 28).split("").length);
        udf("fine(x BIGINT) -> BIGINT", (x) => x + 1);
        """
    )
    assert value(con, "SELECT fine(1)") == 2
    ((_, pid), *_) = lanes(con)
    text = error(con, "SELECT fatal(1)")
    assert "fatal: RangeError: its process had to be ended: a value exceeds V8's largest size" in text
    assert value(con, "SELECT fine(1)") == 2
    assert lanes(con)[0][1] != pid


def test_a_load_whose_process_is_killed_says_so(tmp_path: Path) -> None:
    path = tmp_path / "endless.js"
    path.write_text("while (true) {}")

    def loading() -> list[psutil.Process]:
        # A process may end between two looks.
        with contextlib.suppress(psutil.NoSuchProcess):
            hosts = [process for process in processes() if "crosslane-js" in process.name()]
            return [process for process in hosts if process.ppid() in {host.pid for host in hosts}]
        return []

    def kill_one() -> None:
        found: list[psutil.Process] = []
        if eventually(lambda: bool(found or found.extend(loading()) or found)):
            kill(found[:1])

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(duckdb.Error, match=r"was killed \(SIGKILL\)"):
        crosslane.connect(functions=path)
    killer.join()


def test_calls_of_a_killed_process_are_made_again(script: Load) -> None:
    con = script(
        "udf('slow(x BIGINT) -> BIGINT', (x) => { const end = Date.now() + 2; while (Date.now() < end); return x; });"
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(1000) r(i)")
    assert value(con, "SELECT slow(1)") == 1
    killed = threading.Event()

    def kill() -> None:
        cursor = con.cursor()
        found: list[tuple[int]] = []

        def busy() -> bool:
            found.extend(cursor.execute("SELECT pid FROM crosslane_lanes() WHERE busy").fetchall())
            return bool(found)

        assert eventually(busy)
        # The test kills the lane that it has found. Another query might find none, because the call may be
        # over.
        os.kill(found[0][0], signal.SIGKILL)
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    assert value(con, "SELECT sum(slow(i)) FROM t") == sum(range(1000))
    thread.join()
    assert killed.is_set()


@pytest.mark.parametrize(
    "body",
    ["numbers.slice().sort().length", "new Array(4e8).reverse().length", "new Array(1e9).indexOf(1)"],
)
def test_a_call_that_cannot_be_ended_fails_no_other_call(script: Load, body: str) -> None:
    con = script(
        f"""
        const numbers = Array.from({{ length: 2e6 }}, Math.random);
        udf("stubborn(x BIGINT) -> BIGINT", {{ timeout: 0.5 }}, (x) => (x === 2 ? {body} : x));
        udf("slow(x BIGINT) -> BIGINT", async (x) => {{ await new Promise((done) => setTimeout(done, 2)); return x; }});
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(3000) r(i)")
    assert value(con, "SELECT slow(1)") == 1
    ((_, pid), *_) = lanes(con)
    assert "stubborn: timed out after 0.5 s" in error(con, "SELECT stubborn(2)")
    # The engine ends the process during this query, because the call above goes on.
    assert value(con, "SELECT sum(slow(i)) FROM t") == sum(range(3000))
    assert lanes(con)[0][1] != pid


def test_a_process_that_is_killed_again_and_again_is_an_error(script: Load) -> None:
    con = script(
        "console.log('loaded'); udf('endless(x BIGINT) -> BIGINT', (x) => { while (x === 1) {} console.log('called with', x); return x; });"
    )
    assert value(con, "SELECT endless(2)") == 2
    stop = threading.Event()

    def kill() -> None:
        cursor = con.cursor()
        while not stop.is_set():
            for (pid,) in cursor.execute("SELECT pid FROM crosslane_lanes() WHERE busy").fetchall():
                # The process may already have been killed.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        text = error(con, "SELECT endless(1)")
        assert "SIGKILL" in text
        # The text that was printed before the call is not shown as output of the call.
        assert "loaded" not in text
        assert "called with" not in text
    finally:
        stop.set()
        thread.join()


def test_cancelling(script: Load) -> None:
    con = script("udf('endless(x BIGINT) -> BIGINT', (x) => { while (x === 1) {} return x; });")
    assert value(con, "SELECT endless(2)") == 2
    # The call would never end.
    with (
        once_at_work(con, lambda: crosslane.cancel(con)),
        pytest.raises(duckdb.Error, match=r"cancelled|[Ii]nterrupt"),
    ):
        con.execute("SELECT endless(1)").fetchall()
    assert value(con, "SELECT sum(endless(x)) FROM range(2, 4) r(x)") == 5


def test_closing_ends_the_process_even_in_a_call(tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text("udf('endless(x BIGINT) -> BIGINT', (x) => { while (x === 1) {} return x; });")
    con = crosslane.connect(functions=path, config={"threads": 2})
    started = {process for process in processes() if "crosslane-js" in process.name()}
    assert len(started) == 1
    with (
        once_at_work(con, lambda: crosslane.cancel(con)),
        pytest.raises(duckdb.Error, match=r"cancelled|[Ii]nterrupt"),
    ):
        con.execute("SELECT endless(1)").fetchall()
    con.close()
    assert eventually(lambda: not any(lives(process) for process in started))


def test_lanes_are_threads_of_one_process(script: Load) -> None:
    con = script(
        """
        udf("work(x BIGINT) -> BIGINT", (x) => { const end = Date.now() + 1; while (Date.now() < end); return x; });
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(400) r(i)")
    ready(con, "work")
    assert value(con, "SELECT sum(work(i)) FROM t") == sum(range(400))
    assert value(con, "SELECT count(*) FROM crosslane_lanes() WHERE rows > 1") == min(2, CPUS)
    assert value(con, "SELECT count(DISTINCT pid) FROM crosslane_lanes()") == 1
    assert value(con, "SELECT fanned_out > 0 FROM crosslane_stats()") is (CPUS > 1)


def test_isolates_of_one_snapshot_are_not_one(script: Load) -> None:
    con = script(
        """
        udf("draw(x BIGINT) -> DOUBLE", { deterministic: false }, (x) => { const end = Date.now() + 2; while (Date.now() < end); return Math.random(); });
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(200) r(i)")
    ready(con, "draw")
    drawn: list[tuple[float]] = []

    def all_lanes_draw() -> bool:
        # On a busy machine, the engine may use only one lane for a query.
        drawn.extend(con.execute("SELECT draw(i) FROM t").fetchall())
        return bool(value(con, "SELECT count(*) FROM crosslane_lanes() WHERE rows > 1") == min(2, CPUS))

    assert eventually(all_lanes_draw)
    assert len(set(drawn)) == len(drawn)


def test_a_killed_engine_leaves_no_host_behind(tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text("udf('endless(x BIGINT) -> BIGINT', (x) => { for (;;); });")
    program = (
        f"import crosslane; con = crosslane.connect(functions={str(path)!r}); print('loaded', flush=True);"
        " con.execute('SELECT endless(i) FROM range(3) r(i)').fetchall()"
    )
    engine = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert engine.stdout is not None
    assert engine.stdout.readline() == b"loaded\n"
    hosts = psutil.Process(engine.pid).children(recursive=True)
    assert hosts
    engine.kill()
    engine.wait()
    assert eventually(lambda: not any(lives(host) for host in hosts))


def test_ctrl_c_ends_a_load(tmp_path: Path) -> None:
    path = tmp_path / "endless.js"
    path.write_text("console.log('loading');\nfor (;;);")
    command = [sys.executable, "-m", "crosslane._cli", "sql", "-f", str(path), "SELECT 1"]
    # The command has its own process group, like a foreground job of a terminal.
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert job.stderr is not None
    assert job.stderr.readline() == "loading\n"
    os.killpg(job.pid, signal.SIGINT)
    rest = job.communicate(timeout=20)[1]
    assert job.returncode != 0
    assert re.search("Aborted|interrupted", rest)


def test_batches_leave_nothing_in_memory(script: Load) -> None:
    con = script(
        """
        udf("text(x VARCHAR) -> VARCHAR", (x) => x + "!");
        udf("listed(x BIGINT[]) -> BIGINT[]", (x) => x.concat(x));
        udf("columned(x DOUBLE) -> DOUBLE", { vectorized: true }, (x) => x.map((v) => v + 1));
        """
    )
    query = (
        "SELECT sum(strlen(text('some text, number ' || i))), sum(len(listed([i, i]))), sum(columned(i))"
        " FROM range({}) r(i)"
    )

    def used() -> float:
        return psutil.Process(lanes(con)[0][1]).memory_full_info().uss / 1e6

    con.execute(query.format(300_000)).fetchall()
    before = used()
    con.execute(query.format(2_000_000)).fetchall()
    # The young generations of two isolates may grow to their full size, but no further.
    assert used() < before + 100


def test_a_host_sleeps_while_there_is_no_call(script: Load) -> None:
    con = script("udf('spin(x BIGINT) -> BIGINT', { timeout: 0.2 }, (x) => { while (true) {} })")
    (_, pid), *_ = lanes(con)

    def sleeps() -> bool:
        # The process waits in ppoll. The third argument of ppoll is a time or null.
        number, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
        # If the process waits for a page of memory, the line has no number and no arguments.
        return number not in ("running", "-1") and arguments[2] == "0x0"

    for _ in range(2):
        assert eventually(sleeps, 20)
        assert "timed out" in error(con, "SELECT spin(1)")


def test_a_warm_up_that_nothing_in_v8_ends_delays_no_load(script: Load) -> None:
    con = script(
        """
        udf("endless(x BIGINT) -> BOOLEAN", (x) => [].includes.call({ length: 2 ** 53 - 1 }, x));
        udf("fine(x BIGINT) -> BIGINT", (x) => x + 1);
        """
    )
    assert value(con, "SELECT fine(1)") == 2
