"""Calls of functions: NULLs, kinds, results, and errors. `test_declarations.py` has the types of annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane
from crosslane import DeclarationError, udf
from crosslane._declare.declaration import parse_bytes

from ..conftest import Load, error, value


def test_null_gives_null_without_a_call_unless_it_is_admitted(load: Load) -> None:
    con = load(
        """
        @udf
        def skips(a: int, b: int) -> int:
            assert a is not None and b is not None
            return a + b
        @udf
        def sees(a: int | None, b: int) -> str:
            assert b is not None
            return repr(a)
        @udf(nulls="call")
        def sees_all(a: int, b: str) -> str:
            return f"{a} {b}"
        @udf
        def gives(a: int) -> int | None:
            return None if a % 2 else a
        """
    )
    con.execute(
        "CREATE TABLE t AS SELECT CASE WHEN i % 3 > 0 THEN i END a, CASE WHEN i % 2 > 0 THEN i END b FROM range(6) r(i)"
    )
    assert con.execute("SELECT skips(a, b) FROM t").fetchall() == [
        (None,),
        (2,),
        (None,),
        (None,),
        (None,),
        (10,),
    ]
    assert con.execute("SELECT sees(a, b) FROM t").fetchall() == [
        (None,),
        ("1",),
        (None,),
        ("None",),
        (None,),
        ("5",),
    ]
    assert con.execute("SELECT sees_all(a, b::VARCHAR) FROM t LIMIT 2").fetchall() == [
        ("None None",),
        ("1 1",),
    ]
    assert con.execute("SELECT gives(i) FROM range(3) r(i)").fetchall() == [(0,), (None,), (2,)]
    assert value(con, "SELECT skips(NULL, 1)") is None
    assert value(con, "SELECT sees(NULL, 1)") == "None"


#: Functions of columns that add one, by the library of their results.
ADD_ONE = {
    "pyarrow": "(x: pa.Int64Array) -> pa.Int64Array: return pc.add(x, 1)",
    "numpy": "(x: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: return x + 1",
    "pandas": "(x: Annotated[pd.Series, 'BIGINT']) -> Annotated[pd.Series, 'BIGINT']: return x + 1",
    "polars": "(x: Annotated[pl.Series, 'BIGINT']) -> Annotated[pl.Series, 'BIGINT']: return x + 1",
    "chunks": "(x: pa.Int64Array) -> pa.Int64Array: return pa.chunked_array([pc.add(x, 1)])",
    "a_slice": "(x: pa.Int64Array) -> pa.Int64Array: return pa.concat_arrays([x, x]).slice(0, len(x)).cast('int32').take(pa.array(range(len(x)))).cast('int64').__class__ and pc.add(x, 1)",
    "made_anew": "(x: pa.Int64Array) -> pa.Int64Array: return pa.array([0] + pc.add(x, 1).to_pylist())[1:]",
    "a_list": "(x: pa.Int64Array) -> pa.Int64Array: return [None if v is None else v + 1 for v in x.to_pylist()]",
}


@pytest.mark.any_duckdb
def test_vectorized(load: Load, subtests: pytest.Subtests) -> None:
    text = [
        "import numpy as np, numpy.typing as npt, pandas as pd, polars as pl, pyarrow as pa, pyarrow.compute as pc",
        "from typing import Annotated",
    ]
    text += [f"@udf(vectorized=True)\ndef {name}{rest}" for name, rest in ADD_ONE.items()]
    con = load("\n".join(text))
    con.execute("CREATE TABLE t AS SELECT i FROM range(10000) r(i)")
    con.execute("CREATE TABLE n AS SELECT CASE WHEN i % 7 > 0 THEN i END i FROM range(5000) r(i)")
    for name in ADD_ONE:
        with subtests.test(name):
            assert value(con, f"SELECT count(*) FROM t WHERE {name}(i) IS DISTINCT FROM i + 1") == 0
            assert value(con, f"SELECT count(*) FROM n WHERE {name}(i) IS DISTINCT FROM i + 1") == 0


@pytest.mark.any_duckdb
def test_a_vectorized_function_may_keep_its_arrays(load: Load) -> None:
    con = load(
        """
        import pyarrow as pa
        kept = []
        @udf(vectorized=True)
        def keep(x: pa.Int64Array) -> pa.Int64Array:
            kept.append(x)
            return pa.array([sum(sum(a.to_pylist()) for a in kept)] * len(x))
        """
    )
    con.execute("CALL crosslane_set('fan_out', 'false')")
    con.execute("SET threads = 1")
    con.execute("CREATE TABLE t AS SELECT i FROM range(20000) r(i)")
    assert value(con, "SELECT max(keep(i)) FROM t") == sum(range(20000))


@pytest.mark.any_duckdb
def test_wrong_results_of_vectorized_functions(load: Load) -> None:
    con = load(
        """
        import pyarrow as pa, pyarrow.compute as pc
        @udf(vectorized=True)
        def short(x: pa.Int64Array) -> pa.Int64Array: return x[1:]
        @udf(vectorized=True)
        def scalar(x: pa.Int64Array) -> pa.Int64Array: return pc.sum(x)
        @udf(vectorized=True)
        def large(x: pa.Int64Array) -> pa.Int8Array: return pc.add(x, 1000)
        @udf("strange(x BIGINT) -> ENUM('a')", vectorized=True)
        def strange(x): return pa.array(["b"] * len(x))
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(10) r(i)")
    assert "returned 0 values where 1 are due" in error(con, "SELECT short(i) FROM t")
    assert "Int64Scalar where a column is due" in error(con, "SELECT scalar(i) FROM t")
    assert "not in range" in error(con, "SELECT large(i) FROM t")
    assert "'b', which is none of ENUM('a')" in error(con, "SELECT strange(i) FROM t")


