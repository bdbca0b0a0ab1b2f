"""``crosslane bench serve``: the load generator against a server."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from crosslane import _cli
from crosslane._cli.load_test import measure, report

from ..conftest import Library, eventually
from ..servers import Server, unix

pytestmark = pytest.mark.any_duckdb

COMMAND = [sys.executable, "-m", "crosslane._cli", "bench", "serve"]
FUNCTIONS = """
import pathlib
import time

@udf
def initials(name: str) -> str:
    return "".join(word[0] for word in name.split())

@udf
def nothing(x: int) -> int:
    return x

@udf
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds

@udf
def fails(x: int) -> int:
    return 1 // x

@udf
def touches(file: str) -> int:
    pathlib.Path(file).touch()
    return 1
"""


@pytest.fixture
def server(library: Library, tmp_path: Path) -> Iterator[Server]:
    with Server(library(FUNCTIONS), listen=unix(tmp_path), options=("--workers", "2")) as server:
        yield server


def bench(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "160", **environment},
    )


def test_a_short_run(server: Server, tmp_path: Path) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    drawn = ("--picture", picture) if report.can_draw() else ()
    calls = ("--function", "nothing(1)", "--heavy", "nap(0.001)", "--heavy-share", "0.2")
    times = ("--qps", "200,400", "--seconds", "0.5", "--warm-up", "0.1", "--connections", "2")
    done = bench(server.address, *calls, *times, "--json", figures, *drawn)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("p50", "p99.9", "light", "heavy", "200", "400", "failed"):
        assert word in done.stdout
    measured = json.loads(figures.read_text())
    assert (measured["address"], measured["connections"]) == (server.address, 2)
    assert measured["light"] == {"function": "nothing", "arguments": [1]}
    assert "token" not in measured
    for step, rate in zip(measured["steps"], (200, 400), strict=True):
        assert step["rate"] == rate
        assert (step["answers"], step["failed"], step["lost"]) == (rate // 2, 0, 0)
        assert step["light"]["count"] + step["heavy"]["count"] == rate // 2
        assert step["heavy"]["p50_us"] >= 1000
        assert {"avg_us", "p50_us", "p90_us", "p99_us", "p99.9_us", "p99.99_us", "max_us"} < set(
            step["latency"]
        )
        assert sum(count for _, count in step["distribution"]) == rate // 2
        assert step["late"]["count"] == rate // 2
    if drawn:
        assert picture.read_text().startswith("<?xml")


def test_failures_are_counted_and_the_first_is_shown(server: Server) -> None:
    done = bench(server.address, "--function", "fails(0)", "--qps", "100", "--seconds", "0.5")
    assert done.returncode == 0
    assert " 50 " in done.stdout
    assert "the first failure: ZeroDivisionError" in done.stderr


def test_what_cannot_be_measured_is_told(server: Server, tmp_path: Path) -> None:
    nowhere = f"crosslane+unix://{tmp_path}/nowhere"
    for address, arguments, code, what in [
        (
            server.address,
            ("--function", "missing"),
            1,
            "the server has no function missing; it has fails, initials, nap",
        ),
        (server.address, ("--function", 'nothing("x")'), 1, 'with these arguments: "x" is no BIGINT'),
        (server.address, ("--function", "nothing"), 1, "one for x is missing"),
        (nowhere, ("--function", "nothing(1)"), 1, "cannot connect to"),
        ("nowhere", ("--function", "nothing(1)"), 1, "no address of a server"),
        (server.address, (), 2, "--function"),
        (server.address, ("--function", "nothing(1"), 2, "is not NAME or NAME(ARGUMENT, ...)"),
        (server.address, ("--function", "nothing(x)"), 2, "are not JSON"),
        (server.address, ("--function", "nothing(1)", "--qps", "1,many"), 2, "is not calls per second"),
        (server.address, ("--function", "nothing(1)", "--qps", "0"), 2, "is not calls per second"),
        (server.address, ("--function", "nothing(1)", "--picture", "a.gif"), 2, "ends with .svg or .png"),
    ]:
        done = bench(address, *arguments, COLUMNS="1000")
        assert done.returncode == code, done.stderr
        assert what in " ".join(done.stderr.split()), done.stderr
        assert done.stdout == ""


def test_a_token_is_needed_where_the_server_has_one(library: Library, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    options = ("--token-file", str(token))
    calls = ("--function", "nothing(1)", "--qps", "100", "--seconds", "0.2", "--warm-up", "0")
    with Server(library(FUNCTIONS), options=options) as server:
        refused = bench(server.address, *calls)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "refused: it needs a token" in refused.stderr
        assert "its token is another" in bench(server.address, *calls, CROSSLANE_TOKEN="public").stderr
        assert bench(server.address, *calls, CROSSLANE_TOKEN="secret").returncode == 0
        assert bench(server.address, *calls, *options).returncode == 0


def test_ctrl_c_shows_what_was_measured_until_then(server: Server, tmp_path: Path) -> None:
    touched, figures = tmp_path / "touched", tmp_path / "figures.json"
    calls = ("--function", f"touches({json.dumps(str(touched))})", "--qps", "100", "--warm-up", "0")
    process = subprocess.Popen(
        [*COMMAND, server.address, *calls, "--seconds", "10000", "--json", str(figures)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The program has to start, and to connect.
    assert eventually(touched.exists, 30)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "p99.9" in printed
    assert "interrupted" in said
    (step,) = json.loads(figures.read_text())["steps"]
    assert step["stopped"]
    assert step["lost"] == 0
    assert step["answers"] >= 0


def test_a_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "can_draw", lambda: False)
    arguments = ["crosslane://127.0.0.1:1", "--function", "f", "--picture", str(tmp_path / "a.png")]
    done = CliRunner().invoke(_cli.main, ["bench", "serve", *arguments])
    assert done.exit_code == 1
    assert "pip install matplotlib" in done.output


def test_the_documentation_is_followed(server: Server) -> None:
    page = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    (command,) = re.findall(r"^\$ crosslane bench serve (.+)$", page, re.M)
    address, *options = shlex.split(command)
    assert address == "crosslane+unix:///run/user/1000/words.sock"
    done = bench(server.address, *options, "--seconds", "0.3", "--warm-up", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "5,000" in done.stdout


def test_texts_and_pictures_of_steps(tmp_path: Path) -> None:
    assert all(doctest.testmod(module).failed == 0 for module in (measure, report))

    def step(rate: int, **more: Any) -> dict[str, Any]:
        samples = {f"{name}_us": rate / 10 for name in (*report.PERCENTILES, "max")}
        about = {"rate": rate, "qps": rate, "failed": 0, "lost": 0, "late": samples}
        return {**about, "latency": samples, "light": samples, "heavy": None, **more}

    # If no call of a step was answered, the step has no latencies.
    nothing = step(3000, latency=None, light=None, late=None, failed=5, lost=6)
    table = report.table([step(1000), nothing])
    assert table.row_count == 2
    assert [len(column._cells) for column in table.columns] == [2] * 10
    assert report.table([step(1000, heavy=step(1)["light"])]).row_count == 2
    if report.can_draw():
        for steps in ([step(1000), step(2000), nothing], [nothing]):
            picture = tmp_path / "picture.png"
            report.draw(steps, "a title", picture)
            assert picture.read_bytes().startswith(b"\x89PNG")
