"""Functions of a server, called from SQL."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import duckdb
import psutil
import pytest

import crosslane

from ..conftest import Library, error, eventually, once_at_work, processes, value
from ..servers import Server, unix

pytestmark = pytest.mark.any_duckdb

PYTHON = """
import os
import time

import crosslane
from crosslane import udtf

@udf
def shout(text: str) -> str:
    return text.upper() + "!"

@udf
def fails(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x

@udf
def dies(x: int) -> int:
    if x == 3:
        os._exit(3)
    return x

@udf(on_error="null")
def dies_softly(x: int) -> int:
    if x == 3:
        os._exit(3)
    return x

@udf(workers=1, deterministic=False)
def only_worker(x: int) -> int:
    return os.getpid()

@udf(deterministic=False)
def any_worker(x: int) -> int:
    return os.getpid()

refused = []

@udf(timeout=1, retries=1)
def refuses_once(x: int) -> int:
    if not refused:
        refused.append(x)
        raise crosslane.Retry("busy", after=1.2)
    return len(refused)

@udf(timeout=0.4)
def sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds

@udf(retries=2)
def comes_back(folder: str) -> int:
    count = len(os.listdir(folder))
    open(f"{folder}/{count}", "w").close()
    if count < 2:
        raise OSError("not yet")
    return count

@udf
def prints(x: int) -> int:
    print("a line of prints")
    return x

@udf
def pid() -> int:
    return os.getpid()

@udf(deterministic=False)
def long(x: int) -> str:
    return "x" * x

@udtf("numbers(n BIGINT) -> TABLE(i BIGINT)")
def numbers(n):
    for i in range(n):
        yield i
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[type[Server]]:
    """Starts servers, which end with the test."""
    with ExitStack() as stack:
        yield lambda *files, **options: stack.enter_context(Server(*files, **options))


@pytest.fixture
def remote(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Server]
) -> duckdb.DuckDBPyConnection:
    """A connection with the functions of a server."""
    server = serve(library(PYTHON))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    return con


def test_a_server_offers_files_of_every_language(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, serve: type[Server]
) -> None:
    texts = {
        "a.py": "from crosslane import udf\n@udf\ndef one(x: int) -> int: return x + 1\n",
        "b.js": "udf('two(x BIGINT) -> BIGINT', (x) => x * 2);\n",
        "c.rb": "udf 'three(x BIGINT) -> BIGINT' do |x| x * 3 end\n",
        "d.lua": "udf('four(x BIGINT) -> BIGINT', function(x) return x * 4 end)\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    server = serve(*(tmp_path / name for name in texts), listen=unix(tmp_path))
    assert server.said == f"serving 4 functions at {unix(tmp_path)}"
    attached = con.execute(f"CALL crosslane_attach('{server.address}')").fetchall()
    assert [row[0] for row in attached] == ["one", "two", "three", "four"]
    query = "SELECT sum(one(i)), sum(two(i)), sum(three(i)), sum(four(i)) FROM range(20000) r(i)"
    total = sum(range(20000))
    assert con.execute(query).fetchone() == (total + 20000, total * 2, total * 3, total * 4)
    libraries = con.execute("SELECT DISTINCT library FROM crosslane_functions()").fetchall()
    assert libraries == [(server.address,)]
    # All workers belong to the server.
    of_server = psutil.Process(server.process.pid)
    assert set(processes()) <= {of_server, *of_server.children(recursive=True)}


def test_an_error_is_that_of_the_function(remote: duckdb.DuckDBPyConnection) -> None:
    text = error(remote, "SELECT fails(i) FROM range(10) r(i)")
    assert "fails: ValueError: three" in text
    assert "functions_1.py" in text
    assert "in fails" in text
    assert "in row 4 of the batch, with x = 3" in text
    assert value(remote, "SELECT sum(fails(i)) FROM range(3) r(i)") == 3


def test_a_crash_names_the_row_and_the_next_call_works(remote: duckdb.DuckDBPyConnection) -> None:
    text = error(remote, "SELECT dies(i) FROM range(10) r(i)")
    assert "its worker process ended with exit code 3" in text
    assert "in row 4 of the batch, with x = 3" in text
    assert value(remote, "SELECT sum(dies(i)) FROM range(3) r(i)") == 3
    assert value(remote, "SELECT sum(dies_softly(i)) FROM range(10) r(i)") == 42


def test_a_timeout_ends_the_call_and_its_worker(remote: duckdb.DuckDBPyConnection) -> None:
    text = error(remote, "SELECT sleeps(30)")
    assert "sleeps: timed out after 0.4 s" in text
    assert "with seconds = 30" in text
    assert value(remote, "SELECT sleeps(0.01)") == 0.01


def test_a_function_has_workers_of_its_own(remote: duckdb.DuckDBPyConnection) -> None:
    def workers(function: str) -> set[int]:
        with crosslane.cursor(remote) as cursor:
            query = f"SELECT DISTINCT {function}(i) FROM range(20000) r(i)"
            return {pid for (pid,) in cursor.execute(query).fetchall()}

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(workers, ["only_worker", "any_worker"] * 3))
    only, others = set.union(*found[::2]), set.union(*found[1::2])
    assert len(only) == 1
    assert not only & others


