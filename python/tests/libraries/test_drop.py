"""Functions that are dropped: names are free again, and processes and threads end."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, processes, value


def _increment(x: int) -> int:
    return x + 1


def _hosts() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("crosslane-")]


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_a_function_that_is_unregistered_leaves_nothing(con: duckdb.DuckDBPyConnection, lane: str) -> None:
    crosslane.register(con, _increment, "Increment(x BIGINT) -> BIGINT", lane=lane)
    other = con.cursor()
    assert value(other, "SELECT increment(1)") == 2
    assert processes() or _hosts()
    crosslane.unregister(con, "iNCREMENT")
    assert eventually(lambda: not processes() and not _hosts()), (processes(), _hosts())
    assert "increment does not exist" in error(other, "SELECT increment(1)")
    assert value(con, "SELECT count(*) FROM duckdb_functions() WHERE function_name = 'Increment'") == 0
    for listing in ("functions", "stats", "lanes", "pools"):
        assert con.execute(f"FROM crosslane_{listing}()").fetchall() == []
    # The name can be used again for other types, and for macros.
    crosslane.register(con, str, "increment(x BIGINT) -> VARCHAR", lane=lane)
    assert value(other, "SELECT increment(i) FROM range(1, 2) r(i)") == "1"
    crosslane.unregister(con, "increment")
    con.execute("CREATE MACRO increment(x) AS x * 10")
    assert value(other, "SELECT increment(1)") == 10


def test_all_parameters_of_a_name_go(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    crosslane.load(con, library("@udf\ndef f(x: int, y: int = 3) -> int: return x * y"))
    assert con.execute("SELECT f(2), f(2, 2)").fetchall() == [(6, 4)]
    signatures = [row[1] for row in con.execute("FROM crosslane_drop('f')").fetchall()]
    assert signatures == ["f(x BIGINT, y BIGINT) -> BIGINT", "f(x BIGINT) -> BIGINT"]
    for call in ("f(2)", "f(2, 2)"):
        assert "was dropped" in error(con, f"SELECT {call}")


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_the_others_stay(con: duckdb.DuckDBPyConnection, lane: str) -> None:
    for name in ("f", "g"):
        crosslane.register(con, _increment, f"{name}(x BIGINT) -> BIGINT", lane=lane)
    crosslane.unregister(con, "f")
    assert value(con, "SELECT g(1)") == 2
    crosslane.register(con, _increment, "h(x BIGINT) -> BIGINT", lane=lane)
    assert con.execute("SELECT function FROM crosslane_functions() ORDER BY 1").fetchall() == [("g",), ("h",)]
    assert "f does not exist" in error(con, "SELECT f(1)")
    for name in ("g", "h"):
        crosslane.unregister(con, name)
    assert eventually(lambda: not processes() and not _hosts()), (processes(), _hosts())


@pytest.mark.parametrize("suffix", ["py", "js", "rb"])
def test_a_file_lives_as_long_as_one_of_its_functions(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, suffix: str
) -> None:
    texts = {
        "py": "from crosslane import udf\n@udf\ndef f(x: int) -> int: return x\n@udf\ndef g(x: int) -> int: return -x",
        "js": 'udf("f(x INTEGER) -> INTEGER", (x) => x);\nudf("g(x INTEGER) -> INTEGER", (x) => -x);',
        "rb": 'udf("f(x INTEGER) -> INTEGER") { |x| x }\nudf("g(x INTEGER) -> INTEGER") { |x| -x }',
    }
    path = tmp_path / f"functions.{suffix}"
    path.write_text(texts[suffix])
    crosslane.load(con, path)
    con.execute("CALL crosslane_drop('f')")
    assert value(con, "SELECT g(2)") == -2
    assert con.execute("SELECT function FROM crosslane_functions()").fetchall() == [("g",)]
    con.execute("CALL crosslane_drop('g')")
    assert eventually(lambda: not processes()), processes()
    # The file can be loaded again, also in SQL.
    con.execute(f"CALL crosslane_load('{path}')")
    assert con.execute("SELECT f(2), g(2)").fetchall() == [(2, -2)]


def test_sql_alone_says_that_a_function_was_dropped(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x")
    con.execute(f"CALL crosslane_load('{path}')")
    con.execute("PREPARE before AS SELECT f($1)")
    assert value(con, "EXECUTE before(1)") == 1
    assert con.execute("CALL crosslane_drop('f')").fetchall() == [("f", "f(x BIGINT) -> BIGINT")]
    # DuckDB still knows the name.
    for query in ("SELECT f(1)", "SELECT f(i) FROM range(3) r(i)", "EXECUTE before(1)"):
        text = error(con, query)
        assert "f(x BIGINT) -> BIGINT was dropped; to call it again, load " in text
        assert str(path) in text
    # Another load in Python makes DuckDB forget the name.
    crosslane.register(con, _increment, "g(x BIGINT) -> BIGINT", lane="thread")
    assert "f does not exist" in error(con, "SELECT f(1)")
    path.write_text("from crosslane import udf\n@udf\ndef f(x: str) -> str: return x")
    con.execute(f"CALL crosslane_load('{path}')")
    assert value(con, "SELECT f('a')") == "a"


def test_a_running_query_keeps_what_it_uses(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, load: Load
) -> None:
    load(
        """
        from pathlib import Path
        @udf(deterministic=False)
        def f(folder: str, i: int) -> int:
            place = Path(folder)
            (place / "begun").touch()
            while not (place / "dropped").exists(): pass
            return i
        """
    )
    told: list[object] = []
    other = con.cursor()
    query = f"SELECT sum(f('{tmp_path}', i)) FROM range(10000) r(i)"
    thread = threading.Thread(target=lambda: told.append(value(other, query)))
    thread.start()
    assert eventually((tmp_path / "begun").exists)
    crosslane.unregister(con, "f")
    assert "f does not exist" in error(con, query)
    (tmp_path / "dropped").touch()
    thread.join()
    assert told == [sum(range(10000))]
    assert eventually(lambda: not processes()), processes()


def test_names_that_are_unknown(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.Error, match=r"no function upper; FROM crosslane_functions\(\) lists"):
        crosslane.unregister(con, "upper")
    for name in ("slugify", "shorten"):
        crosslane.register(con, str.upper, f"{name}(x VARCHAR) -> VARCHAR", lane="thread")
    with pytest.raises(duckdb.Error, match=r"no function slugfy; did you mean slugify\?"):
        crosslane.unregister(con, "slugfy")
    with pytest.raises(duckdb.Error, match=r"no function it's; FROM crosslane_functions\(\)"):
        crosslane.unregister(con, "it's")
    crosslane.unregister(con, "slugify")
    for drop in (crosslane.unregister, lambda con, name: con.execute("CALL crosslane_drop(?)", [name])):
        with pytest.raises(duckdb.Error, match="no function slugify"):
            drop(con, "slugify")


def test_a_built_in_function_that_was_replaced(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, lambda x: f"<{x}>", "reverse(x VARCHAR) -> VARCHAR", replace=True)
    assert value(con, "SELECT reverse('ab')") == "<ab>"
    crosslane.unregister(con, "reverse")
    # The extension cannot restore the built-in function.
    assert "reverse(x VARCHAR) -> VARCHAR was dropped" in error(con, "SELECT reverse('ab')")
    with duckdb.connect() as fresh:
        assert value(fresh, "SELECT reverse('ab')") == "ba"
