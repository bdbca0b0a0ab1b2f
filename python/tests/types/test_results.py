"""Results of functions: NULLs of nested types, MAPs, values that do not fit, and nested types."""

from __future__ import annotations

import re
import subprocess
import sys

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, value

#: More rows than one vector has, so that DuckDB fills its vectors several times.
FILLED = "CREATE TABLE t AS SELECT i FROM range(3 * 2048) r(i)"


#: (the type, a result, an expression for a part of the result)
NESTED = [
    ("STRUCT(a VARCHAR)", "{'a': text}", "r.a"),
    ("STRUCT(a STRUCT(b VARCHAR))", "{'a': {'b': text}}", "r.a.b"),
    ("STRUCT(a VARCHAR[2])", "{'a': [text, text]}", "r.a[2]"),
    ("STRUCT(a VARCHAR[])", "{'a': [text]}", "r.a[1]"),
    ("STRUCT(a MAP(VARCHAR, VARCHAR))", "{'a': {text: text}}", "map_keys(r.a)[1]"),
    ("VARCHAR[2]", "[text, text]", "r[2]"),
    ("STRUCT(a VARCHAR)[2]", "[{'a': text}, {'a': text}]", "r[2].a"),
]


def test_parts_of_a_null_are_null(load: Load, subtests: pytest.Subtests) -> None:
    text = ["import os"]
    for n, (returns, result, _) in enumerate(NESTED):
        text.append(
            f"""
@udf({f"f_{n}(x BIGINT) -> {returns}"!r}, on_error="null")
def f_{n}(x):
    if x >= 4096 and x % 500 == 0: os._exit(1)
    text = "a long text that lies in the heap of its vector: " + str(x)
    return {result}
"""
        )
    con = load("\n".join(text))
    con.execute("SET threads = 1")
    con.execute(FILLED)
    lost = [(row,) for row in range(4500, 6144, 500)]
    for n, (returns, _, inside) in enumerate(NESTED):
        with subtests.test(returns):
            found = f"SELECT i FROM (SELECT i, f_{n}(i) AS r FROM t) WHERE {{}} ORDER BY i"
            assert con.execute(found.format("r IS NULL")).fetchall() == lost
            assert con.execute(found.format(f"{inside} IS NULL")).fetchall() == lost
            # Sorting copies all parts of the rows.
            query = f"SELECT r, i FROM (SELECT i, f_{n}(i) AS r FROM t) ORDER BY r NULLS FIRST, i"
            rows = con.execute(query).fetchall()
            assert [row for row in rows if row[0] is None] == [(None, row) for (row,) in lost]
            assert all(row[0] is not None for row in rows[len(lost) :])


def test_parts_of_a_null_that_a_function_returns_are_null(load: Load) -> None:
    con = load(
        """
        import pyarrow as pa
        @udf("f(x BIGINT) -> STRUCT(a STRUCT(b VARCHAR, c VARCHAR[2]))", vectorized=True)
        def f(x):
            # A NULL over values that are none.
            rows = len(x)
            text = pa.array(["a long text that lies in the heap of its vector"] * rows)
            pair = pa.FixedSizeListArray.from_arrays(pa.array(["more of it"] * 2 * rows), 2)
            inner = pa.StructArray.from_arrays([text, pair], ["b", "c"])
            nulls = pa.array([i % 3 == 0 for i in x.to_pylist()])
            return pa.StructArray.from_arrays([inner], ["a"], mask=nulls)
        """
    )
    con.execute("CREATE TABLE t AS SELECT i FROM range(3000) r(i)")
    con.execute("CREATE TABLE r AS SELECT f(i) AS r FROM t")
    counts = con.execute("SELECT count(r), count(r.a), count(r.a.b), count(r.a.c), count(r.a.c[2]) FROM r")
    (counts,) = counts.fetchall()
    assert counts[0] == 2000
    assert set(counts) == {counts[0]}


