"""Traces that a server records, for programs and in a browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import crosslane

from ..commands.test_trace import data_of
from ..conftest import Library, eventually
from .test_server_http import Watched

pytestmark = pytest.mark.any_duckdb

PYTHON = """
import os

from crosslane import udtf

@udf
def shout(text: str) -> str:
    return text.upper() + "!"

@udf(on_error="null")
def halves(x: int) -> int:
    if x % 2:
        raise ValueError(x)
    return x // 2

@udf
def fails(x: int) -> int:
    raise ValueError(f"{x} </script>")

@udf
def dies(x: int) -> int:
    os._exit(3)

@udtf("count_to(n BIGINT) -> TABLE(i BIGINT)")
def count_to(n):
    yield from ((i,) for i in range(n))
"""


@pytest.fixture
def server(library: Library) -> Iterator[Watched]:
    with Watched(library(PYTHON), options=("--workers", "1")) as server:
        yield server


def call_all(server: Watched) -> None:
    """Calls functions of all kinds of ends."""
    with crosslane.Client(server.address, lanes=1) as client:
        assert client.call("shout", "a") == "A!"
        assert client.call_batch("halves", [1, 2, 3, 4]).to_pylist() == [None, 1, None, 2]
        assert sum(len(batch) for batch in client.scan("count_to", 5000)) == 5000
        with pytest.raises(RuntimeError):
            client.call("fails", 7)
        with pytest.raises(RuntimeError):
            client.call("dies", 1)
        assert client.call("shout", "b") == "B!"


def start(server: Watched) -> None:
    status, text = server.get("/trace/start", "POST")
    assert (status, json.loads(text)["on"]) == (200, True), text


def end(server: Watched) -> dict[str, Any]:
    status, text = server.get("/trace/end", "POST")
    assert (status, json.loads(text)["on"]) == (200, False), text
    return json.loads(text)


def test_a_program_gets_a_trace(server: Watched, tmp_path: Path) -> None:
    assert server.get("/trace.html")[0] == server.get("/trace.json")[0] == 404
    start(server)
    assert server.get("/trace/start", "POST") == (409, "a trace is on already\n")
    assert server.get("/trace.html")[0] == 404
    call_all(server)
    kept = end(server)
    (page := tmp_path / "a.html").write_text(server.get("/trace.html")[1])
    data = data_of(page)
    assert (data["host"], data["process"], data["dropped"]) == ("server", server.process.pid, 0)
    columns = data["events"]
    assert {len(column) for column in columns.values()} == {kept["events"]}
    names = [*data["functions"], None]
    events = [
        (data["kinds"][kind], names[function], rows)
        for kind, function, rows in zip(columns["kind"], columns["function"], columns["rows"])
    ]

    def rows(kind: str) -> dict[str, int]:
        """The number of rows for each function in the events of a kind."""
        found: dict[str, int] = {}
        for one, function, count in events:
            if one == kind:
                found[function] = found.get(function, 0) + count
        return found

    assert rows("function") == {"shout": 2, "halves": 4, "count_to": 5000, "fails": 0}
    assert rows("copy_in") == {"shout": 2, "halves": 4, "count_to": 1, "fails": 1, "dies": 1}
    assert rows("exception") == {"halves": 2, "fails": 1}
    assert rows("lane_lost") == {"dies": 0}
    details = {(events[number][:2], text) for number, text in data["details"]}
    assert (("function", "shout"), "text = 'a'") in details
    assert (("exception", "fails"), "ValueError: 7 </script>") in details
    # The workers are those of the file, and the others are connections of clients.
    assert data["libraries"] == [str(next(iter(tmp_path.glob("*.py"))))]
    workers = {(lane, process) for _, lane, process, _ in data["places"] if lane}
    assert len(workers) == 2
    # The same trace in the format of Chrome.
    chrome = json.loads(server.get("/trace.json")[1])["traceEvents"]
    called = [one for one in chrome if one["ph"] != "M"]
    assert [one["cat"] for one in called] == [kind for kind, _, _ in events]
    assert [one["args"]["rows"] for one in called] == [count for _, _, count in events]
    named = {(one["name"], one["pid"]): one["args"]["name"] for one in chrome if one["ph"] == "M"}
    assert named["process_name", server.process.pid] == "server"
    assert {named["process_name", process] for _, process in workers} == {
        f"workers of {Path(data['libraries'][0]).name}"
    }
    # The next trace has none of these events.
    start(server)
    assert end(server)["events"] == 0
    assert "trace started" in server.log


def test_a_load_belongs_to_no_client(library: Library, tmp_path: Path) -> None:
    file = library(PYTHON)
    with Watched(file, options=("--watch",)) as server:
        start(server)
        file.write_text(file.read_text() + "\nudf('one() -> BIGINT')(lambda: 1)\n")
        assert eventually(lambda: "loaded again" in server.log, 60)
        end(server)
        (page := tmp_path / "a.html").write_text(server.get("/trace.html")[1])
        chrome = json.loads(server.get("/trace.json")[1])["traceEvents"]
    data = data_of(page)
    load = data["events"]["kind"].index(data["kinds"].index("load"))
    assert data["places"][data["events"]["place"][load]] == [0, 0, 0, 0]
    (loaded,) = [one for one in chrome if one["name"] == "load"]
    names = [
        one["args"]["name"] for one in chrome if one["name"] == "thread_name" and one["tid"] == loaded["tid"]
    ]
    assert names == ["loads"]
    # The workers of the new functions were started meanwhile.
    assert "boot" in data["kinds"]


def test_a_trace_belongs_to_the_user_of_the_server(server: Watched) -> None:
    other = {"Origin": "http://example.org"}
    status, text = server.get("/trace/start", "POST", **other)
    assert (status, text) == (403, "only the page of this server may do that, or a program\n")
    assert json.loads(server.get("/state.json")[1])["trace"]["on"] is False
    if os.geteuid() == 0:
        # A socket belongs to the user that the process has when it makes the socket.
        os.seteuid(65534)
        try:
            status, text = server.get("/trace/start", "POST")
        finally:
            os.seteuid(0)
        assert (status, "only programs of the server's own user" in text) == (403, True), text
        assert json.loads(server.get("/state.json")[1])["trace"]["on"] is False
    start(server)


def test_the_page_records_and_shows_a_trace(server: Watched, browser: Any) -> None:
    browser.get(server.url)

    def text(where: str) -> str:
        return browser.execute_script("return document.querySelector(arguments[0]).innerText", where)

    button = browser.find_element("id", "record")
    assert eventually(lambda: button.text == "Start a trace", 30)
    button.click()
    assert eventually(lambda: button.text == "End the trace", 30)
    call_all(server)
    button.click()
    assert eventually(lambda: text("#links") == "Show the trace for Perfetto", 30)
    link = browser.find_element("css selector", "#links a")
    browser.get(link.get_attribute("href"))
    groups = browser.execute_script("return timeLine.groups.map((one) => one.name)")
    assert len(groups) == 2
    assert groups[0].startswith("Workers of ")
    assert groups[1] == "Connections of clients"
    names = browser.execute_script("return trace.rows.map((row) => row.name)")
    assert [name.split()[0] for name in names[:2]] == ["worker", "worker"]
    assert {name.split()[0] for name in names[2:]} == {"connection"}
    totals = browser.execute_script(
        "return [...document.querySelectorAll('#totals tbody tr')].map((row) =>"
        " [...row.cells].slice(0, 4).map((cell) => cell.textContent))"
    )
    assert ["halves", "exception", "1", "2"] in totals
    assert "text = 'a'" in text("#slowest")
    assert "ValueError: 7 </script>" in browser.execute_script("return [...trace.events.detail.values()]")
    # The browser has refused nothing, and no script has failed.
    assert browser.get_log("browser") == []
    # Another trace replaces this one. A start that is refused says why.
    browser.get(server.url)
    assert eventually(lambda: text("#record") == "Start a trace", 30)
    start(server)
    click = "const button = document.querySelector('#record'); button.dataset.path = '/trace/start'; button.click()"
    browser.execute_script(click)
    assert eventually(lambda: text("#refused") == "a trace is on already", 30)