#: (the type, a result, what the error says)
WRONG = [
    ("TINYINT", "300", "OverflowError: returned int 300, which does not fit TINYINT"),
    ("BIGINT", "2**63", "does not fit BIGINT"),
    ("UBIGINT", "-1", "does not fit UBIGINT"),
    ("UHUGEINT", "2**128", "does not fit UHUGEINT"),
    ("BIGINT", "1.5", "TypeError: returned float 1.5 where BIGINT is due"),
    ("BIGINT", "'1'", "returned str '1' where BIGINT is due"),
    ("VARCHAR", "1", "returned int 1 where VARCHAR is due"),
    ("VARCHAR", "'\\ud800'", "half a surrogate pair"),
    ("BOOLEAN", "1", "returned int 1 where BOOLEAN is due"),
    ("DOUBLE", "'x'", "returned str 'x' where DOUBLE is due"),
    ("DECIMAL(4,2)", "Decimal('100')", "does not fit DECIMAL(4,2)"),
    ("DECIMAL(4,2)", "Decimal('NaN')", "does not fit DECIMAL(4,2)"),
    ("DATE", "datetime.datetime(2020, 1, 1)", "return its .date()"),
    ("TIMESTAMP", "datetime.datetime.now(datetime.timezone.utc)", "declare TIMESTAMPTZ"),
    ("TIMESTAMPTZ", "datetime.datetime(2020, 1, 1)", "datetime.timezone.utc"),
    ("ENUM('a', 'b')", "'c'", "returned str 'c', which is none of ENUM('a', 'b')"),
    ("INTEGER[2]", "[1]", "returned 1 elements where INTEGER[2] is due"),
    ("INTEGER[]", "'abc'", "returned str 'abc' where INTEGER[] is due"),
    ("STRUCT(a INTEGER, b INTEGER)", "{'a': 1}", "lacks the field b"),
    ("STRUCT(a INTEGER, b INTEGER)", "(1, 2, 3)", "returned a tuple of 3"),
    ("MAP(VARCHAR, INTEGER)", "{None: 1}", "keys cannot be NULL"),
    ("UUID", "'x'", "where UUID is due"),
    ("JSON", "float('nan')", "ValueError"),
]


@pytest.mark.any_duckdb
def test_wrong_results(load: Load, subtests: pytest.Subtests) -> None:
    text = ["import datetime", "from decimal import Decimal"]
    for n, (returns, result, _) in enumerate(WRONG):
        text.append(f"@udf({f'f_{n}(x BIGINT) -> {returns}'!r})\ndef f_{n}(x): return {result}")
    con = load("\n".join(text))
    for n, (returns, result, message) in enumerate(WRONG):
        with subtests.test(f"{returns}: {result}"):
            said = error(con, f"SELECT f_{n}(i) FROM range(3) r(i)")
            assert message in said
            assert "in row 1 of the batch, with x = 0" in said


