"""Workers that do not start: every wait for a worker ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import crosslane
from crosslane._engines.control import Control

from ..conftest import Library, Load, error, value

pytestmark = pytest.mark.any_duckdb

#: A file whose first fork does not return for a long time. Nothing is forked.
STALLED = """
import os, time
os.fork = lambda: time.sleep(1000)
@udf
def f(x: int) -> int: return x
"""


#: A file that makes one worker. When the engine wants a second worker, the file reports that, and makes none.
ONE_WORKER = """
import os, time
from pathlib import Path
forks = [os.fork, lambda: Path({wanted!r}).write_text("") or time.sleep(1000)]
os.fork = lambda: forks.pop(0)()
@udf
def waits(path: str) -> str: return Path(path).read_text()
@udf
def f(x: int) -> int: return x
"""


def test_a_zygote_imports_no_more_than_it_needs() -> None:
    """Each load of a file waits for these imports."""
    program = """
import sys
import crosslane._worker.zygote, crosslane._declare.library
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    costly = {
        "asyncio",
        "duckdb",
        "email",
        "multiprocessing",
        "numpy",
        "pathlib",
        "pyarrow",
        "socket",
        "sqlite3",
    }
    assert set(done.stdout.split()) & costly == set()


def test_cancel_ends_the_wait_for_a_worker(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path
) -> None:
    wanted, busy = str(tmp_path / "wanted"), str(tmp_path / "busy")
    for path in (wanted, busy):
        os.mkfifo(path)
    con.execute("CALL crosslane_set('warm_lanes', 1)")
    crosslane.load(con, library(ONE_WORKER.format(wanted=wanted)))
    told: list[str] = []
    first, second = crosslane.cursor(con), crosslane.cursor(con)
    holder = threading.Thread(target=lambda: told.append(str(value(first, f"SELECT waits('{busy}')"))))
    holder.start()
    # The function opens the other end of this pipe.
    with open(busy, "w") as end:
        waiter = threading.Thread(target=lambda: told.append(error(second, "SELECT f(i) FROM range(9) r(i)")))
        waiter.start()
        with open(wanted) as file:
            file.read()
        crosslane.cancel(second)
        # A worker may take 30 s to come.
        waiter.join(timeout=20)
        assert told
        assert "cancelled" in told[0]
        end.write("done")
    holder.join()
    assert told[1:] == ["done"]


def test_a_reload_waits_for_no_worker(con: duckdb.DuckDBPyConnection, load: Load) -> None:
    load(STALLED)
    (path,) = con.execute("SELECT DISTINCT library FROM crosslane_functions()").fetchone()
    with open(path, "w") as file:
        file.write("from crosslane import udf\n@udf\ndef f(x: int) -> int: return -x")
    reload = threading.Thread(target=lambda: crosslane.load(con.cursor(), path))
    reload.start()
    reload.join(timeout=20)
    assert not reload.is_alive()
    assert value(con, "SELECT f(2)") == -2


