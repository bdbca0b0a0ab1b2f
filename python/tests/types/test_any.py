"""Functions that take arguments of any type, in all languages and kinds."""

from __future__ import annotations

import asyncio
import datetime
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pyarrow as pa
import pytest

import crosslane
from crosslane import DeclarationError
from crosslane.types import Interval, Tagged, TimestampNs

from ..conftest import IS_NEWEST, error, value

Load = Callable[[str], duckdb.DuckDBPyConnection]

PYTHON = """
    import json
    from typing import Any

    def told(*values): return json.dumps(values, separators=(",", ":"), default=str)

    @udf
    def py_row(x: Any) -> str: return told(x)
    @udf
    def py_rest(n: int, *rest: object) -> str: return told(n, *rest)
    @udf(nulls="call")
    def py_null(x: Any, *rest: Any) -> str: return told(x, *rest)
    @udf
    async def py_many(n: int, *rest: Any) -> str: return told(n, *rest)
    @udf("py_fails(n BIGINT, *rest ANY) -> VARCHAR", on_error="null")
    def py_fails(n, *rest): return told(n, *rest) if n else rest[99]
"""
#: This function is in a separate file, because it loads pyarrow.
PYTHON_COLUMN = """
    import json
    import pyarrow as pa
    from typing import Any

    def told(*values): return json.dumps(values, separators=(",", ":"), default=str)

    @udf(vectorized=True)
    def py_column(n: pa.Int64Array, *rest: Any) -> pa.StringArray:
        return pa.array([told(*row) for row in zip(*(column.to_pylist() for column in (n, *rest)))])
"""
JAVASCRIPT = """
    const told = (...all) => JSON.stringify(all);
    udf("js_row(x ANY) -> VARCHAR", told);
    udf("js_rest(n BIGINT, *rest ANY) -> VARCHAR", told);
    udf("js_null(x ANY, *rest ANY) -> VARCHAR", { nulls: "call" }, told);
    udf("js_many(n BIGINT, *rest ANY) -> VARCHAR", { concurrency: 3 }, async (n, ...rest) => told(n, ...rest));
    udf("js_column(n BIGINT, *rest ANY) -> VARCHAR", { vectorized: true }, (n, ...rest) =>
      Array.from(n, (n, at) => told(n, ...rest.map((column) => column[at]))));
    udf("js_fails(n BIGINT, *rest ANY) -> VARCHAR", { on_error: "null" }, (n, ...rest) => n ? told(n, ...rest) : rest[99].a);
"""
RUBY = """
    require "json"
    told = ->(*all) { JSON.generate(all) }
    udf("rb_row(x ANY) -> VARCHAR") { |x| told.call(x) }
    udf("rb_rest(n BIGINT, *rest ANY) -> VARCHAR") { |n, *rest| told.call(n, *rest) }
    udf("rb_null(x ANY, *rest ANY) -> VARCHAR", nulls: :call) { |x, *rest| told.call(x, *rest) }
    udf("rb_many(n BIGINT, *rest ANY) -> VARCHAR", concurrency: 3) { |n, *rest| told.call(n, *rest) }
    udf("rb_column(n BIGINT, *rest ANY) -> VARCHAR", vectorized: true) do |n, *rest|
      n.zip(*rest).map { |row| told.call(*row) }
    end
    udf("rb_fails(n BIGINT, *rest ANY) -> VARCHAR", on_error: :null) { |n, *rest| n > 0 ? told.call(n, *rest) : rest.fetch(99) }
"""


@pytest.fixture
def languages(load: Load, script: Load, ruby: Load) -> duckdb.DuckDBPyConnection:
    load(PYTHON)
    script(JAVASCRIPT)
    return ruby(RUBY)


