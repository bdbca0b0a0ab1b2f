"""Results that stay in a file after the program has ended."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import crosslane
from crosslane._cli import main

from ..conftest import value
from .tripled import TRIPLED, tripled

#: A separate program. It loads a file, calls `f` for some rows, and prints the sum and the number of called
#: rows.
PROGRAM = """
import sys
import crosslane
con = crosslane.connect(functions=[sys.argv[1]])
total = con.execute(f"SELECT sum({sys.argv[2]}(i % 50)) FROM range(5000) r(i)").fetchone()[0]
rows = con.execute("SELECT rows FROM crosslane_stats()").fetchone()[0]
print(total, rows)
"""


def ran(path: Path, function: str = "f") -> tuple[int, int]:
    """The output of the program."""
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, function], capture_output=True, text=True, check=True
    )
    assert printed.stderr == ""
    total, rows = printed.stdout.split()
    return int(total), int(rows)


@contextlib.contextmanager
def opened(path: Path) -> Callable[..., list[tuple[object, ...]]]:  # type: ignore[misc]
    """Runs statements on a file of results."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        yield lambda text, *values: connection.execute(text, values).fetchall()
        connection.commit()


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a file of functions."""

    def write(text: str) -> Path:
        path = tmp_path / "functions.py"
        path.write_text("from crosslane import udf\n" + textwrap.dedent(text))
        return path

    return write


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", TRIPLED)
def test_the_next_program_finds_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # A JavaScript file may not name a cache file.
    cache = "true" if language == "js" else '"kept.db"'
    path = tripled(tmp_path, language, "cache", cache)
    total, rows = ran(path, "tripled")
    assert total == sum(3 * (i % 50) for i in range(5000))
    assert 50 <= rows <= 100
    assert ran(path, "tripled") == (total, 0)
    # The cache file is in the folder of the functions.
    assert (tmp_path / ("cache/crosslane/results.db" if language == "js" else "kept.db")).exists()


def test_values_of_all_kinds_are_found(
    con: duckdb.DuckDBPyConnection, written: Callable[[str], Path]
) -> None:
    path = written("""
        @udf("f(a VARCHAR, b STRUCT(x DOUBLE, y BOOLEAN)[]) -> STRUCT(t VARCHAR, n BIGINT[], m MAP(VARCHAR, DATE))",
             cache="kept.db", nulls="call")
        def f(a, b):
            import datetime
            return {"t": repr((a, b)), "n": [len(b or []), None], "m": {a or "none": datetime.date(2026, 1, 2)}}
        """)
    con.execute("""
        CREATE TABLE t AS SELECT [NULL, '', 'a', 'längerer Text mit mehr Zeichen'][1 + i % 4] AS a,
            [NULL, [], [{x: 0.0, y: true}], [{x: '-0.0'::DOUBLE, y: NULL}, NULL]][1 + i % 5 % 4] AS b
        FROM range(200) r(i)""")
    results = []
    for _ in range(2):
        crosslane.load(con, path)
        results.append(con.execute("SELECT f(a, b)::VARCHAR FROM t ORDER BY rowid").fetchall())
    assert results[0] == results[1]
    assert value(con, "SELECT min(rows) FROM crosslane_stats()") == 0


def test_a_file_that_has_changed_has_no_results(written: Callable[[str], Path]) -> None:
    text = '@udf(cache="kept.db")\ndef f(x: int) -> int: return x + 1'
    total, rows = ran(written(text))
    assert rows > 0
    assert ran(written(text.replace("+ 1", "+ 2")))[0] == total + 5000
    # The cache still has the results of the first version, for a while.
    assert ran(written(text)) == (total, 0)


def test_a_copy_of_a_file_has_its_results(written: Callable[[str], Path], tmp_path: Path) -> None:
    cache = tmp_path / "kept.db"
    path = written(f'@udf(cache="{cache}")\ndef f(x: int) -> int: return x + 1')
    ran(path)
    copy = tmp_path / "elsewhere" / path.name
    copy.parent.mkdir()
    copy.write_text(path.read_text())
    assert ran(copy)[1] == 0


def test_functions_without_a_database_find_results(written: Callable[[str], Path]) -> None:
    path = written("""
        import os
        @udf(cache="kept.db")
        def f(x: int) -> int:
            open(os.path.join(os.path.dirname(__file__), "called"), "a").write(f"{x}.")
            return x + 1
        """)
    for values in ([1, 2, 2], [2, 3]):
        with crosslane.Functions(path) as functions:
            assert functions.f(values) == [x + 1 for x in values]
    assert sorted((path.parent / "called").read_text()) == sorted("1.2.3.")


def test_a_program_that_writes_for_long_stops_no_other_program(written: Callable[[str], Path]) -> None:
    path = written('@udf(cache="kept.db")\ndef f(x: int) -> int: return x + 1')
    total, _ = ran(path)
    with opened(path.parent / "kept.db") as run:
        run("BEGIN IMMEDIATE")
        printed = subprocess.run(
            [sys.executable, "-c", PROGRAM, path, "f"], capture_output=True, text=True, check=True
        )
    assert printed.stdout.split()[0] == str(total)
    assert "another program writes to the cache" in printed.stderr


def test_a_result_holds_for_its_time(written: Callable[[str], Path]) -> None:
    path = written('@udf(cache="kept.db", ttl=3600)\ndef f(x: int) -> int: return x + 1')
    ran(path)
    assert ran(path)[1] == 0
    with opened(path.parent / "kept.db") as run:
        run("UPDATE results SET made = made - 3_600_001".replace("_", ""))
    assert ran(path)[1] >= 50
    assert ran(path)[1] == 0


def test_nulls_and_failures_are_not_kept(written: Callable[[str], Path]) -> None:
    path = written("""
        @udf(cache="kept.db", on_error="null")
        def f(x: int) -> int | None:
            if x % 3 == 0:
                return None
            if x % 3 == 1:
                raise ValueError
            return x
        """)
    ran(path)
    with opened(path.parent / "kept.db") as run:
        assert run("SELECT count(*) FROM results") == [(len([x for x in range(50) if x % 3 == 2]),)]


@pytest.mark.parametrize("result", ["x''", "x'00'", "randomblob(200)", "zeroblob(144)", "'a text'"])
def test_a_result_of_another_writer_is_no_result(written: Callable[[str], Path], result: str) -> None:
    path = written('@udf(cache="kept.db")\ndef f(x: int) -> str: return f"{x}"')
    PROGRAM_OF_TEXTS = PROGRAM.replace("sum({sys.argv[2]}(i % 50))", "sum(length({sys.argv[2]}(i % 50)))")
    command = [sys.executable, "-c", PROGRAM_OF_TEXTS, path, "f"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with opened(path.parent / "kept.db") as run:
        run(f"UPDATE results SET result = {result}")
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert second.stdout.split()[0] == first.split()[0]


def test_programs_share_a_file(written: Callable[[str], Path]) -> None:
    path = written('@udf(cache="kept.db")\ndef f(x: int) -> int: return x + 1')
    command = [sys.executable, "-c", PROGRAM, path, "f"]
    programs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    printed = [program.communicate() for program in programs]
    assert {text.split()[0] for text, _ in printed} == {str(sum(i % 50 + 1 for i in range(5000)))}
    assert {complaint for _, complaint in printed} == {""}
    assert ran(path)[1] == 0


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ('"notes.txt"', "notes.txt cannot be used: file is not a database"),
        ('"other.db"', "other.db cannot be used: it is a database of something else"),
        ('"notes.txt/kept.db"', "cannot be used"),
        ('"open.db"', "open.db cannot be used: other users may write it"),
        ('""', "cache is the path of a file, or True"),
        ("5", "cache is the path of a file, or True"),
        ('"kept.db", ttl=0', "ttl is a positive number of seconds"),
        ("None, ttl=5", "ttl is for functions whose results are kept"),
        ('"kept.db", deterministic=False', "cache is for scalar functions whose result depends"),
    ],
)
def test_a_cache_that_cannot_be_is_an_error(
    con: duckdb.DuckDBPyConnection, written: Callable[[str], Path], cache: str, message: str
) -> None:
    path = written(f"@udf(cache={cache})\ndef f(x: int) -> int: return x")
    (path.parent / "notes.txt").write_text("some notes, which are no database at all")
    with opened(path.parent / "other.db") as run:
        run("CREATE TABLE t(x)")
    (path.parent / "open.db").touch()
    (path.parent / "open.db").chmod(0o666)
    with pytest.raises(duckdb.Error) as failed:
        crosslane.load(con, path)
    assert message in str(failed.value)
    assert f"{path}:" in str(failed.value)


def test_javascript_names_no_file(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "f.js"
    path.write_text(f'udf("f(x BIGINT) -> BIGINT", {{ cache: "{tmp_path}/kept.db" }}, (x) => x);')
    with pytest.raises(duckdb.Error, match="JavaScript has no files"):
        crosslane.load(con, path)
    assert not (tmp_path / "kept.db").exists()


def test_a_registered_function_has_no_cache(con: duckdb.DuckDBPyConnection) -> None:
    def f(x: int) -> int:
        return x

    with pytest.raises(duckdb.Error, match="cache is for functions of files"):
        crosslane.register(con, f, cache=True)


def test_the_command_shows_and_deletes_results(
    written: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def crosslane_cache(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["cache", *arguments])
        return done.exit_code, done.output

    assert crosslane_cache() == (0, "no function has kept a result\n")
    path = written("""
        @udf(cache=True)
        def f(x: int) -> int: return x
        @udf(cache=True)
        def g(x: int) -> int: return x
        """)
    ran(path)
    code, shown = crosslane_cache()
    assert code == 0
    assert [" ".join(line.split()[1:6:2]) for line in shown.splitlines() if str(path) in line] == [
        f"f {path} 50",
        f"g {path} 0",
    ]
    assert os.stat(tmp_path / "cache/crosslane/results.db").st_mode & 0o777 == 0o600
    code, complaint = crosslane_cache("h")
    assert code == 1
    assert "has no results of h; it has those of f, g" in complaint
    assert crosslane_cache("--clear", "f")[1].startswith("50 results deleted")
    assert ran(path)[1] > 0
    code, complaint = crosslane_cache("--file", str(path))
    assert code == 1
    assert "cannot be used: file is not a database" in complaint
    assert "No such file" in crosslane_cache("--file", str(tmp_path / "none"))[1]
