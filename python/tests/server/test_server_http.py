"""The information that a server shows over HTTP, to programs and in a browser."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ..conftest import Library, eventually
from ..servers import Server, unix

pytestmark = pytest.mark.any_duckdb

PAGE = Path(__file__).parents[3] / "docs" / "server.md"

PYTHON = """
import os
import time

from crosslane import udaf

@udf
def shout(text: str) -> str:
    return text.upper() + "!"

@udf
def fails(x: int) -> int:
    raise ValueError(x)

@udf(deterministic=False)
def waits(file: str) -> str:
    while os.path.exists(file):
        time.sleep(0.02)
    return file

class Sum:
    def __init__(self):
        self.sum = 0
    def update(self, x: int):
        self.sum += x
    def merge(self, other):
        self.sum += other.sum
    def finish(self) -> int:
        return self.sum

udaf("sums(x BIGINT) -> BIGINT")(Sum)
@udf(deterministic=False)
def prints(x: int) -> int:
    print("one\\ntwo \\x1b[31mred")
    return x

@udf
def dies(x: int) -> int:
    os._exit(3)

hostile = udf('"<script>alert(1)</script>"(x BIGINT) -> BIGINT')(lambda x: x)
"""


class Watched(Server):
    """A server with its own port for HTTP."""

    def __init__(self, *files: Path, options: tuple[str, ...] = (), **others: Any) -> None:
        super().__init__(*files, options=("--http", "127.0.0.1:0", *options), **others)
        assert eventually(lambda: " shown " in self.log, 30)
        (self.url,) = re.findall(r"http://[\d.:]+", self.log)

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        """The status and the text of an answer."""
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def function(self, name: str) -> dict[str, Any]:
        """The server's information about a function."""
        (found,) = [
            each for each in json.loads(self.get("/state.json")[1])["functions"] if each["name"] == name
        ]
        return found


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[type[Watched]]:
    """Starts servers, which end with the test."""
    with ExitStack() as stack:
        yield lambda *files, **options: stack.enter_context(Watched(*files, **options))


def test_calls_from_sql_are_seen(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path, serve: type[Watched]
) -> None:
    (tmp_path / "b.js").write_text("udf('two(x BIGINT) -> BIGINT', (x) => x * 2);\n")
    server = serve(library(PYTHON), tmp_path / "b.js")
    assert server.get("/health") == server.get("/ready") == (200, "ok\n")
    con.execute(f"CALL crosslane_attach('{server.address}')")
    con.execute("SELECT max(shout(i::VARCHAR)), max(two(i)) FROM range(5000) r(i)")
    con.execute("SELECT sums(i) FROM range(5000) r(i)")
    with pytest.raises(duckdb.Error):
        con.execute("SELECT fails(i) FROM range(1) r(i)")
    assert eventually(
        lambda: [server.function(name)["rows"] for name in ("shout", "two", "sums")] == [5000] * 3, 30
    )
    assert eventually(lambda: server.function("fails")["failures"] == 1, 30)
    assert [server.function(name)["language"] for name in ("shout", "two")] == ["Python", "JavaScript"]
    status, text = server.get("/metrics")
    assert status == 200
    assert (
        f'crosslane_function_rows_total{{function="two",library="{tmp_path}/b.js",language="JavaScript"}} 5000'
        in text
    )
    shown = set(re.findall(r"^# TYPE (\w+?)(?:_total)? ", text, re.M))
    documented = PAGE.read_text()
    assert {name for name in shown if not re.search(rf"`{name}(_total)?`", documented)} <= {
        "crosslane_connections_refused",
        "crosslane_connections_violations",
    }
    named = re.findall(r"`(crosslane_\w+)`", documented.partition("| metric |")[2])
    assert {name.removesuffix("_total") for name in named} <= shown


