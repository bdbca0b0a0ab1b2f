"""Which names functions take in a database, and the effects on functions that had the names before."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import duckdb
import pytest

import crosslane

from ..conftest import CPUS, Library, error, eventually, processes, value


def _number(x: object) -> object:
    return int(x)  # type: ignore[call-overload]


def _for(signature: str) -> Callable[..., object]:
    """A function for a signature. Workers get it by value, because they would take long to import this
    module."""
    if "y" in signature:
        return lambda x, y: x
    if signature.endswith("VARCHAR"):
        return lambda x: str(x)
    return lambda x: int(x)


#: Signatures before and after a change, a call, and its result.
CHANGES: list[tuple[str, str, str, object]] = [
    ("f(x BIGINT) -> BIGINT", "f(x BIGINT) -> VARCHAR", "f(i)", "1"),
    ("f(x BIGINT) -> BIGINT", "f(x DOUBLE) -> BIGINT", "f(i)", 1),
    ("f(x INTEGER) -> BIGINT", "f(x HUGEINT) -> VARCHAR", "f(1)", "1"),
    ("f(x BIGINT) -> BIGINT", "f(x VARCHAR) -> VARCHAR", "f(chr(i::INTEGER + 48))", "1"),
    ("f(x VARCHAR) -> VARCHAR", "f(x BIGINT) -> BIGINT", "f('1')", 1),
    ("f(x BIGINT, y BIGINT) -> BIGINT", "f(x BIGINT) -> BIGINT", "f(i)", 1),
]


def test_a_function_with_other_types_takes_the_place_of_the_old_one(
    con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    lanes: list[Literal["process", "thread"]] = ["process", "thread"]
    other = con.cursor()
    for lane in lanes:
        for before, after, call, result in CHANGES:
            with subtests.test(f"{lane}: {before}, {after}"):
                # The first signature replaces the last one of the case before.
                for signature in (after, before, after):
                    crosslane.register(con, _for(signature), signature, lane=lane)
                    # All connections see the types of the last declaration.
                    (row,) = other.execute(
                        "SELECT parameter_types, return_type FROM duckdb_functions() WHERE function_name = 'f'"
                    ).fetchall()
                    types = ", ".join(f"{n} {t}" for n, t in zip("xy", row[0], strict=False))
                    assert f"f({types}) -> {row[1]}" == signature
                assert value(other, f"SELECT {call} FROM range(1, 2) r(i)") == result
    other.close()


def test_a_function_of_a_module_that_only_the_program_finds(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text("RATE = 3\ndef price(x: int) -> int: return x * RATE")
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("shop")
    crosslane.register(con, shop.price)
    assert value(con, "SELECT price(14)") == 42


def test_errors_of_functions_by_value_name_file_and_line(con: duckdb.DuckDBPyConnection) -> None:
    def outer(x: int) -> int:
        def inner() -> int:
            return sum(each // 0 for each in (x,))

        return inner()

    crosslane.register(con, outer)
    text = error(con, "SELECT outer(1)")
    line = outer.__code__.co_firstlineno
    assert f"at {__file__}:{line + 4} in outer\n    return inner()" in text
    assert f"at {__file__}:{line + 2} in inner\n    return sum(each // 0 for each in (x,))" in text
    assert "dynamic-code" not in text


def test_a_connection_that_allows_no_unsigned_extensions() -> None:
    with duckdb.connect() as con, pytest.raises(duckdb.Error, match=r"crosslane\.connect"):
        crosslane.register(con, _number, "f(x BIGINT) -> BIGINT")


def test_threads_that_change_the_same_function(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, _number, "f(x BIGINT) -> BIGINT", lane="thread")
    types = ["BIGINT", "DOUBLE", "HUGEINT", "INTEGER"]

    def change(own: str) -> None:
        with con.cursor() as cursor:
            for _ in range(5):
                crosslane.register(cursor, _number, f"f(x {own}) -> BIGINT", lane="thread")

    with ThreadPoolExecutor(len(types)) as pool:
        list(pool.map(change, types))
    assert value(con, "SELECT count(*) FROM duckdb_functions() WHERE function_name = 'f'") == 1
    assert value(con, "SELECT f(1)") == 1


def test_a_reloaded_file_with_other_types(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x\n@udf\ndef g(x: int) -> int: return x")
    crosslane.load(con, path)
    path.write_text("from crosslane import udf\n@udf\ndef f(x: float) -> str: return repr(x)")
    crosslane.load(con, path)
    assert value(con, "SELECT f(1)") == "1.0"
    assert value(con, "SELECT f(i) FROM range(2, 3) r(i)") == "2.0"
    # The error of a removed function says that the file does not declare it.
    assert "the file does not declare it any more" in error(con, "SELECT g(i) FROM range(2) r(i)")


def test_sql_alone_never_makes_a_function_uncallable(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library("@udf\ndef f(x: int) -> int: return x + 1")
    con.execute(f"FROM crosslane_load('{path}')").fetchall()
    path.write_text("from crosslane import udf\n@udf\ndef f(x: int) -> str: return str(x)")
    try:
        con.execute(f"FROM crosslane_load('{path}')").fetchall()
    except duckdb.Error as refusal:
        # DuckDB 1.5 cannot replace the function, and then the old one stays.
        assert duckdb.__version__.startswith("1.")
        assert "cannot change the type of a function's result: f" in str(refusal)
        assert value(con, "SELECT f(i) FROM range(1, 2) r(i)") == 2
        assert eventually(lambda: len(processes()) <= 2 + CPUS), processes()
    else:
        assert value(con, "SELECT f(i) FROM range(1, 2) r(i)") == "1"


def test_names_of_macros_are_taken(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    con.execute("CREATE MACRO twice(x) AS x * 2")
    path = library("@udf\ndef once(x: int) -> int: return x\n@udf\ndef Twice(x: int) -> int: return -2 * x")
    with pytest.raises(duckdb.Error, match="the name twice is taken by a macro of this database"):
        crosslane.load(con, path)
    assert value(con, "SELECT twice(3)") == 6
    with pytest.raises(duckdb.Error, match="the name twice is taken by a macro"):
        crosslane.register(con, lambda x: x, "twice(x BIGINT) -> BIGINT", lane="thread")
    assert crosslane.load(con, path, replace=True)[1] == "Twice(x BIGINT) -> BIGINT"
    assert value(con, "SELECT twice(3)") == -6
    # The name belongs to Crosslane now.
    crosslane.load(con, path)
    # No macro of DuckDB's own can be replaced.
    for replace in (False, True):
        with pytest.raises(duckdb.Error, match="the name nullif is taken by DuckDB's own macro"):
            crosslane.register(con, lambda x: x, "nullif(x BIGINT) -> BIGINT", replace=replace)


def test_names_of_built_in_functions_are_taken(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    def upper(x: str) -> str:
        return f"<{x}>"

    for lane in ("process", "thread"):
        with pytest.raises(duckdb.Error, match="the name upper is taken by a function that exists already"):
            crosslane.register(con, upper, lane=lane)
    assert value(con, "SELECT upper('a')") == "A"
    crosslane.register(con, upper, replace=True)
    assert value(con, "SELECT upper(s) FROM (VALUES ('a')) t(s)") == "<a>"
    crosslane.register(con, upper)
    for replace in (False, True):
        with pytest.raises(duckdb.Error, match="the name sum is taken by DuckDB's own aggregate"):
            crosslane.register(con, lambda x: x, "sum(x BIGINT) -> BIGINT", replace=replace)
    path = library("@udf\ndef lower(x: str) -> str: return x")
    assert "replace := true" in error(con, f"FROM crosslane_load('{path}')")
    assert value(con, f"SELECT signature FROM crosslane_load('{path}', replace := true)") is not None


@pytest.mark.parametrize("taken", ["upper", "twice", "sum", "nullif"])
def test_a_load_is_all_or_nothing(con: duckdb.DuckDBPyConnection, library: Library, taken: str) -> None:
    con.execute("CREATE MACRO twice(x) AS x * 2")
    path = library(
        f"@udf\ndef beginning(x: str) -> str: return x\n@udf\ndef {taken}(x: str) -> str: return x"
    )
    with pytest.raises(duckdb.Error, match=f"the name {taken} is taken .* nothing was loaded"):
        crosslane.load(con, path)
    assert con.execute("FROM crosslane_functions()").fetchall() == []
    assert "beginning does not exist" in error(con, "SELECT beginning('a')")
    assert eventually(lambda: not processes()), processes()
    # The old version stays.
    path.write_text("from crosslane import udf\n@udf\ndef beginning(x: str) -> str: return 'old'")
    crosslane.load(con, path)
    text = f"@udf\ndef beginning(x: str) -> str: return 'new'\n@udf\ndef {taken}(x: str) -> str: return x"
    path.write_text("from crosslane import udf\n" + text)
    with pytest.raises(duckdb.Error, match="nothing was loaded"):
        crosslane.load(con, path)
    assert value(con, "SELECT beginning('a')") == "old"
    assert eventually(lambda: len(processes()) == 2 + CPUS), processes()


def test_registered_functions_share_their_processes(con: duckdb.DuckDBPyConnection) -> None:
    for number in range(10):
        crosslane.register(con, lambda x, n=number: x + n, f"plus_{number}(x BIGINT) -> BIGINT")
    # These are the zygote, its reaper, and the worker that is ready.
    assert eventually(lambda: len(processes()) == 3), processes()
    every = ", ".join(f"plus_{number}(1)" for number in range(10))
    assert con.execute(f"SELECT {every}").fetchall() == [tuple(range(1, 11))]
    assert value(con, "SELECT count(DISTINCT library) FROM crosslane_functions()") == 1
    crosslane.register(con, lambda x: x * 10, "plus_7(x BIGINT) -> BIGINT")
    assert con.execute("SELECT plus_6(i), plus_7(i), plus_8(i) FROM range(1, 2) r(i)").fetchall() == [
        (7, 10, 9)
    ]
    assert value(con, "SELECT count(*) FROM crosslane_functions()") == 10


def test_a_function_that_cannot_be_registered_changes_nothing(con: duckdb.DuckDBPyConnection) -> None:
    class Unloadable:
        def __reduce__(self) -> tuple[object, ...]:
            return (int, ("not a number",))

    crosslane.register(con, lambda x: x + 1, "f(x BIGINT) -> BIGINT")
    thing = Unloadable()
    with pytest.raises(duckdb.Error, match="not a number"):
        crosslane.register(con, lambda x: thing, "g(x BIGINT) -> BIGINT")
    crosslane.register(con, lambda x: x + 2, "h(x BIGINT) -> BIGINT")
    assert con.execute("SELECT f(1), h(1)").fetchall() == [(2, 3)]


def test_a_name_belongs_to_the_last_library_that_took_it(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    crosslane.register(con, lambda x: "registered", "f(x BIGINT) -> VARCHAR")
    crosslane.register(con, lambda x: "other", "g(x BIGINT) -> VARCHAR")
    crosslane.load(con, library("@udf\ndef f(x: int) -> str: return 'file'"))
    assert value(con, "SELECT f(i) FROM range(1) r(i)") == "file"
    # The other registered functions start anew. The function f of the file stays.
    crosslane.register(con, lambda x: "new", "g(x BIGINT) -> VARCHAR")
    assert con.execute("SELECT f(i), g(i) FROM range(1) r(i)").fetchall() == [("file", "new")]
    crosslane.register(con, lambda x: "thread", "f(x BIGINT) -> VARCHAR", lane="thread")
    assert value(con, "SELECT f(i) FROM range(1) r(i)") == "thread"
    # No query calls a function of the file any more.
    assert value(
        con, "SELECT list(DISTINCT library ORDER BY library)::VARCHAR FROM crosslane_functions()"
    ) == (f"[registered functions, {__name__}.f]")
    # These are the processes of g: the zygote, its reaper, and workers.
    assert eventually(lambda: len(processes()) == 2 + CPUS), processes()
