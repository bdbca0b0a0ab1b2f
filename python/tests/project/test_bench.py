"""The results that the benchmark of the scheduler computes from the reports of its load generator."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import textwrap
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def sched(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("bench.scheduler.run")


def report(us: float, cycles: float | None = None) -> dict[str, Any]:
    """A report whose figures all depend on one number."""
    latency = {f"{name}_us": us for name in ("avg", "p50", "p90", "p99", "p99.9", "p99.99", "max")}
    used = {"cpu_us": us, "switches": us, "migrations": us, "cycles": cycles, "ipc": cycles}
    return {
        "qps": 1e6 / us,
        "lost": 0,
        "latency": latency,
        "light": latency,
        "heavy": latency,
        "late": None,
    } | {"used": used}


def filled(sched: ModuleType, rounds: dict[str, list[float]], cycles: float | None = None) -> Any:
    runs = sched.Runs({}, 1, 0)
    for load in sched.LOADS:
        for server in load.servers:
            for us in rounds.get(server, rounds["else"]):
                runs.add(load, server, report(us, cycles))
    return runs


def printed(*what: Any) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(*what)
    return console.file.getvalue()


def test_a_ratio_is_the_median_of_the_rounds_ratios(sched: ModuleType) -> None:
    # The ratios of the rounds are 2, 1/3 and 1/2. The ratio of the medians is 1.
    runs = filled(sched, {sched.OURS: [10, 20, 30], "else": [5, 60, 60], sched.RAW: [5, 60, 60]})
    lines = runs.lines()
    assert len(lines) == 14
    assert {line.value for line in lines if line.unit == "times"} == {0.5}
    assert {line.value for line in lines if line.unit == "x"} == {2.0}
    assert all(line.met for line in lines if line.target != 0.25)
    assert not any(line.met for line in lines if line.target == 0.25)
    assert (lines[0].ours, lines[0].theirs) == ("20.0", "60.0")


def test_figures_tables_and_picture(sched: ModuleType, tmp_path: Path) -> None:
    assert doctest.testmod(importlib.import_module("bench.report")) == (0, 2)
    runs = filled(sched, {"else": [10, 20, 30], sched.RAW: [1, 2, 3]})
    figures = sched.Figures("a machine", "a day", 1, 3, runs.points(), runs.lines())
    figures.save(tmp_path / "figures.json")
    assert sched.Figures.load(tmp_path / "figures.json") == figures
    text = printed(sched.tables(figures.points), sched.targets(figures.lines))
    assert text.count("raw epoll") == 6 + 9
    assert "this machine has no counters" in text
    assert "lost" not in text
    if importlib.util.find_spec("matplotlib"):  # DuckDB 1.5's environment draws nothing.
        sched.draw(figures, tmp_path)
        assert (tmp_path / "echo.png").stat().st_size > 10_000


def test_what_is_lost_is_named_and_cycles_are_shown(sched: ModuleType) -> None:
    runs = filled(sched, {"else": [10]}, cycles=1234)
    for _ in range(2):
        runs.add(sched.LOADS[0], sched.OURS, report(10) | {"lost": 7})
    text = printed(sched.tables(runs.points()))
    assert text.count("(7 lost)") == 1
    assert "1,234" in text
    assert "this machine has no counters" not in text


def test_a_disturbed_run_is_made_again_while_there_are_spare_ones(
    sched: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.5, 0.01, 0.5, 0.5, 0.02])
    made = []

    def run(command: list[Any], **_: Any) -> Any:
        made.append(command)
        report = {"qps": len(made), "work": "uniform", "goes_first": len(made) < 5}
        return SimpleNamespace(returncode=0, stdout=json.dumps(report))

    monkeypatch.setattr(sched.Others, "share", lambda _: next(shares))
    monkeypatch.setattr(sched.subprocess, "run", run)
    runs = sched.Runs({sched.OURS: ["our", "server"]}, 1, 2)
    reports = [runs.run(sched.CLOSED, sched.OURS, seed=9) for _ in range(3)]
    assert [(report["qps"], report["others"]) for report in reports] == [(2, 0.01), (4, 0.5), (5, 0.02)]
    assert runs.disturbed == 1
    assert runs.each(sched.CLOSED, sched.OURS, lambda report: report["qps"]) == [2, 4, 5]
    assert not runs.goes_first
    assert made[0][-7:] == ["--outstanding", "16", "--seed", "9", "--", "our", "server"]


@pytest.fixture
def server(sched: ModuleType) -> ModuleType:
    return importlib.import_module("bench.server.run")


def called(us: float) -> dict[str, Any]:
    """A report of the server's load generator."""
    return report(us) | {"late": {"p99_us": us}, "failed": 0}


def test_the_server_is_compared_round_by_round(server: ModuleType, tmp_path: Path) -> None:
    bench = server.Bench("unix", "port", 1, 3, lambda _: None)
    times = {
        server.BARE: [10, 40, 20],
        "Python": [30, 20, 20],
        "JavaScript": [20, 20, 20],
        "Ruby": [90, 90, 90],
    }
    for rate in server.RATES:
        for who, each in times.items():
            bench.reports[who, rate] = [called(us) for us in each]
    bench.compared = [
        server.Compared("a query", "local lanes", 1.5, "s", [0.3, 0.4, 0.2], [0.1, 0.4, 0.2]),
        *bench.echoes(),
        server.Compared("a batch", "another", 1.0, "rows/s", [3e6, 1e6, 2e6], [1e6, 2e6, 1e6]),
    ]
    lines = [compared.line() for compared in bench.compared]
    assert [line.value for line in lines] == [1, 1, 1, 1, 1, 4.5, 4.5, 2]
    assert [line.met for line in lines] == [True] * 5 + [False] * 2 + [True]
    assert (lines[0].ours, lines[0].theirs) == ("300.0 ms", "200.0 ms")
    assert (lines[-1].ours, lines[-1].theirs, lines[-1].unit) == ("2.00 M rows/s", "1.00 M rows/s", "x")
    figures = server.Figures("a machine", "a day", 1, 3, bench.points(), lines)
    figures.save(tmp_path / "figures.json")
    assert server.Figures.load(tmp_path / "figures.json") == figures
    text = printed(server.latencies(figures.points), server.targets(figures.lines))
    assert text.count("JavaScript") == len(server.RATES) + 2
    if importlib.util.find_spec("matplotlib"):
        server.draw(figures, tmp_path)
        assert (tmp_path / "server.png").stat().st_size > 10_000


def test_the_figures_of_arrow_flight(server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.flight, "BATCHES", 40)
    # The other server is installed for benchmarks only. Crosslane's own server takes its place here.
    other = """
        import os, sys
        from pathlib import Path
        folder = Path(__file__).parent
        serve = [sys.executable, "-P", "-m", "crosslane._cli", "serve", str(folder / "ours.py")]
        os.execv(sys.executable, [*serve, "--flight", "127.0.0.1:0", "--listen", f"crosslane+unix://{folder}/other"])
    """
    monkeypatch.setattr(server.flight, "THEIRS", textwrap.dedent(other))
    bench = server.Bench("unix", "port", 1, 2, lambda _: None)
    bench.flight()
    (compared,) = bench.compared
    assert len(compared.ours) == len(compared.theirs) == 2
    assert min(compared.ours + compared.theirs) > 0
    assert compared.line().unit == "x"
