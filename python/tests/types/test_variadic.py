"""Functions that take any number of arguments, in all languages and kinds."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import crosslane
from crosslane import DeclarationError
from crosslane._declare.library import load_file

from ..conftest import Library, Load, error, value

PYTHON = """
    import json

    def told(*arguments): return json.dumps(arguments, separators=(",", ":"))

    @udf
    def py_row(x: int, *rest: str) -> str: return told(x, *rest)
    @udf
    def py_only(*rest: int) -> str: return told(*rest)
    @udf(nulls="call")
    def py_null(x: int, *rest: str) -> str: return told(x, *rest)
    @udf
    async def py_many(x: int, *rest: str) -> str: return told(x, *rest)
    @udf("py_column(x BIGINT, *rest VARCHAR) -> VARCHAR", vectorized=True)
    def py_column(x, *rest):
        return [told(*row) for row in zip(*(column.to_pylist() for column in (x, *rest)))]
    @udf(on_error="null")
    def py_fails(x: int, *rest: str) -> str: return told(x, *rest) if x else rest[99]
    @udf("py_nested(*rest STRUCT(a BIGINT[2], b VARCHAR[])) -> VARCHAR")
    def py_nested(*rest): return told(*rest)
"""
JAVASCRIPT = """
    const told = (...all) => JSON.stringify(all);
    udf("js_row(x BIGINT, *rest VARCHAR) -> VARCHAR", told);
    udf("js_only(*rest BIGINT) -> VARCHAR", told);
    udf("js_null(x BIGINT, *rest VARCHAR) -> VARCHAR", { nulls: "call" }, told);
    udf("js_many(x BIGINT, *rest VARCHAR) -> VARCHAR", { concurrency: 3 }, async (x, ...rest) => told(x, ...rest));
    udf("js_column(x BIGINT, *rest VARCHAR) -> VARCHAR", { vectorized: true }, (x, ...rest) =>
      Array.from(x, (x, at) => told(x, ...rest.map((column) => column[at]))));
    udf("js_fails(x BIGINT, *rest VARCHAR) -> VARCHAR", { on_error: "null" }, (x, ...rest) => x ? told(x, ...rest) : rest[99].a);
    udf("js_nested(*rest STRUCT(a BIGINT[2], b VARCHAR[])) -> VARCHAR", told);
    udf("js_kinds(*rest DOUBLE) -> VARCHAR", { vectorized: true }, (...rest) =>
      rest[0] === undefined ? ["none"] : Array.from(rest[0], () => rest.map((column) => column.constructor.name).join()));
"""
RUBY = """
    require "json"
    told = ->(*all) { JSON.generate(all) }
    udf("rb_row(x BIGINT, *rest VARCHAR) -> VARCHAR", &told)
    udf("rb_only(*rest BIGINT) -> VARCHAR") { |*rest| told.call(*rest) }
    udf("rb_null(x BIGINT, *rest VARCHAR) -> VARCHAR", nulls: :call) { |x, *rest| told.call(x, *rest) }
    udf("rb_many(x BIGINT, *rest VARCHAR) -> VARCHAR", concurrency: 3) { |x, *rest| told.call(x, *rest) }
    udf("rb_column(x BIGINT, *rest VARCHAR) -> VARCHAR", vectorized: true) do |x, *rest|
      x.zip(*rest).map { |row| told.call(*row) }
    end
    udf("rb_fails(x BIGINT, *rest VARCHAR) -> VARCHAR", on_error: :null) { |x, *rest| x > 0 ? told.call(x, *rest) : rest.fetch(99) }
    udf("rb_nested(*rest STRUCT(a BIGINT[2], b VARCHAR[])) -> VARCHAR") { |*rest| told.call(*rest.map(&:to_h)) }
    udf("rb_first(x BIGINT[], *rest BIGINT) -> BIGINT") { |x, *rest| x.sum + rest.sum }
    udf("rb_lambda(x BIGINT, *rest VARCHAR) -> VARCHAR", &->(x, *rest) { told.call(x, *rest) })
    udf "rb_method(x BIGINT, *rest VARCHAR) -> VARCHAR"
    def rb_method(x, *rest) = JSON.generate([x, *rest])
