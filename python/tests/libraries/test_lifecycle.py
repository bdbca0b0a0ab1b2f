"""Loading, reloading and closing: which version queries see, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import psutil
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, lives, name, processes, value


def run(program: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def test_loading_returns_the_functions(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library(
        "@udf\ndef f(x: int) -> int: return x\n@udf(timeout=2, retries=1)\nasync def g() -> str: return 'g'"
    )
    rows = con.execute("FROM crosslane_load(?)", [str(path)]).fetchall()
    assert rows == [
        ("f", "f(x BIGINT) -> BIGINT", "row", "", 1),
        ("g", "g() -> VARCHAR", "async", "concurrency=16, timeout=2, retries=1", 1),
    ]
    listed = con.execute("SELECT function, library, file, line FROM crosslane_functions()").fetchall()
    assert listed == [("f", str(path), str(path), 2), ("g", str(path), str(path), 4)]


def test_reloading_replaces_the_functions(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return 1\n@udf\ndef g(x: int) -> int: return 1")
    crosslane.load(con, path)
    con.execute("PREPARE p AS SELECT f(i) FROM range(1) r(i)")
    path.write_text(
        "from crosslane import udf\n@udf\ndef f(x: int) -> int: return 2\n@udf\ndef h(x: str) -> int: return 2"
    )
    crosslane.load(con, path)
    assert value(con, "SELECT f(1)") == 2
    assert value(con, "EXECUTE p") == 2
    assert value(con, "SELECT h('x')") == 2
    assert "the file does not declare it any more" in error(con, "SELECT g(i) FROM range(2) r(i)")
    path.write_text("from crosslane import udf\n@udf\ndef f(x: str) -> str: return x + x")
    con.execute("PREPARE q AS SELECT f(i) FROM range(2) r(i)")
    crosslane.load(con, path)
    assert value(con, "SELECT f('ab')") == "abab"
    assert "it is now f(x VARCHAR) -> VARCHAR" in error(con, "EXECUTE q")
    assert con.execute("SELECT function, version FROM crosslane_functions()").fetchall() == [("f", 3)]
    # There are one zygote, its reaper, and the lanes of the last version only.
    assert eventually(lambda: len(processes()) <= 4), processes()


def test_a_failed_reload_keeps_the_old_functions(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return 1")
    crosslane.load(con, path)
    path.write_text("syntax error")
    assert "SyntaxError" in error(con, f"FROM crosslane_load('{path}')")
    assert value(con, "SELECT f(1)") == 1


def test_explain_and_prepare_load_nothing(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return 1")
    con.execute(f"EXPLAIN FROM crosslane_load('{path}')").fetchall()
    con.execute(f"PREPARE p AS FROM crosslane_load('{path}')")
    assert con.execute("FROM crosslane_functions()").fetchall() == []
    assert not processes()


def test_closing_releases_the_file_and_frees_everything(tmp_path: Path, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    file = tmp_path / "database.duckdb"
    for round in range(3):
        con = crosslane.connect(file, functions=path)
        con.execute("CREATE TABLE IF NOT EXISTS t (i BIGINT)")
        con.execute("INSERT INTO t SELECT f(i) FROM range(3) r(i)")
        assert value(con, "SELECT count(*) FROM t") == 3 * (round + 1)
        con.close()
        assert eventually(lambda: not processes())
        # Another process can now open the file for writing.
        program = (
            f"import duckdb; duckdb.connect({str(file)!r}).execute('INSERT INTO t VALUES (1)'); print('open')"
        )
        assert run(program).stdout == "open\n"
        con = duckdb.connect(str(file), config={"allow_unsigned_extensions": "true"})
        con.execute("DELETE FROM t WHERE i = 1 AND rowid > 2 + 3 * " + str(round))
        con.close()


def test_opening_again_at_once(tmp_path: Path, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    for _ in range(4):
        con = crosslane.connect(tmp_path / "again.duckdb", functions=path)
        assert value(con, "SELECT f(1)") == 2
        con.close()


def test_closing_leaks_no_descriptors_and_no_threads(library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    this = psutil.Process()

    def once() -> None:
        con = crosslane.connect(functions=path)
        assert value(con, "SELECT f(1)") == 2
        con.close()
        assert eventually(lambda: not processes())

    once()
    eventually(lambda: False, 0.2)
    before = this.num_fds(), this.num_threads()
    for _ in range(5):
        once()
    assert eventually(lambda: (this.num_fds(), this.num_threads()) <= before), (
        before,
        this.num_fds(),
        this.num_threads(),
    )


def test_an_unfinished_result_keeps_no_lane(load: Load) -> None:
    con = load("@udf\ndef f(x: int) -> int: return x")
    con.execute("CREATE TABLE t AS SELECT i FROM range(1000000) r(i)")
    cursors = [con.cursor() for _ in range(5)]
    for cursor in cursors:
        # DuckDB's own buffer would take all of these rows and finish the result.
        cursor.execute("SET streaming_buffer_size = '100 KB'")
        assert cursor.execute("SELECT f(i) FROM t").fetchmany(1)
    assert eventually(lambda: value(con, "SELECT sum(busy) FROM crosslane_pools()") == 0)
    assert value(con, "SELECT rows FROM crosslane_stats()") < 1000000, "the results are finished"
    for cursor in cursors:
        cursor.close()


def test_loading_in_a_transaction(library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    for first in ("SELECT 1", "CREATE TABLE t (i BIGINT)", None):
        con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        con.execute("BEGIN")
        if first:
            con.execute(first).fetchall()
        crosslane.load(con, path)
        crosslane.register(con, lambda x: x + 2, "g(x BIGINT) -> BIGINT")
        crosslane.register(con, lambda x: x + 3, "h(x BIGINT) -> BIGINT", lane="thread")
        if first is None:
            # The transaction has not looked at DuckDB's functions yet.
            assert con.execute("SELECT f(1), g(1), h(1)").fetchall() == [(2, 3, 4)]
        con.execute("COMMIT")
        assert con.execute("SELECT f(1), g(1), h(1)").fetchall() == [(2, 3, 4)]
        con.close()


def test_loading_by_sql_in_a_transaction(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    con.execute("BEGIN")
    con.execute(f"FROM crosslane_load('{path}')").fetchall()
    # The documentation names these words.
    assert 'Did you mean "main.f"?' in error(con, "SELECT f(1)")
    con.execute("COMMIT")
    assert value(con, "SELECT f(1)") == 2


def test_a_prepared_statement_with_parameters_calls_what_was_loaded_last(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    crosslane.load(con, path)
    con.execute("PREPARE p AS SELECT f($1::BIGINT)")
    assert value(con, "EXECUTE p(1)") == 2
    path.write_text("from crosslane import udf\n@udf\ndef f(x: int) -> int: return x + 2")
    crosslane.load(con, path)
    assert value(con, "EXECUTE p(1)") == 3


def test_loading_leaves_pending_results_alone(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    for load in (
        lambda: crosslane.load(con, path),
        lambda: crosslane.register(con, lambda x: x, "g(x BIGINT) -> BIGINT"),
        lambda: crosslane.register(con, lambda x: x, "g(x VARCHAR) -> VARCHAR"),
        lambda: crosslane.register(con, lambda x: x, "h(x BIGINT) -> BIGINT", lane="thread"),
    ):
        con.execute("FROM range(3)")
        assert con.fetchone() == (0,)
        load()
        assert con.fetchall() == [(1,), (2,)]


def test_several_connections_share_the_functions(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    other = con.cursor()
    crosslane.load(con, library("@udf\ndef f(x: int) -> int: return x + 1"))
    assert value(other, "SELECT f(1)") == 2
    other.close()
    assert value(con, "SELECT f(2)") == 3


def test_no_lock_is_held_while_a_lane_waits(load: Load) -> None:
    con = load(
        """
        import threading, time
        count = 0
        def tick():
            global count
            while True:
                count += 1
                time.sleep(0.001)
        @udf
        def ticks(x: int) -> int:
            if threading.active_count() == 1:
                threading.Thread(target=tick, daemon=True).start()
            return count
        """
    )
    con.execute("CALL crosslane_set('warm_lanes', '1')").fetchall()
    first = value(con, "SELECT ticks(i) FROM range(1) r(i)")
    assert eventually(lambda: value(con, "SELECT ticks(i) FROM range(1) r(i)") > first + 100)


def test_each_lane_is_listed(load: Load) -> None:
    con = load("@udf\ndef f(x: int) -> int: return x + 1")
    assert value(con, "SELECT sum(f(i)) FROM range(10) r(i)") == 55

    def listed() -> bool:
        rows = con.execute("SELECT pid, busy, rows FROM crosslane_lanes()").fetchall()
        below = {process.pid for process in processes()}
        counts = sum(count for _, _, count in rows)
        return {pid for pid, _, _ in rows} <= below and counts == 10 and not any(busy for _, busy, _ in rows)

    # DuckDB's threads give lanes back after the result is complete, and lanes start and end meanwhile.
    assert eventually(listed)


def test_idle_lanes_leave(load: Load) -> None:
    con = load("@udf\ndef f(x: int) -> int: return x + 1")
    con.execute("CALL crosslane_set('idle_timeout', '0.3')").fetchall()
    assert value(con, "SELECT f(1)") == 2
    assert eventually(lambda: len(processes()) == 2), "the zygote and its reaper alone should be left"
    assert value(con, "SELECT f(1)") == 2


def test_a_warm_lane_is_there_before_the_first_row(load: Load) -> None:
    con = load("@udf\ndef f(x: int) -> int: return x + 1")
    assert eventually(lambda: value(con, "SELECT sum(idle) FROM crosslane_pools()") == 1)
    for _ in range(20):
        assert value(con, "SELECT f(1)") == 2
    assert value(con, "SELECT sum(waited) FROM crosslane_pools()") == 0


def test_loading_at_load_time(library: Library) -> None:
    first = library("@udf\ndef f(x: int) -> int: return x + 1")
    second = library("@udf\ndef g(x: int) -> int: return x + 2")
    program = f"""
        import duckdb
        con = duckdb.connect(config={{"allow_unsigned_extensions": "true"}})
        con.execute("LOAD '{crosslane.extension_path()}'")
        print(con.execute("SELECT f(1), g(1)").fetchall())
    """
    environment = {**os.environ, "CROSSLANE_LOAD": f"{first}:{second}", "VIRTUAL_ENV": sys.prefix}
    result = run(program, env=environment)
    assert result.stdout == "[(2, 3)]\n", result.stderr
    second.write_text("1 / 0")
    assert "ZeroDivisionError" in run(program, env=environment).stderr


def test_a_load_that_fails_at_load_time_leaves_nothing(library: Library, tmp_path: Path) -> None:
    first = library("@udf\ndef f(x: int) -> int: return x + 1")
    second = library("1 / 0")
    database = tmp_path / "database.duckdb"
    program = f"""
        import duckdb, os, psutil, subprocess, sys, time
        con = duckdb.connect({str(database)!r}, config={{"allow_unsigned_extensions": "true"}})
        extension = {str(crosslane.extension_path())!r}
        try:
            con.execute(f"LOAD '{{extension}}'")
        except duckdb.Error as error:
            print("ZeroDivisionError" in str(error))
        for name in ("f", "crosslane_load"):
            query = f"SELECT count(*) FROM duckdb_functions() WHERE function_name = '{{name}}'"
            print(con.execute(query).fetchall())
        end = time.monotonic() + 10
        while psutil.Process().children() and time.monotonic() < end:
            time.sleep(0.02)
        print(psutil.Process().children())
        if sys.argv[1] == "again":
            os.environ["CROSSLANE_LOAD"] = {str(first)!r}
            con.execute(f"LOAD '{{extension}}'")
            print(con.execute("SELECT f(1)").fetchall())
        con.close()
        other = "import duckdb, sys; duckdb.connect(sys.argv[1]); print('open')"
        for attempt in range(50):
            done = subprocess.run([sys.executable, "-c", other, {str(database)!r}], capture_output=True, text=True)
            if done.returncode == 0:
                break
            time.sleep(0.1)
        print(done.stdout)
    """
    environment = {**os.environ, "CROSSLANE_LOAD": f"{first}:{second}", "VIRTUAL_ENV": sys.prefix}
    for argument, then in (("once", ""), ("again", "[(2,)]\n")):
        result = run(program, argument, env=environment)
        assert result.stdout == f"True\n[(0,)]\n[(0,)]\n[]\n{then}open\n\n", result.stderr


def test_a_query_of_the_watchdog_that_fails_ends_nothing(load: Load) -> None:
    con = load("@udf\ndef f(x: int) -> int: return x + 1")
    con.execute("CREATE MACRO duckdb_connection_count() AS TABLE SELECT 'none' AS count")
    assert not eventually(lambda: value(con, "SELECT count(*) FROM crosslane_functions()") != 1, 1)
    assert value(con, "SELECT f(1)") == 2


def test_an_interpreter_without_the_package_is_told_apart(library: Library, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    python.chmod(0o755)
    con = crosslane.connect()
    con.execute("CALL crosslane_set('python', ?)", [str(python)]).fetchall()
    text = error(con, f"FROM crosslane_load('{library('')}')")
    assert "No module named" in text
    assert "crosslane doctor" in text
    con.close()


def test_killing_the_engine_leaves_nothing(library: Library) -> None:
    path = library(
        """
        import subprocess, time
        @udf
        def f(x: int) -> int:
            subprocess.Popen(["sleep", "1000"])
            time.sleep(1000)
        """
    )
    program = f"""
        import crosslane
        con = crosslane.connect(functions={str(path)!r})
        print("ready", flush=True)
        con.execute("SELECT f(1)").fetchall()
    """
    engine = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    below = psutil.Process(engine.pid)
    assert eventually(lambda: any("sleep" in name(p) for p in below.children(recursive=True)))
    family = below.children(recursive=True)
    engine.kill()
    engine.wait()
    assert eventually(lambda: not any(lives(p) for p in family)), family
    # No process has kept the pipe open.
    assert engine.stdout.read() == ""


def test_an_engine_that_ends_without_closing(library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    program = f"""
        import crosslane
        con = crosslane.connect(functions={str(path)!r})
        print(con.execute("SELECT f(1)").fetchall(), flush=True)
    """
    for _ in range(5):
        result = run(program)
        assert (result.returncode, result.stdout, result.stderr) == (0, "[(2,)]\n", "")


def test_a_fork_of_the_engine(library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    program = f"""
        import os, crosslane
        con = crosslane.connect(functions={str(path)!r})
        assert con.execute("SELECT f(1)").fetchall() == [(2,)]
        child = os.fork()
        if child == 0:
            try:
                con.execute("SELECT f(1)").fetchall()
            except Exception as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(con.execute("SELECT f(2)").fetchall())
    """
    result = run(program)
    advice = "open the database and load them after the fork"
    assert f"this process was forked after the functions were loaded; {advice}" in result.stdout
    assert result.stdout.endswith("[(3,)]\n"), result.stdout + result.stderr


def test_a_fork_of_the_engine_keeps_no_cancelled_loop_alive(tmp_path: Path) -> None:
    """The fork has copies of the sockets of JavaScript's lanes. So closing the engine's sockets alone would
    tell the lanes nothing."""
    path = tmp_path / "functions.js"
    path.write_text(
        "udf('f(x BIGINT) -> BIGINT', (x) => x);\nudf('stuck(x BIGINT) -> BIGINT', (x) => { for (;;); });\n"
    )
    program = f"""
        import crosslane, os, psutil, signal, threading, time
        con = crosslane.connect(functions={str(path)!r}, config={{"threads": 1}})
        con.execute("SELECT f(i) FROM range(1) r(i)").fetchall()
        (host,) = [p for p in psutil.Process().children() if "crosslane-js" in p.name()]
        def name(thread):
            try:
                return open(f"/proc/{{host.pid}}/task/{{thread.id}}/comm").read()
            except OSError:
                return ""  # It has just ended.
        def lanes():
            return {{name(thread) for thread in host.threads() if name(thread).startswith("lane-")}}
        before = lanes()
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        watch = con.cursor()
        def cancel():
            while not watch.execute("SELECT count(*) FROM crosslane_lanes() WHERE busy").fetchone()[0]:
                time.sleep(0.02)
            crosslane.cancel(con)
        threading.Thread(target=cancel).start()
        try:
            con.execute("SELECT stuck(i) FROM range(1) r(i)").fetchall()
        except Exception as error:
            print("cancelled" in str(error) or "INTERRUPT" in str(error).upper(), flush=True)
        while before <= lanes():
            time.sleep(0.05)
        print("ended", flush=True)
        os.kill(child, signal.SIGKILL)
    """
    engine = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = engine.communicate(timeout=60)
    finally:
        # If the engine has ended without ending the fork, this ends it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
    assert output == "True\nended\n"


def test_other_clients(library: Library) -> None:
    """DuckDB's own command line finds the interpreter by the virtual environment or by PATH."""
    shell = Path(sys.executable).with_name("duckdb")
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    script = f"LOAD '{crosslane.extension_path()}'; FROM crosslane_load('{path}'); SELECT f(41) AS answer;"
    for environment in (
        {"VIRTUAL_ENV": sys.prefix, "PATH": "/usr/bin:/bin"},
        {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
    ):
        command = [str(shell), "-unsigned", "-csv", "-c", script]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert result.stdout.endswith("answer\n42\n"), result.stdout + result.stderr


def _shell(extension: Path, path: Path, query: str) -> str:
    """The output of DuckDB's own command line. PATH alone would find another interpreter, and no environment
    is active."""
    shell = Path(sys.executable).with_name("duckdb")
    script = f"LOAD '{extension}'; FROM crosslane_load('{path}'); {query}"
    result = subprocess.run(
        [str(shell), "-unsigned", "-csv", "-noheader", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()[-1]


@pytest.mark.parametrize("linked", [False, True])
def test_the_interpreter_that_the_package_is_installed_in(
    library: Library, tmp_path: Path, linked: bool
) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    shutil.copytree(crosslane.extension_path().parent, site / "crosslane", copy_function=os.symlink)
    extension = site / "crosslane/crosslane.duckdb_extension"
    if linked:
        # DuckDB loads the extension through a link from another folder.
        extension.unlink()
        shutil.copy(crosslane.extension_path(), extension)
        other = tmp_path / "crosslane.duckdb_extension"
        other.symlink_to(extension)
        extension = other
    path = library("import sys\n@udf\ndef place() -> str: return sys.prefix")
    assert _shell(extension, path, "SELECT place()") == str(environment)


def test_the_interpreter_that_the_gem_is_installed_in(tmp_path: Path) -> None:
    gem = tmp_path / "lib/ruby/gems/3.1.0/gems/crosslane-0.1.0/lib"
    shutil.copytree(crosslane.ruby_path(), gem, copy_function=os.symlink)
    extension = gem / "crosslane/crosslane.duckdb_extension"
    extension.unlink(missing_ok=True)
    extension.symlink_to(crosslane.extension_path())
    ruby = tmp_path / "bin/ruby"
    ruby.parent.mkdir()
    ruby.write_text(f'#!/bin/sh\nWHICH=gem exec {shutil.which("ruby")} "$@"\n')
    ruby.chmod(0o755)
    path = tmp_path / "functions.rb"
    path.write_text('udf("which() -> VARCHAR") { ENV["WHICH"] }')
    assert _shell(extension, path, "SELECT which()") == "gem"


def test_without_any_interpreter(library: Library, tmp_path: Path) -> None:
    ruby = tmp_path / "functions.rb"
    ruby.write_text("")
    shell = Path(sys.executable).with_name("duckdb")
    for path, words in (
        (library(""), "no Python interpreter: there is no active virtual environment"),
        (ruby, "no Ruby interpreter: crosslane is installed in none"),
    ):
        script = f"LOAD '{crosslane.extension_path()}'; FROM crosslane_load('{path}')"
        command = [str(shell), "-unsigned", "-c", script]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={"PATH": str(tmp_path)}
        )
        assert words in result.stderr
        assert "crosslane_set('" in result.stderr


def test_interrupting_a_group_of_processes(library: Library, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the whole foreground group. The zygote gets the signal and reports it to the
    engine."""
    begun = tmp_path / "begun"
    path = library(
        f"""
        import pathlib, time
        @udf
        def f(x: int) -> int:
            pathlib.Path({str(begun)!r}).touch()
            time.sleep(1000)
        """
    )
    program = f"""
        import crosslane, duckdb, signal, time
        con = crosslane.connect(functions={str(path)!r})
        signal.signal(signal.SIGINT, lambda *_: None)
        print("ready", flush=True)
        try:
            con.execute("SELECT f(i) FROM range(1) r(i)").fetchall()
        except (duckdb.Error, KeyboardInterrupt) as error:
            print("ended", flush=True)
    """
    engine = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    # Before the call begins, there is nothing that the signal could interrupt in a worker.
    assert eventually(begun.exists, 30)
    os.killpg(engine.pid, signal.SIGINT)
    assert engine.stdout.readline() == "ended\n"
    engine.wait(10)
