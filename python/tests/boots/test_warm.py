"""Idle workers: how many the engine keeps for many files, and for files that queries use. Also files that
load at the same time."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import CPUS, error, eventually, value

pytestmark = pytest.mark.any_duckdb

#: The bound on the idle workers of all files together.
BOUND = 2 * CPUS


def files(folder: Path, count: int) -> list[Path]:
    """Writes this number of files with one function each."""
    paths = [folder / f"file_{number}.py" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(
            f"from crosslane import udf\n@udf\ndef f{number}(x: int) -> int: return x + {number}\n"
            "@udf\ndef which_file() -> str: return __file__\n"
        )
    return paths


def idle(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """The number of idle workers of each file, by the file's name. Files without idle workers are left
    out."""
    pools = con.execute("SELECT library, idle + busy FROM crosslane_pools() WHERE idle + busy > 0").fetchall()
    return {Path(path).stem: count for path, count in pools}


def test_a_file_without_calls_keeps_one_worker(tmp_path: Path) -> None:
    con = crosslane.connect(functions=files(tmp_path, 1))
    assert eventually(lambda: idle(con) == {"file_0": 1})
    assert value(con, "SELECT f0(1)") == 1
    assert eventually(lambda: idle(con) == {"file_0": CPUS})
    con.close()


def test_all_files_together_keep_a_bound(tmp_path: Path) -> None:
    count = BOUND + 3
    con = crosslane.connect(functions=files(tmp_path, count))
    assert eventually(lambda: sum(idle(con).values()) == BOUND)
    # Every file can be called. The files that were called last have the workers.
    for number in range(count):
        assert value(con, f"SELECT f{number}(1)") == number + 1
    last = f"file_{count - 1}"
    assert eventually(lambda: sum(idle(con).values()) <= BOUND and last in idle(con), 20), idle(con)
    assert "file_0" not in idle(con)
    # With a smaller bound, the engine ends the workers above it.
    con.execute("CALL crosslane_set('warm_lanes', 1)").fetchall()
    assert eventually(lambda: sum(idle(con).values()) == 1, 20), idle(con)
    con.close()


def test_a_query_that_uses_many_files_keeps_its_workers(tmp_path: Path) -> None:
    count = BOUND + 2
    con = crosslane.connect(functions=files(tmp_path, count), config={"threads": 2})
    calls = " + ".join(f"f{number}(i)" for number in range(count))
    expected = sum(range(count)) * 300_000 + count * sum(range(300_000))
    assert value(con, f"SELECT sum({calls})::BIGINT FROM range(300_000) r(i)") == expected
    assert value(con, "SELECT sum(discarded)::BIGINT FROM crosslane_pools()") == 0
    con.close()


def test_the_last_of_several_files_with_one_function_counts(tmp_path: Path) -> None:
    paths = files(tmp_path, 6)
    # The first file takes the longest time to load.
    paths[0].write_text("import time\ntime.sleep(0.5)\n" + paths[0].read_text())
    con = crosslane.connect(functions=paths)
    assert value(con, "SELECT which_file()") == str(paths[-1])
    con.close()


def test_the_first_file_that_cannot_be_loaded_is_named(
    tmp_path: Path, con: duckdb.DuckDBPyConnection
) -> None:
    paths = files(tmp_path, 6)
    paths[2].write_text("import time\ntime.sleep(0.5)\nraise ValueError('the first')")
    paths[4].write_text("raise ValueError('another')")
    listed = ", ".join(f"'{path}'" for path in paths)
    said = error(con, f"FROM crosslane_load_files([{listed}])")
    assert f"cannot load {paths[2]}: ValueError: the first" in said
    assert con.execute("FROM crosslane_functions()").fetchall() == []


def test_files_behind_one_that_failed_are_not_waited_for(tmp_path: Path) -> None:
    paths = files(tmp_path, 2)
    paths[0].write_text("raise ValueError('at once')")
    paths[1].write_text("import time\ntime.sleep(3600)")
    with pytest.raises(duckdb.Error, match="at once"):
        crosslane.connect(functions=paths)


@pytest.mark.parametrize("argument", ["[NULL]", "NULL"])
def test_paths_that_are_null(con: duckdb.DuckDBPyConnection, argument: str) -> None:
    assert "NULL" in error(con, f"FROM crosslane_load_files({argument})")
