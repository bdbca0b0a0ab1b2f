"""Files that ask for a sandbox in their comments, and definitions that ask for one by options."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import crosslane

from ..conftest import error, value
from ..servers import Server

pytestmark = pytest.mark.any_duckdb

ASKS = """
    /// script
    [tool.crosslane]
    sandbox = "on"
    allow_read = ["data"]
    ///
    """
READ = {
    "py": "from crosslane import udf\n@udf\ndef read(path: str) -> str:\n    return open(path).read()\n",
    "rb": 'udf("read(path VARCHAR) -> VARCHAR") { |path| File.read(path) }\n',
    "lua": 'udf("read(path VARCHAR) -> VARCHAR", function(path) return assert(io.open(path)):read("a") end)\n',
}
MARKS = {"py": "#", "rb": "#", "lua": "--", "js": "//", "ts": "//"}


def write(file: Path, asks: str = ASKS, text: str = "") -> Path:
    """A file that asks for the options in ``asks``. A secret and a folder with data are beside it."""
    suffix = file.suffix[1:]
    lines = textwrap.dedent(asks).strip().splitlines()
    file.write_text("".join(f"{MARKS[suffix]} {line}\n" for line in lines) + (text or READ[suffix]))
    (file.parent / "data").mkdir(exist_ok=True)
    (file.parent / "data" / "known").write_text("known")
    (file.parent / "secret").write_text("secret")
    return file


@pytest.mark.parametrize("language", READ)
def test_a_file_has_the_sandbox_that_it_asks_for(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str
) -> None:
    crosslane.load(con, write(tmp_path / f"functions.{language}"))
    assert value(con, f"SELECT read('{tmp_path}/data/known')") == "known"
    assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")
    options = value(con, "SELECT options FROM crosslane_functions() WHERE function = 'read'")
    assert options.startswith(f"sandbox=on, allow_read={tmp_path}/data")


@pytest.mark.parametrize("language", ["js", "ts"])
def test_javascript_asks_in_its_own_comments(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str
) -> None:
    text = 'udf("double(x BIGINT) -> BIGINT", (x) => 2 * x);\n'
    crosslane.load(con, write(tmp_path / f"functions.{language}", text=text))
    assert value(con, "SELECT double(21)") == 42
    assert "sandbox=on" in value(con, "SELECT options FROM crosslane_functions()")


def test_a_file_gets_no_more_than_the_settings_allow(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    file = write(tmp_path / "functions.py")
    con.execute("CALL crosslane_set('sandbox', 'on')")
    message = error(con, f"CALL crosslane_load('{file}')")
    assert f"{file}: its tool.crosslane asks for allow_read={tmp_path}/data" in message
    con.execute(f"CALL crosslane_load('{file}', allow_read := '{tmp_path}')")
    # The settings allow the secret, but the file did not ask for it.
    assert value(con, f"SELECT read('{tmp_path}/data/known')") == "known"
    assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")


def test_a_file_that_changes_may_ask_for_something_else(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    file = write(tmp_path / "functions.py")
    crosslane.load(con, file)
    write(file, ASKS.replace('"data"', '"data", "secret"'))
    assert [reloaded.error for reloaded in crosslane.reload(con)] == [None]
    assert value(con, f"SELECT read('{tmp_path}/secret')") == "secret"
    # A reload may allow no more than the load allowed.
    write(file)
    crosslane.load(con, file, sandbox=True, allow_read=[tmp_path / "data"])
    write(file, ASKS.replace('"data"', '"data", "secret"'))
    (reloaded,) = crosslane.reload(con)
    assert "which the settings do not allow" in str(reloaded.error)
    assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")


def test_what_is_wrong_is_an_error(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    file = write(tmp_path / "functions.py", ASKS.replace("allow_read", "allow_reading"))
    assert "has allow_reading, which is not an option" in error(con, f"CALL crosslane_load('{file}')")
    write(file, ASKS.replace('sandbox = "on"', ""))
    assert 'allows nothing without sandbox = "on"' in error(con, f"CALL crosslane_load('{file}')")


@pytest.mark.parametrize("language", ["python", "ruby", "lua"])
def test_definitions_ask_by_options(tmp_path: Path, language: str) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "known").write_text("known")
    body = {
        "python": "open(path).read()",
        "ruby": "File.read(path)",
        "lua": "return assert(io.open(path)):read('a')",
    }[language]
    definition = f"""
        CREATE FUNCTION read(path VARCHAR) RETURNS VARCHAR LANGUAGE {language}
        sandbox = 'on', allow_read = ['{tmp_path}/known'] AS $$ {body} $$
        """
    with crosslane.connect(tmp_path / "database") as con:
        crosslane.execute(con, definition)
        assert value(con, f"SELECT read('{tmp_path}/known')") == "known"
        assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")
    with crosslane.connect(tmp_path / "database") as con:
        assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")


def test_definitions_name_absolute_paths(con: duckdb.DuckDBPyConnection) -> None:
    definition = """
        CREATE FUNCTION f(x INTEGER) RETURNS INTEGER LANGUAGE python
        sandbox = 'on', allow_read = ['data'] AS $$ x $$
        """
    with pytest.raises(duckdb.Error, match="the option allow_read needs absolute paths"):
        crosslane.execute(con, definition)


def test_a_server_gives_a_file_what_it_asks_for(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    with Server(write(tmp_path / "functions.py"), free=False) as server:
        con.execute(f"CALL crosslane_attach('{server.address}')")
        assert value(con, f"SELECT read('{tmp_path}/data/known')") == "known"
        assert "allow_read" in error(con, f"SELECT read('{tmp_path}/secret')")


def test_the_check_lists_what_files_ask_for(tmp_path: Path) -> None:
    def check(file: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "crosslane._cli", "check", file.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    done = check(write(tmp_path / "functions.py"))
    assert done.returncode == 0
    assert f"sandbox of functions.py: sandbox=on allow_read={tmp_path}/data" in done.stderr
    made = f"open({str(tmp_path / 'made')!r}, 'w')\n"
    done = check(write(tmp_path / "functions.py", text=made + READ["py"]))
    assert "PermissionError" in done.stderr
    assert not (tmp_path / "made").exists()
    done = check(write(tmp_path / "functions.lua", ASKS.replace('"on"', "5")))
    assert done.returncode == 1
    assert "a sandbox that is not a text" in done.stderr


STREAM = """
from crosslane import udtf
@udtf("reads(t TABLE(path VARCHAR)) -> TABLE(text VARCHAR)", deterministic=False)
def reads(rows):
    for row in rows:
        yield (open(row.path).read(),)
