"""crosslane_map: the rows of a query as the input of a stream function."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import crosslane

from ..conftest import CPUS, Library, Load, error, eventually, value

FUNCTIONS = """
import os, time
from crosslane import udtf

@udtf("doubled(t TABLE(id BIGINT)) -> TABLE(id BIGINT, twice VARCHAR)")
def doubled(t):
    for row in t:
        yield row.id, str(2 * row.id)

@udtf("sizes(t TABLE(id BIGINT)) -> TABLE(rows BIGINT, first BIGINT, lane BIGINT)")
def sizes(t):
    yield len(t), t[0].id, os.getpid()

@udtf("raises(t TABLE(id BIGINT)) -> TABLE(id BIGINT)")
def raises(t):
    for row in t:
        if row.id == 5000:
            raise ValueError("five thousand")
        yield row.id,

@udtf("sleeps(t TABLE(id BIGINT)) -> TABLE(id BIGINT)")
def sleeps(t):
    time.sleep(60)
    yield 1,

@udtf("numbers(n BIGINT) -> TABLE(i BIGINT)")
def numbers(n):
    for i in range(n):
        yield i

@udf("twice(x BIGINT) -> BIGINT")
def twice(x):
    return 2 * x

@udf("waits(x BIGINT) -> BIGINT")
def waits(x):
    time.sleep(60)
    return x
"""
#: These functions need PyArrow, which is slow to import.
VECTORIZED = """
from crosslane import udtf
import pyarrow as pa
import pyarrow.compute as pc

@udtf("late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, delay INTEGER)", vectorized=True)
def late(flights: pa.RecordBatch):
    return flights.filter(pc.greater(flights["delay"], 10))

@udtf("many(t TABLE(id BIGINT)) -> TABLE(i BIGINT, s VARCHAR, l BIGINT[])", vectorized=True)
def many(t):
    n = t["id"][0].as_py()
    yield {"i": list(range(n)), "s": [f"text of row {i}" for i in range(n)], "l": [[i, None] for i in range(n)]}

@udtf("same(t TABLE(s VARCHAR)) -> TABLE(s VARCHAR)", vectorized=True)
def same(t):
    return t
"""


def rows(con: duckdb.DuckDBPyConnection, query: str) -> list[tuple[object, ...]]:
    return con.execute(query).fetchall()


def connections(con: duckdb.DuckDBPyConnection) -> object:
    return value(con, "SELECT count FROM duckdb_connection_count()")


def is_idle(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether a query has left nothing. Only the connections of the user and of the extension are open, and
    no lane is busy."""
    return connections(con) == 2 and value(con, "SELECT sum(busy) FROM crosslane_pools()") == 0


def test_a_query_goes_through_a_function(load: Load) -> None:
    con = load(FUNCTIONS + VECTORIZED)
    con.execute(
        "CREATE TABLE flights AS SELECT range AS id, (range % 20)::INTEGER AS delay FROM range(100_000)"
    )
    query = "SELECT * FROM crosslane_map('SELECT id, delay FROM flights', 'late')"
    assert rows(con, query) == rows(con, "FROM flights WHERE delay > 10")
    assert [column[0] for column in con.execute(query).description] == ["id", "delay"]
    assert rows(con, "SELECT twice, id FROM crosslane_map('SELECT 7 AS id', 'doubled')") == [("14", 7)]
    assert rows(con, "SELECT count(*) FROM crosslane_map('FROM range(50_000) t(id)', 'doubled')") == [
        (50_000,)
    ]
    assert rows(con, "FROM crosslane_map('SELECT id FROM flights WHERE false', 'doubled')") == []
    unordered = (
        "SELECT sum(id), count(*) FROM crosslane_map('FROM flights', 'LATE', ordered := false, depth := 1)"
    )
    assert rows(con, unordered) == rows(con, "SELECT sum(id), count(*) FROM flights WHERE delay > 10")
    functions = "SELECT kind, parameters, returns FROM crosslane_functions() WHERE function = 'doubled'"
    assert rows(con, functions) == [("stream", "t TABLE(id BIGINT)", "TABLE(id BIGINT, twice VARCHAR)")]
    kind = "SELECT kind FROM crosslane_functions() WHERE function = 'late'"
    assert value(con, kind) == "stream, vectorized"
    assert is_idle(con)