def test_each_call_has_types_of_its_own(
    languages: duckdb.DuckDBPyConnection, load: Load, subtests: pytest.Subtests
) -> None:
    con = languages
    load(PYTHON_COLUMN)
    con.execute("CREATE TABLE t AS SELECT i AS n, 'text ' || i AS s, [i, NULL] AS l FROM range(2100) r(i)")
    for language in ("py", "js", "rb"):
        with subtests.test(language):
            for given, seen in (
                ("n", 7),
                ("n::INTEGER", 7),
                ("n + 0.5::DOUBLE", 7.5),
                ("s", "text 7"),
                ("n > 5", True),
                ("l", [7, None]),
                ("[s, s]", ["text 7"] * 2),
                ("[[n], []]", [[7], []]),
                ("[n, n]::BIGINT[2]", [7, 7]),
                ("'ö'::ENUM ('ä', 'ö')", "ö"),
                ("'{\"a\": [1]}'::JSON", {"a": [1]}),
            ):
                shown = json.dumps([seen], separators=(",", ":"), ensure_ascii=language == "py")
                query = f"SELECT {language}_row({given}) FROM t"
                rows = con.execute(query).fetchall()
                assert (len(rows), rows[7]) == (2100, (shown,)), given
                # pyarrow has no type JSON, so a column of JSON is text.
                text_of_json = language == "py" and "JSON" in given
                kinds = ["rest", "many", "fails"] if text_of_json else ["rest", "many", "fails", "column"]
                calls = ", ".join(f"{language}_{kind}(n, {given}, s)" for kind in kinds)
                both = shown.replace("[", "[7,", 1)[:-1] + ',"text 7"]'
                rows = con.execute(f"SELECT {calls} FROM t").fetchall()
                assert (len(rows), rows[7]) == (2100, (both,) * len(kinds)), given
                assert rows[0][2] is None
            f = f"{language}_row"
            query = f"SELECT {f}(n), {f}(s), {f}(n) FROM t WHERE n = 7"
            query += f" UNION ALL SELECT {f}(1.5::DOUBLE), {f}(l), {f}([[s]]) FROM t WHERE n = 8"
            assert sorted(con.execute(query).fetchall()) == [
                ("[1.5]", "[[8,null]]", '[[["text 8"]]]'),
                ("[7]", '["text 7"]', "[7]"),
            ]


def test_constants_nulls_and_no_arguments(
    languages: duckdb.DuckDBPyConnection, load: Load, subtests: pytest.Subtests
) -> None:
    con = languages
    load(PYTHON_COLUMN)

    def one(query: str) -> Any:
        return value(con, f"SELECT {query}")

    for f in ("py", "js", "rb"):
        with subtests.test(f):
            assert one(f"{f}_row(1)") == "[1]"
            assert one(f"{f}_row('a')") == '["a"]'
            assert one(f"{f}_row(NULL)") is None
            assert one(f"{f}_row(NULL::DATE)") is None
            assert one(f"{f}_null(NULL)") == "[null]"
            assert one(f"{f}_null(NULL, [], [NULL], 1)") == "[null,[],[null],1]"
            assert (
                one(f"{f}_null(n, n, NULL) FROM (VALUES (NULL), (NULL)) t(n) LIMIT 1") == "[null,null,null]"
            )
            assert one(f"{f}_null(NULL::INTEGER[], 2)") == "[null,2]"
            for kind in ("rest", "many", "column", "fails"):
                assert one(f"{f}_{kind}(1)") == "[1]"
                # A parameter with a type is cast as usual.
                assert one(f"{f}_{kind}('1', 'a', 2)") == '[1,"a",2]'
                assert one(f"{f}_{kind}(1, NULL, 2)") is None
                query = f"SELECT {f}_{kind}(n, a, n) FROM (VALUES (1, 'a'), (2, NULL), (NULL, 'c'), (4, 'd')) t(n, a)"
                assert con.execute(query).fetchall() == [('[1,"a",1]',), (None,), (None,), ('[4,"d",4]',)]
            assert con.execute(f"SELECT {f}_rest(?, ?)", [1, "a"]).fetchall() == [('[1,"a"]',)]
            con.execute(f"PREPARE {f}_p AS SELECT {f}_rest(1, $1, $2)")
            assert con.execute(f"EXECUTE {f}_p('a', 2)").fetchall() == [('[1,"a",2]',)]
            assert con.execute(f"EXECUTE {f}_p([1], 2.5::DOUBLE)").fetchall() == [("[1,[1],2.5]",)]
            con.execute(f"CREATE VIEW {f}_v AS SELECT {f}_row(n) AS told FROM (VALUES (1), (2)) t(n)")
            con.execute(f"CREATE MACRO {f}_twice(x) AS {f}_row(x) || {f}_row([x])")
            assert con.execute(f"FROM {f}_v").fetchall() == [("[1]",), ("[2]",)]
            assert one(f"{f}_twice('a') || {f}_twice(1)") == '["a"][["a"]][1][[1]]'