#: (the type, an array with the value of a right row and of a wrong one, the error)
UNFIT = [
    ("TIME", "raw(pa.time64('us'), [0, -1])", "returned -1 microseconds, which does not fit TIME"),
    ("TIME", "raw(pa.time64('us'), [0, 86400000001])", "which does not fit TIME"),
    ("TIMESTAMP", "raw(pa.timestamp('us'), [0, -2**63])", "which does not fit TIMESTAMP"),
    ("TIMESTAMPTZ", "raw(pa.timestamp('us', 'UTC'), [0, -2**63 + 2])", "which does not fit TIMESTAMPTZ"),
    ("TIMESTAMP_S", "raw(pa.timestamp('s'), [0, 2**63 - 2])", "which does not fit TIMESTAMP_S"),
    ("TIMESTAMP_MS", "raw(pa.timestamp('ms'), [0, 2**62])", "which does not fit TIMESTAMP_MS"),
    ("DATE", "raw(pa.date32(), [0, -2**31], 'i')", "returned -2147483648 days, which does not fit DATE"),
    ("DECIMAL(3,1)", "raw(pa.decimal128(3, 1), [0, 0, 1000, 0])", "returned 100.0, which does not fit"),
    ("VARCHAR", "pa.array([b'a', b'\\xff']).cast(pa.binary()).view(pa.string())", "text that is not UTF-8"),
    (
        "TIME[]",
        "pa.ListArray.from_arrays([0, 1, 3], raw(pa.time64('us'), [0, 0, -1]))",
        "returned -1 microseconds, which does not fit TIME",
    ),
    (
        "STRUCT(a TIME)",
        "pa.StructArray.from_arrays([raw(pa.time64('us'), [0, -1])], ['a'])",
        "returned -1 microseconds, which does not fit TIME",
    ),
    (
        "MAP(BIGINT, BIGINT)",
        "pa.MapArray.from_arrays([0, 2, 4], pa.array([1, 2, 7, 7]), pa.array([1, 2, 3, 4]))",
        "returned a MAP with the key 7 twice",
    ),
]


#: Functions that make an array of raw values, and that make a batch's results from an array of two rows.
RAW = """
import array, pyarrow as pa
def raw(kind, values, code="q"):
    values = array.array(code, values)
    rows = len(values) * values.itemsize * 8 // kind.bit_width
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])
def results(x, two):
    return pa.concat_arrays([two] * (len(x) // 2))
"""


@pytest.mark.any_duckdb
def test_a_value_that_does_not_fit_is_the_functions_error(load: Load, subtests: pytest.Subtests) -> None:
    text = [RAW]
    for n, (returns, array, _) in enumerate(UNFIT):
        for name, options in ((f"f_{n}", ""), (f"g_{n}", ", on_error='null'")):
            text.append(f"@udf({f'{name}(x BIGINT) -> {returns}'!r}, vectorized=True{options})")
            text.append(f"def {name}(x): return results(x, {array})")
    con = load("\n".join(text))
    con.execute("CALL crosslane_set('fan_out', 'false')")
    for n, (returns, array, message) in enumerate(UNFIT):
        with subtests.test(f"{returns}: {array}"):
            said = error(con, f"SELECT f_{n}(i) FROM range(2) r(i)")
            assert message in said
            assert "in row 2 of the batch, with x = 1" in said
            rows = con.execute(f"SELECT i FROM range(2) r(i) WHERE g_{n}(i) IS NULL").fetchall()
            assert rows == [(1,)]
            assert value(con, "SELECT sum(lanes_lost) FROM crosslane_stats()") == 0
            assert value(con, f"SELECT errors FROM crosslane_stats() WHERE function = 'g_{n}'") == 1


@pytest.mark.any_duckdb
def test_a_decimal_whose_class_has_a_text_of_its_own(load: Load) -> None:
    con = load(
        """
        from decimal import Decimal
        class Money(Decimal):
            def __str__(self): return f"{self:f} EUR"
        @udf("f(x BIGINT) -> DECIMAL(9,2)")
        def f(x): return Money("12.5")
        """
    )
    assert value(con, "SELECT f(1)::VARCHAR") == "12.50"


