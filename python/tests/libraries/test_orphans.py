"""Every process that a file or its functions start ends with the library, however the library ends and
however the process hides."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ..conftest import eventually, lives

pytestmark = pytest.mark.any_duckdb

#: A child, a process whose parent has ended, and a process in its own session.
HIDING = {
    "py": """
        import os, subprocess
        from crosslane import udf
        def hide():
            subprocess.Popen(["sh", "-c", "echo $$ >> {pids}; exec sleep 1000"])
            os.system("sleep 1000 & echo $! >> {pids}")
            os.system("setsid -f sh -c 'echo $$ >> {pids}; exec sleep 1000'")
        hide()
        @udf
        def f(x: int) -> int:
            hide()
            return x
    """,
    "rb": """
        def hide
          spawn("echo $$ >> {pids}; exec sleep 1000")
          system("sleep 1000 & echo $! >> {pids}")
          system("setsid -f sh -c 'echo $$ >> {pids}; exec sleep 1000'")
        end
        hide
        udf("f(x BIGINT) -> BIGINT") {{ |x| hide; x }}
    """,
    "js": 'udf("f(x BIGINT) -> BIGINT", (x) => x)',
}
#: An engine. Before it starts, it may get another parent than init. One of its forks may have all its
#: descriptors.
ENGINE = """
    import ctypes, os, signal, sys, time
    import crosslane
    signal.signal(signal.SIGCHLD, signal.{children})
    con = crosslane.connect(functions={path!r}, config={{"threads": 1}})
    con.execute("SELECT f(i) FROM range(1) r(i)").fetchall()
    fork = os.fork() if {forks} else None
    if fork == 0:
        time.sleep(1000)
    print(fork, flush=True)
    sys.stdin.readline()
    con.close()
    print("closed", flush=True)
    sys.stdin.readline()
"""
SUBREAPER = """
    import ctypes, subprocess, sys
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    engine = subprocess.Popen([sys.executable, "-c", {engine!r}])
    print(engine.pid, flush=True)
    engine.wait()
    sys.stdin.read()
"""


class Family:
    """An engine and all processes below it."""

    def __init__(
        self,
        folder: Path,
        language: str,
        *,
        forks: bool = False,
        subreaper: bool = False,
        children: str = "SIG_DFL",
    ) -> None:
        self.pids = folder / "pids"
        self.pids.touch()
        path = folder / f"functions.{language}"
        path.write_text(textwrap.dedent(HIDING[language].format(pids=self.pids)))
        program = textwrap.dedent(ENGINE.format(path=str(path), forks=forks, children=children))
        if subreaper:
            program = textwrap.dedent(SUBREAPER).format(engine=program)
        #: The other end of the terminal.
        self.master, terminal = pty.openpty()
        self.first = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=terminal,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(terminal)
        self.engine = psutil.Process(int(self._line()) if subreaper else self.first.pid)
        self.fork = self._line()
        expected = 0 if language == "js" else 6
        assert eventually(lambda: len(self._started()) == expected, 30), self._started()
        below = [process for process in self.engine.children(recursive=True) if str(process.pid) != self.fork]
        self.members = {*below, *self._started()}

    def _line(self) -> str:
        assert self.first.stdout is not None
        return self.first.stdout.readline().strip()

    def _started(self) -> list[psutil.Process]:
        return [psutil.Process(int(pid)) for pid in self.pids.read_text().split()]

    @property
    def zygote(self) -> psutil.Process:
        """The process that forks the lanes. For JavaScript, the host."""
        (child,) = [process for process in self.engine.children() if str(process.pid) != self.fork]
        return child if "crosslane-js" in child.name() else child.children()[0]

    def close(self) -> None:
        os.write(self.master, b"\n")
        assert self._line() == "closed"

    def is_gone(self) -> bool:
        return eventually(lambda: not any(lives(member) for member in self.members), 30)

    def stop_all(self) -> None:
        for process in {*self.members, self.engine, psutil.Process(self.first.pid)}:
            if lives(process):
                process.kill()
        if self.fork.isdigit():
            os.kill(int(self.fork), signal.SIGKILL)
        self.first.wait()
        if self.master >= 0:
            os.close(self.master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


ENDS = {
    "closing the database": Family.close,
    "the engine's death": lambda family: family.engine.kill(),
    "the death of the engine's group": lambda family: os.killpg(family.engine.pid, signal.SIGKILL),
    "the zygote's death": lambda family: family.zygote.kill(),
}


@pytest.fixture
def families() -> Iterator[list[Family]]:
    families: list[Family] = []
    yield families
    for family in families:
        family.stop_all()


@pytest.mark.parametrize("language", HIDING)
@pytest.mark.parametrize("end", ENDS)
def test_everything_ends_with(families: list[Family], tmp_path: Path, language: str, end: str) -> None:
    family = Family(tmp_path, language)
    families.append(family)
    ENDS[end](family)
    assert family.is_gone(), [member for member in family.members if lives(member)]


@pytest.mark.parametrize("language", HIDING)
def test_everything_ends_with_the_terminal(families: list[Family], tmp_path: Path, language: str) -> None:
    family = Family(tmp_path, language)
    families.append(family)
    os.close(family.master)
    family.master = -1
    assert family.is_gone(), [member for member in family.members if lives(member)]


@pytest.mark.parametrize("language", HIDING)
def test_everything_ends_below_a_subreaper(families: list[Family], tmp_path: Path, language: str) -> None:
    """A fork of the engine holds the descriptors, so that no socket shows the engine's end."""
    family = Family(tmp_path, language, forks=True, subreaper=True)
    families.append(family)
    family.engine.kill()
    assert family.is_gone(), [member for member in family.members if lives(member)]


