"""Definitions that a database file keeps."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import value
from .conftest import closed

pytestmark = pytest.mark.any_duckdb

F = "CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE python AS $$ x + 1 $$"
G = "CREATE FUNCTION g(x INT) RETURNS INT LANGUAGE javascript AS $$ x * 10 $$"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A database with definitions, and with a view that uses one of them."""
    path = tmp_path / "shop.duckdb"
    with crosslane.connect(path) as con:
        crosslane.execute(con, f"{F}; {G}; CREATE TEMP FUNCTION t() RETURNS INT LANGUAGE python AS $$ 1 $$")
        con.execute("CREATE VIEW v AS SELECT f(41) AS answer")
    closed(path)
    return path


def opened(path: Path, **options: object) -> tuple[duckdb.DuckDBPyConnection, list[str]]:
    """The database, and the warnings that opening it gave."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        con = crosslane.connect(path, **options)
    return con, [str(warning.message) for warning in given]


def command(*words: str, answer: str | None = None) -> tuple[int, str, str]:
    run = subprocess.run(
        [sys.executable, "-m", "crosslane._cli", *words], capture_output=True, text=True, input=answer
    )
    return run.returncode, run.stdout, run.stderr


def forget_trust() -> None:
    shutil.rmtree(os.environ["XDG_CONFIG_HOME"])


def test_definitions_come_back(shop: Path) -> None:
    for options in ({}, {"read_only": True}):
        con, warned = opened(shop, **options)
        assert warned == []
        assert con.execute("SELECT answer, g(2) FROM v").fetchall() == [(42, 20)]
        functions = con.execute("SELECT function FROM crosslane_functions() ORDER BY 1").fetchall()
        assert functions == [("f",), ("g",)]
        con.close()
        closed(shop)
    con, warned = opened(shop, restore=False)
    assert con.execute("FROM crosslane_functions()").fetchall() == []
    con.close()


def test_a_database_from_elsewhere_runs_nothing(shop: Path, tmp_path: Path) -> None:
    forget_trust()
    con, (warned,) = opened(shop)
    assert (
        "functions that this database defines were not loaded (f, g): nobody has trusted them here" in warned
    )
    assert con.execute("FROM crosslane_functions()").fetchall() == []
    # Crosslane trusts the definitions of this user, and no others.
    crosslane.execute(con, "CREATE FUNCTION h() RETURNS INT LANGUAGE python AS $$ 5 $$")
    con.close()
    closed(shop)
    con, (warned,) = opened(shop)
    assert "(f, g)" in warned
    assert value(con, "SELECT h()") == 5
    con.execute("CALL crosslane_trust()").fetchall()
    con.execute("CALL crosslane_restore()").fetchall()
    assert value(con, "SELECT f(1) + g(1)") == 12
    # Another program changes a definition.
    con.execute(
        "UPDATE crosslane.definitions SET definition = replace(definition, '+ 1', '+ 2') WHERE function = 'f'"
    )
    con.close()
    closed(shop)
    con, (warned,) = opened(shop)
    assert "(f)" in warned
    con.close()
    trusted = tmp_path / "XDG_CONFIG_HOME" / "crosslane" / "trusted"
    assert stat.S_IMODE(trusted.stat().st_mode) == 0o600


def test_trust_and_dump_show_the_code(shop: Path, tmp_path: Path) -> None:
    forget_trust()
    code, out, err = command("trust", str(shop))
    assert (code, out) == (2, f"{F};\n{G};\n")
    assert "there is nobody to ask" in err
    code, _, err = command("sql", "--db", str(shop), "SELECT 1")
    assert code == 0
    assert err.startswith("warning: functions that this database defines were not loaded (f, g): ")
    code, out, err = command("trust", "--yes", str(shop))
    assert (code, out, err) == (0, f"{F};\n{G};\ntrusted: f, g\n", "")
    code, out, err = command("sql", "--db", str(shop), "--format", "csv", "FROM v")
    assert (code, out, err) == (0, "answer\n42\n", "")
    code, dumped, err = command("dump", str(shop))
    assert (code, dumped, err) == (0, f"{F};\n{G};\n", "")
    # The command can read its own output again.
    other = tmp_path / "other.duckdb"
    code, out, err = command("sql", "--db", str(other), "--format", "csv", f"{dumped} SELECT f(1) AS f")
    assert (code, err) == (0, "")
    assert out.endswith("f\n2\n")
    assert command("dump", str(other)) == (0, dumped, "")


def test_a_broken_definition_does_not_stop_the_others(shop: Path) -> None:
    con, _ = opened(shop)
    broken = (
        "CREATE FUNCTION b() RETURNS INT LANGUAGE python handler = 'f' AS $$\nimport nothing_like_this\n$$"
    )
    con.execute(
        "INSERT INTO crosslane.definitions VALUES ('b', '', '', ?, now()), ('c', '', '', 'CREATE', now())",
        [broken],
    )
    con.execute("CALL crosslane_trust()").fetchall()
    con.close()
    closed(shop)
    con, warned = opened(shop)
    first, second = sorted(warned)
    assert "No module named 'nothing_like_this'" in first
    assert "(c): line 1: expected FUNCTION" in second
    assert con.execute("SELECT answer, g(2) FROM v").fetchall() == [(42, 20)]
    con.close()


def test_a_dropped_definition_is_not_restored(shop: Path) -> None:
    con, _ = opened(shop)
    con.execute("CALL crosslane_drop('F')").fetchall()
    crosslane.unregister(con, "g")
    con.close()
    closed(shop)
    con, warned = opened(shop)
    assert (con.execute("FROM crosslane_functions()").fetchall(), warned) == ([], [])
    con.close()


def test_a_read_only_database_keeps_nothing(shop: Path) -> None:
    con, _ = opened(shop, read_only=True)
    with pytest.raises(
        duckdb.Error, match=r"read-only and cannot keep the function; write CREATE TEMP FUNCTION h"
    ):
        crosslane.execute(con, "CREATE FUNCTION h() RETURNS INT LANGUAGE python AS $$ 5 $$")
    crosslane.execute(con, "CREATE TEMP FUNCTION h() RETURNS INT LANGUAGE python AS $$ 5 $$")
    assert value(con, "SELECT h()") == 5
    with pytest.raises(duckdb.Error, match="read-only and keeps its definition of f"):
        crosslane.execute(con, "DROP FUNCTION f")
    con.close()


def test_load_restores_if_it_is_told_to(monkeypatch: pytest.MonkeyPatch, shop: Path) -> None:
    monkeypatch.setenv("CROSSLANE_RESTORE", "1")
    con = duckdb.connect(str(shop), config={"allow_unsigned_extensions": "true"})
    con.execute(f"LOAD '{crosslane.extension_path()}'")
    # For f, the extension would look for another Python interpreter.
    assert value(con, "SELECT g(2)") == 20
    con.close()


def test_a_definition_that_fails_leaves_all_as_it_was(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con, _ = opened(shop)
    con.execute("CREATE MACRO m(x) AS x")
    before = con.execute("FROM crosslane.definitions").fetchall()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nothing")
    for name in ("f", "m"):
        with pytest.raises(duckdb.Error, match="XDG_CONFIG_HOME"):
            crosslane.execute(con, F.replace(" f(", f" {name}(").replace("CREATE", "CREATE OR REPLACE"))
    assert con.execute("SELECT f(1), m(5)").fetchall() == [(2, 5)]
    assert con.execute("FROM crosslane.definitions").fetchall() == before
    con.close()


def test_a_definition_that_is_not_loaded_is_not_lost(shop: Path) -> None:
    other = F.replace("x + 1", "x - 1")
    con, _ = opened(shop, restore=False)
    with pytest.raises(duckdb.Error, match="keeps a definition of f that is not loaded"):
        crosslane.execute(con, other)
    with pytest.raises(duckdb.Error, match="keeps a definition of f that is not loaded"):
        crosslane.execute(con, other.replace("FUNCTION", "FUNCTION IF NOT EXISTS"))
    # A temporary function hides the definition until the connection is closed.
    crosslane.execute(con, other.replace("CREATE", "CREATE TEMP"))
    crosslane.execute(con, other.replace("CREATE", "CREATE OR REPLACE TEMP"))
    assert value(con, "SELECT f(1)") == 0
    con.close()
    closed(shop)
    con, _ = opened(shop)
    assert value(con, "SELECT f(1)") == 2
    # The user's macro is newer than the definition.
    crosslane.unregister(con, "g")
    crosslane.execute(con, G.replace("CREATE", "CREATE OR REPLACE"))
    con.execute("CREATE OR REPLACE MACRO g(x) AS 'macro'")
    con.close()
    closed(shop)
    con, (warned,) = opened(shop)
    assert "the name g is taken by a macro" in warned
    assert value(con, "SELECT g(1)") == "macro"
    con.close()


def test_threads_that_define_one_name_agree(shop: Path) -> None:
    con, _ = opened(shop)
    texts = [f"CREATE FUNCTION h() RETURNS INT LANGUAGE lua AS $$ {n} $$" for n in range(6)]

    def define(text: str) -> bool:
        with con.cursor() as cursor:
            try:
                cursor.execute("FROM crosslane_create(?)", [text]).fetchall()
            except duckdb.Error as error:
                assert "write CREATE OR REPLACE FUNCTION h" in str(error)
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(define, texts)) == 1
    answer = value(con, "SELECT h()")
    con.close()
    closed(shop)
    con, _ = opened(shop)
    assert value(con, "SELECT h()") == answer
    con.close()