@pytest.mark.any_duckdb
def test_keys_of_maps_are_different_after_they_were_converted(load: Load) -> None:
    con = load(
        """
        from decimal import Decimal
        @udf("f(x BIGINT) -> MAP(DECIMAL(4,1), BIGINT)")
        def f(x): return {Decimal("1.02"): 1, Decimal("1.04") + x: 2}
        @udf("many(x BIGINT) -> MAP(VARCHAR, BIGINT)")
        def many(x): return [(str(i % (1000 + x)), i) for i in range(1001)]
        @udf("nested(x BIGINT) -> MAP(BIGINT, BIGINT)[]")
        def nested(x): return [{1: 1}, [(1, 1), (x, 2)]]
        @udf("twice(x BIGINT) -> MAP(BIGINT, BIGINT)", on_error="null")
        def twice(x): return [(1, 1), (x, 2)]
        """
    )
    assert "returned a MAP with the key 1.0 twice" in error(con, "SELECT f(0)")
    assert value(con, "SELECT f(1)::VARCHAR") == "{1.0=1, 2.0=2}"
    assert "returned a MAP with the key '0' twice" in error(con, "SELECT many(0)")
    assert value(con, "SELECT cardinality(many(1))") == 1001
    text = error(con, "SELECT nested(2 - i) FROM range(3) r(i)")
    assert "returned a MAP with the key 1 twice" in text
    assert "in row 2 of the batch, with x = 1" in text
    assert con.execute("SELECT i FROM range(4) r(i) WHERE twice(i) IS NULL").fetchall() == [(1,)]


@pytest.mark.any_duckdb
def test_keys_of_maps_in_javascript(script: Load) -> None:
    con = script(
        """
        udf('f(x BIGINT) -> MAP(DECIMAL(4,1), BIGINT)', (x) => [['1.02', 1], [1.04 + x, 2]]);
        """
    )
    assert "returned a MAP with the key 1.0 twice" in error(con, "SELECT f(0)")
    assert value(con, "SELECT f(1)::VARCHAR") == "{1.0=1, 2.0=2}"


@pytest.mark.any_duckdb
def test_values_that_do_not_fit_in_ruby(ruby: Load) -> None:
    con = ruby(
        """
        class Early < Crosslane::TimeOfDay
          def to_i = super - 1
        end
        udf("f(x BIGINT) -> MAP(DECIMAL(4,1), BIGINT)") { |x| { 1.02 => 1, 1.04 + x => 2 } }
        udf("g(x BIGINT) -> TIME") { |x| Early.new(2 - x) }
        """
    )
    assert "returned a MAP with the key 1.0 twice" in error(con, "SELECT f(0)")
    assert value(con, "SELECT f(1)::VARCHAR") == "{1.0=1, 2.0=2}"
    text = error(con, "SELECT g(i) FROM range(3) r(i)")
    assert "g: RangeError" in text
    assert "which does not fit TIME" in text
    assert "in row 3 of the batch, with x = 2" in text
    assert value(con, "SELECT lanes_lost FROM crosslane_stats() WHERE function = 'g'") == 0


def nested(levels: int, before: str, behind: str) -> str:
    return before * levels + "BIGINT" + behind * levels


@pytest.mark.any_duckdb
def test_types_that_nest_too_deep_are_refused(
    con: duckdb.DuckDBPyConnection, library: Library, subtests: pytest.Subtests
) -> None:
    for levels in (65, 8_000, 200_000):
        for before, behind in (("", "[]"), ("STRUCT(a ", ")"), ("MAP(BIGINT, ", ")")):
            with subtests.test(f"{levels} {before}{behind}"):
                path = library(
                    f"""
                    kind = {before!r} * {levels} + "BIGINT" + {behind!r} * {levels}
                    @udf("f(x BIGINT) -> " + kind)
                    def f(x): return None
                    """
                )
                with pytest.raises(duckdb.Error, match="at most 64 levels"):
                    crosslane.load(con, path)
                assert value(con, "SELECT 1") == 1


