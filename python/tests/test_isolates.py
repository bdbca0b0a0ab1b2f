"""JavaScript functions that run wild, and what becomes of their isolates and of the process around them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import psutil
import pytest

import crosslane

from .conftest import CPUS, error, eventually, lives, processes, value

Script = Callable[..., duckdb.DuckDBPyConnection]


def lanes(con: duckdb.DuckDBPyConnection) -> list[tuple[int, int]]:
    return con.execute("SELECT lane, pid FROM crosslane_lanes() ORDER BY lane").fetchall()


#: What a function may try, its options, and how that ends.
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
def runaways(script: Script) -> duckdb.DuckDBPyConnection:
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
        # The isolate is usable afterwards, or was replaced in place: the lane and its process are the same.
        assert lanes(con) == before, body


def test_a_timeout_tells_the_place(script: Script) -> None:
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


def test_runaways_become_null_where_asked(script: Script) -> None:
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


def test_what_a_call_left_in_memory_is_gone_after_the_error(script: Script) -> None:
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


def test_v8_giving_up_ends_only_its_process(script: Script) -> None:
    # An array larger than V8's largest: not an exception, but the end of the process.
    con = script(
        """
        udf("fatal(x BIGINT) -> BIGINT", { memory_limit: "8 GB" }, (x) => "x".repeat(2 ** 28).split("").length);
        udf("fine(x BIGINT) -> BIGINT", (x) => x + 1);
        """
    )
    assert value(con, "SELECT fine(1)") == 2
    ((_, pid), *_) = lanes(con)
    text = error(con, "SELECT fatal(1)")
    assert "fatal: its worker process crashed with" in text
    assert "invalid size error" in text
    assert value(con, "SELECT fine(1)") == 2
    assert lanes(con)[0][1] != pid


def test_a_killed_process_costs_its_lanes_nothing_but_time(script: Script) -> None:
    con = script(
        "udf('slow(x BIGINT) -> BIGINT', (x) => { const end = Date.now() + 2; while (Date.now() < end); return x; });"
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(1000) r(i)")
    assert value(con, "SELECT slow(1)") == 1
    killed = threading.Event()

    def kill() -> None:
        cursor = con.cursor()
        busy = lambda: cursor.execute("SELECT pid FROM crosslane_lanes() WHERE busy").fetchall()  # noqa: E731
        assert eventually(lambda: bool(busy()))
        os.kill(busy()[0][0], signal.SIGKILL)
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    assert value(con, "SELECT sum(slow(i)) FROM t") == sum(range(1000))
    thread.join()
    assert killed.is_set()


def test_a_call_that_cannot_be_ended_costs_the_others_nothing_but_time(script: Script) -> None:
    con = script(
        """
        udf("sorts(x BIGINT) -> BIGINT", { timeout: 0.5 }, (x) => {
          const numbers = [];
          for (let i = 0; i < 2e6; i++) numbers.push(Math.random());
          return numbers.sort().length;
        });
        udf("slow(x BIGINT) -> BIGINT", (x) => { const end = Date.now() + 2; while (Date.now() < end); return x; });
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(2000) r(i)")
    assert value(con, "SELECT slow(1)") == 1
    ((_, pid), *_) = lanes(con)
    assert "sorts: timed out after 0.5 s" in error(con, "SELECT sorts(1)")
    # The process is ended while this runs, because the sort goes on.
    assert value(con, "SELECT sum(slow(i)) FROM t") == sum(range(2000))
    assert lanes(con)[0][1] != pid


def test_a_process_that_is_killed_again_and_again_is_an_error(script: Script) -> None:
    con = script("udf('endless(x BIGINT) -> BIGINT', (x) => { for (;;); });")
    stop = threading.Event()

    def kill() -> None:
        cursor = con.cursor()
        while not stop.is_set():
            for (pid,) in cursor.execute("SELECT pid FROM crosslane_lanes() WHERE busy").fetchall():
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        assert "SIGKILL" in error(con, "SELECT endless(1)")
    finally:
        stop.set()
        thread.join()


def test_cancelling(script: Script) -> None:
    con = script("udf('endless(x BIGINT) -> BIGINT', (x) => { while (x === 1) {} return x; });")
    assert value(con, "SELECT endless(2)") == 2
    timer = threading.Timer(0.3, lambda: crosslane.cancel(con))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(duckdb.Error):
        con.execute("SELECT endless(1)").fetchall()
    timer.join()
    assert time.monotonic() - begun < 5
    assert value(con, "SELECT sum(endless(x)) FROM range(2, 4) r(x)") == 5