@pytest.mark.any_duckdb
def test_more_types_than_a_lane_remembers(
    languages: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    con = languages
    for language in ("py", "js", "rb"):
        with subtests.test(language):
            for _ in range(2):
                for first in range(0, 100, 50):
                    calls = ", ".join(
                        f"{language}_row({{'a{at}': n}}), {language}_rest(n, {{'a{at}': n}})"
                        for at in range(first, first + 50)
                    )
                    [row] = con.execute(f"SELECT {calls} FROM (VALUES (1)) t(n)").fetchall()
                    for at in range(50):
                        # In Ruby, a STRUCT is not a Hash.
                        if language != "rb":
                            field = f'{{"a{first + at}":1}}'
                            assert row[2 * at : 2 * at + 2] == (f"[{field}]", f"[1,{field}]")
            many = ", ".join(f"n + {at}" for at in range(60))
            assert json.loads(value(con, f"SELECT {language}_rest({many}) FROM (VALUES (1)) t(n)")) == list(
                range(1, 61)
            )


VALUES = [
    ("TRUE", True),
    ("1::TINYINT", 1),
    ("1::UBIGINT", 1),
    ("170141183460469231731687303715884105727::HUGEINT", 2**127 - 1),
    ("0.5::FLOAT", 0.5),
    ("1.5", Decimal("1.5")),
    ("1.50::DECIMAL(30, 2)", Decimal("1.50")),
    ("'a'", "a"),
    ("'a'::BLOB", b"a"),
    ("'101'::BIT", "101"),
    ("DATE '2024-02-29'", datetime.date(2024, 2, 29)),
    ("TIME '12:00:00'", datetime.time(12)),
    ("TIMESTAMP '2024-02-29 12:00:00'", datetime.datetime(2024, 2, 29, 12)),
    ("TIMESTAMP_NS '2024-02-29 12:00:00'", TimestampNs(2024, 2, 29, 12)),
    ("TIMESTAMPTZ '2024-02-29 12:00:00+00'", datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)),
    ("INTERVAL '1 month 2 days'", Interval(1, 2, 0)),
    ("'00000000-0000-0000-0000-000000000001'::UUID", uuid.UUID(int=1)),
    ("'b'::ENUM ('a', 'b')", "b"),
    ("[1, NULL]", [1, None]),
    ("['a', 'b']::VARCHAR[2]", ["a", "b"]),
    ("{'a': 1, 'b c': {'d': [DATE '2024-02-29']}}", {"a": 1, "b c": {"d": [datetime.date(2024, 2, 29)]}}),
    ("MAP {'a': 1}", {"a": 1}),
    ("union_value(num := 2)", Tagged("num", 2)),
    ("[]", []),
    ("[NULL]", [None]),
]


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_each_argument_arrives_as_the_value_of_its_type(con: duckdb.DuckDBPyConnection, lane: Any) -> None:
    seen = []

    def see(x: Any) -> str:
        seen.append(x)
        return repr(x)

    crosslane.register(con, see, "see(x ANY) -> VARCHAR", lane=lane)
    for given, expected in VALUES:
        assert value(con, f"SELECT see({given})") == repr(expected), given
        query = f"SELECT see(x) FROM (SELECT {given} AS x FROM range(3))"
        assert con.execute(query).fetchall() == [(repr(expected),)] * 3, given
        query = f"SELECT see(x) FROM (SELECT {given} AS x UNION ALL SELECT NULL UNION ALL SELECT {given})"
        assert con.execute(query).fetchall() == [(repr(expected),), (None,), (repr(expected),)], given
    if lane == "thread":
        assert {type(x) for x in seen} >= {
            bool,
            int,
            Decimal,
            bytes,
            datetime.date,
            dict,
            list,
            Tagged,
            Interval,
        }


