"""The command line, as a person or a script uses it."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import crosslane as crosslane_package

from ..conftest import CPUS, Library, eventually, processes

pytestmark = pytest.mark.any_duckdb

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
    assert outputs["markdown"].splitlines()[2:] == ["| 0 | NULL |", "| 2 | a\\|b |"]


#: Values that Python's objects show differently from DuckDB, or cannot show.
VALUES = [
    "INTERVAL 14 MONTH",
    "INTERVAL (-1) DAY",
    "'infinity'::DATE",
    "'-infinity'::TIMESTAMP",
    "'infinity'::TIMESTAMPTZ",
    "'290000-01-01'::DATE",
    "'2020-01-01 00:00:00.123456789'::TIMESTAMP_NS",
    "0.1::FLOAT",
    "1e300::DOUBLE",
    "-0.0::DOUBLE",
    "'nan'::DOUBLE",
    "'-inf'::FLOAT",
    "170141183460469231731687303715884105727::HUGEINT",
    "1.50::DECIMAL(10,2)",
    "true",
    "'\\x00\\x22a'::BLOB",
    "'1010'::BIT",
    "'10:00'::TIME",
    "'[1, 2]'::JSON",
    "[0.1::FLOAT, NULL, 'nan']",
    "{'a': INTERVAL 1 MONTH, 'b': 'it''s'}",
    "MAP {'k': 'infinity'::DATE}",
    "'two\nlines, and \"quotes\"'",
]


def test_values_look_as_in_duckdbs_own_command_line() -> None:
    query = f"SELECT {', '.join(f'{value} AS c{index}' for index, value in enumerate(VALUES))}"
    shell = Path(sys.executable).with_name("duckdb")
    theirs = subprocess.run([shell, "-csv", "-c", query], capture_output=True, text=True, timeout=60)
    ours = crosslane("sql", "--format", "csv", query)
    assert list(csv.reader(ours.stdout.splitlines())) == list(csv.reader(theirs.stdout.splitlines()))
    assert ours.returncode == 0


def test_csv_tells_null_from_the_empty_string() -> None:
    query = "SELECT '' AS empty, NULL AS missing, 'NULL' AS word"
    assert crosslane("sql", "--format", "csv", query).stdout == 'empty,missing,word\n"",,NULL\n'


@pytest.mark.parametrize("style", ["json", "jsonl"])
def test_json_is_valid(style: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    columns = {
        "nan": ("'nan'::DOUBLE", "nan"),
        "list": ("['inf'::FLOAT, NULL, '-inf']", ["inf", None, "-inf"]),
        "text": ("'\"NaN\\'", '"NaN\\'),
        "struct": ("{'x': '\"inf, NaN', 'y': 'nan'::DOUBLE}", {"x": '"inf, NaN', "y": "nan"}),
        "json": ("'{\"a\": [1, NaN]}'::JSON", {"a": [1, "nan"]}),
        "huge": ("170141183460469231731687303715884105727::HUGEINT", 2**127 - 1),
        "decimal": ("1.25::DECIMAL(10,2)", 1.25),
        "float": ("0.1::FLOAT", 0.1),
        "blob": ("'\\x00\\x22\\xFF'::BLOB", "\\x00\\x22\\xFF"),
        "control": ("chr(1)", "\1"),
        "month": ("INTERVAL 1 MONTH", "1 month"),
        "map": ("MAP {1: 'a'}", {"1": "a"}),
        "missing": ("NULL", None),
    }
    selected = ", ".join(f'{value} AS "{name}"' for name, (value, _) in columns.items())
    query = f"SELECT {selected}, 1 AS nan"
    result = json.loads(crosslane("sql", "--format", style, query).stdout, parse_constant=refuse)
    assert (result[0] if style == "json" else result) == {
        **{name: value for name, (_, value) in columns.items()},
        "nan_1": 1,
    }


@pytest.mark.parametrize("query", ["", "  ", ";", "-- nothing", "/* nothing */ ;;"])
def test_an_empty_query_is_a_wrong_use(query: str) -> None:
    result = crosslane("sql", input=query)
    assert (result.returncode, result.stdout) == (2, "")
    assert "the query is empty" in result.stderr
    assert "Traceback" not in result.stderr


def test_each_statement_prints_its_result() -> None:
    script = """
        CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1), (2) RETURNING x AS inserted;
        SELECT sum(x) AS s, 'ä;' AS t FROM t; -- a comment; ü
        PIVOT t ON x USING count(*); SET threads = 2; PREPARE p AS SELECT 1 AS one; EXECUTE p;
    """
    result = crosslane("sql", "--format", "csv", script)
    assert result.stdout == "inserted\n1\n2\ns,t\n3,ä;\n1,2\n1,1\none\n1\n", result.stderr
    result = crosslane(
        "sql", "--format", "jsonl", "PIVOT (SELECT 1 AS x) ON x USING count(*); SELECT 2 AS two"
    )
    assert result.stdout == '{"1": 1}\n{"two": 2}\n', result.stderr
    failed = crosslane("sql", "--format", "json", "SELECT 1 AS a; SELECT nope")
    assert failed.returncode == 1
    assert json.loads(failed.stdout) == [{"a": 1}]
    assert "nope" in failed.stderr
    assert "COLUMNS" not in failed.stderr
    assert "LINE 2" not in failed.stderr


def test_a_query_is_run_once(functions: Path) -> None:
    """A query may read a pipe, and its functions may count their calls."""
    query = "SELECT x, x AS y FROM read_csv('/dev/stdin')"
    result = crosslane("sql", "--format", "json", query, input="x\n1\n2\n")
    assert json.loads(result.stdout) == [{"x": 1, "y": 1}, {"x": 2, "y": 2}], result.stderr
    query = "SELECT double(i) FROM range(10) r(i) ORDER BY 1 DESC"
    counted = crosslane("sql", "-f", functions, "--format", "jsonl", "--stats", query)
    assert '{"\\"double\\"(i)": 18}' in counted.stdout.splitlines()[0]
    assert re.search(r"double[^\d]+10 ", counted.stdout), counted.stdout


def test_a_piped_table_is_never_cut() -> None:
    query = f"SELECT {', '.join(f'{i} AS a_long_name_{i}' for i in range(60))}, repeat('x', 500) AS long"
    lines = crosslane("sql", query).stdout.splitlines()
    assert len(lines) == 6
    assert all(f" a_long_name_{i} " in lines[1] for i in range(60))
    assert "x" * 500 in lines[4]


def at_terminal(*arguments: str, columns: int = 80) -> str:
    """What the command prints at a terminal."""
    parent, child = os.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=child, stdout=child, stderr=child, env=environment
    )
    os.close(child)
    printed = b""
    # Reading from the terminal is an error once its process has ended.
    with contextlib.suppress(OSError):
        while chunk := os.read(parent, 65536):
            printed += chunk
    os.close(parent)
    assert process.wait(60) == 0
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", printed.decode()).replace("\r\n", "\n")


def test_a_table_wider_than_the_terminal_is_readable() -> None:
    query = f"SELECT {', '.join(f'{i} AS name_{i}' for i in range(60))} FROM range(2)"
    printed = at_terminal("sql", query)
    assert "row 1" in printed
    assert "row 2" in printed
    assert all(f" name_{i} " in printed for i in range(60))
    assert all(len(line) <= 80 for line in printed.splitlines())
    # The command folds a single long value, and does not show the rows as blocks.
    folded = at_terminal("sql", "SELECT 1 AS a, repeat('x', 200) AS long")
    assert folded.count("x") == 200
    assert "row 1" not in folded


def test_no_bar_where_nothing_is_known_of_the_progress(library: Library) -> None:
    path = library("import time\n@udf\ndef slow(x: int) -> int: time.sleep(1.5)")
    printed = at_terminal("sql", "-f", str(path), "SELECT slow(1) AS x")
    assert "NULL" in printed
    assert "running" not in printed


def test_rows_are_shown_where_the_part_that_is_done_is_not_known(library: Library) -> None:
    path = library("import time\n@udf\ndef slow(x: int) -> int: time.sleep(0.2); return x")
    printed = at_terminal("sql", "-f", str(path), "SELECT sum(slow(x)) FROM (SELECT unnest(range(20)) AS x)")
    assert "190" in printed
    assert re.search(r"running, slow: \d+ rows", printed), printed


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
    wrong = crosslane("sql", "SELEC 1")
    assert wrong.returncode == 1
    assert 'syntax error at or near "SELEC"' in wrong.stderr
    assert "none.py' does not exist" in crosslane("sql", "-f", tmp_path / "none.py", "SELECT 1").stderr


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


def test_check_explains(library: Library) -> None:
    path = library("""
        @udf
        def quick(x: int) -> int:
            return x + 1

        @udf
        def slow(x: int) -> int:
            return sum(range(x))
    """)
    shown = crosslane("check", "--explain", path.name, cwd=path.parent).stdout
    assert "by columns" in shown
    assert "row by row; line 9: a call of sum" in shown
    assert "by columns" not in crosslane("check", path).stdout


def test_doctor() -> None:
    result = crosslane("doctor")
    assert result.returncode == 0, result.stdout
    assert "ran in a worker and returned 42" in result.stdout
    report = json.loads(crosslane("doctor", "--json").stdout)
    assert report["healthy"]
    assert {finding["what"]: finding["state"] for finding in report["findings"]}["extension"] == "good"


#: What is broken: the name, the state, and the function that breaks a copy of the package in a folder.
BROKEN: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "no native module": ("guest", "bad", lambda folder: remove(folder, "crosslane/_guest*")),
    "not a native module": ("guest", "bad", lambda folder: spoil(folder, "crosslane/_guest*")),
    "no DuckDB": ("DuckDB", "bad", lambda folder: refuse(folder, "duckdb")),
    "a broken DuckDB": ("DuckDB", "bad", lambda folder: (folder / "duckdb.py").write_text("1 / 0")),
    "no cloudpickle": ("cloudpickle", "optional", lambda folder: refuse(folder, "cloudpickle")),
    "a broken pyarrow": ("pyarrow", "optional", lambda folder: (folder / "pyarrow.py").write_text("1 / 0")),
    "no extension": ("extension", "bad", lambda folder: remove(folder, "crosslane/*.duckdb_extension")),
    "not an extension": ("extension", "bad", lambda folder: spoil(folder, "crosslane/*.duckdb_extension")),
    "a host that may not run": ("JavaScript", "bad", lambda folder: spoil(folder, "crosslane/crosslane-js")),
    "not a zygote": ("a function", "bad", lambda folder: spoil(folder, "crosslane/_worker/zygote.py")),
    "no Lua": ("Lua", "optional", lambda folder: remove(folder, "crosslane/guests/lua/crosslane-lua")),
}


def remove(folder: Path, pattern: str) -> None:
    (file,) = folder.glob(pattern)
    file.unlink()


def spoil(folder: Path, pattern: str) -> None:
    (file,) = folder.glob(pattern)
    file.unlink()
    file.write_text("nonsense")
    file.chmod(0o644)


def refuse(folder: Path, module: str) -> None:
    (folder / f"{module}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{module}'\")")


def test_doctor_without_ruby() -> None:
    result = subprocess.run(
        [*COMMAND, "doctor", "--json"],
        capture_output=True,
        timeout=60,
        env={"PATH": "/nowhere", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    report = json.loads(result.stdout)
    assert (result.returncode, report["healthy"]) == (0, True), report


@pytest.mark.parametrize("broken", BROKEN)
def test_doctor_in_a_broken_environment(broken: str, tmp_path: Path) -> None:
    what, state, break_it = BROKEN[broken]
    package = tmp_path / "crosslane"
    shutil.copytree(Path(crosslane_package.__file__).parent, package, symlinks=True)
    break_it(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    # An editable installation would provide the removed modules again.
    program = """if True:
        import sys
        sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
        from crosslane._cli import main
        main()
    """
    command = [sys.executable, "-c", program, "doctor"]
    options = {"capture_output": True, "text": True, "timeout": 120, "env": environment, "cwd": tmp_path}
    result = subprocess.run([*command, "--json"], **options)
    report = json.loads(result.stdout)
    states = {finding["what"]: finding["state"] for finding in report["findings"]}
    assert states[what] == state, report
    assert report["healthy"] == (state != "bad")
    assert result.returncode == (state == "bad")
    assert set(states) >= {
        "platform",
        "Python",
        "guest",
        "DuckDB",
        "a function",
        "JavaScript",
        "Ruby",
        "open files",
    }
    as_text = subprocess.run(command, **options)
    assert as_text.returncode == result.returncode
    assert what in as_text.stdout
    # A zygote that cannot run reports this in the log.
    assert "Traceback" not in result.stderr + as_text.stderr or broken == "not a zygote"


def test_read_only(tmp_path: Path) -> None:
    file = tmp_path / "d.duckdb"
    assert crosslane("sql", "--db", file, "CREATE TABLE t AS SELECT 1 AS x").returncode == 0
    assert crosslane("sql", "--db", file, "--read-only", "--format", "csv", "FROM t").stdout == "x\n1\n"
    refused = crosslane("sql", "--db", file, "--read-only", "DROP TABLE t")
    assert refused.returncode == 1
    assert "read-only" in refused.stderr
    assert crosslane("sql", "--read-only", "SELECT 1").returncode == 2


def test_exit_codes_are_documented() -> None:
    for command in ([], ["sql"], ["check"], ["doctor"]):
        text = " ".join(crosslane(*command, "--help").stdout.split())
        assert "Exit codes: 0 if all went well" in text
        assert "130 after Ctrl-C" in text


def test_paths_in_errors_are_not_cut(tmp_path: Path) -> None:
    """The command does not cut a path at the end of a line either."""
    folder = tmp_path / "a folder with a long name" / ("b" * 100)
    folder.mkdir(parents=True)
    file = folder / "functions.py"
    file.write_text("from crosslane import udf\n@udf\ndef f(x) -> int: return 1\n")
    relative = str(file.relative_to(tmp_path))
    for arguments in (["check", relative], ["sql", "-f", relative, "SELECT 1"]):
        failed = crosslane(*arguments, cwd=tmp_path)
        assert failed.returncode == 1
        assert f"{file}:2: function f" in failed.stderr, failed.stderr


def interrupted(functions: Path, query: str, group: bool) -> tuple[int, str]:
    command = [*COMMAND, "sql", "-f", str(functions), query]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    # The test waits for the program, which has to start, its zygote, and the lanes.
    assert eventually(lambda: len(processes()) >= 2 + CPUS, 30)
    time.sleep(0.5)
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    # The benchmark measures the time that the issue allows. This test checks only that the command ends.
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


@pytest.mark.parametrize("arguments", [["check"], ["sql", "SELECT 1", "-f"]], ids=["check", "sql"])
def test_ctrl_c_while_a_file_is_loaded(tmp_path: Path, arguments: list[str]) -> None:
    begun = tmp_path / "begun"
    file = tmp_path / "slow.py"
    file.write_text(f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(1000)\n")
    process = subprocess.Popen(
        [*COMMAND, *arguments, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The program has to start first.
    assert eventually(begun.exists, 30)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted\n")


@pytest.mark.parametrize("style", ["table", "csv", "json", "jsonl", "markdown"])
@pytest.mark.parametrize("rows", [1, 1000000])
def test_a_closed_pipe_is_no_error(style: str, rows: int) -> None:
    query = f"SELECT i FROM range({rows}) r(i)"
    command = f"{{ {' '.join(COMMAND)} sql --format {style} --rows 5000 '{query}'; echo $? >&3; }} | true"
    reader, writer = os.pipe()
    result = subprocess.run(
        ["bash", "-c", f"exec 3>&{writer}; {command}"],
        capture_output=True,
        text=True,
        timeout=60,
        pass_fds=[writer],
    )
    os.close(writer)
    with open(reader) as code:
        assert (code.read(), result.stderr) == ("0\n", "")


def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, "sql", "SELECT 1"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (result.returncode, result.stderr) == (1, "error: [Errno 28] No space left on device\n")
