"""``crosslane serve --watch``: files that change while a server runs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import psutil
import pytest
from pyarrow import flight

import crosslane

from ..conftest import error, eventually, value
from ..servers import Server, unix
from .conftest import has_begun
from .test_server_flight import column, exchange
from .test_server_http import Watched

pytestmark = pytest.mark.any_duckdb

FUNCTIONS = """
import os
import time

from crosslane import udaf, udf, udtf

@udf
def edition() -> int:
    return {version}

@udf(deterministic=False)
def worker() -> int:
    return os.getpid()

@udf(deterministic=False)
def waits(x: int, begun: str, gate: str) -> int:
    if x == 0:
        open(f"{{begun}}/{{os.getpid()}}", "w").close()
        while os.path.exists(gate):
            time.sleep(0.01)
    return {version}

@udf(memoize="1 MB")
def kept(x: int) -> int:
    return {version}

@udtf("versions(n BIGINT) -> TABLE(version BIGINT)")
def versions(n):
    for _ in range(n):
        yield {version}

@udaf("counted(x BIGINT) -> VARCHAR")
class Counted:
    def __init__(self): self.rows = 0
    def update(self, x): self.rows += 1
    def merge(self, other): self.rows += other.rows
    def finish(self): return f"{{self.rows}} of {version}"
"""


class File:
    """A file of functions that changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write(1)

    def write(self, version: int, more: str = "") -> None:
        # The file is replaced at once, because a part of the text would be a version of its own. The new
        # text comes from another folder, because a new file beside a broken one may mend it.
        new = self.path.parent / "new" / self.path.name
        new.parent.mkdir(exist_ok=True)
        new.write_text(FUNCTIONS.format(version=version) + more)
        new.rename(self.path)


def reloads(server: Server, count: int = 1, what: str = "INFO loaded again") -> bool:
    """Whether the server has loaded files again so often."""
    return eventually(lambda: server.log.count(f" {what} ") >= count, 60)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "changes.py")