def test_rows_come_in_the_order_of_the_query(load: Load) -> None:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE numbers AS SELECT range AS id FROM range(500_000)")
    mapped = rows(
        con, "SELECT id FROM crosslane_map('FROM numbers WHERE id < 150_000 ORDER BY id DESC', 'doubled')"
    )
    assert mapped == [(149_999 - i,) for i in range(150_000)]
    sizes = rows(con, "FROM crosslane_map('FROM numbers', 'sizes', depth := 3)")
    assert [first for _, first, _ in sizes] == sorted(first for _, first, _ in sizes)
    assert len({lane for *_, lane in sizes}) == min(2, CPUS)
    # The batches are short at first, so that a short query uses all lanes. Later batches are long.
    assert max(size for size, *_ in sizes[:4]) == 2048
    assert max(size for size, *_ in sizes) > 30_000


def test_columns_are_taken_by_name_and_cast(load: Load) -> None:
    con = load(FUNCTIONS + VECTORIZED)
    query = "SELECT ''more'' AS x, ''7'' AS DELAY, 12.0 AS \"Id\", 4 AS x"
    assert rows(con, f"FROM crosslane_map('{query.replace('7', '70')}', 'late')") == [(12, 70)]
    assert rows(con, "FROM crosslane_map('SELECT NULL AS id, 11 AS delay; -- of nobody', 'late')") == [
        (None, 11)
    ]
    assert rows(con, "FROM crosslane_map('WITH t AS (SELECT 3 AS id) FROM t /* three */', 'doubled')") == [
        (3, "6")
    ]
    assert "no column id, delay; its columns are a, b" in error(
        con, "FROM crosslane_map('SELECT 1 AS a, 2 AS b', 'late')"
    )
    assert "several columns id" in error(con, "FROM crosslane_map('SELECT 1 AS id, 2 AS ID', 'doubled')")
    assert "Conversion Error" in error(
        con, "FROM crosslane_map('SELECT ''x'' || range AS id FROM range(3)', 'doubled')"
    )
    assert "Unimplemented type" in error(
        con, "FROM crosslane_map('SELECT DATE ''2026-01-01'' AS id', 'doubled')"
    )


#: Texts that are no query, and the errors.
NO_QUERIES = [
    ("", "the query of a stream is one SELECT, not nothing"),
    ("SELECT 1 AS id; SELECT 2 AS id", "one SELECT, not 2 statements"),
    ("CREATE TABLE t (id BIGINT)", "one SELECT, not another statement"),
    ("EXPLAIN SELECT 1 AS id", "one SELECT, not another statement"),
    ("SELECT ? AS id", "the query of a stream has no parameters"),
    ("SELECT $id AS id", "the query of a stream has no parameters"),
    ("SELEC 1", 'syntax error at or near "SELEC"'),
    ("FROM nowhere", "Table with name nowhere does not exist"),
    ("SELECT nothing AS id", 'Referenced column "nothing"'),
]


def test_what_is_no_query_is_an_error(load: Load, subtests: pytest.Subtests) -> None:
    con = load(FUNCTIONS)
    for query, said in NO_QUERIES:
        with subtests.test(query):
            assert said.lower() in error(con, f"FROM crosslane_map('{query}', 'doubled')").lower()
            assert is_idle(con)


def test_what_is_no_stream_function_is_an_error(load: Load) -> None:
    con = load(FUNCTIONS)
    assert "no stream function doublet; did you mean doubled?" in error(
        con, "FROM crosslane_map('SELECT 1', 'doublet')"
    )
    assert "crosslane_functions() lists all" in error(con, "FROM crosslane_map('SELECT 1', 'xyz')")
    assert "twice is of the kind scalar: call it in SQL itself, SELECT twice(...)" in error(
        con, "FROM crosslane_map('SELECT 1', 'twice')"
    )
    assert "of the kind table: call it in SQL itself, FROM numbers(...)" in error(
        con, "FROM crosslane_map('SELECT 1', 'Numbers')"
    )
    assert "does not exist" in error(con, "FROM doubled(1)")
    assert "the query is NULL" in error(con, "FROM crosslane_map(NULL, 'doubled')")
    for depth in (0, 65):
        assert "depth is a whole number from 1 to 64" in error(
            con, f"FROM crosslane_map('SELECT 1 AS id', 'doubled', depth := {depth})"
        )
    con.execute("CALL crosslane_drop('doubled')")
    assert "was dropped" in error(con, "FROM crosslane_map('SELECT 1 AS id', 'doubled')")


