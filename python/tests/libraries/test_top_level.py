"""What a file of functions does at its top level while it is loaded: connect to a database, start threads."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, printed, value

pytestmark = pytest.mark.any_duckdb

#: Code that would start a process that runs the same code again.
LOADS_ITSELF = {
    "connect": "import crosslane\ncon = crosslane.connect(functions=__file__)",
    "load": "import crosslane, duckdb\ncrosslane.load(duckdb.connect(), __file__)",
    "register": "import crosslane, duckdb\ncrosslane.register(duckdb.connect(), f)",
    "thread": "import crosslane, duckdb\ncrosslane.register(duckdb.connect(), f, lane='thread')",
}


def check(*paths: Path) -> subprocess.CompletedProcess[str]:
    """The output of `crosslane check` for files."""
    command = [sys.executable, "-c", "from crosslane._cli import main; main()", "check", *map(str, paths)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "1000"}
    )


def test_a_file_that_connects_at_its_top_level_is_an_error_with_its_place(
    con: duckdb.DuckDBPyConnection, library: Library, subtests: pytest.Subtests
) -> None:
    paths = {
        how: library(f"@udf\ndef f(x: int) -> int: return x\n{text}") for how, text in LOADS_ITSELF.items()
    }
    checked = check(*paths.values())
    assert checked.returncode == 1
    assert checked.stdout == ""
    for how, path in paths.items():
        with subtests.test(how):
            said = f"DeclarationError: {path}:5: this file is being loaded as a library of functions"
            text = error(con, f"FROM crosslane_load('{path}')")
            assert said in text
            assert "`if __name__ == '__main__':`" in text
            assert said in checked.stderr


def test_a_file_that_loads_itself_without_this_package_is_an_error(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library(f"""
        import duckdb
        con = duckdb.connect(config={{"allow_unsigned_extensions": "true"}})
        con.execute("LOAD '{crosslane.extension_path()}'")
        con.execute("CALL crosslane_load(?)", [__file__])
    """)
    text = error(con, f"FROM crosslane_load('{path}')")
    assert "this file is being loaded as a library of functions" in text
    assert f"at {path}:6" in text


def test_a_worker_that_loads_the_file_itself_does_not_load_it_as_a_library(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    """Its zygote has loaded the file, which starts a thread. So the zygote has started itself anew."""
    path = library(f"""
        import os, threading, time
        depth = int(os.environ.get("DEPTH", 0))
        os.environ["DEPTH"] = str(depth + 1)
        if depth > 3:
            os._exit(1)
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        import duckdb
        refused = ""
        try:
            own = duckdb.connect(config={{"allow_unsigned_extensions": "true"}})
            own.execute("LOAD '{crosslane.extension_path()}'")
            own.execute("CALL crosslane_load(?)", [__file__])
        except duckdb.Error as error:
            refused = str(error)

        @udf
        def said(x: int) -> str:
            return refused
    """)
    con.execute("CALL crosslane_load(?)", [str(path)])
    assert "this file is being loaded as a library of functions" in value(con, "SELECT said(1)")


def test_a_file_with_threads_may_ignore_the_ends_of_its_children(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library("""
        import signal, threading, time
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

        @udf
        def same(x: int) -> int:
            return x
    """)
    con.execute("CALL crosslane_load(?)", [str(path)])
    assert value(con, "SELECT same(7)") == 7


def test_a_module_that_registers_its_function_at_its_top_level_is_an_error(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "registers_itself.py"
    file.write_text(
        "import crosslane\ndef f(x: int) -> int: return x\ncrosslane.register(crosslane.connect(), f)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(duckdb.Error, match=f"{file}:3: this file is being loaded as a library"):
        importlib.import_module("registers_itself")


def test_a_ruby_file_that_opens_a_database_at_its_top_level_is_an_error(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    file = tmp_path / "opens.rb"
    file.write_text('udf("f() -> INTEGER") { 1 }\nCrosslane.open(functions: [__FILE__])\n')
    text = error(con, f"FROM crosslane_load('{file}')")
    assert f"DeclarationError: {file}:2: this file is being loaded as a library of functions" in text
    assert "`if $PROGRAM_NAME == __FILE__`" in text


def test_functions_may_connect_when_they_are_called(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("""
        import crosslane
        @udf
        def f(x: int) -> int:
            with crosslane.connect(functions=__file__) as con:
                return con.execute("SELECT g(?)", [x]).fetchall()[0][0]
        @udf
        def g(x: int) -> int: return x + 1
    """)
    crosslane.load(con, path)
    assert con.execute("SELECT f(1)").fetchall() == [(2,)]


#: Files whose functions would wait for ever in a fork, because a fork lacks the threads for which they wait.
NEEDS_THREADS = {
    "executor": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2, "mine")
        pool.submit(int).result()
        @udf(timeout=20)
        def f(x: int) -> int: return pool.submit(lambda: x + 1).result()
    """,
    "thread": """
        import os, queue, sys, threading
        seen = sys.argv[1:] + [name for name in os.environ if name == "CROSSLANE_ZYGOTE"]
        asked, answered = queue.Queue(), queue.Queue()
        def work():
            while True: answered.put(asked.get() + 1)
        threading.Thread(target=work, daemon=True, name="mine_0").start()
        @udf(timeout=20)
        def f(x: int) -> int:
            asked.put(x)
            return answered.get()
        @udf
        def saw() -> str: return str(seen)
    """,
    "polars": """
        import polars
        frame = polars.DataFrame({"x": range(100_000)})
        frame = frame.lazy().group_by(polars.col("x") % 3).agg(polars.len()).collect()
        @udf(timeout=20)
        def f(x: int) -> int:
            return frame.lazy().group_by(polars.col("x") % 2).agg(polars.len()).collect().height + x - 1
    """,
}


