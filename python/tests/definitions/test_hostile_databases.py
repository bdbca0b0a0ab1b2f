"""Databases from elsewhere in which the names of functions and operators have another meaning."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import value
from .conftest import closed

#: Scalar functions and operators with their parameters. The engine uses them to open a database, to load
#: functions and to print results.
SCALARS = {
    "current_connection_id": "",
    "current_setting": "a",
    "current_database": "",
    "current_schema": "",
    "lower": "a",
    "count": "a",
    "count_star": "",
    "concat_ws": "a, b, c",
    "chr": "a",
    "replace": "a, b, c",
    "typeof": "a",
    "to_json": "a",
    "now": "",
    "sum": "a",
    "||": "a, b",
    "~~": "a, b",
    "jaro_winkler_similarity": "a, b",
}
#: Table functions with the same use.
TABLES = (
    "duckdb_connection_count", "duckdb_databases", "duckdb_functions", "duckdb_tables", "duckdb_types",
    "crosslane_functions", "crosslane_outdated", "crosslane_restore", "crosslane_set", "crosslane_settings",
    "crosslane_stats", "crosslane_types", "crosslane_definitions", "crosslane_load",
)  # fmt: skip


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A database in which most names load a file of functions. The file leaves a trace when it runs."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()\n")
    path = tmp_path / "hostile.duckdb"
    with crosslane.connect(path) as con:
        # DuckDB must know the commands before it can create macros that call them.
        loads = f"SELECT max(version)::BIGINT FROM system.main.crosslane_load('{evil}')"
        for name, parameters in SCALARS.items():
            con.execute(f'CREATE MACRO "{name}"({parameters}) AS ({loads})')
        for name in TABLES:
            con.execute(f"CREATE MACRO {name}(a := NULL) AS TABLE {loads}")
        con.execute("CREATE SCHEMA crosslane")
        con.execute("CREATE VIEW crosslane.definitions AS SELECT 'f' AS function, 'g' AS definition")
    return path


def test_to_open_a_database_runs_nothing(hostile: Path, tmp_path: Path) -> None:
    functions = tmp_path / "functions.js"
    functions.write_text("udf('lowest(x BIGINT) -> BIGINT', (x) => x);")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        con = crosslane.connect(hostile, functions=functions)
    assert value(con, "SELECT lowest(1)") == 1
    crosslane.register(con, lambda x: x, "same(x BIGINT) -> BIGINT")
    with pytest.raises(duckdb.Error, match="did you mean lowest"):
        crosslane.unregister(con, "lowes")
    crosslane.unregister(con, "lowest")
    assert crosslane.reload(con) == []
    with pytest.raises(duckdb.Error, match="there is a function same"):
        crosslane.execute(con, "CREATE FUNCTION same() RETURNS INT LANGUAGE ruby AS $$ 1 $$")
    con.close()
    closed(hostile)
    for words in (["sql", "SELECT 1.5 AS x", "--format", "json", "--stats", "--db"], ["dump"]):
        command = [sys.executable, "-m", "crosslane._cli", *words, str(hostile)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, "")
    assert not (tmp_path / "trace").exists()


def test_a_call_of_a_macro_of_the_database_runs_the_file(hostile: Path, tmp_path: Path) -> None:
    """A user who calls one of the macros does run the file. The test above checks that nothing else runs
    it."""
    con = crosslane.connect(hostile)
    with pytest.raises(duckdb.Error, match="declares no function"):
        con.execute("SELECT lower('A')").fetchall()
    assert (tmp_path / "trace").exists()
    con.close()


TABLE = "function VARCHAR, signature VARCHAR, language VARCHAR, definition VARCHAR, created TIMESTAMP"
EVIL = "CREATE FUNCTION f() RETURNS INT LANGUAGE python AS $$ 1 $$"


@pytest.mark.parametrize(
    "columns",
    [
        TABLE.replace("definition VARCHAR", "definition VARCHAR GENERATED ALWAYS AS (error('read'))"),
        TABLE.replace("definition VARCHAR", "definition VARCHAR DEFAULT error('read')"),
        TABLE.replace("definition VARCHAR", "definition VARCHAR UNIQUE"),
        TABLE.replace("function VARCHAR", "function VARCHAR CHECK (length(function) < 5)"),
        f"{TABLE}, more INT",
        "word VARCHAR, meaning VARCHAR",
    ],
)
def test_another_table_of_the_name_is_left_alone(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute(f"CREATE SCHEMA crosslane; CREATE TABLE crosslane.definitions ({columns})")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        con = crosslane.connect(path)
    assert con.execute("FROM crosslane_definitions()").fetchall() == []
    with pytest.raises(duckdb.Error, match=r"has a table crosslane\.definitions of its own"):
        crosslane.execute(con, EVIL)
    # The refused definition has left nothing.
    assert con.execute("FROM crosslane_functions()").fetchall() == []
    crosslane.execute(con, EVIL.replace("CREATE", "CREATE TEMP"))
    assert value(con, "SELECT f()") == 1
    con.close()


@pytest.mark.any_duckdb
def test_triggers_do_not_run(tmp_path: Path) -> None:
    """Only the newest DuckDB has triggers."""
    path = tmp_path / "triggers.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute(f"CREATE SCHEMA crosslane; CREATE TABLE crosslane.definitions ({TABLE})")
        con.execute("CREATE TABLE victim AS SELECT 1 AS x")
        for event in ("INSERT", "DELETE"):
            con.execute(
                f"CREATE TRIGGER on_{event} AFTER {event} ON crosslane.definitions FOR EACH STATEMENT DELETE FROM triggers.main.victim"
            )
    con = crosslane.connect(path)
    crosslane.execute(con, f"{EVIL}; DROP FUNCTION f")
    assert value(con, "SELECT count(*) FROM victim") == 1
    con.close()


def test_trust_shows_what_a_terminal_would_hide(tmp_path: Path) -> None:
    path = tmp_path / "hidden.duckdb"
    hidden = "CREATE FUNCTION f() RETURNS INT LANGUAGE python AS $$ 1 #\r\x1b[2K\u202e$$"
    with duckdb.connect(str(path)) as con:
        con.execute(f"CREATE SCHEMA crosslane; CREATE TABLE crosslane.definitions ({TABLE})")
        con.execute(
            "INSERT INTO crosslane.definitions VALUES ('g', '', '', ?, now()), ('DROP TABLE t', '', '', 'h', now())",
            [hidden],
        )
    command = [sys.executable, "-m", "crosslane._cli", "trust", str(path), "--yes"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (
        run.stdout
        == "CREATE FUNCTION f() RETURNS INT LANGUAGE python AS $$ 1 #\\r\\x1b[2K\\u202e$$;\ntrusted: f\n"
    )
    assert "a row for DROP TABLE t defines no function" in run.stderr
