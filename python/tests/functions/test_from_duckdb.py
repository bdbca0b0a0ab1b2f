"""Users of DuckDB's own Python functions rely on these things. Some are the same in Crosslane, and some
differ.

docs/migration/duckdb-python.md tells readers the same.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import crosslane

from ..conftest import error


def absent(_: Any) -> None:
    """Returns None for every row."""


def widened(pair: dict[str, Any]) -> dict[str, Any]:
    """Returns a new field, and the other fields in another order."""
    return {"c": 0, "b": pair["b"], "a": 200}


class Offset:
    """An object that can be called."""

    def __call__(self, x: int) -> int:
        return x + 100


#: name, function, parameters' types, result's type, options in Crosslane, options in DuckDB, expression over
#: rows (a, b).
SAME: list[tuple[str, Callable[..., Any], list[str], str, dict[str, Any], dict[str, Any], str]] = [
    ("both", lambda a, b: a + b, ["BIGINT", "BIGINT"], "BIGINT", {}, {}, '"both"(a, b)'),
    ("thrice", lambda s: s * 3, ["VARCHAR"], "VARCHAR", {}, {}, "thrice(a::VARCHAR)"),
    ("five", lambda x: 5 if x is None else x, ["BIGINT"], "BIGINT", {"nulls": "call"},
     {"null_handling": "special"}, "five(b)"),
    ("none", absent, ["BIGINT"], "BIGINT", {"nulls": "call"}, {"null_handling": "special"}, '"none"(a)'),
    ("fails", lambda x: 1 // (x - 1), ["BIGINT"], "BIGINT", {"on_error": "null"},
     {"exception_handling": "return_null"}, "fails(a)"),
    ("object", Offset(), ["BIGINT"], "BIGINT", {}, {}, '"object"(a)'),
    ("wide", widened, ["STRUCT(a BIGINT, b BIGINT)"], "STRUCT(a BIGINT, b BIGINT, c BIGINT)", {}, {},
     "wide({'a': a, 'b': coalesce(b, 7)})"),
    ("keys", lambda m: m, ["MAP(VARCHAR, BIGINT)"], "MAP(VARCHAR, BIGINT)", {}, {}, "keys(MAP {'x': a})"),
    ("lists", lambda xs: xs[::-1], ["BIGINT[]"], "BIGINT[]", {}, {}, "lists([a, 9])"),
    ("column", lambda x: pc.add(x, 1), ["BIGINT"], "BIGINT", {"vectorized": True}, {"type": "arrow"},
     '"column"(a)'),
    ("chunked", lambda x: pa.chunked_array([x]), ["BIGINT"], "BIGINT", {"vectorized": True},
     {"type": "arrow"}, "chunked(a)"),
    ("parsed", lambda s: s, ["VARCHAR"], "BIGINT", {"vectorized": True}, {"type": "arrow"},
     "parsed(a::VARCHAR)"),
]  # fmt: skip


def test_the_same_in_both(con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    for name, function, types, result, here, there, expression in SAME:
        with subtests.test(name):
            query = f"SELECT {expression} FROM (VALUES (1, 2), (3, NULL), (NULL, 4), (5, 6)) t(a, b)"
            with duckdb.connect() as theirs:
                theirs.create_function(name, function, types, result, **there)
                expected = theirs.execute(query).fetchall()
            parameters = ", ".join(f"p{number} {type}" for number, type in enumerate(types))
            crosslane.register(con, function, f'"{name}"({parameters}) -> {result}', **here)
            assert con.execute(query).fetchall() == expected
            assert len(expected) == 4
            # Each registration starts the workers of all registered functions again.
            crosslane.unregister(con, name)


def test_rows_with_null_are_not_called(con: duckdb.DuckDBPyConnection) -> None:
    called: list[int] = []
    crosslane.register(
        con, lambda x, y: called.append(x) or x, "f(x BIGINT, y BIGINT) -> BIGINT", lane="thread"
    )
    rows = con.execute("SELECT f(x, y) FROM (VALUES (1, 1), (2, NULL), (NULL, 3), (4, 4)) t(x, y)").fetchall()
    assert rows == [(1,), (None,), (None,), (4,)]
    assert sorted(called) == [1, 4]


def test_a_variable_number_of_arguments_has_a_signature(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, lambda *xs: len(xs), "three(a BIGINT, b VARCHAR, c DOUBLE) -> BIGINT")
    assert con.execute("SELECT three(1, '2', 3)").fetchall() == [(3,)]
    assert "No function matches" in error(con, "SELECT three(1, '2')")


def test_none_is_null_without_an_option(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, absent, "absent(x BIGINT) -> BIGINT")
    assert con.execute("SELECT absent(1)").fetchall() == [(None,)]
    with duckdb.connect() as theirs:
        theirs.create_function("absent", absent, ["BIGINT"], "BIGINT")
        assert "not expected to return NULL" in error(theirs, "SELECT absent(1)")


def test_a_text_does_not_become_a_number(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, lambda s: s, "f(s VARCHAR) -> BIGINT")
    assert "returned str '42' where BIGINT is due" in error(con, "SELECT f('42')")
    with duckdb.connect() as theirs:
        theirs.create_function("f", lambda s: s, ["VARCHAR"], "BIGINT")
        assert theirs.execute("SELECT f('42')").fetchall() == [(42,)]


def test_integers_that_do_not_fit(con: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    sizes = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
    for signed in (True, False):
        for size, bits in sizes.items():
            name = size if signed else f"U{size}"
            with subtests.test(name):
                least = -(1 << bits - 1) if signed else 0
                most = least + (1 << bits) - 1
                crosslane.register(con, lambda s: int(s), f"f(s VARCHAR) -> {name}")
                for number in (least, most):
                    assert con.execute(f"SELECT f('{number}')").fetchall() == [(number,)]
                for number in (least - 1, most + 1):
                    assert f"does not fit {name}" in error(con, f"SELECT f('{number}')")


def test_nan_is_no_null(con: duckdb.DuckDBPyConnection) -> None:
    # These are two objects. One of them belongs to the module math.
    for nothing in (math.nan, float("nan")):
        crosslane.register(con, lambda _, nothing=nothing: nothing, "f(x BIGINT) -> DOUBLE")
        ((result,),) = con.execute("SELECT f(1)").fetchall()
        assert math.isnan(result)


def test_columns_of_a_wrong_shape(con: duckdb.DuckDBPyConnection) -> None:
    for function, message in (
        (lambda _: None, "where a column is due"),
        (lambda x: pa.table({"a": x, "b": x}), "where a column is due"),
        (lambda x: pa.array([1] * (len(x) + 1)), "where 1 are due"),
    ):
        crosslane.register(con, function, "f(x BIGINT) -> BIGINT", vectorized=True)
        assert message in error(con, "SELECT f(1)")


def test_a_pending_result_outlives_a_registration(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("FROM range(4096)")
    assert con.fetchone() == (0,)
    crosslane.register(con, lambda x: x, "same(x BIGINT) -> BIGINT")
    assert con.fetchone() == (1,)
    assert con.execute("SELECT same(5)").fetchall() == [(5,)]


def test_relations_use_the_function_of_their_run(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, lambda x: x + 1, "f(x BIGINT) -> BIGINT")
    relation = con.sql("FROM range(3) t(i)").project("f(i)")
    assert relation.fetchall() == [(1,), (2,), (3,)]
    once = con.sql("SELECT f(3)")
    crosslane.register(con, lambda x: x + 2, "f(x BIGINT) -> BIGINT")
    assert once.fetchall() == [(5,)]


def test_results_leave_no_references(con: duckdb.DuckDBPyConnection) -> None:
    result = b"x" * 8192
    before = sys.getrefcount(result)
    crosslane.register(con, lambda _: result, "f(x BIGINT) -> BLOB", lane="thread")
    for _ in range(5):
        con.execute("SELECT f(i) FROM range(1000) r(i)").fetchall()
    assert sys.getrefcount(result) <= before + 2


def test_both_kinds_on_one_connection(con: duckdb.DuckDBPyConnection) -> None:
    con.create_function("theirs", lambda x: x, ["BIGINT"], "BIGINT")
    crosslane.register(con, lambda x: x, "ours(x BIGINT) -> BIGINT")
    assert con.execute("SELECT theirs(1), ours(2)").fetchall() == [(1, 2)]
    with pytest.raises(duckdb.Error, match="taken"):
        crosslane.register(con, lambda x: x, "theirs(x BIGINT) -> BIGINT")
    with pytest.raises(duckdb.CatalogException, match="already exists"):
        con.create_function("ours", lambda x: x, ["BIGINT"], "BIGINT")