@pytest.mark.parametrize("what", NEEDS_THREADS)
def test_functions_have_the_threads_that_their_file_has_started(
    con: duckdb.DuckDBPyConnection, library: Library, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    if what == "polars":
        pytest.importorskip("polars")
    path = library(NEEDS_THREADS[what])
    crosslane.load(con, path)
    name = "polars-0" if what == "polars" else "mine_0"
    note = (
        f"its top level starts threads, which a fork would not have: {'async' if what == 'polars' else name}"
    )
    log = printed(capfd, "shares no memory with the others")
    assert f"crosslane: {path}: {note}" in log
    assert name in log
    assert con.execute("SELECT f(i) FROM range(3) r(i)").fetchall() == [(1,), (2,), (3,)]
    if what == "thread":
        # The worker has loaded the file, which saw nothing of the worker's start.
        assert value(con, "SELECT saw()") == "[]"
    checked = check(path)
    assert checked.returncode == 0
    assert f"note on {path}: {note}" in checked.stderr


def test_a_registered_function_has_the_threads_that_its_module_has_started(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from crosslane import udf\n" + textwrap.dedent(NEEDS_THREADS["executor"])
    (tmp_path / "needs_threads.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    crosslane.register(con, importlib.import_module("needs_threads").f)
    assert value(con, "SELECT f(1)") == 2


def test_what_a_file_does_at_its_top_level_is_undone_before_it_is_loaded_again(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library("""
        import os, threading
        os.environ["CROSSLANE_TEST"] = os.environ.get("CROSSLANE_TEST", "") + "x"
        os.chdir("..")
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        folder = os.getcwd()
        @udf
        def f() -> str: return os.environ["CROSSLANE_TEST"] + folder
    """)
    crosslane.load(con, path)
    assert value(con, "SELECT f()") == "x" + os.path.dirname(os.getcwd())


#: Files that set handlers of signals. A worker notices the signals, and so does its zygote.
HANDLERS = {
    "py": """
        import os, pathlib, signal
        heard = []
        signal.signal(signal.SIGINT, lambda *_: heard.append("INT"))
        signal.signal(signal.SIGCHLD, lambda *_: heard.append("CHLD"))
        signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path(f"{told}-{{os.getpid()}}").touch())
        @udf
        def hears() -> str:
            os.kill(os.getpid(), signal.SIGINT)
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {{}}), 0)
            return ",".join(heard)
        @udf
        def zygote() -> int:
            return os.getppid()
    """,
    "rb": """
        heard = []
        trap("INT") {{ heard << "INT" }}
        trap("CHLD") {{ heard << "CHLD" }}
        trap("USR1") {{ File.write("{told}-#{{Process.pid}}", "") }}
        udf("hears() -> VARCHAR") do
          Process.kill(:INT, Process.pid)
          system("true")
          Thread.pass until heard.size >= 2
          heard.uniq.join(",")
        end
        udf("zygote() -> BIGINT") {{ Process.ppid }}
    """,
}


@pytest.mark.parametrize("language", HANDLERS)
def test_a_file_may_handle_signals(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path, language: str
) -> None:
    told = tmp_path / "told"
    text = HANDLERS[language].format(told=told)
    path = library(text) if language == "py" else tmp_path / "handles.rb"
    if language == "rb":
        path.write_text(text)
    crosslane.load(con, path)
    assert value(con, "SELECT hears()") == "INT,CHLD"
    zygote = int(str(value(con, "SELECT zygote()")))
    os.kill(zygote, signal.SIGUSR1)
    assert eventually(lambda: Path(f"{told}-{zygote}").exists())
    assert value(con, "SELECT zygote()") == zygote


def test_a_file_that_has_changed_is_not_loaded_by_another_worker(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library(NEEDS_THREADS["thread"])
    con.execute("CALL crosslane_set('warm_lanes', '1')")
    crosslane.load(con, path)
    assert value(con, "SELECT f(1)") == 2
    ((process,),) = con.execute("SELECT pid FROM crosslane_lanes()").fetchall()
    path.write_text(path.read_text() + "\n")
    os.kill(process, signal.SIGKILL)
    assert "has changed since it was loaded; load it again" in error(con, "SELECT f(1)")


#: Files that can be loaded only once.
ONCE = {
    "py": """
        import pathlib, threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        told = pathlib.Path({told!r})
        if told.exists(): raise KeyError("once")
        told.touch()
        @udf
        def f(x: int) -> int: return x
    """,
    "rb": """
        Thread.new { sleep }
        raise KeyError, "once" if File.exist?({told!r})
        File.write({told!r}, "")
        udf("f(x BIGINT) -> BIGINT") { |x| x }
    """,
}


@pytest.mark.parametrize("language", ONCE)
def test_a_worker_that_cannot_load_the_file_says_why(
    request: pytest.FixtureRequest, tmp_path: Path, language: str
) -> None:
    text = ONCE[language].replace("{told!r}", repr(str(tmp_path / "told")))
    con = request.getfixturevalue({"py": "load", "rb": "ruby"}[language])(text)
    said = error(con, "SELECT f(1)")
    assert re.search(r"crosslane: KeyError: .*once", said), said


def test_threads_that_expect_a_fork_cost_nothing(
    con: duckdb.DuckDBPyConnection, library: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    path = library("""
        import os
        import numpy, pandas, polars, pyarrow
        (numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()
        loaded = os.getpid()
        print("loaded", flush=True)
        @udf
        def f() -> bool: return os.getppid() == loaded
    """)
    crosslane.load(con, path)
    assert value(con, "SELECT f()") is True
    assert "threads" not in printed(capfd, "loaded")


def test_ruby_functions_have_the_threads_that_their_file_has_started(
    ruby: Load, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    con = ruby("""
        require "timeout"
        asked, answered = Queue.new, Queue.new
        Thread.new { loop { answered << asked.pop + 1 } }.name = "mine"
        udf("f(x BIGINT) -> BIGINT", timeout: 20) { |x| asked << x; answered.pop }
        udf("g() -> BOOLEAN") { Timeout.timeout(1) { true } }
        udf("sees() -> VARCHAR") { (ARGV + ENV.keys.grep("CROSSLANE_ZYGOTE")).to_s }
    """)
    note = "its top level starts threads, which a fork would not have: mine"
    assert note in printed(capfd, "shares no memory with the others")
    assert con.execute("SELECT f(i) FROM range(3) r(i)").fetchall() == [(1,), (2,), (3,)]
    # The worker has loaded the file, which sees nothing of the worker's start.
    assert value(con, "SELECT sees()") == "[]"
    checked = check(tmp_path / "functions.rb")
    assert checked.returncode == 0
    assert note in checked.stderr


def test_threads_that_ruby_starts_again_cost_nothing(ruby: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = ruby("""
        require "timeout"
        Timeout.timeout(1) { }
        $stderr.puts "loaded"
        loaded = Process.pid
        udf("f() -> BOOLEAN") { Timeout.timeout(1) { Process.ppid == loaded } }
    """)
    assert value(con, "SELECT f()") is True
    assert "threads" not in printed(capfd, "loaded")


@pytest.mark.parametrize("chosen", [None, "2"])
def test_numerical_libraries_have_one_thread_in_a_worker_unless_told_otherwise(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch, load: Load, ruby: Load, lua: Load
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    # numpy uses OpenBLAS, which takes no more threads than there are processors.
    expected = min(int(chosen or 1), os.cpu_count() or 1)
    con = load("""
        import os
        import numpy

        @udf
        def threads(x: int) -> int:
            numpy.ones((500, 500)) @ numpy.ones((500, 500))
            return len(os.listdir("/proc/self/task"))
    """)
    assert value(con, "SELECT threads(1)") == expected
    ruby("udf('threads_of_ruby() -> VARCHAR') { ENV['OMP_NUM_THREADS'] }")
    lua("udf('threads_of_lua() -> VARCHAR', function() return os.getenv('OMP_NUM_THREADS') end)")
    assert con.execute("SELECT threads_of_ruby(), threads_of_lua()").fetchone() == ((chosen or "1"),) * 2


def test_lanes_import_nothing_of_the_package(load: Load) -> None:
    """The zygote has imported everything. A lane may have no open files left, or a newer package in the same
    place."""
    con = load(
        """
        import os, sys
        import numpy as np
        from crosslane import udaf, udf, udtf

        class Refusal:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "crosslane":
                    raise AssertionError(f"a lane imports {name}")

        os.register_at_fork(after_in_child=lambda: sys.meta_path.insert(0, Refusal()))

        @udf
        def plain(x: int) -> int:
            return x + 1

        @udf
        async def waits(x: int) -> int:
            return x + 1

        @udf("whole(x BIGINT) -> BIGINT", vectorized=True)
        def whole(x):
            return x

        @udf
        class Stateful:
            def __call__(self, x: int) -> int:
                return x + 1

        @udtf("table_of(n BIGINT) -> TABLE(i BIGINT)")
        def table_of(n):
            yield from range(n)

        @udaf
        class Summed:
            def __init__(self) -> None:
                self.sum = 0
            def update(self, x: int) -> None:
                self.sum += x
            def merge(self, other: "Summed") -> None:
                self.sum += other.sum
            def finish(self) -> int:
                return self.sum

        @udaf(vectorized=True)
        class Counted:
            def __init__(self) -> None:
                self.rows = 0
            def update(self, x: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
                self.rows += len(x)
            def merge(self, other: "Counted") -> None:
                self.rows += other.rows
            def finish(self) -> int:
                return self.rows
        """
    )
    scalars = "SELECT plain(1), waits(1), whole(1), stateful(1), (SELECT count(*) FROM table_of(3))"
    assert con.execute(scalars).fetchall() == [(2, 2, 1, 2, 3)]
    assert con.execute("SELECT summed(i), counted(i) FROM range(5000) r(i)").fetchall() == [(12497500, 5000)]
