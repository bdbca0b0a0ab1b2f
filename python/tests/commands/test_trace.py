"""Traces: what they record, and how a program and the command line write them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane
from crosslane._engines.tracing.chrome import to_chrome
from crosslane._engines.tracing.recording import Event, Recording

from ..conftest import CPUS, Library, error, eventually, ready, value

COMMAND = [sys.executable, "-m", "crosslane._cli"]

FUNCTIONS = """
import os
import time

@udf(deterministic=False)
def plain(x: int) -> int:
    return int(str(x)) + 1

@udf(on_error="null", deterministic=False)
def fails(x: int) -> int:
    if x % 10 == 0:
        raise ValueError(x)
    return x

@udf(deterministic=False)
def raises(x: int) -> int:
    raise ValueError("a <script>")

@udf(retries=1, deterministic=False)
def dies(x: int, mark: str) -> int:
    if not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(3)
    return x

@udf(deterministic=False)
def costs(x: int) -> int:
    time.sleep(0.001)
    return x

@udf(deterministic=False)
def waits(file: str) -> str:
    while os.path.exists(file):
        time.sleep(0.01)
    return file

@udf(deterministic=False)
class Prepared:
    def __init__(self):
        self.one = len(os.environ["PATH"][:1])
    def __call__(self, x: int) -> int:
        return x + self.one
"""


KINDS = """
from crosslane import udaf, udtf

@udtf("count_to(n BIGINT) -> TABLE(i BIGINT)")
def count_to(n):
    yield from ((i,) for i in range(n))

@udtf("breaks(n BIGINT) -> TABLE(i BIGINT)")
def breaks(n):
    yield (1,)
    raise ValueError("half way")

@udtf("same(rows TABLE(x BIGINT)) -> TABLE(y BIGINT)")
def same(rows):
    yield from ((row.x,) for row in rows)

@udaf("total(x BIGINT) -> BIGINT")
class Total:
    def __init__(self):
        self.sum = 0
    def update(self, x: int):
        self.sum += x
    def merge(self, other):
        self.sum += other.sum
    def finish(self) -> int:
        return self.sum
"""


def events(con: duckdb.DuckDBPyConnection, kind: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """The events of a kind, from the first to the last."""
    return con.execute(f"SELECT {columns} FROM crosslane_events() WHERE kind = ?", [kind]).fetchall()


def start(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("CALL crosslane_trace(true)").fetchall() == [(True, 0, 0)]


def stop(con: duckdb.DuckDBPyConnection) -> int:
    """Ends a trace, and returns the number of its events."""
    ((on, count, dropped),) = con.execute("CALL crosslane_trace(false)").fetchall()
    assert (on, dropped) == (False, 0)
    return count


def data_of(page: Path) -> dict[str, Any]:
    """The data of a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    return json.loads(text)