def test_plans_and_prepared_statements(load: Load, library: Library) -> None:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE t AS SELECT 1 AS id")
    assert "CROSSLANE_MAP" in str(rows(con, "EXPLAIN FROM crosslane_map('FROM t', 'doubled')")).upper()
    assert value(con, "SELECT calls FROM crosslane_stats() WHERE function = 'doubled'") == 0
    con.execute("PREPARE p AS FROM crosslane_map('FROM t', 'doubled')")
    assert connections(con) == 2
    assert rows(con, "EXECUTE p") == [(1, "2")]
    con.execute("INSERT INTO t VALUES (5)")
    assert rows(con, "EXECUTE p") == [(1, "2"), (5, "10")]
    crosslane.load(
        con,
        library(
            "from crosslane import udtf\n@udtf('doubled(t TABLE(a INT)) -> TABLE(b INT)')\ndef doubled(t): pass"
        ),
    )
    # Some versions of DuckDB bind the statement again themselves.
    text = error(con, "EXECUTE p")
    assert "prepare it again" in text or "no column a; its columns are id" in text


def test_duckdb_is_told_how_many_rows_there_are(load: Load) -> None:
    """Without a cardinality, the estimate is so high that DuckDB keeps the other side of a join in memory."""
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE small AS SELECT range AS id FROM range(1000)")
    con.execute("SET explain_output = 'physical_only'")
    query = "FROM crosslane_map('FROM range(3) t(id)', 'doubled'{}) m JOIN small USING (id)"
    for option, sides in [
        ("", [("CROSSLANE_MAP", "1000000"), ("SEQ_SCAN", "1000")]),
        (", cardinality := 10", [("SEQ_SCAN", "1000"), ("CROSSLANE_MAP", "10")]),
    ]:
        ((_, plan),) = rows(con, f"EXPLAIN (FORMAT JSON) {query.format(option)}")
        (node,) = json.loads(str(plan))
        while len(node["children"]) < 2:
            (node,) = node["children"]
        found = [(side["name"], side["extra_info"]["Estimated Cardinality"]) for side in node["children"]]
        assert found == sides
        assert len(rows(con, query.format(option))) == 3
    assert "cardinality is a number of rows, not -1" in error(con, query.format(", cardinality := -1"))


def test_long_batches_of_results_become_chunks(load: Load) -> None:
    con = load(VECTORIZED)
    mapped = rows(con, "SELECT s, i, l FROM crosslane_map('SELECT 10_000 AS id', 'many')")
    assert mapped == [(f"text of row {i}", i, [i, None]) for i in range(10_000)]
    assert rows(con, "SELECT i FROM crosslane_map('SELECT 10_000 AS id', 'many') LIMIT 1 OFFSET 5000") == [
        (5000,)
    ]
    assert rows(con, "SELECT count(*) FROM crosslane_map('SELECT 10_000 AS id', 'many')") == [(10_000,)]


def test_wide_rows_are_cut(load: Load) -> None:
    con = load(VECTORIZED)
    query = "SELECT repeat(''x'', 100_000) || range AS s FROM range(300)"
    mapped = rows(con, f"SELECT length(s), s[100_001:] FROM crosslane_map('{query}', 'same')")
    assert mapped == [(100_000 + len(str(i)), str(i)) for i in range(300)]
    query = "SELECT CASE WHEN range = 7 THEN repeat(''x'', 5_000_000) END AS s FROM range(10)"
    assert rows(con, f"SELECT count(s), count(*), max(length(s)) FROM crosslane_map('{query}', 'same')") == [
        (1, 10, 5_000_000)
    ]


TYPES = {
    "b": ("BOOLEAN", "range % 3 = 0"),
    "i": ("HUGEINT", "range * 10^20"),
    "d": ("DECIMAL(9, 2)", "range / 100"),
    "s": ("VARCHAR", "'a longer text, number ' || range"),
    "x": ("BLOB", "('blob ' || range)::BLOB"),
    "t": ("TIMESTAMP", "TIMESTAMP '2026-01-01' + INTERVAL 1 HOUR * range"),
    "u": ("UUID", "md5(range::VARCHAR)::UUID"),
    "e": ("ENUM('one', 'two')", "CASE WHEN range % 2 = 0 THEN 'one' ELSE 'two' END"),
    "l": ("VARCHAR[]", "[range::VARCHAR, NULL, 'x']"),
    "a": ("INTEGER[2]", "[range, NULL]"),
    "m": ("MAP(VARCHAR, BIGINT)", "MAP {'k': range}"),
    "n": ("STRUCT(a BIGINT, b VARCHAR[])", "{'a': range, 'b': [range::VARCHAR]}"),
    "j": ("JSON", "'{\"a\": ' || range || '}'"),
}


