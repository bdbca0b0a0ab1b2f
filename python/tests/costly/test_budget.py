"""``budget`` of a function: how often one query may have it called."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import crosslane

from ..conftest import Library, Load, error, value
from ..server.conftest import Server
from .test_costly import counted
from .tripled import TRIPLED, tripled

pytestmark = pytest.mark.any_duckdb


@pytest.mark.parametrize("language", TRIPLED)
def test_a_query_ends_at_its_budget(con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str) -> None:
    path = tripled(tmp_path, language, "budget", "3000")
    crosslane.load(con, path)
    query = "SELECT sum(tripled(i)) FROM range({}) r(i)"
    # Each query begins with all of its calls.
    for _ in range(3):
        assert value(con, query.format(3000)) == sum(3 * i for i in range(3000))
    before, _ = counted(con, "tripled")
    failed = error(con, query.format(100_000))
    assert "tripled: the query has used up its budget of 3000 calls" in failed
    assert f"{path}:" in failed
    called, _ = counted(con, "tripled")
    assert called - before <= 3000
    assert "budget=3000" in str(
        value(con, "SELECT options FROM crosslane_functions() WHERE function = 'tripled'")
    )
    for wrong in ("0", "-1", "'many'", "1.5"):
        with pytest.raises(duckdb.Error, match="budget is "):
            crosslane.load(con, tripled(tmp_path, language, "budget", wrong))


def test_only_calls_cost(load: Load) -> None:
    con = load("""
        @udf(budget=10)
        def positive(x: int) -> bool:
            return x > 0

        @udf(budget=10, memoize="1 MB")
        def kept(x: int) -> int:
            return x
        """)
    rows = "range(50000) r(i)"
    assert value(con, f"SELECT count(positive(CASE WHEN i < 10 THEN i END)) FROM {rows}") == 10
    # Each query keeps its results, so the next one comes further.
    for done in (10, 20):
        assert "budget of 10 calls" in error(con, "SELECT sum(kept(i)) FROM range(25) r(i)")
        assert counted(con, "kept")[0] == done
    assert value(con, "SELECT sum(kept(i)) FROM range(25) r(i)") == sum(range(25))
    assert value(con, f"SELECT count(kept(i % 25)) FROM {rows}") == 50_000
    assert counted(con, "kept")[0] == 25


def test_tries_count(load: Load) -> None:
    con = load("""
        import crosslane

        tries = 0

        @udf(budget=10, retries=100, deterministic=False)
        def stubborn(x: int) -> int:
            global tries
            tries += 1
            if tries % 5:
                raise crosslane.Retry(after=0)
            return x
        """)
    # Two rows need ten tries.
    con.execute("SET threads = 1")
    assert value(con, "SELECT count(stubborn(i)) FROM range(2) r(i)") == 2
    query = "SELECT count(stubborn(i)) FROM range(9000) r(i)"
    assert "budget of 10 calls" in error(con, query)


def test_rounds_and_runs_of_a_query_share_its_budget(load: Load) -> None:
    con = load("""
        @udf(budget=10)
        def next(x: int) -> int:
            return x + 1
        """)
    steps = "WITH RECURSIVE s(x) AS (SELECT 0::BIGINT UNION ALL SELECT next(x) FROM s WHERE x < {}) SELECT max(x) FROM s"
    assert value(con, steps.format(10)) == 10
    assert "budget of 10 calls" in error(con, steps.format(11))
    # DuckDB does not tell the runs of a plan apart.
    con.execute("PREPARE run AS SELECT sum(next(x)) FROM range(5) r(x)")
    for _ in range(2):
        assert value(con, "EXECUTE run") == 15
    assert "budget of 10 calls" in error(con, "EXECUTE run")
    con.execute("DEALLOCATE run")
    con.execute("PREPARE run AS SELECT sum(next(x)) FROM range(5) r(x)")
    assert value(con, "EXECUTE run") == 15


def test_a_call_of_a_client_is_a_query(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library("""
        @udf(budget=5)
        def twice(x: int) -> int:
            return 2 * x
        """)
    few, many = pa.array(range(5)), pa.array(range(6))
    with ExitStack() as stack:
        address = stack.enter_context(Server(path)).address
        con.execute(f"CALL crosslane_attach('{address}')")
        client = stack.enter_context(crosslane.Client(address))
        functions = stack.enter_context(crosslane.Functions(path))
        for _ in range(2):
            assert value(con, "SELECT sum(twice(i)) FROM range(5) r(i)") == 20
        assert "budget of 5 calls" in error(con, "SELECT sum(twice(i)) FROM range(6) r(i)")
        for call in (lambda column: client.call_batch("twice", column), functions.twice):
            for _ in range(2):
                assert call(few).to_pylist() == [0, 2, 4, 6, 8]
            with pytest.raises((RuntimeError, duckdb.Error), match="budget of 5 calls"):
                call(many)