@pytest.mark.any_duckdb
def test_any_type_in_annotations(con: duckdb.DuckDBPyConnection, load: Load) -> None:
    def one(x: Any) -> str:
        return "one"

    def other(x: object | None, y: int = 3) -> str:
        return f"{x} {y}"

    def third(x: Annotated[int, "any"], *rest: Annotated[Any, "ANY"] | None) -> str:
        return f"{x} {rest}"

    assert crosslane.register(con, one) == "one(x ANY) -> VARCHAR"
    assert crosslane.register(con, other) == "other(x ANY, y BIGINT) -> VARCHAR"
    assert crosslane.register(con, third) == "third(x ANY, *rest ANY) -> VARCHAR"
    assert con.execute("SELECT one(1), other(NULL), other('a', 4), third(1, NULL, 'a')").fetchall() == [
        ("one", "None 3", "a 4", "1 (None, 'a')")
    ]
    query = "SELECT parameter_types, varargs FROM duckdb_functions() WHERE function_name = 'third'"
    assert con.execute(query).fetchall() == [(["ANY"], "ANY")]
    query = "SELECT signature FROM crosslane_functions() WHERE signature LIKE 'third%'"
    assert value(con, query) == "third(x ANY, *rest ANY) -> VARCHAR"


def test_what_any_cannot_be(
    con: duckdb.DuckDBPyConnection, script: Load, ruby: Load, subtests: pytest.Subtests
) -> None:
    why = "ANY is for parameters, as their whole type"
    for signature in ("f(x ANY) -> ANY", "f(x ANY[]) -> BIGINT", "f(x STRUCT(a ANY)) -> BIGINT"):
        with subtests.test(signature):
            with pytest.raises(DeclarationError, match=why):
                crosslane.register(con, lambda x: x, signature)
            with pytest.raises(duckdb.Error, match=why):
                script(f'udf("{signature}", (x) => x);')
            with pytest.raises(duckdb.Error, match=why):
                ruby(f'udf("{signature}") {{ |x| x }}')


def test_a_result_has_a_type(con: duckdb.DuckDBPyConnection) -> None:
    def result(x: int) -> Any:
        return x

    def element(x: list[Any]) -> int:
        return len(x)

    with pytest.raises(
        DeclarationError, match=r"the result: typing.Any has no SQL type; write the type in SQL"
    ):
        crosslane.register(con, result)
    with pytest.raises(
        DeclarationError, match=r"parameter x: typing.Any has no SQL type; write the type in SQL"
    ):
        crosslane.register(con, element)


def test_calls_that_cannot_be(languages: duckdb.DuckDBPyConnection, subtests: pytest.Subtests) -> None:
    con = languages
    for language in ("py", "js", "rb"):
        with subtests.test(f"types that functions cannot have: {language}"):
            message = error(con, f"SELECT {language}_row(1::VARIANT)")
            assert f"{language}_row(x ANY) -> VARCHAR: argument 1: VARIANT" in message
            assert "cast it, for example to VARCHAR" in message
            message = error(con, f"SELECT {language}_rest(n, n::VARIANT) FROM range(3) r(n)")
            assert f"{language}_rest(n BIGINT, *rest ANY) -> VARCHAR: argument 2: VARIANT" in message
            assert "cast it to one whose fields have names" in error(con, f"SELECT {language}_row(row(1, 2))")
    if IS_NEWEST:
        with subtests.test("Ruby calls with 64 arguments at most"):
            many = ", ".join(f"n + {at}" for at in range(65))
            message = error(con, f"SELECT rb_rest({many}) FROM (VALUES (1)) t(n)")
            assert "called with 65 arguments: where one may be of any type, there are at most 64" in message
            for language in ("py", "js"):
                shown = value(con, f"SELECT {language}_rest({many}) FROM (VALUES (1)) t(n)")
                assert str(shown).endswith(",64,65]")


