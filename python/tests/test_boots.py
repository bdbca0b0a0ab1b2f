"""Workers that do not come: every wait for one ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

import crosslane
from crosslane._zygote import Control

from .conftest import Library, Load, error, value

#: Forks nothing for a long time, and at the first call only.
STALLED = """
import os, time
os.fork = lambda: time.sleep(1000)
@udf
def f(x: int) -> int: return x
"""


#: Has one worker; when a second is wanted, it tells that, and makes none.
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
    # The function has the other end.
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
    # With the second, a file lives on that sends nothing any more.
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


@pytest.mark.parametrize("language", HANGS)
def test_a_worker_that_hangs_before_it_is_ready_is_ended_when_it_is_given_up(
    tmp_path: Path, language: str
) -> None:
    path = tmp_path / f"hangs.{language}"
    path.write_text(HANGS[language])
    command = {
        "py": f"{sys.executable} -P -m crosslane._zygote",
        "rb": f"ruby -I{crosslane.ruby_path()} -rcrosslane/zygote -e Crosslane::Zygote.run",
    }[language]
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    zygote = subprocess.Popen(["bash", "-c", f"exec {command} 3<&{number}"], pass_fds=[number])
    theirs.close()
    control = Control(ours)
    try:
        control.send(op="load", source={"kind": "file", "path": str(path)}, seconds=30)
        assert control.receive()[0]["op"] == "loaded"
        text = json.dumps({"op": "fork", "lane": 5, "spin_microseconds": 0}).encode()
        with open(os.devnull) as nothing:
            socket.send_fds(ours, [len(text).to_bytes(4, "little") + text], [nothing.fileno()] * 3)
        assert control.receive()[0] == {"op": "forked", "lane": 5}
        control.send(op="unfork", lane=5)
        ended = control.receive()[0]
        assert (ended["op"], ended["lane"], ended["signal"]) == ("exited", 5, signal.SIGKILL)
    finally:
        ours.close()
        zygote.wait(timeout=30)