"""


@pytest.mark.parametrize("by_file", [True, False], ids=["file", "settings"])
def test_functions_of_streams_have_it(tmp_path: Path, by_file: bool) -> None:
    file = write(tmp_path / "functions.py", text=STREAM, **({} if by_file else {"asks": ""}))
    settings = None if by_file else {"sandbox": "on", "allow_read": [tmp_path / "data"]}

    def read(path: str) -> list[str]:
        table = pa.table({"path": [f"{tmp_path}/{path}"]})
        return pa.table(crosslane.map(table, file, settings=settings))["text"].to_pylist()

    assert read("data/known") == ["known"]
    with pytest.raises(Exception, match="its sandbox allows files with allow_read"):
        read("secret")
    if by_file:
        settings = {"sandbox": "on"}
        with pytest.raises(Exception, match="which the settings do not allow"):
            read("data/known")


def test_functions_of_a_program_map_streams_in_a_sandbox(tmp_path: Path) -> None:
    def opens(batch: pa.RecordBatch) -> pa.RecordBatch:
        open("/etc/passwd").close()
        return batch

    table = pa.table({"n": [1]})
    assert pa.table(crosslane.map(table, opens)) == table
    with pytest.raises(Exception, match="its sandbox allows files with allow_read"):
        pa.table(crosslane.map(table, opens, settings={"sandbox": True}))
    with pytest.raises(Exception, match="sandbx"):
        crosslane.map(table, opens, settings={"sandbx": True})
    with pytest.raises(crosslane.DeclarationError, match="map takes its sandbox as settings"):
        crosslane.map(table, crosslane.udf(sandbox="on")(opens))