@pytest.mark.any_duckdb
def test_results_of_related_types_fit(load: Load) -> None:
    con = load(
        """
        import numpy as np, pandas as pd
        from decimal import Decimal
        @udf("ints(x BIGINT) -> INTEGER[]")
        def ints(x): return np.arange(3)
        @udf("floats(x BIGINT) -> DOUBLE[]")
        def floats(x): return (np.float32(1.5), 2, True)
        @udf("flag(x BIGINT) -> BOOLEAN")
        def flag(x): return np.bool_(x > 0)
        @udf("money(x BIGINT) -> DECIMAL(10,2)[]")
        def money(x): return [Decimal("1.005"), 2, 0.1, Decimal("-1.005"), Decimal("1E+2")]
        @udf("stamp(x BIGINT) -> TIMESTAMP_NS")
        def stamp(x): return pd.Timestamp("2020-01-01 00:00:00.123456789")
        @udf("data(x BIGINT) -> BLOB[]")
        def data(x): return [b"a", bytearray(b"b"), memoryview(b"c")]
        """
    )
    assert value(con, "SELECT ints(1)") == [0, 1, 2]
    assert value(con, "SELECT floats(1)") == [1.5, 2.0, 1.0]
    assert value(con, "SELECT flag(1)") is True
    assert value(con, "SELECT money(1)::VARCHAR") == "[1.01, 2.00, 0.10, -1.01, 100.00]"
    assert value(con, "SELECT stamp(1)::VARCHAR") == "2020-01-01 00:00:00.123456789"
    assert value(con, "SELECT data(1)") == [b"a", b"b", b"c"]


def test_an_error_names_function_exception_place_row_and_arguments(load: Load) -> None:
    con = load(
        """
        @udf
        def reciprocal(x: int, label: str) -> float:
            return divide(1, x)
        def divide(a, b):
            return a / b
        """
    )
    con.execute("CREATE TABLE t AS SELECT i - 3 AS x, 'it''s ' || i AS label FROM range(3000) r(i)")
    text = error(con, "SELECT reciprocal(x, label) FROM t")
    assert "reciprocal: ZeroDivisionError: division by zero" in text
    assert "functions_1.py:6 in reciprocal" in text or "functions_1.py:5 in reciprocal" in text
    assert "return a / b" in text
    assert "of the batch, with x = 0, label = 'it''s 3'" in text
    assert "crosslane/_" not in text


def test_functions_on_the_programs_own_values() -> None:
    con = crosslane.connect(functions=[])
    offset = 40

    def shifted(x: int) -> int:
        return x + offset

    assert crosslane.register(con, shifted) == "shifted(x BIGINT) -> BIGINT"
    assert value(con, "SELECT shifted(2)") == 42
    offset = 0
    assert crosslane.register(con, shifted) == "shifted(x BIGINT) -> BIGINT"
    assert value(con, "SELECT shifted(2)") == 2
    crosslane.register(con, lambda x, y: x * y, "area(x DOUBLE, y DOUBLE) -> DOUBLE", on_error="null")
    assert value(con, "SELECT area(2, 3.5)") == 7.0
    with pytest.raises(DeclarationError, match="has no type"):
        crosslane.register(con, lambda x: x)
    con.close()


@pytest.mark.any_duckdb
def test_the_decorated_function_stays_a_function() -> None:
    @udf(timeout=1)
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8


def test_sizes() -> None:
    assert [parse_bytes("memory_limit", text) for text in (5, "1 KB", "1.5MiB", "2 gb")] == [
        5,
        1000,
        1572864,
        2 * 10**9,
    ]
    with pytest.raises(ValueError, match="memory_limit is a size"):
        parse_bytes("memory_limit", 0)


def test_deterministic_and_volatile(load: Load) -> None:
    con = load(
        """
        import itertools, random
        counter = itertools.count()
        @udf
        def once() -> int: return next(counter)
        @udf(deterministic=False)
        def dice(sides: int) -> int: return random.randrange(10**12)
        """
    )
    assert value(con, "SELECT count(DISTINCT once()) FROM range(1000)") == 1
    assert value(con, "SELECT count(DISTINCT dice(6)) FROM range(1000)") == 1000
    assert value(con, "SELECT dice(6) = dice(6)") is False


def test_many_parameters_and_none(load: Load) -> None:
    names = [f"p{i}" for i in range(40)]
    con = load(
        f"@udf\ndef f({', '.join(f'{n}: int' for n in names)}) -> int: return {' + '.join(names)}\n@udf\ndef g() -> str: return 'g'"
    )
    assert value(con, f"SELECT f({', '.join(map(str, range(40)))})") == sum(range(40))
    con.execute("CREATE TABLE t AS SELECT i FROM range(5000) r(i)")
    assert value(con, "SELECT count(*) FROM t WHERE g() = 'g'") == 5000
    assert value(con, f"SELECT sum(f({', '.join(['i'] * 40)})) FROM t") == 40 * sum(range(5000))


