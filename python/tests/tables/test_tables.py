"""Table functions: generators whose rows SQL reads."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, value

HEAD = """
from typing import Iterator, NamedTuple, TypedDict
from crosslane import udtf
class Row(NamedTuple):
    i: int
    s: str
"""
NUMBERS = (
    HEAD
    + """
@udtf
def numbers(n: int, step: int = 1, start: int | None = None) -> Iterator[Row]:
    "Numbers and their texts."
    for i in range(start or 0, (start or 0) + n * step, step):
        yield Row(i, f"n{i}")
"""
)


def rows(con: duckdb.DuckDBPyConnection, query: str) -> list[tuple[object, ...]]:
    return con.execute(query).fetchall()


def pool(con: duckdb.DuckDBPyConnection) -> tuple[object, ...]:
    return con.execute("SELECT busy, discarded FROM crosslane_pools()").fetchall()[0]


def test_rows_are_those_that_a_generator_yields(load: Load) -> None:
    con = load(NUMBERS)
    assert rows(con, "FROM numbers(3)") == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert rows(con, "SELECT sum(i), count(s), max(s) FROM numbers(50_000)") == [(1249975000, 50000, "n9999")]
    assert rows(con, "SELECT count(*) FROM numbers(5000)") == [(5000,)]
    assert rows(con, "FROM numbers(0)") == []
    assert [column[0] for column in con.execute("FROM numbers(1)").description] == ["i", "s"]


def test_parameters_with_a_default_are_named_and_may_be_left_out(load: Load) -> None:
    con = load(NUMBERS)
    assert rows(con, "SELECT i FROM numbers(3, step := 5)") == [(0,), (5,), (10,)]
    assert rows(con, "SELECT i FROM numbers(2, start := 7, step := NULL)") == [(7,), (8,)]
    assert rows(con, "SELECT i FROM numbers(3::TINYINT, step := -1, start := 1)") == [(1,), (0,), (-1,)]
    assert rows(con, "SELECT kind, options, parameters, returns, description FROM crosslane_functions()") == [
        (
            "table",
            "named=step start",
            "n BIGINT, step BIGINT, start BIGINT",
            "TABLE(i BIGINT, s VARCHAR)",
            "Numbers and their texts.",
        )
    ]
    for query in ("FROM numbers()", "FROM numbers(1, 2)", "FROM numbers(1, steps := 2)", "FROM numbers('x')"):
        with pytest.raises(duckdb.Error):
            rows(con, query)


def test_a_null_argument_gives_an_empty_table_unless_the_function_wants_it(load: Load) -> None:
    con = load(
        NUMBERS
        + """
@udtf("seen(x BIGINT) -> TABLE(x BIGINT)")
def seen(x: int | None):
    yield x
@udtf("called(x BIGINT) -> TABLE(x VARCHAR)", nulls="call")
def called(x):
    yield repr(x)
"""
    )
    assert rows(con, "FROM numbers(NULL)") == []
    assert value(con, "SELECT calls FROM crosslane_stats() WHERE function = 'numbers'") == 0
    assert rows(con, "FROM seen(NULL)") == [(None,)]
    assert rows(con, "FROM called(NULL)") == [("None",)]


@pytest.mark.any_duckdb
def test_rows_may_have_any_shape_that_names_their_columns(load: Load) -> None:
    con = load(
        HEAD
        + """
from dataclasses import dataclass
import numpy
@dataclass
class Point:
    s: str
    i: int
class Other:
    i, s = 6, "object"
@udtf("shapes() -> TABLE(i BIGINT, s VARCHAR)")
def shapes():
    yield 1, "tuple"
    yield [2, "list"]
    yield {"s": "dict", "i": 3, "more": None}
    yield Row(4, "named")
    yield Point("dataclass", 5)
    yield Other()
    yield numpy.array([7, "array"], dtype=object)
    yield None, None
class Typed(TypedDict):
    i: int
@udtf
def typed() -> Iterator[Typed]:
    return [{"i": 1}, {"i": 2}]