def test_closing_ends_the_process_even_in_a_call(tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text("udf('endless(x BIGINT) -> BIGINT', (x) => { while (x === 1) {} return x; });")
    con = crosslane.connect(functions=path, config={"threads": 2})
    started = {process for process in processes() if "crosslane-js" in process.name()}
    assert len(started) == 1
    timer = threading.Timer(0.3, lambda: crosslane.cancel(con))
    timer.start()
    with pytest.raises(duckdb.Error):
        con.execute("SELECT endless(1)").fetchall()
    timer.join()
    con.close()
    assert eventually(lambda: not any(lives(process) for process in started))


def test_lanes_are_threads_of_one_process(script: Script) -> None:
    con = script(
        """
        udf("work(x BIGINT) -> BIGINT", (x) => { const end = Date.now() + 1; while (Date.now() < end); return x; });
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(400) r(i)")
    assert value(con, "SELECT sum(work(i)) FROM t") == sum(range(400))
    assert value(con, "SELECT count(*) FROM crosslane_lanes() WHERE rows > 0") == min(2, CPUS)
    assert value(con, "SELECT count(DISTINCT pid) FROM crosslane_lanes()") == 1
    assert value(con, "SELECT fanned_out > 0 FROM crosslane_stats()") is (CPUS > 1)


def test_isolates_of_one_snapshot_are_not_one(script: Script) -> None:
    con = script(
        """
        udf("draw(x BIGINT) -> DOUBLE", { deterministic: false }, (x) => { const end = Date.now() + 2; while (Date.now() < end); return Math.random(); });
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(200) r(i)")
    assert value(con, "SELECT count(DISTINCT draw(i)) FROM t") == 200
    assert value(con, "SELECT count(*) FROM crosslane_lanes() WHERE rows > 0") == min(2, CPUS)


#: ECMA-262's globals, and what Crosslane adds.
GLOBALS = """
    Object Function Array Number parseFloat parseInt Infinity NaN undefined Boolean String Symbol Date Promise RegExp
    Error AggregateError EvalError RangeError ReferenceError SyntaxError TypeError URIError globalThis JSON Math Intl
    ArrayBuffer Uint8Array Int8Array Uint16Array Int16Array Uint32Array Int32Array Float32Array Float64Array
    Uint8ClampedArray BigUint64Array BigInt64Array DataView Map BigInt Set WeakMap WeakSet WeakRef Proxy Reflect
    FinalizationRegistry decodeURI decodeURIComponent encodeURI encodeURIComponent escape unescape eval isFinite isNaN
    console setTimeout clearTimeout setInterval clearInterval udf Timestamp
"""


def test_nothing_but_the_language_is_there(script: Script) -> None:
    con = script("udf('names(x BIGINT) -> VARCHAR[]', (x) => Object.getOwnPropertyNames(globalThis));")
    assert set(value(con, "SELECT names(1)")) <= set(GLOBALS.split())


WAYS_OUT = [
    "process.exit(1)",
    "require('fs').readFileSync('/etc/passwd', 'utf8')",
    "Function('return this')().process.mainModule",
    "(function () {}).constructor('return process')().pid",
    "globalThis.constructor.constructor('return process')().env",
    "new Error().constructor.constructor('return require')()('fs')",
    "console.log.constructor('return process')().pid",
    "setTimeout.constructor('return process')().pid",
    "udf.constructor('return process')().pid",
    "fetch('http://127.0.0.1/')",
    "new XMLHttpRequest()",
    "new WebSocket('ws://127.0.0.1/')",
    "new Worker('x.js')",
    "Deno.readTextFileSync('/etc/passwd')",
    "load('/etc/passwd')",
    "read('/etc/passwd')",
    "os.system('true')",
    "quit()",
    "WebAssembly.compile(new Uint8Array(8))",
    "new SharedArrayBuffer(8)",
    "Atomics.wait(new Int32Array(4), 0, 0)",
    "eval('process')",
    "Reflect.construct(Function, ['return process'])().pid",
    "%DebugPrint(1)",
    "(() => { try { null.x } catch (e) { return e.constructor.constructor('return process')().pid } })()",
    "Error.prepareStackTrace = (_, frames) => frames[frames.length - 1].getThis().process.pid, new Error().stack",
    "(async () => (await import('node:fs')).readFileSync('/etc/passwd', 'utf8'))()",
    "(async () => (await import('/etc/passwd')).default)()",
    "(async () => (await import('./functions.js')).default)()",
]


def test_the_known_ways_out_lead_nowhere(script: Script) -> None:
    con = script(
        "udf('run(code VARCHAR) -> VARCHAR', (code) => String((0, eval)(code)) === '' ? '' : (0, eval)(code));"
    )
    for way in WAYS_OUT:
        text = error(con, f"SELECT run({chr(39)}{way.replace(chr(39), chr(39) * 2)}{chr(39)})")
        assert any(kind in text for kind in ("ReferenceError", "TypeError", "SyntaxError", "Error: ")), way
        assert "run: " in text
    assert value(con, "SELECT run('''still'' + '' here''')") == "still here"


def test_tampering_with_the_language_harms_nobody_else(script: Script) -> None:
    con = script(
        """
        udf("tamper(x BIGINT) -> VARCHAR", (x) => {
          Array.prototype.join = Array.prototype.push = () => "gotcha";
          Number.isSafeInteger = () => true; Math.floor = () => 7; JSON.stringify = () => "gotcha";
          String.prototype.toString = Date.prototype.getTime = () => "gotcha";
          return "x".repeat(3);
        });
        udf("f(x BIGINT) -> BIGINT", (x) => x * 2);
        udf("s(x VARCHAR) -> VARCHAR", (x) => x + "!");
        udf("l(x BIGINT) -> BIGINT[]", (x) => [x]);
        """
    )
    con.execute("SET threads = 1")
    assert value(con, "SELECT tamper(1)") == "xxx"
    assert value(con, f"SELECT f({2**40})") == 2**41
    assert value(con, "SELECT s('ü')") == "ü!"
    assert value(con, "SELECT l(5)") == [5]
    assert value(con, "SELECT tamper(1)") == "xxx"


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
    # A process group of its own, as a terminal's foreground job has.
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert job.stderr is not None
    assert job.stderr.readline() == "loading\n"
    os.killpg(job.pid, signal.SIGINT)
    rest = job.communicate(timeout=20)[1]
    assert job.returncode != 0
    assert re.search("Aborted|interrupted", rest)


def test_batches_leave_nothing_in_memory(script: Script) -> None:
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
    # The young generations of two isolates may grow to their full size, and no further.
    assert used() < before + 100