def test_the_token_is_in_a_file(library: Library, tmp_path: Path, serve: type[Watched]) -> None:
    (tmp_path / "token").write_text("secret\n")
    server = serve(library(PYTHON), options=("--http-token-file", str(tmp_path / "token")))
    assert server.get("/state.json")[0] == 401
    assert server.get("/state.json", Authorization="Bearer secret")[0] == 200
    assert server.get("/ready")[0] == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--http-public",), "belong to --http"),
        (("--http", "127.0.0.1:0", "--http-public", "--http-token-file", "token"), "exclude each other"),
        (("--http", "0.0.0.0:0"), "give --http-token-file, or --http-public if that is meant"),
        (("--http", "127.0.0.1"), "cannot listen for HTTP at 127.0.0.1: invalid socket address"),
    ],
)
def test_what_cannot_be_shown_is_said(
    options: tuple[str, ...], message: str, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("secret")
    with pytest.raises(RuntimeError) as caught:
        Server(library(PYTHON), listen=unix(tmp_path), options=options)
    assert message in " ".join(str(caught.value).split())


def test_a_server_that_drains_is_not_ready(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path, serve: type[Watched]
) -> None:
    server = serve(library(PYTHON), options=("--drain", "60"))
    con.execute(f"CALL crosslane_attach('{server.address}')")
    file = tmp_path / "waits"
    file.touch()
    query = "SELECT waits(?) FROM range(1)"
    with ThreadPoolExecutor(1) as pool:
        try:
            running = pool.submit(lambda: con.cursor().execute(query, [str(file)]).fetchall())
            assert eventually(lambda: server.function("waits")["in_flight"] == 1, 30)
            server.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: server.get("/ready") == (503, "the server is shutting down\n"), 30)
            assert server.get("/health")[0] == 200
        finally:
            file.unlink()
        assert running.result(60) == [(str(file),)]
    assert server.process.wait(60) == 0