@pytest.mark.parametrize("language", HIDING)
def test_everything_ends_with_a_zygote_whose_end_the_engine_ignores(
    families: list[Family], tmp_path: Path, language: str
) -> None:
    """Processes that a program starts ignore the signals that the program ignores."""
    family = Family(tmp_path, language, children="SIG_IGN")
    families.append(family)
    family.zygote.kill()
    assert family.is_gone(), [member for member in family.members if lives(member)]


#: `multiprocessing` forks the engine in the main thread and in a thread that ends. The first fork forks
#: again.
FORKING = """
    import multiprocessing, os, sys, threading, time
    import crosslane
    con = crosslane.connect(functions={path!r}, config={{"threads": 1}})
    con.execute("SELECT f(i) FROM range(1) r(i)").fetchall()
    context = multiprocessing.get_context("fork")
    def fork(depth):
        process = context.Process(target=live, args=(depth,))
        process.start()
        os.write(1, b"%d\\n" % process.pid)
    def live(depth):
        if depth:
            fork(depth - 1)
        time.sleep(1000)
    fork(1)
    thread = threading.Thread(target=fork, args=(0,))
    thread.start()
    thread.join()
    sys.stdin.readline()
"""


@pytest.mark.parametrize("subreaper", [False, True], ids=["init", "subreaper"])
def test_what_multiprocessing_forks_of_an_engine_ends_with_it(tmp_path: Path, subreaper: bool) -> None:
    """Such a fork has copies of the engine's lanes and memory. They would stay if it did not end."""
    path = tmp_path / "functions.py"
    path.write_text("from crosslane import udf\n@udf\ndef f(x: int) -> int: return x\n")
    program = textwrap.dedent(FORKING).format(path=str(path))
    if subreaper:
        program = textwrap.dedent(SUBREAPER).format(engine=program)
    first = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    engine = psutil.Process(int(first.stdout.readline()) if subreaper else first.pid)
    forks = [psutil.Process(int(first.stdout.readline())) for _ in range(3)]
    try:
        assert all(lives(fork) for fork in forks)
        engine.kill()
        assert eventually(lambda: not any(lives(fork) for fork in forks), 30)
    finally:
        for process in [*forks, engine, psutil.Process(first.pid)]:
            if lives(process):
                process.kill()
        first.communicate()