def test_a_file_that_closes_the_connection_to_its_engine(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    # In the second case, the file goes on, but sends nothing any more.
    for then in ("", "time.sleep(1000)"):
        for descriptors in ("3", "0, 1, 2, 3"):
            path = library(
                f"""
                import os, time
                for number in ({descriptors},): os.close(number)
                {then}
                @udf
                def f() -> int: return 1
                """
            )
            # The engine sees the end of the connection, before load_timeout is over.
            assert f"ended before it had loaded {path}" in error(con, f"FROM crosslane_load('{path}')")
    path = library("@udf\ndef f() -> int: return 1")
    crosslane.load(con, path)
    assert value(con, "SELECT f()") == 1


HANGS = {
    "py": "import os, time\nfrom crosslane import udf\nos.register_at_fork(after_in_child=lambda: time.sleep(1000))\n"
    "@udf\ndef f() -> int: return 1\n",
    "rb": "Process.singleton_class.prepend(Module.new { def _fork = super.tap { |pid| sleep if pid == 0 } })\n"
    'udf("f() -> BIGINT") { 1 }\n',
}


#: A file whose first worker hangs. The second fork raises in the new worker, and the third one raises in the
#: zygote.
RAISES = {
    "py": """
import os, time
from crosslane import udf
fork, asked = os.fork, []
def mine():
    asked.append(1)
    if len(asked) == 3: raise RuntimeError("no fork")
    pid = fork()
    if pid == 0 and len(asked) == 1: time.sleep(1000)
    if pid == 0: raise RuntimeError("no worker")
    return pid
os.fork = mine
@udf
def f() -> int: return 1
""",
    "rb": """
asked = 0
Process.singleton_class.prepend(Module.new do
  define_method(:_fork) do
    raise "no fork" if (asked += 1) == 3
    pid = super()
    sleep if pid == 0 && asked == 1
    raise "no worker" if pid == 0
    pid
  end
end)
udf("f() -> BIGINT") { 1 }
""",
}


#: Runs programs in hooks of forks, in the zygote and in the new worker.
HOOKS = {
    "py": """
        import os, subprocess
        for when in ("before", "after_in_parent", "after_in_child"):
            os.register_at_fork(**{when: lambda: subprocess.run(["true"], check=True)})
        @udf
        def f() -> int: return int(subprocess.check_output(["echo", "1"]))
    """,
    "rb": """
        Process.singleton_class.prepend(Module.new { def _fork = (`true`; super.tap { system("true") }) })
        udf("f() -> BIGINT") { `echo 1`.to_i }
    """,
}


@pytest.mark.parametrize("language", HOOKS)
def test_hooks_of_forks_may_run_programs(request: pytest.FixtureRequest, language: str) -> None:
    con = request.getfixturevalue({"py": "load", "rb": "ruby"}[language])(HOOKS[language])
    assert value(con, "SELECT f()") == 1


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[Control]:
    """The engine's end of the control socket of a zygote that has loaded a file."""
    command = {
        ".py": f"{sys.executable} -P -m crosslane._worker.zygote",
        ".rb": f"ruby -I{crosslane.ruby_path()} -rcrosslane/worker/zygote -e Crosslane::Zygote.run",
    }[path.suffix]
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    zygote = subprocess.Popen(["bash", "-c", f"exec {command} 3<&{number}"], pass_fds=[number])
    theirs.close()
    control = Control(ours)
    try:
        control.send(op="load", source={"kind": "file", "path": str(path)}, seconds=30)
        assert control.receive()[0]["op"] == "loaded"
        yield control
    finally:
        ours.close()
        assert zygote.wait(timeout=30) == 0


def fork(control: Control, lane: int) -> dict[str, object]:
    """The answer to the request for a lane."""
    text = json.dumps({"op": "fork", "lane": lane, "spin_microseconds": 0}).encode()
    with open(os.devnull) as nothing:
        descriptors = [nothing.fileno()] * 3
        socket.send_fds(control.connection, [len(text).to_bytes(4, "little") + text], descriptors)
    return control.receive()[0]


def unfork(control: Control, lane: int) -> None:
    """Ends a running lane."""
    control.send(op="unfork", lane=lane)
    ended = control.receive()[0]
    assert (ended["op"], ended["lane"], ended["signal"]) == ("exited", lane, signal.SIGKILL)


@pytest.mark.parametrize("language", HANGS)
def test_a_worker_that_hangs_before_it_is_ready_is_ended_when_it_is_given_up(
    tmp_path: Path, language: str
) -> None:
    path = tmp_path / f"hangs.{language}"
    path.write_text(HANGS[language])
    with loaded(path) as control:
        assert fork(control, 5) == {"op": "forked", "lane": 5}
        unfork(control, 5)


@pytest.mark.parametrize("language", HANGS)
def test_a_zygote_that_has_workers_ends_without_an_error(tmp_path: Path, language: str) -> None:
    path = tmp_path / f"hangs.{language}"
    path.write_text(HANGS[language])
    with loaded(path) as control:
        assert fork(control, 5) == {"op": "forked", "lane": 5}


@pytest.mark.parametrize("language", RAISES)
def test_a_fork_that_raises_concerns_no_other_worker(tmp_path: Path, language: str) -> None:
    path = tmp_path / f"raises.{language}"
    path.write_text(RAISES[language])
    with loaded(path) as control:
        assert fork(control, 1) == {"op": "forked", "lane": 1}
        assert fork(control, 2) == {"op": "forked", "lane": 2}
        assert control.receive()[0] == {"op": "exited", "lane": 2, "code": 1, "signal": None}
        refused = fork(control, 3)
        assert (refused["op"], refused["lane"]) == ("unforked", 3)
        assert "no fork" in refused["message"]
        unfork(control, 1)
