"""Functions that ask by options for a sandbox of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import error, value
from ..servers import Server

pytestmark = pytest.mark.any_duckdb

READ = {
    "py": """
        import os
        from crosslane import udf
        @udf(deterministic=False)
        def free(path: str) -> str:
            return f"{os.getpid()} {open(path).read()}"
        @udf(deterministic=False, sandbox="on", allow_read="data")
        def own(path: str) -> str:
            return f"{os.getpid()} {open(path).read()}"
        @udf(deterministic=False, sandbox="strict", allow_read=["data"])
        def strict(path: str) -> str:
            return f"{os.getpid()} {path and open(path).read()}"
        """,
    "rb": """
        def read(path) = "#{Process.pid} #{path == "" ? "" : File.read(path)}"
        udf("free(path VARCHAR) -> VARCHAR", deterministic: false) { |path| read(path) }
        udf("own(path VARCHAR) -> VARCHAR", deterministic: false, sandbox: :on, allow_read: "data") { |path| read(path) }
        udf("strict(path VARCHAR) -> VARCHAR", deterministic: false, sandbox: "strict", allow_read: ["data"]) do |path|
          read(path)
        end
        """,
    "lua": """
        local function read(path)
          if path == "" then return "0 " end
          return "0 " .. assert(io.open(path)):read("a")
        end
        udf("free(path VARCHAR) -> VARCHAR", { deterministic = false }, read)
        udf("own(path VARCHAR) -> VARCHAR", { deterministic = false, sandbox = "on", allow_read = "data" }, read)
        udf("strict(path VARCHAR) -> VARCHAR", { deterministic = false, sandbox = "strict" }, read)
        """,
}


def write(file: Path, text: str) -> Path:
    """A file of functions, with a secret and a folder with data beside it."""
    (file.parent / "data").mkdir(exist_ok=True)
    (file.parent / "data" / "known").write_text("known")
    (file.parent / "secret").write_text("secret")
    file.write_text(textwrap.dedent(text))
    return file


def python(file: Path, options: str, head: str = "") -> Path:
    """A file with a function that has these options."""
    return write(
        file, f"{head}\nfrom crosslane import udf\n@udf({options})\ndef f(x: int) -> int: return x\n"
    )


@pytest.mark.parametrize("language", READ)
def test_a_function_may_do_less_than_its_file(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str
) -> None:
    crosslane.load(con, write(tmp_path / f"functions.{language}", READ[language]))
    known, secret = tmp_path / "data" / "known", tmp_path / "secret"

    def worker(function: str, path: Path | str, content: str) -> str:
        """The number of the process that has read this content."""
        process, found = value(con, f"SELECT {function}('{path}')").split(" ")
        assert found == content
        return process

    free = worker("free", secret, "secret")
    own = worker("own", known, "known")
    strict = worker("strict", "", "")
    assert len({free, own, strict}) == (3 if language != "lua" else 1)
    assert "its sandbox allows files with allow_read" in error(con, f"SELECT own('{secret}')")
    for path in (known, secret):
        assert "a strict sandbox allows" in error(con, f"SELECT strict('{path}')")
    query = "SELECT list(options ORDER BY function) FROM crosslane_functions()"
    _, of_own, of_strict = sorted(value(con, query))
    assert f"sandbox=on, allow_read={tmp_path}/data" in of_own
    assert "sandbox=strict" in of_strict


def test_a_worker_that_takes_the_place_of_another_is_restricted(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    crosslane.load(con, write(tmp_path / "functions.py", READ["py"]))
    known, secret = tmp_path / "data" / "known", tmp_path / "secret"
    process, _ = value(con, f"SELECT own('{known}')").split(" ")
    os.kill(int(process), signal.SIGKILL)
    again, _ = value(con, f"SELECT own('{known}')").split(" ")
    assert again != process
    assert "allow_read" in error(con, f"SELECT own('{secret}')")


def test_all_workers_of_the_function_are_restricted(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = """
        import os
        from crosslane import udf
        @udf(deterministic=False, sandbox="strict")
        def status(i: int) -> str:
            try:
                os.stat("/")
            except PermissionError:
                return f"{os.getpid()} refused"
            return "open"
        """
    crosslane.load(con, write(tmp_path / "functions.py", text))
    con.execute("SET threads = 4")
    query = "SELECT DISTINCT status(i) FROM range(200000) r(i)"
    assert {status.split(" ")[1] for (status,) in con.execute(query).fetchall()} == {"refused"}


def test_the_kernel_allows_what_both_sandboxes_allow(tmp_path: Path) -> None:
    file = write(tmp_path / "functions.py", READ["py"])
    (tmp_path / "other").write_text("other")
    allowed = [tmp_path / "data", tmp_path / "other"]
    settings: dict[str, Any] = {"sandbox": "on", "allow_read": allowed}
    with crosslane.connect(functions=[file], settings=settings) as con:
        assert value(con, f"SELECT free('{tmp_path}/other')").endswith(" other")
        assert value(con, f"SELECT own('{tmp_path}/data/known')").endswith(" known")
        assert "allow_read" in error(con, f"SELECT own('{tmp_path}/other')")
        assert "allow_read" in error(con, f"SELECT free('{tmp_path}/secret')")


def test_a_function_gets_no_more_than_its_file(tmp_path: Path) -> None:
    file = write(tmp_path / "functions.py", READ["py"])
    with pytest.raises(duckdb.Error, match="which the sandbox of its file does not allow") as raised:
        crosslane.connect(functions=[file], settings={"sandbox": "on"})
    assert f'{file}:7: the sandbox of "own"' in str(raised.value)
    assert f"allow_read={tmp_path}/data" in str(raised.value)


def test_a_file_cannot_free_its_workers_by_what_it_says_of_its_functions(tmp_path: Path) -> None:
    text = f"""
        from crosslane import udf
        from crosslane._declare.signature.declared import Declared
        message = Declared.message
        told = {{"strict": True, "recorded": True, "read": [{str(tmp_path / "data")!r}]}}
        Declared.message = lambda self: message(self) | {{"own_sandbox": told}}
        @udf(deterministic=False)
        def opens(path: str) -> str:
            return open(path).read()
        """
    file = write(tmp_path / "functions.py", text)
    settings = {"sandbox": "strict", "allow_read": [tmp_path / "data"]}
    with crosslane.connect(functions=[file], settings=settings) as con:
        assert "a strict sandbox allows" in error(con, f"SELECT opens('{tmp_path}/data/known')")


def test_it_may_have_a_bound_of_workers_and_memory(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = """
        from crosslane import udf
        @udf(sandbox="on", workers=1, memory_limit="64 MB", timeout=60)
        def allocates(x: int) -> int:
            return len(bytearray(x << 20))
        """
    crosslane.load(con, write(tmp_path / "functions.py", text))
    assert value(con, "SELECT sum(allocates(1 + i % 2)) FROM range(1000) r(i)") == 1500 << 20
    assert "MemoryError" in error(con, "SELECT allocates(200)")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("allow_read='data'", 'allow_read allows nothing without sandbox="on"'),
        ("sandbox=False, allow_net=True", 'allow_net allows nothing without sandbox="on"'),
        ("sandbox='off', allow_run=[]", 'allow_run allows nothing without sandbox="on"'),
        ("sandbox='on', allow_net=['a.example:443']", "a list of hosts in allow_net is for whole files"),
        ("sandbox='narrow'", "sandbox"),
        ("sandbox='on', allow_read=5", "allow_read that is not a text without commas, or a list of them"),
        ("sandbox='on', allow_read='missing'", "missing is not there"),
        ("sandbox='on', allow_env='KEY'", "allow_env"),
        ("sandbox='on', allow_write='.'", "allow_write names"),
    ],
)
def test_wrong_options_are_errors(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, options: str, why: str
) -> None:
    message = error(con, f"CALL crosslane_load('{python(tmp_path / 'functions.py', options)}')")
    assert why in message
    assert f"{tmp_path}/functions.py" in message


def test_no_sandbox_is_no_sandbox(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    crosslane.load(con, python(tmp_path / "functions.py", "sandbox=False"))
    assert "sandbox" not in value(con, "SELECT options FROM crosslane_functions()")


@pytest.mark.parametrize(
    "text",
    [
        '@udtf("f() -> TABLE(i BIGINT)", sandbox="on")\ndef f(): yield 1',
        '@udaf(sandbox="on")\nclass F:\n    pass',
    ],
)
def test_only_scalar_functions_have_it(con: duckdb.DuckDBPyConnection, tmp_path: Path, text: str) -> None:
    head = "from crosslane import udaf, udtf\n"
    assert "sandbox" in error(con, f"CALL crosslane_load('{write(tmp_path / 'f.py', head + text)}')")


def test_a_file_that_starts_threads_has_no_such_functions(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    head = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    file = python(tmp_path / "functions.py", "sandbox='on'", head)
    message = error(con, f"CALL crosslane_load('{file}')")
    assert "where a function has a sandbox of its own" in message


@pytest.mark.parametrize("settings", [{}, {"sandbox": "on"}], ids=["free", "sandboxed"])
def test_a_fork_that_starts_threads_is_no_worker(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, settings: dict[str, str]
) -> None:
    head = (
        "import os, threading\n"
        "def start(): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "os.register_at_fork(after_in_child=start)\n"
    )
    for name, setting in settings.items():
        con.execute("CALL crosslane_set(?, ?)", [name, setting])
    crosslane.load(con, python(tmp_path / "functions.py", "sandbox='on'", head))
    assert "a hook of its fork has started a thread" in error(con, "SELECT f(1)")


def test_functions_of_the_program_itself(con: duckdb.DuckDBPyConnection) -> None:
    @crosslane.udf(deterministic=False, sandbox="on")
    def opens(path: str) -> str:
        return open(path).read()

    crosslane.register(con, opens)
    assert "its sandbox allows files with allow_read" in error(con, "SELECT opens('/etc/passwd')")
    with pytest.raises(duckdb.Error, match="runs in the threads of this program"):
        crosslane.register(con, opens, lane="thread")


@pytest.mark.parametrize("free", [True, False], ids=["free", "sandboxed"])
def test_a_server_lends_restricted_workers(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, free: bool
) -> None:
    known, secret = tmp_path / "data" / "known", tmp_path / "secret"
    file = write(tmp_path / "functions.py", READ["py"])
    options = () if free else ("--set", f"allow_read={known.parent},{secret}")
    with Server(file, free=free, options=options) as server:
        con.execute(f"CALL crosslane_attach('{server.address}')")
        assert value(con, f"SELECT free('{secret}')").endswith(" secret")
        assert value(con, f"SELECT own('{known}')").endswith(" known")
        assert "allow_read" in error(con, f"SELECT own('{secret}')")
        assert "a strict sandbox" in error(con, f"SELECT strict('{known}')")


def test_check_knows_it(tmp_path: Path) -> None:
    def check(options: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "crosslane._cli",
            "check",
            python(tmp_path / "functions.py", options),
        ]
        return subprocess.run(command, capture_output=True, text=True)

    checked = check("sandbox='on', allow_read='/usr/share'")
    assert checked.returncode == 0, checked.stdout
    checked = check("sandbox='on', allow_read='missing'")
    assert checked.returncode != 0
    assert "missing is not there" in checked.stdout + checked.stderr