def test_deep_types_in_all_languages(load: Load, script: Load, ruby: Load) -> None:
    maps = nested(30, "MAP(BIGINT, ", ")")
    lists = nested(64, "", "[]")
    con = load(
        f"""
        @udf({f"maps(x {maps}) -> {maps}"!r})
        def maps(x): return x
        @udf({f"lists(x {lists}) -> {lists}"!r})
        def lists(x): return x
        """
    )
    script(
        f"""
        udf("js_maps(x {maps}) -> {maps}", (x) => x);
        udf("js_lists(x {lists}) -> {lists}", (x) => x);
        """
    )
    ruby(
        f"""
        udf("rb_maps(x {maps}) -> {maps}") {{ |x| x }}
        udf("rb_lists(x {lists}) -> {lists}") {{ |x| x }}
        """
    )
    map_, list_ = "MAP {1: " * 30 + "7" + "}" * 30, "[" * 64 + "7" + "]" * 64
    for prefix in ("", "js_", "rb_"):
        # DuckDB 1.5 itself needs exponential time for a value of this type.
        if duckdb.__version__ >= "2":
            assert value(con, f"SELECT {prefix}maps({map_}) = {map_}") is True
        assert value(con, f"SELECT {prefix}lists({list_}) = {list_}") is True


def test_descriptors_that_are_none_are_refused(con: duckdb.DuckDBPyConnection) -> None:
    assert "is no descriptor" in error(con, "CALL crosslane_load_threads('x', '-1')")
    assert "is no descriptor" in error(con, "CALL crosslane_load_threads('x', '99999999999')")
    assert "descriptor 1000000" in error(con, "CALL crosslane_load_threads('x', '1000000')")


#: Queries that the engine answers or refuses, however little memory it may take, and the answers.
LARGE = """
import resource, sys
import crosslane, duckdb

con = crosslane.connect(config={"threads": 1})
crosslane.load(con, sys.argv[1])
con.execute("CALL crosslane_set('fan_out', 'false')")
queries = {
    "SELECT length(text(100000000))": 100000000,
    "SELECT len(numbers(10000000))": 10000000,
    "SELECT len(texts(4000000))": 4000000,
    "SELECT size(repeat('x', 100000000))": 100000000,
    "SELECT refuses(repeat('x', 100000000))": None,
}
refused = 0
for more in (75, 150, 225):
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + more * 10**6, resource.RLIM_INFINITY))
    for query, answer in queries.items():
        try:
            assert con.execute(query).fetchall() == [(answer,)], query
        except (duckdb.Error, MemoryError):
            refused += 1
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert con.execute("SELECT size('ab')").fetchall() == [(2,)]
print("refused", refused)
"""


def test_results_and_arguments_that_the_memory_has_no_room_for(library: Library) -> None:
    path = library(
        """
        import numpy as np, pyarrow as pa
        @udf
        def text(n: int) -> str: return "x" * n
        @udf
        def size(text: str) -> int: return len(text)
        @udf
        def refuses(text: str) -> int: raise ValueError("refused")
        def lists(n, values):
            return pa.ListArray.from_arrays(pa.array([0, n], pa.int32()), values)
        @udf("numbers(n BIGINT) -> BIGINT[]", vectorized=True)
        def numbers(n): return lists(n[0].as_py(), pa.array(np.zeros(n[0].as_py(), np.int64)))
        @udf("texts(n BIGINT) -> VARCHAR[]", vectorized=True)
        def texts(n): return lists(n[0].as_py(), pa.repeat("", n[0].as_py()))
        """
    )
    command = [sys.executable, "-c", LARGE, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert re.fullmatch("refused [1-9][0-9]*", ended.stdout.strip())
