"""What a library in a sandbox cannot use up: threads, processes, processor time between calls, and what the
kernel keeps for processes. Without a sandbox, each way to use it up works."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

import crosslane

from ...conftest import error, eventually, lives, name, printed, processes, value

pytestmark = pytest.mark.any_duckdb

#: More threads or processes than a worker may have in a sandbox.
MANY = 16 * max(16, os.cpu_count() or 1) + 44
#: A part of the error of a call whose worker was ended.
ALLOWED = "are allowed in a sandbox"
PROGRAMS = [os.path.realpath(shutil.which(program) or "") for program in ("sh", "sleep", "setsid")]
SANDBOXES: dict[str, dict[str, Any]] = {"on": {"sandbox": "on"}, "strict": {"sandbox": "strict"}}
RUNS = {"sandbox": "on", "allow_run": PROGRAMS}

#: `start` starts threads, and waits if it is told to.
THREADS = {
    "py": """
        import threading
        from crosslane import udf
        @udf(deterministic=False, timeout=60)
        def start(count: int, waits: bool) -> int:
            threading.stack_size(1 << 16)
            never = threading.Event()
            for _ in range(count):
                threading.Thread(target=never.wait, daemon=True).start()
            while waits:
                never.wait(1)
            return threading.active_count() - 1
        """,
    "rb": """
        udf("start(count BIGINT, waits BOOLEAN) -> BIGINT", deterministic: false, timeout: 60) do |count, waits|
          count.times { Thread.new { sleep } }
          sleep if waits
          Thread.list.size - 1
        end
        """,
}

#: `run` runs a program of the shell.
SHELLS = {
    "py": """
        import subprocess
        from crosslane import udf
        @udf(deterministic=False, timeout=60)
        def run(program: str) -> bool:
            return subprocess.run(["/bin/sh", "-c", program]).returncode == 0
        """,
    "rb": """
        udf("run(program VARCHAR) -> BOOLEAN", deterministic: false, timeout: 60) { |program| system("sh", "-c", program) }
        """,
    "lua": """
        udf("run(program VARCHAR) -> BOOLEAN", { deterministic = false, timeout = 60 }, function(program)
          return os.execute(program)
        end)
        """,
}
#: What is run `MANY` times, and whom the error names. A process in a session of its own belongs to no worker.
PARTS = {"sleep 1000 &": "its worker and", "(setsid sleep 1000 &);": "the processes of its library"}
#: Each process starts others until 1,500 lines are read. Without an end, a bomb could take all numbers of processes
#: from the tests that run beside it.
BOMB = (
    "bomb() { while read line <&3; do bomb & done; exec sleep 1000; }; "
    "i=0; while [ $i -lt 1500 ]; do echo; i=$((i+1)); done | { exec 3<&0; bomb; }"
)


def sandboxed(file: Path, text: str, settings: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    file.write_text(textwrap.dedent(text))
    return crosslane.connect(functions=[file], settings=settings, config={"threads": 1})


def repeated(part: str) -> str:
    return f"i=0; while [ $i -lt {MANY} ]; do {part} i=$((i+1)); done; sleep 1000"


def sleeping() -> list[psutil.Process]:
    return [process for process in processes() if name(process) in ("sh", "sleep")]


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("language", THREADS)
def test_threads(tmp_path: Path, language: str, sandbox: str) -> None:
    with sandboxed(tmp_path / f"functions.{language}", THREADS[language], SANDBOXES[sandbox]) as con:
        assert value(con, "SELECT start(20, false)") == 20
        told = error(con, f"SELECT start({MANY}, true)")
        assert "its worker had at least " in told
        assert f"{MANY - 44} {ALLOWED}" in told
        assert value(con, "SELECT start(20, false)") == 20


@pytest.mark.parametrize("language", THREADS)
def test_threads_without_a_sandbox(tmp_path: Path, language: str) -> None:
    with sandboxed(tmp_path / f"functions.{language}", THREADS[language], {}) as con:
        assert value(con, f"SELECT start({MANY}, false)") == MANY


def test_threads_in_the_sandbox_of_a_function(tmp_path: Path) -> None:
    text = THREADS["py"].replace("timeout=60", "timeout=60, sandbox='on'")
    with sandboxed(tmp_path / "functions.py", text, {}) as con:
        assert "its worker had " in error(con, f"SELECT start({MANY}, true)")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("language", SHELLS)
def test_processes(tmp_path: Path, language: str, part: str) -> None:
    with sandboxed(tmp_path / f"functions.{language}", SHELLS[language], RUNS) as con:
        told = error(con, f"SELECT run('{repeated(part)}')")
        assert PARTS[part] in told
        assert ALLOWED in told
        assert eventually(lambda: not sleeping())
        assert value(con, "SELECT run('sleep 0')") is True


def test_processes_that_start_processes(tmp_path: Path) -> None:
    with sandboxed(tmp_path / "functions.py", SHELLS["py"], RUNS) as con:
        assert ALLOWED in error(con, f"SELECT run('{BOMB}')")
        assert eventually(lambda: not sleeping())


def test_a_process_that_leaves_its_worker_during_a_call(tmp_path: Path) -> None:
    """It may use more processor time than between calls: `ulimit` ends it, and the call waits for that."""
    seconds = max(5, (os.cpu_count() or 1) // 2) + 2
    leaves = f'(setsid sh -c "ulimit -t {seconds}; while :; do :; done" &) | {{ read ended; true; }}'
    with sandboxed(tmp_path / "functions.py", SHELLS["py"], RUNS) as con:
        assert value(con, f"SELECT run('{leaves}')") is True


AT_LOAD = {
    "threads": """
        import threading
        threading.stack_size(1 << 16)
        never = threading.Event()
        for _ in range({many}):
            threading.Thread(target=never.wait, daemon=True).start()
        never.wait()
        """,
    "processes": """
        import os, signal
        for _ in range({many}):
            os.fork() or signal.pause()
        signal.pause()
        """,
}


@pytest.mark.parametrize("way", AT_LOAD)
def test_a_file_that_starts_them(tmp_path: Path, way: str) -> None:
    """The file is not loaded, before the time for this is over, and nothing of it is left."""
    with pytest.raises(duckdb.Error, match=f"was not loaded: .* {ALLOWED}"):
        sandboxed(tmp_path / "functions.py", AT_LOAD[way].format(many=MANY), SANDBOXES["on"])


#: `leave` leaves threads that compute, and says in which process.
COMPUTES = """
    import hashlib, os, threading
    from crosslane import udf
    def compute():
        while True:
            hashlib.sha256(bytes(10**7))
    @udf(deterministic=False)
    def leave(count: int) -> int:
        for _ in range(count):
            threading.Thread(target=compute, daemon=True).start()
        return os.getpid()
    """


def test_processor_time_between_calls(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with sandboxed(tmp_path / "functions.py", COMPUTES, SANDBOXES["on"]) as con:
        left = psutil.Process(value(con, f"SELECT leave({os.cpu_count()})"))
        assert eventually(lambda: not lives(left), 60)
        assert value(con, "SELECT leave(0)") != left.pid
        printed(
            capfd, "functions.py: its worker used ", " s of processor time while no call ran", "was ended"
        )


#: A process of the file's own, which starts others all the time. `known` says which.
STARTS = """
    import os, time
    from crosslane import udf
    forever = os.fork()
    while forever == 0:
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(0)
        os.wait()
    @udf(deterministic=False)
    def known() -> int:
        return forever
    """


def test_processes_that_a_file_has_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with sandboxed(tmp_path / "functions.py", STARTS, SANDBOXES["on"]) as con:
        left = psutil.Process(value(con, "SELECT known()"))
        assert eventually(lambda: not lives(left), 60)
        printed(capfd, "the processes of its library that are no workers used ", "were ended")


LIMITS = {
    "Max core file size": 0,
    "Max open files": 4096,
    "Max locked memory": 8 << 20,
    "Max pending signals": 1024,
    "Max msgqueue size": 0,
    "Max realtime priority": 0,
    "Max nice priority": 0,
}
PIDS = {
    "py": "from crosslane import udf\n@udf\ndef f(x: int) -> int:\n    return x\n",
    "rb": 'udf("f(x BIGINT) -> BIGINT") { |x| x }\n',
    "lua": 'udf("f(x BIGINT) -> BIGINT", function(x) return x end)\n',
    "js": 'udf("f(x BIGINT) -> BIGINT", (x) => x);\n',
}


@pytest.mark.parametrize("language", PIDS)
def test_limits_of_the_kernel(tmp_path: Path, language: str) -> None:
    with sandboxed(tmp_path / f"functions.{language}", PIDS[language], SANDBOXES["on"]) as con:
        con.execute("SELECT f(1)").fetchall()
        (pid,) = con.execute("SELECT pid FROM crosslane_lanes()").fetchone() or (0,)
        text = Path(f"/proc/{pid}/limits").read_text()
        for limit, most in LIMITS.items():
            (line,) = [line for line in text.splitlines() if line.startswith(limit)]
            soft, hard = line.removeprefix(limit).split()[:2]
            assert int(soft) <= int(hard) <= most


def test_limits_cannot_be_raised(tmp_path: Path) -> None:
    text = """
        import ctypes, errno, os, resource
        from crosslane import udf
        @udf(deterministic=False)
        def descriptors() -> int:
            opened = []
            try:
                while len(opened) < 10_000:
                    opened += os.pipe()
            except OSError as error:
                assert error.errno == errno.EMFILE
            for descriptor in opened:
                os.close(descriptor)
            return len(opened)
        @udf(deterministic=False)
        def timers() -> int:
            libc, timers = ctypes.CDLL(None), [ctypes.c_void_p() for _ in range(2000)]
            return sum(libc.timer_create(1, None, ctypes.byref(timer)) == 0 for timer in timers)
        @udf(deterministic=False)
        def less_likely_to_be_killed() -> str:
            open("/proc/self/oom_score_adj", "w").write("0")
        @udf(deterministic=False)
        def more(number: int) -> str:
            soft, hard = resource.getrlimit(number)
            try:
                resource.setrlimit(number, (soft, hard + 1))
            except (OSError, ValueError) as error:
                return str(error)
            return "raised"
        """
    with sandboxed(tmp_path / "functions.py", text, SANDBOXES["on"]) as con:
        assert 1000 <= int(str(value(con, "SELECT descriptors()"))) <= 4096
        assert int(str(value(con, "SELECT timers()"))) <= 1024
        # RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_SIGPENDING
        for number in (4, 7, 8, 11):
            assert value(con, f"SELECT more({number})") == "not allowed to raise maximum limit"
        # If there is no memory, the kernel ends workers first.
        assert "PermissionError" in error(con, "SELECT less_likely_to_be_killed()")
        (pid,) = con.execute("SELECT pid FROM crosslane_lanes()").fetchone() or (0,)
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "800\n"
