"""Databases whose settings forbid external access, or forbid changes of settings."""

from __future__ import annotations

import sys

import duckdb
import pytest

import crosslane

from ..conftest import Library, error, eventually, processes, value


def test_without_external_access_nothing_is_loaded(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    crosslane.load(con, path)
    crosslane.register(con, lambda x: x + 2, "g(x BIGINT) -> BIGINT")
    con.execute("PREPARE p AS FROM crosslane_load(?)")
    before = set(processes())
    con.execute("SET enable_external_access = false")
    attempts = [
        f"FROM crosslane_load('{path}')",
        f"EXECUTE p('{path}')",
        "FROM crosslane_load('/no/such/file.py')",
        "FROM crosslane_load_pickle(['f() -> BIGINT'], 'cposix\nsystem\n(S''true''\ntR.'::BLOB)",
        "FROM crosslane_load_threads('f', '0')",
        "FROM crosslane_drop('f')",
        f"FROM crosslane_set('python', '{sys.executable}')",
        "FROM crosslane_set('javascript', '/bin/true')",
        "FROM crosslane_set('ruby', '/bin/true')",
    ]
    for attempt in attempts:
        assert "external access is off" in error(con, attempt), attempt
    with pytest.raises(duckdb.Error, match="Load files and register functions before"):
        crosslane.load(con, path)
    for lane in ("process", "thread"):
        with pytest.raises(duckdb.Error, match="Load files and register functions before"):
            crosslane.register(con, lambda x: x, "h(x BIGINT) -> BIGINT", lane=lane)
    # The loaded functions still work, also in new workers.
    assert value(con, "SELECT f(1) + g(1)") == 5
    con.execute("CALL crosslane_set('idle_timeout', '0.2')").fetchall()
    assert eventually(lambda: len(processes()) == 4), "the zygotes and their reapers should be left"
    assert value(con, "SELECT f(2) + g(2)") == 7
    assert len({process.pid for process in before} & {process.pid for process in processes()}) == 4


def test_with_a_locked_configuration_no_setting_changes(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    con.execute("PREPARE p AS FROM crosslane_set('spin', '7')")
    con.execute("SET lock_configuration = true")
    for attempt in (
        "FROM crosslane_set('python', '/bin/true')",
        "CALL crosslane_set('spin', '7')",
        "EXECUTE p",
    ):
        assert "the configuration is locked" in error(con, attempt)
    assert value(con, "SELECT value FROM crosslane_settings() WHERE name = 'spin'") == "20"
    # Loading a file needs another permission.
    crosslane.load(con, library("@udf\ndef f(x: int) -> int: return x + 1"))
    assert value(con, "SELECT f(1)") == 2


def test_connecting_loads_before_it_locks(library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    config = {"enable_external_access": "false", "lock_configuration": "true"}
    con = crosslane.connect(functions=path, config=config)
    assert value(con, "SELECT f(1)") == 2
    assert error(con, f"FROM crosslane_load('{path}')")
    assert error(con, "SET enable_external_access = true")
    assert error(con, "SET threads = 1")
    con.close()


@pytest.mark.parametrize("setting", ["enable_external_access = false", "lock_configuration = true"])
def test_a_database_that_was_locked_before_says_what_to_do(setting: str) -> None:
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    con.execute(f"SET {setting}")
    with pytest.raises(
        duckdb.PermissionException, match="Load Crosslane and the functions first, then lock it"
    ):
        crosslane.register(con, lambda x: x, "f(x BIGINT) -> BIGINT")
    con.close()
