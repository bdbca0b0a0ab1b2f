"""Files that the engine loads again because they have changed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

import crosslane

from ..conftest import eventually, once_at_work, printed, value
from .test_changed_files import FILES

pytestmark = pytest.mark.any_duckdb

NEXT = "from crosslane import udf\n@udf\ndef f(x: int) -> {}: return {}\n"


@pytest.fixture
def watched(tmp_path: Path) -> SimpleNamespace:
    """A file of a function `f`, and a connection that watches it."""
    path = tmp_path / "functions.py"
    path.write_text(NEXT.format("int", "x + 1"))
    con = crosslane.connect(functions=path, watch=True)
    return SimpleNamespace(path=path, con=con)


@pytest.mark.parametrize("language", FILES)
def test_a_file_that_has_changed_is_loaded_again(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str
) -> None:
    main, name, module = FILES[language]
    path, helper = tmp_path / f"functions.{language}", tmp_path / name
    path.write_text(main.format("a"))
    helper.write_text(module.format("b"))
    crosslane.load(con, path)
    assert crosslane.reload(con) == []
    for file, text, after in ((path, main.format("c"), "cb"), (helper, module.format("d"), "cd")):
        file.write_text(text)
        ((library, _, failure),) = crosslane.reload(con)
        assert (library, failure) == (str(path), None)
        assert value(con, "SELECT f(1)") == after
        # SQL finds no more changed file.
        assert con.execute("CALL crosslane_reload()").fetchall() == []


def test_a_broken_file_keeps_its_functions(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken.py", tmp_path / "whole.js"
    broken.write_text(NEXT.format("int", "x + 1"))
    whole.write_text("udf('g(x BIGINT) -> BIGINT', (x) => 1n);")
    for path in (broken, whole):
        crosslane.load(con, path)
    broken.write_text(NEXT.format("int", "x +"))
    whole.write_text("udf('g(x BIGINT) -> BIGINT', (x) => 2n);")
    failed, loaded = sorted(crosslane.reload(con), key=lambda change: change.error is None)
    assert (failed.library, failed.version) == (str(broken), None)
    assert "SyntaxError" in failed.error
    assert f'{broken}", line 3' in failed.error
    assert (loaded.library, loaded.version, loaded.error) == (str(whole), 2, None)
    assert con.execute("SELECT f(1), g(1)").fetchall() == [(2, 2)]
    # Each call tries to load the broken file again.
    assert [change.library for change in crosslane.reload(con)] == [str(broken)]
    broken.write_text(NEXT.format("str", "'of another type'"))
    assert [change.error for change in crosslane.reload(con)] == [None]
    assert value(con, "SELECT f(1)") == "of another type"


def test_a_running_query_finishes_with_what_it_began_with(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path, gate = tmp_path / "functions.py", tmp_path / "gate"
    waits = "import pathlib, time\nfrom crosslane import udf\n@udf\ndef f(x: int) -> int:\n"
    waits += f"    while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n    return x + 1\n"
    path.write_text(waits)
    crosslane.load(con, path)

    def change() -> None:
        path.write_text(NEXT.format("int", "x + 100"))
        with con.cursor() as other:
            assert [change.error for change in crosslane.reload(other)] == [None]
            assert value(other, "SELECT f(1)") == 101
        gate.touch()

    with once_at_work(con, change):
        assert value(con, "SELECT f(1)") == 2
    assert value(con, "SELECT f(1)") == 101


def test_a_watch_loads_and_tells(watched: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    path, con = watched.path, watched.con
    path.write_text(NEXT.format("int", "x + 2"))
    printed(capfd, f"crosslane: loaded {path} again\n")
    assert value(con, "SELECT f(1)") == 3
    path.write_text(NEXT.format("int", "helper(x)"))
    printed(capfd, f"crosslane: loaded {path} again\n")
    # The file imports a module that is missing at first. Then the module is added. The file itself does not
    # change.
    path.write_text("import helper\n" + NEXT.format("int", "helper.n"))
    said = printed(capfd, "No module named 'helper'")
    assert f"crosslane: {path} was not loaded again, and its functions stay as they were: " in said
    (path.parent / "helper.py").write_text("n = 5\n")
    # The watch has reported the failure only once.
    assert printed(capfd, f"crosslane: loaded {path} again\n") == f"crosslane: loaded {path} again\n"
    assert value(con, "SELECT f(1)") == 5
    con.close()


@pytest.mark.parametrize("end", ["close", "forget"])
def test_a_watch_ends_with_its_connection(watched: SimpleNamespace, end: str) -> None:
    def is_watched() -> bool:
        gc.collect()
        return any(thread.name == "crosslane-watch" for thread in threading.enumerate())

    assert is_watched()
    kept = weakref.ref(watched.con)
    if end == "close":
        watched.con.close()
    else:
        watched.con = None
    assert eventually(lambda: not is_watched())
    assert end == "close" or kept() is None


def test_the_command_line_watches(tmp_path: Path) -> None:
    path, out, err = tmp_path / "functions.py", tmp_path / "out", tmp_path / "err"
    path.write_text(NEXT.format("int", "x + 1"))
    command = [sys.executable, "-m", "crosslane._cli", "sql", "--watch", "-f", str(path), "--format", "csv"]
    with open(out, "w") as to, open(err, "w") as errors:
        # The query fails at times, but the watch goes on.
        process = subprocess.Popen([*command, "SELECT f(1) AS f"], stdout=to, stderr=errors)
        try:
            assert eventually(lambda: out.read_text() == "f\n2\n", 30)
            path.write_text(NEXT.format("int", "1 // 0"))
            assert eventually(lambda: "ZeroDivisionError" in err.read_text())
            path.write_text(NEXT.format("str", "'text'"))
            assert eventually(lambda: out.read_text() == "f\n2\nf\ntext\n")
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(10) == 130
        finally:
            process.kill()
            process.wait()
    assert err.read_text().endswith("interrupted\n")


def test_a_watch_needs_files() -> None:
    command = [sys.executable, "-m", "crosslane._cli", "sql", "--watch", "SELECT 1"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert "--watch needs a file of functions: -f FILE" in run.stderr


def test_a_reload_restores_no_replaced_or_dropped_function(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    both = NEXT.format("int", "1") + NEXT.format("int", "1").replace("f(", "g(") + "N = {}\n"
    first.write_text(both.format(1))
    second.write_text(NEXT.format("int", "2"))
    crosslane.load(con, first)
    crosslane.load(con, second)
    first.write_text(both.format(2).replace("return 1", "return 3"))
    assert [change.error for change in crosslane.reload(con)] == [None]
    assert con.execute("SELECT f(0), g(0)").fetchall() == [(2, 3)]
    crosslane.unregister(con, "g")
    second.write_text(NEXT.format("int", "4"))
    assert [change.error for change in crosslane.reload(con)] == [None]
    assert value(con, "SELECT f(0)") == 4


def test_a_reload_may_take_the_names_that_the_load_might(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = tmp_path / "functions.py"
    path.write_text(NEXT.format("int", "1"))
    crosslane.load(con, path, replace=True)
    path.write_text(NEXT.format("int", "1") + NEXT.format("int", "2").replace("f(x", "ceil(x"))
    assert [change.error for change in crosslane.reload(con)] == [None]
    assert value(con, "SELECT ceil(5::BIGINT)") == 2


def test_a_watch_sees_that_a_module_in_a_folder_was_mended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inner").mkdir()
    path, module = tmp_path / "functions.py", tmp_path / "inner" / "module.py"
    module.write_text("n = 1\n")
    path.write_text("from inner.module import n\n" + NEXT.format("int", "n"))
    con = crosslane.connect(functions=path, watch=True)
    module.write_text("n = \n")
    printed(capfd, "was not loaded again")
    module.write_text("n = 2\n")
    printed(capfd, f"crosslane: loaded {path} again\n")
    assert value(con, "SELECT f(0)") == 2
    con.close()


def test_a_connection_that_is_watched_can_be_closed_at_any_time(tmp_path: Path) -> None:
    path, begun = tmp_path / "functions.py", tmp_path / "begun"
    path.write_text(NEXT.format("int", "1"))
    con = crosslane.connect(functions=path, watch=True)
    path.write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(1000)\n")
    assert eventually(begun.exists)
    con.close()
    # The load that hangs ends with the connection.
    del con
    assert eventually(lambda: not any(one.name == "crosslane-watch" for one in threading.enumerate()))
