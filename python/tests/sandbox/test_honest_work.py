"""Ordinary work gives the same results in a sandbox, and has the access that it was allowed."""

from __future__ import annotations

import os
import pickle
import shutil
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
from .conftest import SECRET

WORK = Path(__file__).with_name("honest_work.py")
ON = {"sandbox": "on"}


def sandboxed(file: Path, text: str = "", /, **allowed: Any) -> duckdb.DuckDBPyConnection:
    if text:
        file.write_text(textwrap.dedent(text))
    return crosslane.connect(functions=[file], settings=ON | allowed, config={"threads": 2})


@pytest.mark.any_duckdb
def test_packages_work(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NUMBER = 42\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from package.inner import NAME\n")
    (tmp_path / "package" / "inner.py").write_text("NAME = 'inner'\n")
    with sandboxed(Path(shutil.copy(WORK, tmp_path))) as con:
        (names,) = con.execute("SELECT works()").fetchone() or ([],)
        assert len(names) >= 30
        found = con.execute("SELECT name, work(name) FROM unnest(?) t(name)", [names]).fetchall()
        assert {name: outcome for name, outcome in found if outcome != "done"} == {}


LANGUAGES = {
    "py": """
        from crosslane import udf
        @udf
        def double(x: int) -> int:
            return 2 * x
        """,
    "rb": """
        require "bigdecimal"; require "digest"; require "time"; require "json"; require "set"; require "zlib"
        udf("double(x BIGINT) -> BIGINT") do |x|
          require "csv"
          (BigDecimal("2") * x + Digest::SHA256.hexdigest("").length - 64).to_i
        end
        """,
    "js": """udf("double(x BIGINT) -> BIGINT", (x) => 2 * x);""",
    "lua": """udf("double(x BIGINT) -> BIGINT", function(x) return 2 * x end)""",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_languages_run_in_a_sandbox(tmp_path: Path, language: str) -> None:
    with sandboxed(tmp_path / f"functions.{language}", LANGUAGES[language]) as con:
        total = value(con, "SELECT sum(double(i)) FROM range(100000) r(i)")
        assert total == 2 * sum(range(100000))
        (pid,) = con.execute("SELECT pid FROM crosslane_lanes()").fetchone() or (0,)
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
        # Of the rights of root, the worker keeps at most the right to read the user's own files.
        assert int(status["CapEff"], 16) & ~0b110 == 0


@pytest.mark.any_duckdb
def test_what_is_allowed_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "told")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").write_text("a,b\n")
    (tmp_path / "scratch").mkdir()
    text = """
        import os, subprocess, tempfile
        from pathlib import Path
        from crosslane import udf
        @udf(deterministic=False)
        def read(path: str) -> str:
            return Path(path).read_text()
        @udf(deterministic=False)
        def write(folder: str) -> str:
            with tempfile.TemporaryDirectory(dir=folder) as inner:
                Path(inner, "a").write_text("x")
                os.rename(Path(inner, "a"), Path(folder, "b"))
            return Path(folder, "b").read_text()
        @udf(deterministic=False)
        def told() -> str:
            return os.environ["CROSSLANE_TEST_SECRET"]
        @udf(deterministic=False)
        def run(program: str) -> str:
            return subprocess.run([program, "out"], capture_output=True, text=True, check=True).stdout
        """
    echo = os.path.realpath(shutil.which("echo") or "/bin/echo")
    with sandboxed(
        tmp_path / "functions.py",
        text,
        allow_read=[tmp_path / "data"],
        allow_write=[tmp_path / "scratch"],
        allow_env=[SECRET],
        allow_run=[echo],
    ) as con:
        assert value(con, f"SELECT read('{tmp_path}/data/table.csv')") == "a,b\n"
        assert value(con, f"SELECT write('{tmp_path}/scratch')") == "x"
        assert value(con, "SELECT told()") == "told"
        assert value(con, f"SELECT run('{echo}')") == "out\n"
        assert "PermissionError" in error(con, "SELECT run('/bin/true')")
        message = error(con, f"SELECT write('{tmp_path}/data')")
        assert "PermissionError" in message
        assert "allow_write" in message


ASKS = {
    "py": """
        import urllib.request
        from crosslane import udf
        @udf(deterministic=False)
        def ask(port: int) -> str:
            return urllib.request.urlopen(f"http://localhost:{port}/").read().decode()
        """,
    "rb": """
        require "net/http"
        udf("ask(port BIGINT) -> VARCHAR", deterministic: false) do |port|
          Net::HTTP.get("localhost", "/", port)
        end
        """,
}


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", ASKS)
def test_the_network_is_there_if_it_is_allowed(tmp_path: Path, port: int, language: str) -> None:
    file = tmp_path / f"functions.{language}"
    with sandboxed(file, ASKS[language], allow_net=True) as con:
        assert value(con, f"SELECT ask({port})") == "answered"
    with sandboxed(file) as con:
        assert "allow_net" in error(con, f"SELECT ask({port})")


REFUSED = {
    "py": "from crosslane import udf\n@udf\ndef read(path: str) -> str:\n    return open(path).read()\n",
    "rb": 'udf("read(path VARCHAR) -> VARCHAR") { |path| File.read(path) }\n',
    "lua": 'udf("read(path VARCHAR) -> VARCHAR", function(path) return assert(io.open(path)):read("a") end)\n',
}


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", REFUSED)
def test_a_refusal_says_what_would_allow_it(tmp_path: Path, language: str) -> None:
    (tmp_path / "secret").write_text("secret")
    with sandboxed(tmp_path / f"functions.{language}", REFUSED[language]) as con:
        message = error(con, f"SELECT read('{tmp_path}/secret')")
        assert f"{tmp_path}/secret" in message
        assert "allow_read" in message
    # Without a sandbox, the message does not mention one.
    with crosslane.connect(functions=[tmp_path / f"functions.{language}"]) as con:
        assert "allow_read" not in error(con, f"SELECT read('{tmp_path}/missing')")


@pytest.mark.any_duckdb
def test_a_file_is_restricted_while_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    text = f"""
        from crosslane import udf
        SECRET = open({str(tmp_path / "secret")!r}).read()
        @udf
        def f(x: int) -> int: return x
        """
    with pytest.raises(duckdb.Error, match=r"(?s)PermissionError.*allow_read"):
        sandboxed(tmp_path / "functions.py", text)


@pytest.mark.any_duckdb
def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(duckdb.Error, match=r"allow_read names .*missing.*No such file"):
        sandboxed(tmp_path / "functions.py", LANGUAGES["py"], allow_read=[tmp_path / "missing"])


@pytest.mark.any_duckdb
def test_a_library_with_threads_stays_in_its_sandbox(tmp_path: Path) -> None:
    """Its zygote starts itself anew, and each worker loads the file."""
    (tmp_path / "secret").write_text("secret")
    text = """
        import threading
        from crosslane import udf
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        @udf(memory_limit="200 MB")
        def read(path: str) -> str:
            return open(path).read()
        @udf
        def double(x: int) -> int:
            return 2 * x
        """
    with sandboxed(tmp_path / "functions.py", text) as con:
        assert value(con, "SELECT double(21)") == 42
        assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")


@pytest.mark.any_duckdb
def test_limits_hold_in_a_sandbox(tmp_path: Path) -> None:
    text = """
        from crosslane import udf
        @udf(memory_limit="64 MB")
        def large(x: int) -> int:
            return len(bytearray(x << 20))
        @udf(timeout=0.2)
        def endless(x: int) -> int:
            while x: pass
            return x
        """
    with sandboxed(tmp_path / "functions.py", text) as con:
        assert value(con, "SELECT large(1)") == 1 << 20
        assert "MemoryError" in error(con, "SELECT large(200)")
        assert "0.2 s" in error(con, "SELECT endless(1)")
        assert value(con, "SELECT large(2)") == 2 << 20


@pytest.mark.any_duckdb
def test_registered_functions_are_restricted(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    con.execute("CALL crosslane_set('sandbox', 'on')")

    def read(path: str) -> str:
        return open(path).read()

    crosslane.register(con, read)
    assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")
    with pytest.raises(duckdb.Error, match="threads of this program cannot be in a sandbox"):
        crosslane.register(con, read, name="read_here", lane="thread")


@pytest.mark.any_duckdb
def test_a_pickle_runs_nothing_before_its_sandbox(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """The engine reads the folders of pickled functions before the sandbox begins. They must be texts."""
    made = tmp_path / "made"
    con.execute("CALL crosslane_set('sandbox', 'on')")
    attack = f"cposix\nmkdir\n(S'{made}'\ntR.".encode()
    with pytest.raises(duckdb.Error, match="folders are texts"):
        con.execute("CALL crosslane_load_pickle(['f(x BIGINT) -> BIGINT'], ?)", [attack])
    assert not made.exists()


@pytest.mark.any_duckdb
def test_the_sandbox_is_locked_with_the_configuration(tmp_path: Path) -> None:
    config = {"lock_configuration": "true"}
    with crosslane.connect(settings=ON, config=config) as con:
        assert "lock" in error(con, "CALL crosslane_set('sandbox', 'off')")
        assert "lock" in error(con, "CALL crosslane_set('allow_net', 'true')")


@pytest.mark.any_duckdb
def test_a_file_may_have_a_sandbox_of_its_own(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """The file keeps its sandbox when it is loaded again after a change."""
    (tmp_path / "secret").write_text("secret")
    strict, free = tmp_path / "strict.py", tmp_path / "free.py"
    strict.write_text(REFUSED["py"].replace("read(", "strict("))
    free.write_text(REFUSED["py"].replace("read(path: str)", "free(path: str)"))
    crosslane.load(con, strict, sandbox=True, allow_read=[tmp_path / "strict.py"], allow_env=["A", "B"])
    crosslane.load(con, free)
    options = "SELECT options FROM crosslane_functions() WHERE function = 'strict'"
    expected = f"sandbox=on, allow_read={tmp_path}/strict.py, allow_env=A,B"
    assert value(con, options) == expected
    assert value(con, f"SELECT free('{tmp_path}/secret')") == "secret"
    assert "allow_read" in error(con, f"SELECT strict('{tmp_path}/secret')")
    strict.write_text(strict.read_text() + "\n# changed\n")
    assert [reloaded.error for reloaded in crosslane.reload(con)] == [None]
    assert "allow_read" in error(con, f"SELECT strict('{tmp_path}/secret')")
    assert value(con, options) == expected
    assert "without sandbox" in error(con, f"CALL crosslane_load('{free}', allow_net := true)")


@pytest.mark.any_duckdb
def test_a_locked_sandbox_cannot_be_loosened_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(LANGUAGES["py"].replace("\n        ", "\n"))
    with crosslane.connect(settings=ON, config={"lock_configuration": "true"}) as con:
        for given in ("sandbox := 'off'", "allow_net := true", "allow_read := '/'"):
            assert "locked" in error(con, f"CALL crosslane_load('{tmp_path}/functions.py', {given})")
        con.execute(f"CALL crosslane_load('{tmp_path}/functions.py')")
        assert value(con, "SELECT options FROM crosslane_functions()") == "sandbox=on"


@pytest.mark.any_duckdb
def test_a_server_offers_functions_in_a_sandbox(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "functions.py").write_text(REFUSED["py"])
    with Server(tmp_path / "functions.py", free=False) as server:
        assert server.said.startswith("serving 1 functions in a sandbox at")
        con.execute(f"CALL crosslane_attach('{server.address}')")
        assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")


@pytest.mark.any_duckdb
def test_a_server_allows_what_is_set(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "functions.py").write_text(REFUSED["py"])
    allowed = ("--set", f"allow_read={tmp_path}/secret")
    with Server(tmp_path / "functions.py", options=allowed, free=False) as server:
        con.execute(f"CALL crosslane_attach('{server.address}')")
        assert value(con, f"SELECT read('{tmp_path}/secret')") == "secret"
        assert "allow_read" in error(con, "SELECT read('/etc/passwd')")


@pytest.mark.any_duckdb
def test_a_server_on_a_unix_socket_has_no_sandbox_by_default(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "functions.py").write_text(REFUSED["py"])
    listen = f"crosslane+unix://{tmp_path}/socket"
    with Server(tmp_path / "functions.py", listen=listen, free=False) as server:
        con.execute(f"CALL crosslane_attach('{server.address}')")
        assert value(con, f"SELECT read('{tmp_path}/secret')") == "secret"


@pytest.mark.any_duckdb
def test_the_command_line_sets_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "functions.py").write_text(REFUSED["py"])
    command = [sys.executable, "-m", "crosslane._cli", "sql", "-f", str(tmp_path / "functions.py")]
    query = f"SELECT read('{tmp_path}/secret')"

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *options, query], capture_output=True, text=True, timeout=60)

    refused = run("--set", "sandbox=on")
    assert refused.returncode != 0
    assert "allow_read" in refused.stderr
    assert "secret" in run("--set", "sandbox=on", "--set", f"allow_read={tmp_path}").stdout


@pytest.mark.any_duckdb
def test_the_doctor_says_what_this_machine_can_enforce() -> None:
    from crosslane._cli.doctor.examine import examine

    (found,) = (finding for finding in examine() if finding.what == "sandbox")
    assert found.state == "good"
    assert "Landlock" in found.text


@pytest.mark.any_duckdb
def test_data_frames_have_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "functions.py").write_text(REFUSED["py"])
    secret = str(tmp_path / "secret")
    with (
        crosslane.Functions(tmp_path / "functions.py", settings=ON) as strict,
        pickle.loads(pickle.dumps(strict)) as copy,
    ):
        for fns in (strict, copy):
            with pytest.raises(duckdb.Error, match="allow_read"):
                fns.read([secret])
    with crosslane.Functions(tmp_path / "functions.py", settings=ON | {"allow_read": [tmp_path]}) as fns:
        assert fns.read([secret]) == ["secret"]