def test_a_query_is_traced(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    start(con)
    file = library(FUNCTIONS)
    crosslane.load(con, file)
    assert value(con, "SELECT sum(plain(i)) FROM range(10_000) r(i)") == 50_005_000
    # The engine keeps one worker per processor ready, and the last ones may still set up their functions.
    assert eventually(lambda: len(events(con, "set_up")) == CPUS, 30)
    count = stop(con)
    assert value(con, "SELECT count(*) FROM crosslane_events()") == count
    # The engine writes a slice, a worker calls the function with it, and the engine reads the results.
    rows = "SELECT sum(rows) FROM crosslane_events() WHERE function = 'plain' AND kind = "
    assert [value(con, f"{rows}'{kind}'") for kind in ("copy_in", "function", "copy_out")] == [10_000] * 3
    spent = "SELECT sum(duration_us) / 1e6 FROM crosslane_events() WHERE kind = 'function'"
    counted = "SELECT sum(guest_seconds) FROM crosslane_stats()"
    assert value(con, spent) == pytest.approx(value(con, counted))
    assert events(con, "load", "library, function, lane") == [(str(file), None, None)]
    workers = con.execute("SELECT lane, pid FROM crosslane_lanes() ORDER BY lane").fetchall()
    for kind in ("boot", "set_up"):
        assert sorted(events(con, kind, "lane, pid")) == workers
    assert set(events(con, "function", "lane, pid")) <= set(workers)
    assert value(con, "SELECT min(start_us) >= 0 AND min(duration_us) >= 0 FROM crosslane_events()")
    # The ended trace records nothing more, and the next trace has none of its events.
    con.execute("SELECT plain(1)").fetchall()
    assert value(con, "SELECT count(*) FROM crosslane_events()") == count
    start(con)
    assert "traced already; end that trace with CALL crosslane_trace(false)" in error(
        con, "CALL crosslane_trace(true)"
    )
    con.execute("SELECT plain(7), plain(NULL)").fetchall()
    stop(con)
    assert events(con, "function", "function, rows, detail") == [("plain", 1, "x = 7")]
    # The function ran after the engine had written its arguments, and before the engine took its results.
    ((written, _),), ((began, ended),), ((_, taken),) = (
        events(con, kind, "start_us, start_us + duration_us") for kind in ("copy_in", "function", "copy_out")
    )
    assert written <= began <= ended <= taken
    assert "argument is NULL" in error(con, "CALL crosslane_trace(NULL)")


def test_troubles_are_traced(con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path) -> None:
    crosslane.load(con, library(FUNCTIONS))
    start(con)
    con.execute("SELECT count(fails(i)) FROM range(100) r(i)").fetchall()
    con.execute("SELECT dies(i, ?) FROM range(3) r(i)", [str(tmp_path / "mark")]).fetchall()
    assert "a <script>" in error(con, "SELECT raises(1)")
    stop(con)
    exceptions = "SELECT function, sum(rows), any_value(detail) FROM crosslane_events() WHERE kind = 'exception' GROUP BY 1"
    assert sorted(con.execute(exceptions).fetchall()) == [
        ("fails", 10, None),
        ("raises", 1, "ValueError: a <script>"),
    ]
    assert events(con, "lane_lost", "function, lane IS NOT NULL") == [("dies", True)]
    assert events(con, "retry", "function, rows") == [("dies", 1)]


def test_all_kinds_of_functions_are_traced(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    crosslane.load(con, library(KINDS))
    start(con)
    assert value(con, "SELECT sum(i) FROM count_to(10_000)") == 49_995_000
    assert value(con, "SELECT total(i) FROM range(10_000) r(i)") == 49_995_000
    query = "SELECT i AS x FROM range(10_000) r(i)"
    assert value(con, f"SELECT sum(y) FROM crosslane_map('{query}', 'same')") == 49_995_000
    assert "half way" in error(con, "FROM breaks(3)")
    stop(con)
    traced = con.execute(
        "SELECT function, kind, sum(rows) FROM crosslane_events() WHERE kind IN ('copy_in', 'function', 'copy_out') GROUP BY ALL"
    )
    rows = {(function, kind): count for function, kind, count in traced.fetchall()}
    for kind in ("function", "copy_out"):
        assert [rows[name, kind] for name in ("count_to", "same", "breaks")] == [10_000, 10_000, 1]
        # An aggregate also computes its result, and may merge the states of two workers.
        assert rows["total", kind] > 10_000
    assert [rows[name, "copy_in"] for name in ("count_to", "same", "breaks")] == [1, 10_000, 1]
    assert events(con, "exception", "function, detail") == [("breaks", "ValueError: half way")]


def test_waits_and_borrowed_workers_are_traced(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path
) -> None:
    crosslane.load(con, library(FUNCTIONS))
    ready(con, "plain")
    start(con)
    con.execute("SELECT sum(costs(i)) FROM range(300) r(i)").fetchall()
    borrowed = value(con, "SELECT sum(fanned_out) FROM crosslane_stats()")
    assert len(events(con, "fan_out")) == borrowed
    assert CPUS == 1 or borrowed > 0
    # While all workers are busy, a query waits until the engine has started another worker.
    file = tmp_path / "busy"
    file.touch()
    threads = [
        threading.Thread(target=cursor.execute, args=["SELECT waits(?)", [str(file)]])
        for cursor in (con.cursor() for _ in range(CPUS))
    ]
    for thread in threads:
        thread.start()
    assert eventually(lambda: value(con, "SELECT busy FROM crosslane_pools()") == CPUS, 30)
    con.execute("SELECT plain(1)").fetchall()
    file.unlink()
    for thread in threads:
        thread.join()
    stop(con)
    (waited,) = [row for row in events(con, "wait", "function, lane, duration_us") if row[0] == "plain"]
    assert waited[1] == CPUS + 1
    assert waited[2] > 10


def test_databases_have_traces_of_their_own(con: duckdb.DuckDBPyConnection) -> None:
    with crosslane.connect() as other:
        start(con)
        crosslane.register(other, lambda x: x + 1, "plus(x BIGINT) -> BIGINT")
        assert value(other, "SELECT plus(1)") == 2
        assert stop(con) == 0


def test_a_block_is_traced(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, other = tmp_path / "a.html", tmp_path / "b.html"
    # The program writes the file, whatever the block does.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError), crosslane.trace(con, page.name):
        monkeypatch.chdir("/")
        crosslane.load(con, library(FUNCTIONS))
        con.execute("SELECT plain(1)").fetchall()
        with pytest.raises(duckdb.Error, match="traced already"), crosslane.trace(con, other):
            pass
        # The refused trace has not ended the first trace.
        assert con.execute("SELECT plain(2)").fetchall() == [(3,)]
        raise KeyError
    data = data_of(page)
    assert data["events"]["kind"].count(data["kinds"].index("function")) == 2
    with (
        pytest.raises(duckdb.ConnectionException, match="close it after the trace"),
        crosslane.trace(con, other),
    ):
        con.close()
    assert not other.exists()


@pytest.mark.any_duckdb
def test_files_that_cannot_have_a_trace(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.html").mkdir()
    wrong: list[tuple[str, type[Exception], str]] = [
        ("a.txt", ValueError, "ends with .html or .json, not 'a.txt'"),
        ("a", ValueError, "ends with .html or .json, not 'a'"),
        ("none/a.html", FileNotFoundError, "there is no folder"),
        ("folder.html", IsADirectoryError, "is a folder"),
    ]
    for name, kind, text in wrong:
        with pytest.raises(kind, match=re.escape(text)), crosslane.trace(con, tmp_path / name):
            raise AssertionError("the block runs")
    with monkeypatch.context() as patch:
        # The user who runs the tests may be able to write everywhere.
        patch.setattr(os, "access", lambda path, mode: path != tmp_path)
        with (
            pytest.raises(PermissionError, match="may not write there"),
            crosslane.trace(con, tmp_path / "a.html"),
        ):
            raise AssertionError("the block runs")
    assert con.execute("CALL crosslane_trace(false)").fetchall() == [(False, 0, 0)]


@pytest.mark.any_duckdb
def test_a_trace_file_for_other_viewers(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path
) -> None:
    file = library(FUNCTIONS)
    with crosslane.trace(con, tmp_path / "a.json"):
        crosslane.load(con, file)
        con.execute("SELECT count(fails(i)) FROM range(100) r(i)").fetchall()
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    names = {(one["name"], one["pid"], one["tid"]): one["args"]["name"] for one in events if one["ph"] == "M"}
    assert names["process_name", os.getpid(), 0] == "database"
    calls = [one for one in events if one["name"] == "fails"]
    assert sum(one["args"]["rows"] for one in calls) == 100
    for one in calls:
        assert one["ph"] == "X"
        assert one["dur"] > 0
        assert one["args"]["library"] == str(file)
        assert names["process_name", one["pid"], 0] == f"workers of {file.name}"
        assert names["thread_name", one["pid"], one["tid"]] == f"worker {one['args']['worker']}"
    (writing, *_) = [one for one in events if one["name"] == "copy_in"]
    assert names["thread_name", os.getpid(), writing["tid"]] == f"thread {writing['tid']}"
    assert sum(one["args"]["rows"] for one in events if one["name"] == "exception" and one["ph"] == "i") == 10
    # The trace does not know the processes of a server's workers.
    remote = [Event("function", "f", f"crosslane://{host}:1", 1, None, 5, 0.0, 1.0, 1, None) for host in "ab"]
    events = json.loads(to_chrome(Recording("", remote, 0)))["traceEvents"]
    assert len({one["pid"] for one in events if one["ph"] == "X"}) == 2


@pytest.mark.any_duckdb
def test_the_command_line(library: Library, tmp_path: Path) -> None:
    file, page = library(FUNCTIONS), tmp_path / "a.html"

    def run(*arguments: str | Path) -> tuple[int, str]:
        command = [*COMMAND, "trace", "-f", str(file), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    code, output = run("-o", page, "SELECT plain(41) AS answer")
    assert (code, "42" in output) == (0, True), output
    data = data_of(page)
    assert (data["title"], data["functions"]) == ("SELECT plain(41) AS answer", ["plain"])
    assert {"load", "boot", "function"} <= set(data["kinds"])
    # A query that fails has a trace, too.
    code, output = run("-o", page, "SELECT raises(1)")
    assert (code, "a <script>" in output) == (1, True), output
    assert "exception" in data_of(page)["kinds"]
    code, output = run("-o", tmp_path / "a.pdf", "SELECT 1")
    assert (code, "ends with .html or .json" in output) == (2, True), output


@pytest.mark.any_duckdb
def test_ctrl_c_leaves_a_trace(library: Library, tmp_path: Path) -> None:
    begun, page = tmp_path / "begun", tmp_path / "a.html"
    file = library(
        """
        import pathlib, time
        @udf
        def sleepy(file: str) -> int:
            pathlib.Path(file).touch()
            time.sleep(1000)
        """
    )
    command = [*COMMAND, "trace", "-o", str(page), "-f", str(file), f"SELECT sleepy('{begun}')"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert eventually(begun.exists, 30)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted\n")
    assert "boot" in data_of(page)["kinds"]