@udtf
def points() -> list[Point]:
    return [Point("a", 1)]
@udtf("one() -> TABLE(x DOUBLE)")
def one():
    yield 1
    yield (2.5,)
    yield {"x": 3}
    yield None
    yield numpy.float32(0.5)
@udtf("text() -> TABLE(x VARCHAR)")
def text():
    yield from ["a", "bc"]
"""
    )
    named = ["tuple", "list", "dict", "named", "dataclass", "object", "array"]
    assert rows(con, "FROM shapes()") == [*enumerate(named, 1), (None, None)]
    assert rows(con, "FROM typed()") == [(1,), (2,)]
    assert rows(con, "FROM points()") == [("a", 1)]
    assert rows(con, "FROM one()") == [(1,), (2.5,), (3,), (None,), (0.5,)]
    assert rows(con, "FROM text()") == [("a",), ("bc",)]


#: Values that a generator yields, and the errors.
NO_ROWS = [
    ("(1, 'a', 2)", "ValueError: yielded tuple (1, 'a', 2) of 3 value(s), where the columns are i, s"),
    ("(1,)", "of 1 value(s), where the columns are i, s"),
    ("{'i': 1, 't': 2}", "ValueError: yielded a row without s; it has i, t, where the columns are i, s"),
    ("'text'", "TypeError: yielded str 'text' where a row is due"),
    ("7", "TypeError: yielded int 7 where a row is due"),
    ("None", "where a row is due"),
    ("('x', 'y')", "TypeError: returned str 'x' where BIGINT is due\n  in column i"),
    ("(2**70, 'y')", "which does not fit BIGINT\n  in column i"),
]


@pytest.mark.any_duckdb
def test_an_error_names_the_yielded_value_that_is_no_row(load: Load, subtests: pytest.Subtests) -> None:
    functions = [
        f"""
@udtf("f{i}(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)")
def f{i}(n):
    for i in range(n):
        yield i, "good"
    yield {yielded}
"""
        for i, (yielded, _) in enumerate(NO_ROWS)
    ]
    con = load(HEAD + "".join(functions))
    for i, (yielded, said) in enumerate(NO_ROWS):
        with subtests.test(yielded):
            text = error(con, f"SELECT count(i), count(s) FROM f{i}(3000)")
            assert said in text
            assert "in row 3001 of its table, with n = 3000" in text
            assert pool(con) == (0, 0)


@pytest.mark.any_duckdb
def test_what_is_no_iterable_is_an_error(load: Load) -> None:
    con = load(
        HEAD
        + """
@udtf("number() -> TABLE(i BIGINT)")
def number():
    return 7
@udtf("text() -> TABLE(i VARCHAR)")
def text():
    return "text"
"""
    )
    assert "TypeError: returned int where rows are due" in error(con, "FROM number()")
    assert "TypeError: returned str where rows are due" in error(con, "FROM text()")


def test_exceptions_say_where_they_come_from(load: Load, library: Library) -> None:
    con = load(
        HEAD
        + """
@udtf("f(n BIGINT, s VARCHAR) -> TABLE(i BIGINT)")
def f(n, s):
    yield from range(n)
    raise ValueError("no more")
"""
    )
    text = error(con, "FROM f(2, 'x')")
    assert "f: ValueError: no more\n  at " in text
    assert 'raise ValueError("no more")\n  in row 3 of its table, with n = 2, s = ' in text
    assert rows(con, "FROM f(5000, 'x') LIMIT 1") == [(0,)]


def test_only_wanted_columns_are_made(load: Load) -> None:
    con = load(
        HEAD
        + """
@udtf("parts() -> TABLE(a BIGINT, b VARCHAR, c BIGINT)")
def parts():
    # A value that nobody asks for is not looked at.
    yield 1, "b", "no number"
@udtf("told() -> TABLE(a BIGINT, b VARCHAR, c BIGINT)")
def told(*, wanted):
    print(wanted)
    yield {name: {"a": 1, "b": "x", "c": 3}[name] for name in wanted}
    yield tuple({"a": 1, "b": "x", "c": 3}[name] for name in wanted)
    yield 1, ",".join(wanted), 3