@pytest.fixture
def server(file: File, serve: Callable[..., Server]) -> Server:
    return serve(file.path, options=("--watch",))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file for whose end a call of ``waits`` waits."""
    gate = tmp_path / "gate"
    gate.touch()
    return gate


def test_a_client_calls_the_functions_of_now(server: Server, file: File) -> None:
    with crosslane.Client(server.address) as client:
        assert client.call("edition") == 1
        file.write(2, "@udf\ndef added() -> int: return 5\n")
        assert reloads(server)
        assert client.call("added") == 5
        assert client.call("edition") == 2
        assert client.call_batch("kept", [1, 2]).to_pylist() == [2, 2]
        assert {row for batch in client.scan("versions", 3) for row in batch["version"].to_pylist()} == {2}
        assert client.aggregate("counted", [1, 2]) == "2 of 2"
        file.write(3)
        assert reloads(server, 2)
        assert "added" not in client.functions
        with pytest.raises(LookupError, match="has no function added"):
            client.call("added")
        assert client.call("edition") == 3


def test_a_module_that_a_file_imports_is_loaded_again(tmp_path: Path, serve: Callable[..., Server]) -> None:
    helper, file = tmp_path / "helper_of_served.py", tmp_path / "served.py"
    helper.write_text("VERSION = 1\n")
    file.write_text(
        "import helper_of_served\nfrom crosslane import udf\n"
        "@udf\ndef edition() -> int: return helper_of_served.VERSION\n"
    )
    server = serve(file, options=("--watch",))
    with crosslane.Client(server.address) as client:
        assert client.call("edition") == 1
        helper.write_text("VERSION = 2\n")
        assert reloads(server)
        assert client.call("edition") == 2


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("f.js", "udf('edition() -> BIGINT', () => {}n);\n", "edition"),
        ("f.rb", "udf 'edition() -> BIGINT' do || {} end\n", "edition"),
        ("f.lua", "udf('edition() -> BIGINT', function() return {} end)\n", "edition"),
    ],
)
def test_files_of_other_languages(
    tmp_path: Path, serve: Callable[..., Server], name: str, text: str, call: str
) -> None:
    file, (before, after) = tmp_path / name, text.split("{}")
    text_of = (before + "{}" + after).replace
    file.write_text(text_of("{}", "1"))
    server = serve(file, options=("--watch",))
    with crosslane.Client(server.address) as client:
        assert client.call(call) == 1
        file.write_text(text_of("{}", "2"))
        assert reloads(server)
        assert client.call(call) == 2


def test_running_calls_finish_with_the_functions_that_they_began_with(
    server: Server, file: File, begun: Path, gate: Path
) -> None:
    with crosslane.Client(server.address, lanes=2) as client, ThreadPoolExecutor(1) as threads:
        table = client.scan("versions", 100_000)
        rows = next(iter(table))["version"].to_pylist()
        running = threads.submit(client.call, "waits", 0, str(begun), str(gate))
        assert has_begun(begun)
        file.write(2)
        assert reloads(server)
        assert client.call("edition") == 2
        gate.unlink()
        assert running.result() == 1
        rows += [row for batch in table for row in batch["version"].to_pylist()]
        assert (len(rows), set(rows)) == (100_000, {1})


def test_a_running_query_finishes_with_the_functions_that_it_began_with(
    con: duckdb.DuckDBPyConnection, server: Server, file: File, begun: Path, gate: Path
) -> None:
    con.execute("SET threads = 1")
    con.execute(f"CALL crosslane_attach('{server.address}')")
    assert value(con, "SELECT kept(1)") == 1
    found: list[object] = []
    # The first batch waits, and the others are called after the change.
    query = f"SELECT list(DISTINCT waits(i, '{begun}', '{gate}')) FROM range(20000) r(i)"
    running = threading.Thread(target=lambda: found.append(value(con, query)))
    running.start()
    assert has_begun(begun)
    file.write(2)
    assert reloads(server)
    with crosslane.cursor(con) as other:
        assert eventually(lambda: value(other, "SELECT edition()") == 2, 30)
    gate.unlink()
    running.join()
    assert found == [[1]]
    # Results that the engine keeps are those of the functions of now.
    assert value(con, "SELECT kept(1)") == 2
    assert value(con, "SELECT counted(i) FROM range(10) r(i)") == "10 of 2"
    assert con.execute("SELECT DISTINCT version FROM versions(10)").fetchall() == [(2,)]


def test_a_function_with_other_parameters_is_never_called_with_the_old_ones(
    con: duckdb.DuckDBPyConnection, server: Server, file: File
) -> None:
    file.write(1, "@udf\ndef f(x: int) -> int: return x + 1\n")
    assert reloads(server)
    con.execute(f"CALL crosslane_attach('{server.address}')")
    assert value(con, "SELECT f(1)") == 2
    file.write(2, "@udf\ndef f(x: int, y: int) -> int: return x * y\n@udf\ndef g(x: int) -> int: return x\n")
    assert reloads(server, 2)

    def said() -> object:
        try:
            return value(con, "SELECT f(3, 4)")
        except duckdb.Error as failed:
            # DuckDB does not know the function yet.
            assert "No function matches" in str(failed)
            return None

    assert eventually(lambda: said() == 12, 30)
    assert value(con, "SELECT g(1)") == 1
    assert "it is now f(x BIGINT, y BIGINT) -> BIGINT" in error(con, "SELECT f(1)")


def test_a_file_that_cannot_be_loaded_keeps_its_functions(server: Server, file: File) -> None:
    with crosslane.Client(server.address) as client:
        lines = FUNCTIONS.count("\n")
        file.write(2, "1 / 0\n")
        assert reloads(server, 1, "WARN not loaded again")
        assert "ZeroDivisionError" in server.log
        assert f"changes.py:{lines + 1}" in server.log
        assert client.call("edition") == 1
        file.write(3, "def :\n")
        assert reloads(server, 2, "WARN not loaded again")
        assert "SyntaxError" in server.log
        # The same text is not tried again.
        file.write(4)
        assert reloads(server)
        assert server.log.count(" WARN ") == 2
        assert client.call("edition") == 4


def test_two_functions_of_one_name_keep_what_was_there(
    tmp_path: Path, file: File, serve: Callable[..., Server]
) -> None:
    other = tmp_path / "other.py"
    other.write_text("from crosslane import udf\n@udf\ndef other() -> int: return 7\n")
    server = serve(file.path, other, options=("--watch",))
    with crosslane.Client(server.address) as client:
        file.write(2, "@udf\ndef Other() -> int: return 8\n")
        assert reloads(server, 1, "WARN not loaded again")
        assert "have the same name" in server.log
        assert (client.call("edition"), client.call("other")) == (1, 7)
        file.write(3)
        assert reloads(server)
        assert (client.call("edition"), client.call("other")) == (3, 7)


def test_the_old_workers_end_and_the_page_shows_the_version(file: File, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(
        "import os\nfrom crosslane import udf\n@udf(deterministic=False)\ndef other() -> int: return os.getpid()\n"
    )
    with (
        Watched(file.path, other, options=("--watch", "--workers", "1")) as server,
        crosslane.Client(server.address, lanes=1) as client,
    ):
        old, others = psutil.Process(client.call("worker")), client.call("other")
        file.write(2)
        assert reloads(server)
        assert client.call("worker") != old.pid
        assert eventually(lambda: not old.is_running(), 60)
        # The other file has not changed, so its worker stays.
        assert client.call("other") == others

        def versions() -> dict[str, int]:
            return {
                Path(one["name"]).name: one["version"]
                for one in json.loads(server.get("/state.json")[1])["libraries"]
            }

        assert eventually(lambda: versions() == {"changes.py": 2, "other.py": 1})
        _, text = server.get("/metrics")
        assert f'crosslane_library_version{{library="{file.path}",language="Python"}} 2' in text


def test_clients_of_arrow_flight_get_the_functions_of_now(file: File, serve: Callable[..., Server]) -> None:
    file.write(1, "@udf\ndef f(x: int) -> int: return x + 1\n")
    server = serve(file.path, options=("--watch", "--flight", "127.0.0.1:0"))
    with flight.connect(server.next().rpartition(" ")[2]) as client:
        assert exchange(client, "f", column([1]))[0].column(0).to_pylist() == [2]
        file.write(2, "@udf\ndef f(x: str) -> str: return x + '2'\n")
        assert reloads(server)
        assert exchange(client, "f", column(["1"]))[0].column(0).to_pylist() == ["12"]


def edition(con: duckdb.DuckDBPyConnection) -> object:
    """The edition that DuckDB calls; None while the server cannot be reached."""
    try:
        return value(con, "SELECT edition()")
    except duckdb.Error:
        return None


def test_duckdb_follows_a_server_that_was_started_again(
    con: duckdb.DuckDBPyConnection,
    capfd: pytest.CaptureFixture[str],
    file: File,
    tmp_path: Path,
    serve: Callable[..., Server],
) -> None:
    def start() -> Server:
        return serve(file.path, listen=unix(tmp_path), options=("--watch",))

    server = start()
    con.execute(f"CALL crosslane_attach('{server.address}')")
    for version in (2, 4):
        server.end()
        # DuckDB has tried in vain.
        assert eventually(lambda: "This is tried again" in capfd.readouterr().err, 30)
        file.write(version)
        server = start()
        assert eventually(lambda version=version: edition(con) == version, 60)
        file.write(version + 1)
        assert reloads(server)
        assert eventually(lambda version=version: edition(con) == version + 1, 60)


def test_a_server_with_the_same_functions_is_still_followed(
    con: duckdb.DuckDBPyConnection, file: File, tmp_path: Path, serve: Callable[..., Server]
) -> None:
    def start() -> Server:
        return serve(file.path, listen=unix(tmp_path), options=("--watch",))

    server = start()
    con.execute(f"CALL crosslane_attach('{server.address}')")
    with crosslane.Client(server.address) as client:
        functions = client.functions
        server.end()
        server = start()
        # The client's functions stay, and it has a new connection on which it learns of others.
        assert client.functions is functions
        assert client.call("edition") == 1
        file.write(2)
        assert reloads(server)
        assert eventually(lambda: client.call("edition") == 2, 30)
        assert eventually(lambda: edition(con) == 2, 60)


def test_a_symbolic_link_that_changes_is_a_change(tmp_path: Path, serve: Callable[..., Server]) -> None:
    for version in (1, 2):
        (tmp_path / str(version)).mkdir()
        File(tmp_path / str(version) / "served.py").write(version)
    current, following = tmp_path / "current", tmp_path / "following"
    current.symlink_to("1")
    server = serve(current / "served.py", options=("--watch",))
    with crosslane.Client(server.address) as client:
        assert client.call("edition") == 1
        following.symlink_to("2")
        following.rename(current)
        assert reloads(server)
        assert client.call("edition") == 2


def test_without_a_watch_files_stay_as_they_were(file: File, serve: Callable[..., Server]) -> None:
    watched, server = serve(file.path, options=("--watch",)), serve(file.path)
    with crosslane.Client(server.address) as client:
        file.write(2)
        assert reloads(watched)
        assert client.call("edition") == 1
        assert "loaded again" not in server.log


def test_a_server_that_ends_while_it_watches(server: Server, file: File) -> None:
    client = crosslane.Client(server.address)
    assert client.call("edition") == 1
    assert server.end() == 0
    with pytest.raises(ConnectionError, match="cannot connect to"):
        client.call("edition")
    client.close()


def test_the_event_loop_does_not_ask_for_new_functions(
    file: File, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(file.path, options=("--watch",))
    asked: list[int] = []
    current = crosslane.Client._current

    def noted(self: crosslane.Client) -> object:
        if self._is_outdated():
            asked.append(threading.get_ident())
        return current(self)

    monkeypatch.setattr(crosslane.Client, "_current", noted)

    async def renewed(client: crosslane.AsyncClient, version: int, more: str) -> None:
        file.write(version, more)
        assert reloads(server, version - 1)
        assert eventually(lambda: client._open._is_outdated(), 30)

    async def main() -> None:
        async with crosslane.AsyncClient(server.address) as client:
            await renewed(client, 2, "")
            async with client.scan("versions", 1) as rows:
                assert [batch["version"].to_pylist() async for batch in rows] == [[2]]
            await renewed(client, 3, "@udf\ndef extra() -> int:\n    return 1\n")
            with pytest.raises(LookupError, match="has no function missing"):
                await anext(client.scan("missing"))
            await renewed(client, 4, "@udf\ndef more() -> int:\n    return 1\n")
            assert eventually(lambda: "more" in client.functions, 30)
            # A stream that was never read has not asked for anything.
            await renewed(client, 5, "")
            await client.scan("versions", 1).aclose()

    asyncio.run(main())
    assert len(asked) >= 3
    assert threading.get_ident() not in asked
