"""Databases from elsewhere, in which the names of functions and operators mean something else."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import value

#: Scalar functions and operators that are used when a database is opened, functions are loaded and
#: results are printed, with as many parameters.
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
#: Table functions, too.
TABLES = (
    "duckdb_connection_count", "duckdb_databases", "duckdb_functions", "duckdb_tables", "duckdb_types",
    "crosslane_functions", "crosslane_outdated", "crosslane_restore", "crosslane_set", "crosslane_settings",
    "crosslane_stats", "crosslane_types", "crosslane_definitions", "crosslane_load",
)  # fmt: skip


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A database in which most names would load a file of functions, which leaves a trace."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()\n")
    path = tmp_path / "hostile.duckdb"
    with crosslane.connect(path) as con:
        # The commands have to be there when their callers are made.
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
    for words in (["sql", "SELECT 1.5 AS x", "--format", "json", "--stats", "--db"], ["dump"]):
        command = [sys.executable, "-m", "crosslane._cli", *words, str(hostile)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, "")
    assert not (tmp_path / "trace").exists()


def test_the_trap_works(hostile: Path, tmp_path: Path) -> None:
    """A user who calls one of its macros does run the file, as the test above must not."""
    con = crosslane.connect(hostile)
    with pytest.raises(duckdb.Error, match="declares no function"):
        con.execute("SELECT lower('A')").fetchall()
    assert (tmp_path / "trace").exists()
    con.close()