"""
    )
    assert rows(con, "SELECT b, a FROM parts()") == [("b", 1)]
    assert rows(con, "SELECT a, a + 1 FROM parts()") == [(1, 2)]
    assert "in column c" in error(con, "FROM parts()")
    assert rows(con, "SELECT b FROM told()") == [("x",), ("x",), ("b",)]
    assert rows(con, "SELECT c, b FROM told()") == [(3, "x"), (3, "x"), (3, "b,c")]
    assert rows(con, "SELECT max(b) FROM told() WHERE a = 1") == [("x",)]


BATCHES = (
    HEAD
    + """
import numpy, pandas, polars, pyarrow as pa
@udtf("batches(n BIGINT, kind VARCHAR) -> TABLE(i BIGINT, s VARCHAR)", vectorized=True)
def batches(n, kind):
    made = {"i": list(range(n)), "s": [None if i % 7 == 3 else f"s{i}" for i in range(n)]}
    batch = pa.record_batch({"s": made["s"], "i": pa.array(made["i"], pa.int32())})
    yield {
        "batch": batch,
        "table": pa.Table.from_batches([batch, batch.slice(5), batch.slice(n)]).slice(1, n),
        "reader": pa.Table.from_batches([batch]).to_reader(),
        "polars": polars.DataFrame(made),
        "pandas": pandas.DataFrame(made),
        "tuple": (numpy.arange(n), made["s"]),
        "dict": {"s": pa.chunked_array([made["s"]]), "i": made["i"]},
        "list": [made["i"], polars.Series(made["s"])],
        "names": pa.record_batch({"x": made["i"], "y": pa.array(made["s"], pa.large_string())}),
        "short": (made["i"], made["s"][1:]),
        "narrow": (made["i"],),
        "none": 7,
    }[kind]
"""
)


@pytest.mark.any_duckdb
def test_batches_may_come_from_any_library_and_wrong_ones_are_errors(
    load: Load, subtests: pytest.Subtests
) -> None:
    con = load(BATCHES)
    for kind in ("batch", "reader", "polars", "pandas", "tuple", "dict", "list", "names"):
        with subtests.test(kind):
            for n in (0, 1, 2048, 10_001):
                expected = [(i, None if i % 7 == 3 else f"s{i}") for i in range(n)]
                assert rows(con, f"FROM batches({n}, '{kind}')") == expected
                assert rows(con, f"SELECT s FROM batches({n}, '{kind}')") == [row[1:] for row in expected]
    assert value(con, "SELECT kind FROM crosslane_functions()") == "table, vectorized"
    with subtests.test("several parts"):
        parts = [*range(1, 3000), 5]
        assert [row[0] for row in rows(con, "SELECT i FROM batches(3000, 'table')")] == parts
    for kind, said in (
        ("short", "ValueError: yielded columns of 9 and 10 rows"),
        ("narrow", "yielded 1 columns, where those of the table are i, s"),
        ("none", "TypeError: yielded int where a batch is due"),
    ):
        with subtests.test(kind):
            assert said in error(con, f"FROM batches(10, '{kind}')")
    assert pool(con) == (0, 0)


def test_nested_values_pass(load: Load) -> None:
    con = load(
        HEAD
        + """
import datetime, decimal, uuid
TYPES = "TABLE(l BIGINT[], s STRUCT(a VARCHAR, b DATE), m MAP(VARCHAR, DOUBLE), d DECIMAL(9,2), u UUID, e ENUM('x', 'y'))"
@udtf("nested(l BIGINT[], s STRUCT(a VARCHAR, b DATE)) -> " + TYPES)
def nested(l, s):
    for i in range(3000):
        yield l, s, {"k": 0.5}, decimal.Decimal("1.25"), uuid.UUID(int=i), "xy"[i % 2]
    yield None, None, None, None, None, None
