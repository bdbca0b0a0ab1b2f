"""The command line, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import CPUS, Library, eventually, processes

COMMAND = [sys.executable, "-m", "crosslane._cli"]


def crosslane(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160"}
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, **options)


@pytest.fixture
def functions(library: Library) -> Path:
    return library(
        """
        import time
        @udf
        def double(x: int) -> int: return 2 * x
        @udf
        def sleepy(x: int) -> int:
            time.sleep(1000)
        @udf
        def fails(x: int) -> int: return 1 // x
        """
    )


def test_formats(functions: Path) -> None:
    query = "SELECT double(i) AS d, CASE WHEN i > 0 THEN 'a|b' END AS t FROM range(2) r(i)"
    outputs = {
        style: crosslane("sql", "-f", functions, "--format", style, query).stdout
        for style in ("table", "csv", "json", "jsonl", "markdown")
    }
    assert "NULL" in outputs["table"]
    assert "bigint" in outputs["table"]
    assert outputs["csv"] == "d,t\n0,\n2,a|b\n"
    assert json.loads(outputs["json"]) == [{"d": 0, "t": None}, {"d": 2, "t": "a|b"}]
    assert [json.loads(line)["d"] for line in outputs["jsonl"].splitlines()] == [0, 2]
    assert outputs["markdown"].splitlines()[2:] == ["| 0 |  |", "| 2 | a\\|b |"]


def test_a_database_file_and_the_query_from_the_input(functions: Path, tmp_path: Path) -> None:
    file = tmp_path / "d.duckdb"
    created = crosslane("sql", "-f", functions, "--db", file, "CREATE TABLE t AS SELECT double(21) AS x")
    assert created.returncode == 0, created.stderr
    result = crosslane("sql", "--db", file, "--format", "csv", "--threads", "1", input="SELECT x FROM t")
    assert result.stdout == "x\n42\n"


def test_many_rows_are_cut_in_tables_only(functions: Path) -> None:
    query = "SELECT double(i) AS d FROM range(25000) r(i)"
    assert "... 24960 more rows" in crosslane("sql", "-f", functions, query).stdout
    assert len(crosslane("sql", "-f", functions, "--format", "csv", query).stdout.splitlines()) == 25001


def test_stats(functions: Path) -> None:
    result = crosslane("sql", "-f", functions, "--stats", "SELECT sum(double(i)) FROM range(1000) r(i)")
    assert "what the functions cost" in result.stdout
    assert "1,000" in result.stdout


def test_errors_are_text(functions: Path, tmp_path: Path) -> None:
    failed = crosslane("sql", "-f", functions, "SELECT fails(i) FROM range(2) r(i)")
    assert failed.returncode == 1
    assert "error: fails: ZeroDivisionError" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert crosslane("sql", "SELEC 1").returncode == 1
    assert "there is no file" in crosslane("sql", "-f", tmp_path / "none.py", "SELECT 1").stderr


def test_check(functions: Path, library: Library) -> None:
    good = crosslane("check", functions)
    assert good.returncode == 0
    assert "double(x BIGINT) -> BIGINT" in good.stdout
    wrong = library("@udf\ndef f(x) -> int: return 1")
    bad = crosslane("check", functions, wrong)
    assert bad.returncode == 1
    assert f"{wrong}:2: function f: parameter x has no type" in bad.stderr.replace("\n", "")
    syntax = library("def f(:")
    assert f'{syntax.name}", line 2' in crosslane("check", syntax).stderr


def test_doctor() -> None:
    result = crosslane("doctor")
    assert result.returncode == 0, result.stdout
    assert "ran in a worker and returned 42" in result.stdout


def interrupted(functions: Path, query: str, group: bool) -> tuple[int, str]:
    command = [*COMMAND, "sql", "-f", str(functions), query]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    # The program, its zygote, and the lanes.
    assert eventually(lambda: len(processes()) >= 2 + CPUS)
    time.sleep(0.5)
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    # The time that the issue allows is measured by the benchmark; here it must end at all.
    _, err = process.communicate(timeout=20)
    return process.returncode, err


@pytest.mark.parametrize("group", [True, False], ids=["terminal", "kill"])
@pytest.mark.parametrize(
    "query", ["SELECT sleepy(i) FROM range(5) r(i)", "SELECT count(*) FROM range(1000000000000) r(i)"]
)
def test_ctrl_c_ends_a_query_at_once(functions: Path, query: str, group: bool) -> None:
    code, err = interrupted(functions, query, group)
    assert (code, err) == (130, "interrupted\n")
    assert eventually(lambda: not processes())


def test_a_closed_pipe_is_no_error(functions: Path) -> None:
    query = "SELECT i FROM range(1000000) r(i)"
    command = f"{' '.join(COMMAND)} sql --format csv '{query}' | head -n 2"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("i\n0\n", "")