@pytest.mark.any_duckdb
def test_without_pyarrow(load: Load) -> None:
    con = load(
        """
        import sys
        sys.modules["pyarrow"] = None
        import datetime, uuid
        @udf("f(a BIGINT, b VARCHAR[], c STRUCT(d DATE, e UUID), g MAP(VARCHAR, DECIMAL(5,2))) -> VARCHAR")
        def f(a, b, c, g):
            return f"{a} {b} {c} {g}"
        """
    )
    text = value(con, "SELECT f(1, ['x', NULL], {'d': DATE '2020-01-01', 'e': NULL}, MAP {'k': 1.5})")
    assert text == "1 ['x', None] {'d': datetime.date(2020, 1, 1), 'e': None} {'k': Decimal('1.50')}"


def test_an_argument_that_python_cannot_hold_concerns_its_row_only(load: Load) -> None:
    con = load("""
        import datetime

        @udf(on_error="null")
        async def waits(day: datetime.date) -> int: return day.year

        @udf(on_error="null")
        def plain(day: datetime.date) -> int: return day.year
    """)
    for name in ("waits", "plain"):
        query = f"SELECT {name}(day) FROM (VALUES (DATE '2024-01-01'), (DATE '12024-01-01'), (DATE '2025-01-01')) t(day)"
        assert con.execute(query).fetchall() == [(2024,), (None,), (2025,)]


@pytest.mark.any_duckdb
def test_what_the_package_shows() -> None:
    assert {*dir(crosslane)} == {*crosslane.__all__, "__version__"}
    assert all(hasattr(crosslane, name) for name in crosslane.__all__)


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_arguments_may_be_subqueries(con: duckdb.DuckDBPyConnection, lane: Any) -> None:
    crosslane.register(con, lambda x: x + 1, "next(x BIGINT) -> BIGINT", lane=lane)
    crosslane.register(con, lambda *all: str(all), "told(*all ANY) -> VARCHAR", lane=lane)
    con.execute("CREATE TABLE t AS SELECT i FROM range(3) r(i)")
    for argument, result in (
        ("(SELECT 1)", 2),
        ("1 + (SELECT max(i) FROM t)", 4),
        ("CASE WHEN EXISTS (FROM t) THEN 1 END", 2),
        ("(SELECT i FROM t WHERE i > 10)", None),
    ):
        assert con.execute(f"SELECT next({argument})").fetchall() == [(result,)]
    query = "SELECT next((SELECT max(i) FROM t AS lower WHERE lower.i < t.i)) FROM t ORDER BY i"
    assert con.execute(query).fetchall() == [(None,), (1,), (2,)]
    assert con.execute("SELECT told((SELECT 'a'), (SELECT [max(i)] FROM t))").fetchall() == [("('a', [2])",)]


def test_a_failure_is_not_taken_for_that_of_other_arguments(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, lambda x: 1 // x, "inverse(x BIGINT) -> BIGINT", lane="thread")
    con.execute("CREATE TABLE one AS SELECT 0 AS x")
    con.execute("PREPARE p AS SELECT inverse(x) FROM one")
    assert "ZeroDivisionError" in error(con, "EXECUTE p")
    con.execute("UPDATE one SET x = 1")
    assert con.execute("EXECUTE p").fetchall() == [(1,)]


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_a_prepared_query_that_runs_again_calls_again(
    con: duckdb.DuckDBPyConnection, lane: Any, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"

    def ask(x: int) -> int:
        if not mended.exists():
            raise OSError("not there yet")
        return x

    crosslane.register(con, ask, "ask(x BIGINT) -> BIGINT", lane=lane)
    con.execute("CREATE TABLE one AS SELECT 5 AS x")
    for query, result in (("SELECT ask(x) FROM one", 5), ("SELECT ask(6)", 6)):
        mended.unlink(missing_ok=True)
        con.execute(f"PREPARE p AS {query}")
        assert "not there yet" in error(con, "EXECUTE p")
        mended.touch()
        assert con.execute("EXECUTE p").fetchall() == [(result,)]
        con.execute("DEALLOCATE p")