def test_types_go_through(load: Load) -> None:
    columns = ", ".join(f"{name} {sql}" for name, (sql, _) in TYPES.items())
    con = load(
        f'''
from crosslane import udtf
@udtf("""same(t TABLE({columns})) -> TABLE({columns})""", vectorized=True)
def same(t):
    return t
'''
    )
    given = ", ".join(
        f"CASE WHEN range % 5 < 4 THEN {sql} END::{type} AS {name}" for name, (type, sql) in TYPES.items()
    )
    con.execute(f"CREATE TABLE given AS SELECT {given} FROM range(5000)")
    assert rows(con, "FROM crosslane_map('FROM given', 'same')") == rows(con, "FROM given")


def test_queries_within_queries(load: Load, subtests: pytest.Subtests) -> None:
    con = load(FUNCTIONS)
    within = "SELECT twice(id) AS id FROM crosslane_map(''FROM range(50_000) t(id)'', ''doubled'')"
    query = f"SELECT sum(id), count(*) FROM crosslane_map('{within}', 'doubled')"
    both = "SELECT a.id FROM crosslane_map('FROM range(3000) t(id)', 'doubled') a JOIN crosslane_map('{}', 'doubled') b USING (id)"
    for threads in (1, 2):
        with subtests.test(f"{threads} threads"):
            con.execute(f"SET threads = {threads}")
            assert rows(con, query) == [(50_000 * 49_999, 50_000)]
            assert rows(
                con,
                "SELECT max(twice(id)) FROM crosslane_map('SELECT i AS id FROM numbers(5000)', 'doubled')",
            ) == [(9998,)]
            assert len(rows(con, both.format("FROM range(2000) t(id)"))) == 2000
            assert is_idle(con)


def test_the_query_within_sees_committed_data(load: Load) -> None:
    con = load(FUNCTIONS)
    con.execute("CREATE TABLE t AS SELECT 1 AS id")
    con.execute("CREATE TEMP TABLE own AS SELECT 1 AS id")
    assert "own does not exist" in error(con, "FROM crosslane_map('FROM own', 'doubled')")
    con.execute("BEGIN")
    con.execute("INSERT INTO t VALUES (2)")
    assert rows(con, "FROM crosslane_map('FROM t', 'doubled')") == [(1, "2")]
    con.execute("COMMIT")
    assert rows(con, "FROM crosslane_map('FROM t', 'doubled')") == [(1, "2"), (2, "4")]
    con.execute("CREATE TABLE made AS FROM crosslane_map('FROM t', 'doubled')")
    assert rows(con, "FROM made") == [(1, "2"), (2, "4")]


def test_the_query_within_does_not_know_the_session(load: Load) -> None:
    con = load(FUNCTIONS)
    con.execute("SET VARIABLE x = 5")
    query = "SELECT coalesce(getvariable(''x''), 1) AS id"
    assert rows(con, f"FROM crosslane_map('{query}', 'doubled')") == [(1, "2")]
    # DuckDB's client for Python finds a table in a variable of the program. The thread of the query does not.
    frame = pa.table({"id": [1]})
    with pytest.raises(duckdb.Error, match="Table with name frame does not exist"):
        con.execute("PREPARE p AS FROM crosslane_map('FROM frame', 'doubled')")
    # The query of the program's own connection finds the variable.
    assert con.execute("FROM frame").fetchall() == [(frame.num_rows,)]


def test_functions_of_constants_are_called_once(load: Load, tmp_path: Path) -> None:
    """The thread of the query within plans it, and binding the statement does not plan it again."""
    calls = tmp_path / "calls"
    con = load(f"""
from crosslane import udf, udtf
@udf
def noted(x: int) -> int:
    with open({str(calls)!r}, "a") as file:
        file.write("called\\n")
    return x

@udtf("same(t TABLE(id BIGINT)) -> TABLE(id BIGINT)")
def same(t):
    return t
""")
    con.execute("PREPARE p AS FROM crosslane_map('SELECT noted(7) AS id', 'same')")
    assert not calls.exists()
    assert rows(con, "EXECUTE p") == [(7,)]
    assert calls.read_text() == "called\n"