def test_messages_show_the_arguments(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, lambda x, *rest: 1 // 0, "wrong(x ANY, *rest ANY) -> BIGINT")
    message = error(con, "SELECT wrong(d, n, [n]) FROM (SELECT DATE '2024-02-29' AS d, 7 AS n)")
    assert "in row 1 of the batch, with x = DATE 2024-02-29, rest[0] = 7, rest[1] = [7]" in message
    assert "ZeroDivisionError" in message


@pytest.mark.any_duckdb
@pytest.mark.parametrize("lane", ["process", "thread"])
def test_vectorized_functions_get_arrays_of_the_arguments_types(
    con: duckdb.DuckDBPyConnection, lane: Any
) -> None:
    def types_of(x: pa.Array, *rest: pa.Array) -> pa.StringArray:
        return pa.array([" ".join(str(column.type) for column in (x, *rest))] * len(x))

    def kinds(x: Annotated[Any, "ANY"], y: Any) -> list[str]:
        return [f"{type(x).__name__} {x.type} {y.type} {y.null_count == len(y)}"] * len(x)

    crosslane.register(con, types_of, "types_of(x ANY, *rest ANY) -> VARCHAR", vectorized=True, lane=lane)
    crosslane.register(con, kinds, "kinds(x ANY, y ANY) -> VARCHAR", vectorized=True, nulls="call", lane=lane)
    for arguments, seen in (
        ("n", "int64"),
        ("(n % 9)::TINYINT, n::VARCHAR, [n]", "int8 string list<item: int64>"),
        ("{'a': n}, (n % 9)::DECIMAL(5, 2)", "struct<a: int64> decimal128(5, 2)"),
    ):
        assert value(con, f"SELECT DISTINCT types_of({arguments}) FROM range(5000) r(n)") == seen
    assert (
        value(con, "SELECT DISTINCT kinds(n, NULL::DATE) FROM range(3) r(n)")
        == "Int64Array int64 date32[day] True"
    )
    assert (
        value(con, "SELECT DISTINCT kinds('a' || n, NULL) FROM range(3) r(n)")
        == "StringArray string int32 True"
    )


@pytest.mark.any_duckdb
def test_columns_of_other_libraries(load: Load) -> None:
    con = load(
        """
        from typing import Annotated, Any
        import numpy as np, pandas as pd

        @udf(vectorized=True)
        def of_numpy(x: Annotated[np.ndarray, "ANY"], *rest: Annotated[pd.Series, "ANY"]) -> Annotated[np.ndarray, "VARCHAR"]:
            return np.array([f"{type(x).__name__} {x.dtype} " + " ".join(str(one.dtype) for one in rest)] * len(x))
        """
    )
    assert (
        value(con, "SELECT of_numpy(n::INTEGER, n, 0.5::DOUBLE) FROM range(1) r(n)")
        == "ndarray int32 int64 float64"
    )


@pytest.mark.any_duckdb
def test_async_functions_keep_one_loop(con: duckdb.DuckDBPyConnection) -> None:
    async def loop_of(x: Any) -> int:
        return id(asyncio.get_running_loop())

    crosslane.register(con, loop_of, deterministic=False)
    con.execute("SET threads = 1")
    query = "SELECT loop_of(n), loop_of('a' || n), loop_of([n]) FROM range(1) r(n)"
    assert len({loop for row in con.execute(query).fetchall() for loop in row}) == 1


def test_tries_and_lost_workers(load: Load, tmp_path: Path) -> None:
    con = load(
        """
        import os
        from pathlib import Path
        from typing import Any

        @udf(retries=2)
        def in_time(x: Any, path: str) -> str:
            if not Path(path).exists():
                Path(path).touch()
                raise RuntimeError("too early")
            return type(x).__name__

        @udf(on_error="null")
        def dies(x: Any) -> str:
            if x == 3 or x == "3": os.abort()
            return type(x).__name__
        """
    )
    con.execute("SET threads = 1")
    for given, seen in (("1", "int"), ("'a'", "str"), ("[1]", "list")):
        assert value(con, f"SELECT in_time({given}, '{tmp_path / seen}')") == seen
    for given, seen in (("n", "int"), ("n::VARCHAR", "str")):
        rows = con.execute(f"SELECT dies({given}) FROM range(5) r(n)").fetchall()
        assert rows == [(None if n == 3 else seen,) for n in range(5)]


def test_many_rows_on_many_workers() -> None:
    con = crosslane.connect(config={"threads": 4})
    con.execute("CREATE TABLE t AS SELECT i AS n, i::VARCHAR AS s FROM range(250000) r(i)")
    crosslane.register(con, lambda x, y: f"{type(x).__name__}{x}{y}", "shown(x ANY, y ANY) -> VARCHAR")
    query = "SELECT count(*) FROM t WHERE shown(n, s) = 'int' || n || s AND shown(s, n) = 'str' || n || s"
    assert value(con, query) == 250_000
    con.close()


def test_volatile_functions_are_called_for_each_row(con: duckdb.DuckDBPyConnection) -> None:
    counted = iter(range(100))
    crosslane.register(
        con, lambda x: next(counted), "next_of(x ANY) -> BIGINT", deterministic=False, lane="thread"
    )
    assert sorted(con.execute("SELECT next_of('a') FROM range(5)").fetchall()) == [(at,) for at in range(5)]
    assert value(con, "SELECT next_of('a')") == 5


def test_prepared_statements_see_the_new_version(con: duckdb.DuckDBPyConnection, library: Any) -> None:
    path = library("from typing import Any\n@udf\ndef f(x: Any) -> str: return f'first {x}'")
    crosslane.load(con, path)
    con.execute("PREPARE p AS SELECT f(n), f(n::VARCHAR) FROM range(1, 2) r(n)")
    assert con.execute("EXECUTE p").fetchall() == [("first 1", "first 1")]
    path.write_text(path.read_text().replace("first {x}", "second {x!r}"))
    crosslane.load(con, path)
    assert con.execute("EXECUTE p").fetchall() == [("second 1", "second '1'")]


def test_parameters_with_defaults(load: Load) -> None:
    con = load(
        "from typing import Any\n@udf\ndef f(x: Any, y: int = 2, *rest: Any) -> str: return f'{x} {y} {rest}'"
    )
    assert con.execute("SELECT f('a'), f([1], 3), f(1, 3, 'a', NULL::DATE), f(1, 3, 'a', 4)").fetchall() == [
        ("a 2 ()", "[1] 3 ()", None, "1 3 ('a', 4)")
    ]


def test_types_of_many_bytes(con: duckdb.DuckDBPyConnection) -> None:
    """The types are sent with the arguments. These types have too many bytes for a ring."""
    crosslane.register(con, lambda x: repr(x), "see(x ANY) -> VARCHAR")
    names = ", ".join(f"'a value of an enumeration {at}'" for at in range(45_000))
    con.execute(f"CREATE TYPE many AS ENUM ({names})")
    con.execute(
        "CREATE TABLE t AS SELECT ('a value of an enumeration ' || i)::many AS x FROM range(0, 45000, 1000) r(i)"
    )
    rows = con.execute("SELECT see(x) = '''' || x || '''' FROM t").fetchall()
    assert rows == [(True,)] * 45