"""
WITH_ONE = ["row", "many", "column"]
ROWS = [(0, "a", "ä"), (1, None, "b"), (2, "c", None), (3, "d" * 20, "")]


def compact(*values: Any) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def register(con: duckdb.DuckDBPyConnection) -> None:
    """Registers the functions on Python's host lanes."""

    def row(x: int, *rest: str) -> str:
        return compact(x, *rest)

    async def many(x: int, *rest: str) -> str:
        return compact(x, *rest)

    def column(x: pa.Int64Array, *rest: pa.StringArray) -> pa.StringArray:
        return pa.array([compact(*row) for row in zip(*(one.to_pylist() for one in (x, *rest)))])

    for function in (row, many):
        crosslane.register(con, function, lane="thread", name=f"host_{function.__name__}")
    crosslane.register(con, column, lane="thread", name="host_column", vectorized=True)


def test_any_number_of_arguments(load: Load, script: Load, ruby: Load) -> None:
    con = load(PYTHON)
    script(JAVASCRIPT)
    ruby(RUBY)
    register(con)
    con.execute("CREATE TABLE t (x BIGINT, a VARCHAR, b VARCHAR)")
    con.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
    names = [f"{language}_{kind}" for language in ("py", "js", "rb", "host") for kind in WITH_ONE]
    for name in [*names, "rb_lambda", "rb_method"]:
        # The text is in the form that Python's own functions write.
        def told(*values: Any, name: str = name) -> str:
            return json.dumps(values, separators=(",", ":"), ensure_ascii=name.startswith("py"))

        for extra in ((), ("a",), ("a", "b"), ("a", "b", "a", "b", "a")):
            results = con.execute(f"SELECT {name}({', '.join(('x', *extra))}) FROM t ORDER BY x").fetchall()
            for (result,), (x, a, b) in zip(results, ROWS, strict=True):
                given = [{"a": a, "b": b}[column] for column in extra]
                assert result == (None if None in given else told(x, *given)), (name, extra)
        # The planner calls functions with constant arguments.
        assert value(con, f"SELECT {name}(1, 'x', 'y')") == told(1, "x", "y"), name
        assert value(con, f"SELECT {name}(1, 'x', NULL)") is None, name
        assert value(con, f"SELECT count(DISTINCT {name}(i, i::VARCHAR)) FROM range(2500) r(i)") == 2500, name
    for language in ("py", "js", "rb"):
        assert value(con, f"SELECT {language}_only()") == "[]"
        assert value(con, f"SELECT {language}_only(1, 2)") == "[1,2]"
        assert value(con, f"SELECT {language}_null(1, NULL, 'x')") == '[1,null,"x"]'
        assert value(con, f"SELECT {language}_null(NULL)") == "[null]"
        query = f"SELECT {language}_fails(x, 'a') FROM t ORDER BY x LIMIT 2"
        assert con.execute(query).fetchall() == [(None,), ('[1,"a"]',)]
        nested = "{'a': [1, NULL], 'b': ['x', NULL, '']}, {'a': NULL, 'b': []}"
        expected = [{"a": [1, None], "b": ["x", None, ""]}, {"a": None, "b": []}]
        assert json.loads(str(value(con, f"SELECT {language}_nested({nested})"))) == expected
        # SQL casts these arguments, as it does for any parameter.
        assert value(con, f"SELECT {language}_only('1', 2::TINYINT)") == "[1,2]"
    assert value(con, "SELECT rb_row(1, " + ", ".join(["'x'"] * 300) + ")") == compact(1, *["x"] * 300)
    # A block would split a single Array into several arguments.
    assert con.execute("SELECT rb_first([1, 2]), rb_first([1, 2], 3)").fetchall() == [(3, 6)]
    assert value(con, "SELECT js_kinds(1, 2)") == "Float64Array,Float64Array"


def test_they_are_listed_dropped_and_replaced(load: Load, script: Load, ruby: Load) -> None:
    con = load("@udf\ndef py_row(x: int, *rest: str) -> str: return rest[0]")
    script("udf('js_row(x BIGINT, *rest VARCHAR) -> VARCHAR', (x, ...rest) => rest[0]);")
    ruby("udf('rb_row(x BIGINT, *rest VARCHAR) -> VARCHAR') { |x, *rest| rest[0] }")
    for language in ("py", "js", "rb"):
        query = f"SELECT signature, parameters FROM crosslane_functions() WHERE function = '{language}_row'"
        signature = f"{language}_row(x BIGINT, *rest VARCHAR) -> VARCHAR"
        assert con.execute(query).fetchall() == [(signature, "x BIGINT, *rest VARCHAR")]
        crosslane.unregister(con, f"{language}_row")
        assert "does not exist" in error(con, f"SELECT {language}_row(1, 'x')")
    # A list has another type than any number of arguments.
    crosslane.register(con, lambda *rest: len(rest), "counted(*rest BIGINT) -> BIGINT")
    assert value(con, "SELECT counted(7, 8, 9)") == 3
    crosslane.register(con, len, "counted(rest BIGINT[]) -> BIGINT")
    assert value(con, "SELECT counted([7, 8])") == 2
    assert "No function matches" in error(con, "SELECT counted(7, 8)")