def test_the_log_is_json(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    options = ("--log-format", "json", "--log-level", "debug")
    with Server(library(PYTHON), options=options) as server:
        con.execute(f"CALL crosslane_attach('{server.address}')")
        con.execute("SELECT prints(i) FROM range(1) r(i)")
        with pytest.raises(duckdb.Error):
            con.execute("SELECT dies(i) FROM range(1) r(i)")
        host, _, port = server.address.rpartition("/")[2].partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(4096):
                pass
        assert eventually(lambda: '"two ' in server.log, 30)
        server.end()
        events = [json.loads(line) for line in server.log.splitlines()]
    assert {"timestamp", "level", "message"} <= set.intersection(*map(set, events))

    def of(message: str) -> list[dict[str, Any]]:
        return [event for event in events if event["message"] == message]

    assert [event["text"] for event in of("printed")] == ["one", "two \x1b[31mred"]
    assert of("serving")[0]["address"] == server.address
    (lost,) = of("worker lost")
    assert (lost["level"], lost["function"]) == ("WARN", "dies")
    assert lost["connection"] in [event["connection"] for event in of("connection opened")]
    (ended,) = of("connection ended")
    assert ended["peer"].startswith("127.0.0.1:")
    assert (ended["level"], bool(ended["why"])) == ("WARN", True)
    opened, closed = (
        {event["connection"] for event in of(f"connection {how}")} for how in ("opened", "closed")
    )
    assert opened == closed
    assert events[-1]["message"] == "ended"


def test_the_log_as_text_has_a_line_for_each_event(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    with Server(library(PYTHON)) as server:
        con.execute(f"CALL crosslane_attach('{server.address}')")
        con.execute("SELECT prints(i) FROM range(1) r(i)")
        with pytest.raises(duckdb.Error):
            con.execute("SELECT dies(i) FROM range(1) r(i)")
        assert eventually(lambda: "two " in server.log, 30)
        server.end()
    lines = [re.fullmatch(r"\S+Z +(INFO|WARN) (.*)", line) for line in server.log.splitlines()]
    assert all(lines), server.log
    texts = [line[2] for line in lines if line]
    assert 'printed text="one"' in texts
    assert r'printed text="two \u{1b}[31mred"' in texts
    (lost,) = [text for text in texts if text.startswith("worker lost ")]
    assert 'function="dies"' in lost
    assert texts[-2:] == ["shutting down", "ended"]


def test_a_file_that_cannot_be_loaded_is_one_event_of_json(library: Library) -> None:
    with pytest.raises(RuntimeError) as caught:
        Server(library("nonsense()\n"), options=("--log-format", "json"))
    *_, last = str(caught.value).splitlines()
    event = json.loads(last)
    assert (event["level"], event["message"]) == ("ERROR", "not started")
    assert "NameError: name 'nonsense' is not defined" in event["why"]


def test_the_page_is_alive(
    con: duckdb.DuckDBPyConnection, library: Library, serve: type[Watched], browser: Any
) -> None:
    server = serve(library(PYTHON))
    con.execute(f"CALL crosslane_attach('{server.address}')")

    def text(where: str) -> str:
        return browser.execute_script("return document.querySelector(arguments[0]).innerText", where)

    def cells() -> dict[str, list[str]]:
        """The texts of each function's row."""
        rows = browser.execute_script(
            "return [...document.querySelectorAll('#functions tbody tr')].map((row) =>"
            " [...row.cells].map((cell) => (cell.querySelector('span') ?? cell).textContent))"
        )
        return {name: rest for name, *rest in rows}

    browser.get(server.url)
    assert eventually(lambda: text("#status") == "ready" and len(cells()) == 7, 30)
    # Names are shown as text, whatever characters they have.
    assert set(cells()) == {"shout", "fails", "waits", "sums", "prints", "dies", "<script>alert(1)</script>"}
    assert browser.execute_script("return document.scripts.length") == 1
    for round_ in range(1, 4):
        con.execute("SELECT max(shout(i::VARCHAR || ?)) FROM range(100) r(i)", [round_])
        # The server counts rows, and the page updates by itself.
        assert eventually(lambda due=round_: cells()["shout"][10] == str(100 * due), 30)
    language, _rate, _spark, *percentiles, in_flight, waiting, _calls, _rows, _reused, errors = cells()[
        "shout"
    ]
    assert (language, in_flight, waiting, errors) == ("Python", "0", "0", "0")
    assert eventually(
        lambda: all(re.fullmatch(r"[\d.,]+ (µs|ms|s)", cell) for cell in cells()["shout"][3:7]), 30
    )
    assert len(percentiles) == 4
    with pytest.raises(duckdb.Error):
        con.execute("SELECT fails(i) FROM range(1) r(i)")
    assert eventually(lambda: (text("#failures"), cells()["fails"][-1]) == ("1", "1"), 30)
    assert "Python" in text("#libraries tbody tr")
    assert "no sandbox" in text("#libraries tbody tr")
    hint = browser.execute_script("return document.querySelector('#waiting').title")
    assert hint == "0 MB of messages wait, 1074 MB at most"
    # The browser has refused nothing, and no script has failed.
    assert browser.get_log("browser") == []
    assert server.end() == 0
    assert eventually(lambda: text("#status") == "the server does not answer", 30)


def test_the_commands_of_the_documentation(tmp_path: Path) -> None:
    page = PAGE.read_text()
    words, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (command,) = re.findall(r"^\$ (.*--http .*)$", page, re.M)
    (tmp_path / "words.py").write_text(words)
    crosslane_, serve_, file, option, address = shlex.split(command)
    assert (crosslane_, serve_, file, option, address) == (
        "crosslane",
        "serve",
        "words.py",
        "--http",
        "127.0.0.1:7412",
    )
    with Watched(tmp_path / file, listen=unix(tmp_path)) as server:
        paths = re.findall(r"^\| `(/[\w.]*)` \|", page, re.M)
        assert sorted(paths) == ["/", "/health", "/metrics", "/ready", "/state.json"]
        assert [server.get(path)[0] for path in paths] == [200] * 5