def test_a_pause_between_tries_is_no_lack_of_progress(remote: duckdb.DuckDBPyConnection) -> None:
    # The same worker was called twice.
    assert value(remote, "SELECT refuses_once(i) FROM range(1) r(i)") == 1


@pytest.mark.parametrize("how", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_call_that_ends_its_worker_at_once_is_made_once(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Server], tmp_path: Path, how: str
) -> None:
    notes = tmp_path / "notes"
    server = serve(
        library(f"""
        import os
        @udf
        def ends(x: int) -> int:
            with open({str(notes)!r}, "a") as file: file.write("called ")
            {how}
        """)
    )
    con.execute(f"CALL crosslane_attach('{server.address}')")
    for calls in range(1, 6):
        assert "ends: " in error(con, "SELECT ends(i) FROM range(1) r(i)")
        assert notes.read_text() == "called " * calls


def test_retries_are_the_worker_s(remote: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    folder = tmp_path / "tries"
    folder.mkdir()
    assert value(remote, f"SELECT comes_back('{folder}')") == 2


def test_what_functions_print_is_in_the_server_s_log(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Server]
) -> None:
    server = serve(library(PYTHON))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    con.execute("SELECT prints(1)")
    assert eventually(lambda: "a line of prints" in server.log)


def test_a_limit_ends_a_table(remote: duckdb.DuckDBPyConnection) -> None:
    for _ in range(3):
        assert remote.execute("FROM numbers(1_000_000_000_000) LIMIT 3").fetchall() == [(0,), (1,), (2,)]
    assert value(remote, "SELECT sum(i) FROM numbers(100_000)") == sum(range(100_000))


STREAMS = """
from crosslane import udtf

@udtf("twice(t TABLE(i BIGINT, s VARCHAR)) -> TABLE(i BIGINT, s VARCHAR)")
def twice(t):
    for row in t:
        yield row.i, row.s
        yield -row.i, row.s

@udtf("stops(t TABLE(i BIGINT)) -> TABLE(i BIGINT)")
def stops(t):
    for row in t:
        if row.i == 5000:
            raise ValueError("five thousand")
        yield row.i
"""


def test_streams_go_through_a_server(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Server]
) -> None:
    server = serve(library(STREAMS))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    rows = "SELECT i, repeat('x', 100) AS s FROM range(100000) t(i)"
    mapped = "SELECT i FROM crosslane_map($$" + rows + "$$, 'twice'{})"
    kept = mapped.format("")
    assert con.execute(kept).fetchall() == [(sign * i,) for i in range(100_000) for sign in (1, -1)]
    assert value(con, f"SELECT count(*) FROM ({kept} LIMIT 7)") == 7
    assert value(con, f"SELECT sum(abs(i)) FROM ({mapped.format(', ordered := false')})") == 2 * sum(
        range(100_000)
    )
    text = error(con, "FROM crosslane_map('SELECT i FROM range(10000) t(i)', 'stops')")
    assert "ValueError: five thousand" in text
    assert value(con, f"SELECT count(*) FROM ({kept})") == 200_000


def test_an_interrupt_ends_a_query(remote: duckdb.DuckDBPyConnection) -> None:
    with (
        once_at_work(remote, remote.interrupt),
        pytest.raises(duckdb.Error, match=r"Interrupted!|numbers: cancelled"),
    ):
        remote.execute("SELECT count(*) FROM numbers(1_000_000_000_000)").fetchall()
    assert value(remote, "SELECT shout('a')") == "A!"


