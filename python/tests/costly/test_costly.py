"""Expensive functions: the engine calls equal rows once, keeps results, and limits the rate of calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, value
from .tripled import TRIPLED, tripled

EXAMPLES = Path(__file__).parents[3] / "examples"


def counted(con: duckdb.DuckDBPyConnection, function: str) -> tuple[int, int]:
    """The number of called rows, and the number of rows whose result was known."""
    row = con.execute("SELECT rows, reused FROM crosslane_stats() WHERE function = ?", [function]).fetchone()
    assert row
    return row


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", TRIPLED)
def test_results_are_kept(con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str) -> None:
    crosslane.load(con, tripled(tmp_path, language, "memoize", '"1 MB"'))
    rows = 50_000
    query = f"SELECT sum(tripled(i % 10)) FROM range({rows}) r(i)"
    assert value(con, query) == sum(3 * (i % 10) for i in range(rows))
    called, reused = counted(con, "tripled")
    # Both threads may begin with the same values.
    assert 10 <= called <= 20
    assert called + reused == rows
    assert value(con, query) == sum(3 * (i % 10) for i in range(rows))
    assert counted(con, "tripled") == (called, rows + reused)
    assert "memoize=1000000" in str(
        value(con, "SELECT options FROM crosslane_functions() WHERE function = 'tripled'")
    )


def test_all_kinds_of_values_are_kept(load: Load) -> None:
    con = load("""
        @udf("plain(a VARCHAR, b STRUCT(x DOUBLE, y BOOLEAN)[], c INTEGER[2]) -> STRUCT(t VARCHAR, n BIGINT[])", nulls="call")
        def plain(a, b, c):
            if a == "none":
                return None
            return {"t": repr((a, b, c)), "n": [len(b or []), None]}

        kept = udf("kept(a VARCHAR, b STRUCT(x DOUBLE, y BOOLEAN)[], c INTEGER[2]) -> STRUCT(t VARCHAR, n BIGINT[])",
            name="kept", nulls="call", memoize="10 MB")(lambda a, b, c: plain(a, b, c))
        """)
    con.execute("""
        CREATE TABLE t AS SELECT
            [NULL, 'none', '', 'a', 'ab', 'längerer Text mit mehr Zeichen'][1 + i % 6] AS a,
            [NULL, [], [{x: 0.0, y: true}], [{x: '-0.0'::DOUBLE, y: true}], [NULL, {x: NULL, y: NULL}]][1 + i % 5] AS b,
            [NULL, [1, 2]::INTEGER[2], [1, NULL]::INTEGER[2]][1 + i % 3] AS c
        FROM range(9000) r(i)""")
    for _ in range(2):
        different = "SELECT count(*) FROM t WHERE kept(a, b, c) IS DISTINCT FROM plain(a, b, c)"
        assert value(con, different) == 0
    called, reused = counted(con, "kept")
    assert 30 <= called <= 60
    assert called + reused == 18_000


def test_arguments_of_any_type_are_told_apart(load: Load) -> None:
    """Zeros of many types have the same bytes."""
    con = load("""
        @udf("kind(*values ANY) -> VARCHAR", memoize="1 MB")
        def kind(*values):
            return ", ".join(type(value).__name__ for value in values)
        """)
    for arguments, shown in [
        ("0::BIGINT", "int"),
        ("0::DOUBLE", "float"),
        ("0::BIGINT, 0::BIGINT", "int, int"),
        ("''", "str"),
        ("0::UBIGINT", "int"),
        ("''::BLOB", "bytes"),
    ]:
        for _ in range(2):
            assert value(con, f"SELECT any_value(kind({arguments})) FROM range(3) WHERE range >= 0") == shown


def test_a_text_that_is_too_long_for_a_row_of_the_engine_is_kept(load: Load) -> None:
    con = load("""
        @udf(memoize="100 MB")
        def long(x: int) -> str:
            return str(x) * 1_000_000
        """)
    query = "SELECT sum(length(long(i % 3))) FROM range(30) r(i)"
    assert value(con, query) == value(con, query) == 30_000_000
    assert counted(con, "long")[0] <= 6


def test_failures_are_not_kept(load: Load, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    con = load(f"""
        from pathlib import Path
        @udf(memoize="1 MB", on_error="null")
        def answers(x: int) -> int:
            if x == 2 and not Path({str(flag)!r}).exists():
                raise ValueError(x)
            return x
        @udf(memoize="1 MB")
        def insists(x: int) -> int:
            return 1 // x
        """)
    query = "SELECT sum(answers(i % 3)) FROM range(9) r(i)"
    assert value(con, query) == 3
    flag.touch()
    assert value(con, query) == 9
    failed = error(con, "SELECT insists((i + 1) % 3) FROM range(9) r(i)")
    assert "ZeroDivisionError" in failed
    assert "in row 3 of the batch, with x = 0" in failed


def test_an_expensive_function_is_called_once_for_equal_rows(load: Load) -> None:
    con = load("""
        import time
        @udf
        def slow(x: int) -> int:
            time.sleep(0.0005)
            return x
        @udf(deterministic=False)
        def each(x: int) -> int:
            time.sleep(0.0005)
            return x
        """)
    for name in ("slow", "each"):
        # The first query measures the cost of the function.
        assert value(con, f"SELECT sum({name}(i)) FROM range(20) r(i)") == 190
        assert value(con, f"SELECT sum({name}(i % 5)) FROM range(1000) r(i)") == 2000
    assert counted(con, "slow") == (25, 995)
    assert counted(con, "each") == (1020, 0)


def test_a_changed_file_begins_without_results(con: duckdb.DuckDBPyConnection, python: Load) -> None:
    text = """
        from crosslane import udf
        @udf(memoize="1 MB")
        def f(x: int) -> int:
            return x + {}
        """
    for number in (1, 2):
        python(text.format(number))
        assert value(con, "SELECT f(1)") == value(con, "SELECT f(1)") == 1 + number


def test_queries_that_are_cancelled_and_that_go_on_share_results(load: Load) -> None:
    con = load("""
        import time
        @udf(memoize="1 MB")
        def slow(x: int) -> int:
            time.sleep(0.05)
            return x
        """)
    failed: list[str] = []
    thread = threading.Thread(
        target=lambda: failed.append(error(con, "SELECT slow(i) FROM range(1000) r(i)"))
    )
    thread.start()
    other = con.cursor()
    while not value(other, "SELECT sum(busy) FROM crosslane_pools()"):
        time.sleep(0.01)
    con.interrupt()
    thread.join()
    assert "cancelled" in failed[0] or "INTERRUPT" in failed[0]
    assert value(con, "SELECT sum(slow(i)) FROM range(3) r(i)") == 3


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", TRIPLED)
def test_calls_have_a_rate(con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str) -> None:
    for rate, message in (("5", "rate is a text such as"), ("'often'", "rate is a number of calls such as")):
        with pytest.raises(duckdb.Error, match=message):
            crosslane.load(con, tripled(tmp_path, language, "rate", rate))
    crosslane.load(con, tripled(tmp_path, language, "rate", "'1/h'"))
    # One row may begin at once. The others wait.
    failed: list[str] = []
    query = "SELECT sum(tripled(i)) FROM range(3) r(i)"
    thread = threading.Thread(target=lambda: failed.append(error(con, query)))
    other = con.cursor()
    thread.start()
    assert eventually(lambda: counted(other, "tripled") == (1, 0), 30)
    crosslane.cancel(con)
    thread.join()
    assert "cancelled" in failed[0] or "nterrupt" in failed[0]
    assert counted(other, "tripled") == (1, 0)


def test_rows_that_are_null_without_a_call_do_not_wait(load: Load) -> None:
    con = load("""
        @udf(rate="1/h", deterministic=False)
        def seldom(x: int, y: int | None) -> int:
            return x
        """)
    nulls = "SELECT count(seldom(CASE WHEN i = 3000 THEN i END, i)) FROM range(5000) r(i)"
    assert value(con, nulls) == 1
    assert value(con, "SELECT count(seldom(NULL, i)) FROM range(5000) r(i)") == 0


def test_functions_of_one_declaration_share_what_they_keep(load: Load) -> None:
    con = load("""
        @udf(memoize="1 MB", rate="1/h")
        def sum_of(x: int, y: int = 1, z: int = 1) -> int:
            return x + y + z
        """)
    assert value(con, "SELECT sum_of(5)") == 7
    assert value(con, "SELECT sum_of(5)") == 7
    # The rate is one call an hour, whatever the number of arguments is.
    cancelled: list[str] = []
    thread = threading.Thread(target=lambda: cancelled.append(error(con, "SELECT sum_of(5, 2)")))
    thread.start()
    while thread.is_alive():
        con.interrupt()
        crosslane.cancel(con)
        thread.join(0.05)
    assert "sum_of: cancelled" in cancelled[0] or "INTERRUPT" in cancelled[0]


def test_the_example_of_a_service_loses_no_row() -> None:
    program = EXAMPLES / "classify" / "classify.py"
    ended = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True, timeout=120)
    assert "100,000 rows in" in ended.stdout
    assert all(f"{topic:10}   20,000" in ended.stdout for topic in ("sports", "politics", "music", "science"))
    assert "the service: 2,000 answers" in ended.stdout


def test_options_that_cannot_be(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    for options, message in [
        ('memoize="much"', "memoize is a size such as '500 MB' or '2 GiB'"),
        ("memoize=0", "memoize is a size such as"),
        ("memoize=10, deterministic=False", "memoize is for scalar functions"),
    ]:
        path = library(f"""
            @udf({options})
            def f(x: int) -> int:
                return x
            """)
        with pytest.raises(Exception, match=message) as raised:
            crosslane.load(con, path)
        assert "functions_" in str(raised.value)
        assert "function f" in str(raised.value)


#: Functions whose result is the number of rows of their call. A call has at most 100 rows.
BATCHED = {
    "py": """
        import pyarrow as pa
        from crosslane import udf
        @udf(vectorized=True, batch={})
        def size(x: pa.Int64Array) -> pa.Int64Array:
            return pa.array([len(x)] * len(x))
        """,
    "rb": """
        udf("size(x BIGINT) -> BIGINT", vectorized: true, batch: {}) {{ |xs| xs.map {{ xs.size }} }}
        """,
    "js": """
        udf("size(x BIGINT) -> BIGINT", {{ vectorized: true, batch: {} }}, (xs) => xs.map(() => xs.length));
        """,
    "lua": """
        udf("size(x BIGINT) -> BIGINT", {{ vectorized = true, batch = {} }}, function(xs)
          local sizes = {{}}
          for row = 1, #xs do sizes[row] = #xs end
          return sizes
        end)
        """,
}


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", BATCHED)
def test_a_call_gets_no_more_rows_than_its_batch(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str
) -> None:
    path = tmp_path / f"functions.{language}"
    path.write_text(textwrap.dedent(BATCHED[language].format(100)))
    crosslane.load(con, path)
    sizes = "SELECT max(size), sum(size / size)::INTEGER FROM (SELECT size(i) AS size FROM range(2500) r(i))"
    # For the second query, the engine knows the cost of a row.
    for _ in range(2):
        assert con.execute(sizes).fetchall() == [(100, 2500)]
    assert value(con, "SELECT options LIKE '%batch=100%' FROM crosslane_functions()")
    for wrong in ("0", "-1", "'many'"):
        path.write_text(textwrap.dedent(BATCHED[language].format(wrong)))
        with pytest.raises(duckdb.Error, match="batch is "):
            crosslane.load(con, path)
    path.write_text(
        textwrap.dedent(BATCHED[language].format(1))
        .replace("vectorized", "deterministic")
        .replace("True", "False")
    )
    with pytest.raises(duckdb.Error, match=r"batch is for .*functions that get many rows at once"):
        crosslane.load(con, path)


@pytest.mark.any_duckdb
def test_an_async_function_has_no_more_rows_in_work_than_its_batch(load: Load) -> None:
    con = load("""
        import asyncio
        from crosslane import udf
        at_work = most = 0
        @udf(concurrency=64, batch=8, deterministic=False)
        async def beside(x: int) -> int:
            global at_work, most
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0)
            at_work -= 1
            return most
        """)
    assert value(con, "SELECT max(beside(i)) FROM range(500) r(i)") == 8