def test_the_query_within_looks_for_tables_where_the_connection_does(load: Load, tmp_path: Path) -> None:
    con = load(FUNCTIONS)
    con.execute(f"ATTACH '{tmp_path}/it''s.db' AS \"o.ther\"")
    con.execute('CREATE TABLE "o.ther".t AS SELECT 3 AS id')
    assert "t does not exist" in error(con, "FROM crosslane_map('FROM t', 'doubled')")
    con.execute('USE "o.ther"')
    assert rows(con, "FROM crosslane_map('FROM t', 'doubled')") == [(3, "6")]
    con.execute("USE memory")
    con.execute('DETACH "o.ther"')
    assert is_idle(con)


def test_statistics(load: Load) -> None:
    con = load(FUNCTIONS)
    rows(con, "FROM crosslane_map('FROM range(3000) t(id)', 'doubled')")
    error(con, "FROM crosslane_map('FROM range(9000) t(id)', 'raises')")
    stats = "SELECT calls, rows, errors FROM crosslane_stats() WHERE function = '{}'"
    assert rows(con, stats.format("doubled")) == [(2, 3000, 0)]


def test_the_database_is_closed_with_its_connections(library: Library, tmp_path: Path) -> None:
    file = tmp_path / "flights.db"
    for _ in range(2):
        con = crosslane.connect(str(file))
        crosslane.load(con, library(FUNCTIONS))
        con.execute("SELECT id FROM crosslane_map('FROM range(1_000_000_000) t(id)', 'doubled')")
        assert con.fetchone() == (0,)
        con.close()
        # The file is not locked any more.
        assert eventually(lambda: can_be_opened(file))


def can_be_opened(file: Path) -> bool:
    """Whether another process may open a database."""
    program = f"import duckdb; duckdb.connect({str(file)!r}).execute('SELECT 1')"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def test_two_connections_at_once(load: Load) -> None:
    con = load(FUNCTIONS)
    sums: list[object] = []

    def run(own: duckdb.DuckDBPyConnection) -> None:
        sums.append(value(own, "SELECT sum(id) FROM crosslane_map('FROM range(50_000) t(id)', 'doubled')"))

    cursors = [con.cursor() for _ in range(4)]
    threads = [threading.Thread(target=run, args=[cursor]) for cursor in cursors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [50_000 * 49_999 // 2] * 4
    for cursor in cursors:
        cursor.close()


def test_a_name_may_become_a_stream_function_and_back(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    for _ in range(2):
        file.write_text(
            "from crosslane import udtf\n@udtf('f(t TABLE(a INT)) -> TABLE(b INT)')\ndef f(t): yield len(t)"
        )
        crosslane.load(con, file)
        assert rows(con, "FROM crosslane_map('SELECT 1 AS a', 'f')") == [(1,)]
        with pytest.raises(duckdb.Error):
            rows(con, "FROM f(3)")
        file.write_text("from crosslane import udtf\n@udtf('f(n INT) -> TABLE(b INT)')\ndef f(n): yield n")
        crosslane.load(con, file)
        assert rows(con, "FROM f(3)") == [(3,)]
        assert "of the kind table" in error(con, "FROM crosslane_map('SELECT 1 AS a', 'f')")


def test_functions_of_other_languages(script: Load, ruby: Load) -> None:
    con = script("""
udtf("doubled(t TABLE(id INTEGER)) -> TABLE(id INTEGER, twice VARCHAR)", function* (t) {
  for (const row of t) yield [row.id, String(2 * row.id)];
});
""")
    ruby("""
udtf "tripled(t TABLE(id INTEGER)) -> TABLE(id INTEGER, thrice VARCHAR)" do |t|
  t.map { |row| [row[:id], (3 * row[:id]).to_s] }
end
""")
    query = "FROM range(5000) t(id)"
    assert rows(con, f"FROM crosslane_map('{query}', 'doubled')") == [(i, str(2 * i)) for i in range(5000)]
    assert rows(con, f"FROM crosslane_map('{query}', 'tripled')") == [(i, str(3 * i)) for i in range(5000)]
    assert is_idle(con)