def test_a_batch_that_the_server_does_not_take_says_what_to_do(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Server]
) -> None:
    server = serve(library(PYTHON), options=("--largest-batch", "100000"))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    text = error(con, "SELECT shout(repeat('a', 200000))")
    assert "more than 100000; the server's option --largest-batch changes this limit" in text
    text = error(con, "SELECT long(2000000)")
    assert "exceeds 100000 bytes" in text
    assert value(con, "SELECT shout('a')") == "A!"


def test_two_engines_share_the_workers(library: Library, serve: type[Server]) -> None:
    server = serve(library(PYTHON), options=("--workers", "1"))
    connections = [crosslane.connect(config={"threads": 2}) for _ in range(2)]
    for con in connections:
        con.execute(f"CALL crosslane_attach('{server.address}')")
    seen = {value(con, "SELECT pid()") for con in connections for _ in range(3)}
    assert len(seen) == 1
    for con in connections:
        con.close()


def test_a_token(
    con: duckdb.DuckDBPyConnection,
    library: Library,
    tmp_path: Path,
    serve: type[Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    server = serve(library(PYTHON), options=("--token-file", str(token)))
    assert "it needs a token" in error(con, f"CALL crosslane_attach('{server.address}')")
    assert "its token is another" in error(con, f"CALL crosslane_attach('{server.address}', token := 'x')")
    con.execute(f"CALL crosslane_attach('{server.address}', token := 's3cret')")
    assert value(con, "SELECT shout('a')") == "A!"
    monkeypatch.setenv("CROSSLANE_TOKEN", "s3cret")
    con.execute(f"CALL crosslane_attach('{server.address}')")
    assert value(con, "SELECT shout('b')") == "B!"
    # Other users see the arguments of a program.
    assert not any("s3cret" in word for word in server.process.args)
    cmdline = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    assert b"s3cret" not in cmdline


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("models:80", "no address of a server: it has another scheme"),
        ("crosslane://127.0.0.1:1", "cannot connect to crosslane://127.0.0.1:1"),
        ("crosslane+unix:///nowhere/a.sock", "cannot connect to crosslane+unix:///nowhere/a.sock"),
    ],
)
def test_an_address_that_leads_nowhere(con: duckdb.DuckDBPyConnection, address: str, why: str) -> None:
    assert why in error(con, f"CALL crosslane_attach('{address}')")


