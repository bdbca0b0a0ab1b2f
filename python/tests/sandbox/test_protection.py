"""Files without a sandbox cannot reach the engine. Everything else is allowed."""

from __future__ import annotations

import importlib
import os
import textwrap
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import error, value

pytestmark = pytest.mark.any_duckdb

#: Whether the kernel restricts signals: from Linux 6.12 on.
PROTECTS = importlib.import_module("crosslane._guest").sandbox_of_this_machine()[1]

REACHES = {
    "py": """
        import os
        from crosslane import udf
        @udf(deterministic=False)
        def signal(pid: int) -> bool:
            os.kill(pid, 0)
            return True
        @udf(deterministic=False)
        def content(path: str) -> int:
            return len(open(path, "rb").read())
        """,
    "rb": """
        udf("signal(pid BIGINT) -> BIGINT", deterministic: false) { |pid| Process.kill(0, pid) }
        udf("content(path VARCHAR) -> BIGINT", deterministic: false) { |path| File.binread(path).length }
        """,
    "lua": """
        udf("signal(pid BIGINT) -> BIGINT", { deterministic = false }, function(pid)
          return os.execute("kill -0 " .. pid) and 1 or error("not permitted")
        end)
        udf("content(path VARCHAR) -> BIGINT", { deterministic = false }, function(path)
          return #assert(io.open(path)):read("a")
        end)
        """,
}


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


@pytest.mark.parametrize("language", REACHES)
def test_the_engine_is_out_of_reach(con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str) -> None:
    """Files cannot reach the process that ends all workers together with their engine, either."""
    (tmp_path / f"functions.{language}").write_text(textwrap.dedent(REACHES[language]))
    crosslane.load(con, tmp_path / f"functions.{language}")
    (tmp_path / "file").write_text("text")
    assert value(con, f"SELECT content('{tmp_path}/file')") == 4
    (lane,) = con.execute("SELECT pid FROM crosslane_lanes()").fetchone() or (0,)
    zygote = parent_of(lane)
    for process in (os.getpid(), parent_of(zygote)):
        if not PROTECTS:
            # The file can reach them in the same way, and `crosslane doctor` says so.
            con.execute(f"SELECT signal({process})").fetchall()
            continue
        assert "ermitted" in error(con, f"SELECT signal({process})")
        # Root may read the environment, unless the process lacks CAP_PERFMON.
        files = ("mem",) if os.geteuid() == 0 else ("mem", "environ", "maps")
        for file in files:
            assert "ermission denied" in error(con, f"SELECT content('/proc/{process}/{file}')")
    con.execute(f"SELECT signal({lane})").fetchall()


def test_work_is_as_free_as_before(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "functions.py").write_text(
        textwrap.dedent(f"""
            import os, signal, subprocess, threading
            from crosslane import udf
            @udf(deterministic=False)
            def moved() -> bool:
                os.close(os.open("{tmp_path}/one/file", os.O_CREAT | os.O_WRONLY))
                os.rename("{tmp_path}/one/file", "{tmp_path}/two/file")
                os.link("{tmp_path}/two/file", "{tmp_path}/one/link")
                return os.path.exists("{tmp_path}/one/link")
            @udf(deterministic=False)
            def ended() -> int:
                program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                os.killpg(program.pid, signal.SIGTERM)
                return program.wait()
            @udf(deterministic=False)
            def environment(name: str) -> str:
                return open("/proc/self/environ").read().count(name) > 0 and os.environ[name]
            """)
    )
    crosslane.load(con, tmp_path / "functions.py")
    assert value(con, "SELECT moved()") is True
    assert value(con, "SELECT ended()") == -15
    assert value(con, "SELECT environment('PATH')") == os.environ["PATH"]


def test_functions_of_the_program_itself_are_its_own(con: duckdb.DuckDBPyConnection) -> None:
    def signal(pid: int) -> int:
        os.kill(pid, 0)
        return 1

    crosslane.register(con, signal)
    assert value(con, f"SELECT signal({os.getpid()})") == 1