@udtf("arrow(l BIGINT[]) -> TABLE(l BIGINT[], s STRUCT(a VARCHAR))", vectorized=True)
def arrow(l):
    yield [l] * 3000, [{"a": str(i)} for i in range(3000)]
"""
    )
    query = "FROM nested([1, NULL], {'a': 'x', 'b': DATE '2020-01-02'})"
    last = rows(con, f"SELECT l, s.b::VARCHAR, m['k'], d::VARCHAR, e FROM (SELECT * {query}) OFFSET 2999")
    assert last == [([1, None], "2020-01-02", 0.5, "1.25", "y"), (None,) * 5]
    assert rows(con, "SELECT l, s.a FROM arrow([4]) OFFSET 2998") == [([4], "2998"), ([4], "2999")]


def test_errors_of_rows_fail_or_are_null(load: Load) -> None:
    body = """
def f(n):
    for i in range(n):
        yield ValueError(f"row {i}") if i % 1000 == 5 else (i, "x" if i % 1000 == 6 else i)
    raise KeyError("the end")
"""
    con = load(
        HEAD
        + f"""
@udtf("strict(n BIGINT) -> TABLE(i BIGINT, j BIGINT)")
{body.replace("def f", "def strict")}
@udtf("kind(n BIGINT) -> TABLE(i BIGINT, j BIGINT)", on_error="null")
{body.replace("def f", "def kind")}
"""
    )
    text = error(con, "FROM strict(10)")
    assert "strict: ValueError: row 5\n  in row 6 of its table" in text
    found = rows(con, "SELECT count(*), count(i), count(j) FROM kind(4000)")
    assert found == [(4000, 3992, 3992)]
    assert rows(con, "SELECT i, j FROM kind(8)")[4:] == [(4, 4), (None, None), (None, None), (7, 7)]
    # The call that returns the end of a table counts as a row, too.
    stats = rows(con, "SELECT rows, errors FROM crosslane_stats() WHERE function = 'kind'")
    assert stats == [(4008, 8 + 1 + 2 + 1)]


def test_queries_use_tables_as_any_other(load: Load) -> None:
    con = load(NUMBERS)
    con.execute("CREATE TABLE t AS FROM numbers(5000)")
    assert value(con, "SELECT sum(i) FROM t") == 12497500
    joined = "SELECT count(*) FROM numbers(100) a JOIN numbers(50, step := 2) b USING (i)"
    assert value(con, joined) == 50
    assert value(con, "SELECT count(*) FROM numbers(20), numbers(30)") == 600
    assert rows(con, "SELECT x, i FROM range(2) t(x), LATERAL (SELECT i FROM numbers(2)) ORDER BY ALL") == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert rows(con, "SELECT (SELECT max(i) FROM numbers(7)), i FROM numbers(1)") == [(6, 0)]
    con.execute("CREATE VIEW v AS SELECT s FROM numbers(3)")
    assert rows(con, "FROM v") == [("n0",), ("n1",), ("n2",)]
    for query in ("SELECT * FROM range(3) t(x), LATERAL numbers(t.x)", "FROM numbers((SELECT 3))"):
        with pytest.raises(duckdb.BinderException):
            con.execute(query)


def test_results_that_are_read_by_turns(load: Load) -> None:
    con = load(NUMBERS)
    first, second = con.cursor(), con.cursor()
    first.execute("FROM numbers(100_000)")
    second.execute("FROM numbers(100_000)")
    for i in range(20_000):
        assert first.fetchone() == second.fetchone() == (i, f"n{i}")
    first.close()
    second.close()
    assert eventually(lambda: pool(con) == (0, 0))


def test_many_tables_in_one_thread(load: Load) -> None:
    con = load(NUMBERS)
    con.execute("SET threads = 1")
    tables = " POSITIONAL JOIN ".join(f"numbers(10_000, step := {step}) t{step}" for step in range(1, 7))
    assert rows(con, f"SELECT count(*), sum(t1.i), sum(t6.i) FROM {tables}") == [
        (10_000, 49995000, 299970000)
    ]
    assert pool(con) == (0, 0)


def test_two_connections_scan_at_once(load: Load) -> None:
    con = load(NUMBERS)
    sums = []

    def run() -> None:
        with con.cursor() as own:
            sums.extend(value(own, "SELECT sum(i) FROM numbers(15_000)") for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [112492500] * 15


def test_a_changed_file_has_changed_columns_and_a_dropped_function_is_gone(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = tmp_path / "changes.py"

    def write(signature: str, row: str) -> None:
        path.write_text(f'from crosslane import udtf\n@udtf("{signature}")\ndef f(n):\n    yield {row}\n')

    write("f(n BIGINT) -> TABLE(i BIGINT)", "n")
    crosslane.load(con, path)
    con.execute("PREPARE p AS FROM f(1)")
    assert rows(con, "FROM f(1)") == [(1,)]
    write("f(n BIGINT) -> TABLE(i VARCHAR, j BIGINT)", "str(n), 2")
    crosslane.load(con, path)
    assert rows(con, "FROM f(1)") == [("1", 2)]
    write("f(n VARCHAR) -> TABLE(i VARCHAR)", "n")
    with pytest.raises(duckdb.Error, match="cannot change the parameters of a table function: f has others"):
        crosslane.load(con, path)
    assert rows(con, "FROM f(1)") == [("1", 2)]
    crosslane.unregister(con, "f")
    assert "was dropped; to call it again" in error(con, "FROM f(1)")
    assert rows(con, "FROM crosslane_functions()") == []
    write("f(n BIGINT) -> TABLE(i BIGINT)", "n")
    crosslane.load(con, path)
    assert rows(con, "FROM f(1)") == [(1,)]


def test_names_that_are_taken(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    def path(name: str) -> Path:
        return library(f'{HEAD}@udtf("{name}() -> TABLE(i BIGINT)")\ndef f():\n    yield 7\n')

    for name in ("range", "crosslane_stats", "read_csv"):
        for replace in (False, True):
            with pytest.raises(
                duckdb.Error, match=f"the name {name} is taken by DuckDB's own table function"
            ):
                crosslane.load(con, path(name), replace=replace)
    con.execute("CREATE MACRO m() AS TABLE SELECT 1 AS i")
    with pytest.raises(duckdb.Error, match="a table macro of this database, which would be called instead"):
        crosslane.load(con, path("m"))
    assert rows(con, "FROM m()") == [(1,)]
    crosslane.load(con, path("m"), replace=True)
    assert rows(con, "FROM m()") == [(7,)]
    # A view, a table or a scalar function may have the same name.
    con.execute("CREATE VIEW w AS SELECT 2 AS i")
    crosslane.load(con, path("w"))
    assert (rows(con, "FROM w"), rows(con, "FROM w()")) == ([(2,)], [(7,)])
    crosslane.load(con, path("upper"))
    assert rows(con, "SELECT upper('x') || i FROM upper()") == [("X7",)]


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_a_program_registers_table_functions(con: duckdb.DuckDBPyConnection, lane: str) -> None:
    offset = 5

    @crosslane.udtf("shifted(n BIGINT, by BIGINT) -> TABLE(i BIGINT, s VARCHAR)")
    def shifted(n, by=offset):
        for i in range(n):
            yield i + by, "x" * (i % 3)

    text = crosslane.register(con, shifted, lane=lane)
    assert text == 'shifted(n BIGINT, "by" BIGINT) -> TABLE(i BIGINT, s VARCHAR)'.replace('"by"', "by")
    assert rows(con, 'FROM shifted(2, "by" := 1)') == [(1, ""), (2, "x")]
    assert value(con, "SELECT sum(i) FROM shifted(10_000)") == 50045000
    assert rows(con, "FROM shifted(1_000_000_000) LIMIT 1") == [(5, "")]
    crosslane.register(
        con, lambda n: ([i] for i in range(n)), "squares(n BIGINT) -> TABLE(i BIGINT)", lane=lane
    )
    assert rows(con, "FROM squares(2)") == [(0,), (1,)]
    assert rows(con, "SELECT i FROM shifted(1)") == [(5,)]
    crosslane.unregister(con, "squares")
    assert "was dropped" in error(con, "FROM squares(2)")


#: Declarations that are refused, and the errors.
REFUSED = [
    ("@udtf\ndef f(n: int):\n    yield 1", "the result is not annotated, which names no columns"),
    (
        "@udtf\ndef f(n: int) -> Iterator[int]:\n    yield 1",
        "names no columns; annotate it with an Iterator of",
    ),
    ("@udtf\ndef f(n) -> Iterator[Row]:\n    yield 1", "parameter n has no type"),
    (
        "@udtf('f(n BIGINT) -> BIGINT')\ndef f(n):\n    yield 1",
        "signature ends with -> TABLE(column TYPE, ...)",
    ),
    ("@udtf('f() -> TABLE(i BIGINT, I BIGINT)')\ndef f():\n    yield 1", "of different names"),
    ("@udtf('f(n BIGINT) -> TABLE(i BIGINT)')\ndef f():\n    yield 1", "the signature has 1 parameters"),
    ("@udtf('f(*n BIGINT) -> TABLE(i BIGINT)')\ndef f(*n):\n    yield 1", "variable number of arguments"),
    ("@udtf('f() -> TABLE(i BIGINT)')\nasync def f():\n    yield 1", "a table function cannot be async"),
    ("@udtf('f() -> TABLE(i BIGINT)', partitions=3)\ndef f(p):\n    yield 1", "partitions is a function"),
    (
        "@udtf('f() -> TABLE(i BIGINT)', partitions=list)\ndef f():\n    yield 1",
        "needs a first parameter",
    ),
    (
        "@udtf('f() -> TABLE(i BIGINT)', cardinality=-1)\ndef f():\n    yield 1",
        "cardinality is a whole number",
    ),
    ("@udtf('f() -> TABLE(i BIGINT)')\ndef f(*, n):\n    yield 1", "keyword-only; give it a default"),
    ("@udf('f() -> TABLE(i BIGINT)')\ndef f():\n    yield 1", "decorate it with udtf"),
    (
        "@udtf('f(n BIGINT) -> TABLE(i BIGINT)')\nclass F:\n    def __call__(self, n):\n        yield n",
        "f: a table function is a generator; a class is for udf, and for a udtf whose parameter is a TABLE",
    ),
]


@pytest.mark.any_duckdb
def test_declarations_that_cannot_work(
    con: duckdb.DuckDBPyConnection, library: Library, subtests: pytest.Subtests
) -> None:
    for text, said in REFUSED:
        with subtests.test(said):
            with pytest.raises(duckdb.Error) as failed:
                crosslane.load(con, library(HEAD + text + "\n"))
            assert said in str(failed.value)


@pytest.mark.any_duckdb
def test_a_class_of_rows_is_a_table(load: Load) -> None:
    con = load(
        HEAD
        + """
@udtf("rows(n BIGINT) -> TABLE(i BIGINT)")
class Rows:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return iter(range(self.n))
"""
    )
    assert con.execute("FROM rows(3)").fetchall() == [(0,), (1,), (2,)]


def test_a_call_of_the_other_kind_is_an_error(load: Load) -> None:
    con = load(NUMBERS + "\n@udf\ndef scalar(x: int) -> int:\n    return x\n")
    for query in ("SELECT numbers(3)", "FROM scalar(3)"):
        with pytest.raises(duckdb.Error):
            con.execute(query)


@pytest.mark.any_duckdb
def test_check_says_what_is_a_table(library: Library) -> None:
    from click.testing import CliRunner

    from crosslane._cli import main

    path = library(NUMBERS + "\n@udtf('b() -> TABLE(i BIGINT)', vectorized=True)\ndef b(): yield ([1],)\n")
    result = CliRunner().invoke(main, ["check", str(path)], env={"COLUMNS": "200"})
    kinds = [line.rsplit("│", 2)[1].strip() for line in result.output.splitlines() if "TABLE" in line]
    assert kinds == ["table", "table, vectorized"]