@pytest.mark.parametrize(
    ("listen", "options", "why"),
    [
        ("crosslane://0.0.0.0:0", (), "give the server a token"),
        ("nonsense", (), "no address of a server"),
        ("crosslane://127.0.0.1:0", ("--set", "spin"), "not NAME=VALUE"),
        ("crosslane://127.0.0.1:0", ("--set", "spinn=1"), "spinn"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    library: Library, listen: str, options: tuple[str, ...], why: str
) -> None:
    file = library("@udf\ndef f(x: int) -> int: return x\n")
    with pytest.raises(RuntimeError, match=why):
        Server(file, listen=listen, options=options)


def test_a_file_that_cannot_be_loaded(library: Library) -> None:
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError[\s\S]*functions_1\.py:3"):
        Server(library("\n1 / 0\n"))
    first, second = (
        library("@udf\ndef f(x: int) -> int: return x\n"),
        library("@udf\ndef F(x: int) -> int: return x\n"),
    )
    with pytest.raises(
        RuntimeError, match=r"have the same name \(\S*functions_2\.py:2 and \S*functions_3\.py:2\)"
    ):
        Server(first, second)


#: A function that creates a file when it begins. The test waits for the file, because a server that is to end
#: takes no later calls.
NAPS = """
import pathlib, time
@udf
def naps(x: float) -> float:
    pathlib.Path({begun!r}).touch()
    time.sleep(x)
    return x
"""


def test_calls_end_before_the_server_does(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Server], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    server = serve(library(NAPS.format(begun=str(begun))))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    results: list[object] = []
    query = threading.Thread(target=lambda: results.append(value(con, "SELECT naps(1.0)")))
    query.start()
    assert eventually(begun.exists)
    assert server.end() == 0
    query.join()
    assert results == [1.0]
    assert "cannot connect to" in error(con, "SELECT naps(0)")


def test_calls_that_do_not_end_are_ended(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Server], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    server = serve(library(NAPS.format(begun=str(begun))), options=("--drain", "0.2"))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    results: list[str] = []
    query = threading.Thread(target=lambda: results.append(error(con, "SELECT naps(1000)")))
    query.start()
    assert eventually(begun.exists)
    assert server.end(signal.SIGINT) == 1
    query.join()
    assert server.address in results[0]
    assert "not all calls had ended in time" in server.log


def test_a_server_with_other_functions_is_attached_anew(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, serve: type[Server]
) -> None:
    file = tmp_path / "f.py"
    file.write_text("from crosslane import udf\n@udf\ndef f(x: int) -> int: return x + 1\n")
    server = serve(file, listen=unix(tmp_path))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    assert value(con, "SELECT f(1)") == 2
    server.end()
    # The server starts again with the same functions. The engine finds it without another attachment.
    server = serve(file, listen=unix(tmp_path))
    assert 2 in [value_or_error(con, "SELECT f(1)") for _ in range(3)]
    server.end()
    file.write_text("from crosslane import udf\n@udf\ndef f(x: int) -> int: return x + 2\n")
    server = serve(file, listen=unix(tmp_path))
    said = [value_or_error(con, "SELECT f(1)") for _ in range(5)]
    assert "have changed since they were attached; attach again" in str(said[-1])
    con.execute(f"CALL crosslane_attach('{server.address}')")
    assert value(con, "SELECT f(1)") == 3


def value_or_error(con: duckdb.DuckDBPyConnection, query: str) -> object:
    try:
        return value(con, query)
    except duckdb.Error as failed:
        return str(failed)


def test_an_engine_that_is_locked_down_attaches_nothing(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("SET enable_external_access = false")
    assert "external access is off" in error(con, "CALL crosslane_attach('crosslane://127.0.0.1:1')")


def test_killed_workers_are_replaced(remote: duckdb.DuckDBPyConnection) -> None:
    for _ in range(3):
        os.kill(int(str(value(remote, "SELECT pid()"))), signal.SIGKILL)
        assert eventually(lambda: isinstance(value_or_error(remote, "SELECT pid()"), int))


def test_the_readme(tmp_path: Path, serve: type[Server], con: duckdb.DuckDBPyConnection) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    for name in ("functions.py", "functions.rb"):
        (text,) = re.findall(rf"^```\w+\n# {name}\n(.*?)^```$", readme, re.M | re.S)
        (tmp_path / name).write_text(text)
    section = readme.partition("## On other machines, and without a database\n")[2].partition("\n## ")[0]
    here = "crosslane+unix:///tmp/functions.sock"
    shell, sql, python = (
        textwrap.dedent(block).replace(here, unix(tmp_path))
        for block in re.findall(r"^    .*\n(?:    .*\n)*", section, re.M)
    )
    crosslane_, command, *words = shlex.split(shell)
    assert (crosslane_, command, words[2:]) == ("crosslane", "serve", ["--listen", unix(tmp_path)])
    serve(*(tmp_path / name for name in words[:2]), listen=unix(tmp_path))
    attach, select = sql.splitlines()
    con.execute(attach)
    assert con.execute(select).fetchall() == [("HELLO-WIDE-WORLD",)]
    program = [sys.executable, "-c", f"import crosslane\n{python}"]
    assert subprocess.run(program, check=True, capture_output=True, text=True).stdout == "hello-wide-world\n"


def test_the_page_of_the_server(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, serve: type[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    here = "crosslane+unix:///run/user/1000/words.sock"
    python, sh, sql = (
        re.findall(rf"^```{name}\n(.*?)^```$", page, re.M | re.S) for name in ("python", "sh", "sql")
    )
    (tmp_path / "words.py").write_text(python[0])
    crosslane_, command, *words = shlex.split(sh[0])
    assert (crosslane_, command) == ("crosslane", "serve")
    assert words == ["words.py", "--listen", here]
    serve(tmp_path / "words.py", listen=unix(tmp_path))
    attach, scalar, table = re.findall(r".+?;\n", sql[0].replace(here, unix(tmp_path)))
    con.execute(attach)
    assert con.execute(scalar).fetchall() == [("AB",)]
    assert con.execute(table).fetchall() == [("a",), ("b",), ("c",)]
    program = "\n".join(python[1:]).replace(here, unix(tmp_path))
    exec(compile(program, "docs/server.md", "exec"), {})
    assert capsys.readouterr().out == "['a', 'b', 'c']\n" * 2
    # The test of Arrow Flight runs the blocks about Arrow Flight.
    assert (len(python), len(sh), len(sql)) == (3, 2, 3)