def test_python_functions(load: Load, subtests: pytest.Subtests) -> None:
    con = load(
        """
        import dataclasses
        @dataclasses.dataclass
        class Point:
            x: int
            y: int
        @udf
        def fails(x: int, *rest: str) -> int: return rest[x]
        @udf
        def usual(x: int, y: int = 7, *rest: int) -> int: return 100 * x + 10 * y + len(rest)
        @udf("area(*rest STRUCT(x BIGINT, y BIGINT)) -> BIGINT")
        def area(*rest: Point): return sum(point.x * point.y for point in rest)
        @udf
        def counted(*rest: str | None) -> int: return sum(one is None for one in rest)
        """
    )
    with subtests.test("an error shows all arguments"):
        assert "with x = 2, rest = ['a', 'b']" in error(con, "SELECT fails(2, 'a', 'b')")
    with subtests.test("parameters with defaults before them"):
        rows = con.execute("SELECT usual(1), usual(1, 2), usual(1, 2, 3), usual(1, 2, 3, 4)").fetchall()
        assert rows == [(170, 120, 121, 122)]
    with subtests.test("what the annotation adds to a signature"):
        assert value(con, "SELECT area({'x': 2, 'y': 3}, {'x': 1, 'y': 1})") == 7
        assert value(con, "SELECT counted('a', NULL, NULL)") == 2


@pytest.mark.any_duckdb
def test_columns_of_each_library(load: Load, subtests: pytest.Subtests) -> None:
    con = load(
        """
        import numpy as np, numpy.typing as npt, pandas as pd, polars as pl
        from typing import Annotated
        for name, column in (
            ("of_numpy", npt.NDArray[np.int64]),
            ("of_pandas", Annotated[pd.Series, "BIGINT"]),
            ("of_polars", Annotated[pl.Series, "BIGINT"]),
        ):
            def total(x: column, *rest: column) -> column:
                assert all(type(one) is type(x) for one in rest)
                for one in rest: x = x + one
                return x
            globals()[name] = udf(vectorized=True, name=name)(total)
        """
    )
    con.execute("CREATE TABLE t AS SELECT CASE WHEN i % 7 > 0 THEN i END AS i FROM range(5000) r(i)")
    for name in ("of_numpy", "of_pandas", "of_polars"):
        with subtests.test(name):
            query = f"SELECT count(*) FROM t WHERE {name}(i, i, 1, i) IS DISTINCT FROM 3 * i + 1"
            assert value(con, query) == 0
            assert value(con, f"SELECT count(*) FROM t WHERE {name}(i) IS DISTINCT FROM i") == 0


@pytest.mark.any_duckdb
def test_what_cannot_be_declared(
    library: Library, script: Load, ruby: Load, subtests: pytest.Subtests
) -> None:
    def python(text: str) -> None:
        load_file(library(text))

    for loads, text, message in (
        (python, "@udf\ndef f(*x) -> int: return 1", r"variable number of arguments \(\*x\) of no type"),
        (python, "@udf('f(*x INT) -> INT')\ndef f(x): return 1", "any number of arguments .*the function does not"),
        (python, "@udf('f(a INT, *x INT) -> INT')\ndef f(a, b, *x): return 1", "cannot be called"),
        (python, "@udf('f(*x INT, a INT) -> INT')\ndef f(*x): return 1", "no parameter behind the one with a star"),
        (ruby, "udf('f(*x INT) -> INT') { |x| 1 }", "any number of arguments .*the block does not"),
        (ruby, "udf('f(a INT, *x INT) -> INT') { |a, b, *x| 1 }", "the signature has 1 parameters, the block has 2"),
        (script, "udf('f(*x INT, a INT) -> INT', (x) => 1)", "no parameter behind the one with a star"),
    ):  # fmt: skip
        with subtests.test(text):
            with pytest.raises(DeclarationError if loads is python else duckdb.Error, match=message):
                loads(text)
