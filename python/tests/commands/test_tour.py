"""The tour (`make demo`): its queries on a part of the real flights. Plain SQL or Python gives the expected
results."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

import crosslane

pytestmark = pytest.mark.any_duckdb

FLIGHTS = Path(__file__).parents[3] / "examples" / "flights"


def imported(name: str) -> ModuleType:
    """One of the tour's Python files, as a module."""
    spec = importlib.util.spec_from_file_location(name, FLIGHTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look for their module in `sys.modules`.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


demo = imported("demo")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tour's database. It has one flight of ten, and all flights of Hawaiian Airlines, which has one a
    day."""
    with pytest.MonkeyPatch.context() as patch:
        # The tour unpacks its data in the working directory.
        patch.chdir(tmp_path_factory.mktemp("tour"))
        patch.setenv("FLIGHTS_SERVICE", demo.start_service())
        con = crosslane.connect()
        demo.prepare(con)
        con.execute("DELETE FROM flights WHERE carrier <> 'HA' AND rowid % 10 <> 0")
        for path in (demo.FUNCTIONS, demo.SCRIPTS, demo.BLOCKS):
            crosslane.load(con, path)
        yield con
        con.close()


def one(con: duckdb.DuckDBPyConnection, query: str) -> tuple[object, ...]:
    """The only row of a result."""
    (row,) = con.execute(query).fetchall()
    return row


@pytest.mark.parametrize(
    "query", [pytest.param(query, id=title.split(":")[0]) for title, query in demo.QUERIES]
)
def test_a_query_of_the_tour(engine: duckdb.DuckDBPyConnection, query: str) -> None:
    rows = crosslane.execute(engine, query).fetchall()
    assert len(rows) >= 3
    # Only cancelled flights have no values.
    assert sum(None in row for row in rows) <= 1


def test_functions_of_rows_and_columns(engine: duckdb.DuckDBPyConnection) -> None:
    arrival = "arrival('2013-01-02 03:30:00'::TIMESTAMP, 60, 'America/Chicago')"
    assert one(engine, f"SELECT {arrival}") == ({"clock": "22:30", "weekday": "Tuesday", "next_day": False},)
    assert one(engine, "SELECT slug('Général Intl.'), round(headwind(30, 10, 30), 6)") == (
        "ge-ne-ral-intl",
        10.0,
    )
    query = "SELECT in_words('2013-03-12'::DATE), tail('N123AB').digits, tail('x'), round(great_circle_rb(0, 0, 0, 90))"
    assert one(engine, query) == ("2nd Tuesday of March", 123, None, 6218.0)
    assert one(engine, "SELECT rank_in_batch(3)") == (0,)
    # The same formula in three languages.
    formulas = ", ".join(
        f"{name}(o.lat, o.lon, d.lat, d.lon)" for name in ("great_circle_js", "great_circle_rb")
    )
    query = f"""SELECT count(*) > 30_000, max(abs(great_circle(o.lat, o.lon, d.lat, d.lon) - other)) < 1e-6
                FROM flights JOIN airports o ON o.faa = origin JOIN airports d ON d.faa = dest, unnest([{formulas}]) u(other)"""
    assert one(engine, query) == (True, True)


def test_a_table_function(engine: duckdb.DuckDBPyConnection) -> None:
    way = "waypoints(40.64, -73.78, 21.32, -157.92, every := 1000)"
    assert one(engine, f"SELECT count(*), min(mile), bool_and(lat BETWEEN 21 AND 46) FROM {way}") == (
        6,
        0.0,
        True,
    )
    length = "round(great_circle(40.64, -73.78, 21.32, -157.92), 6)"
    last = "round(max(mile), 6), round(arg_max(lat, mile), 6), round(arg_max(lon, mile), 6)"
    assert one(engine, f"SELECT {last} FROM {way}") == (*one(engine, f"SELECT {length}"), 21.32, -157.92)


def test_an_aggregate_by_groups_and_in_a_window(engine: duckdb.DuckDBPyConnection) -> None:
    plain = "quantile_disc(round(dep_delay), 0.9)"
    query = f"""SELECT count(*), count(*) FILTER (ours = theirs)
                FROM (SELECT delay_of_nine_in_ten(dep_delay) AS ours, {plain} AS theirs
                      FROM flights WHERE dep_delay IS NOT NULL GROUP BY carrier)"""
    assert one(engine, query) == (16, 16)
    over = "OVER (ORDER BY time_hour ROWS 29 PRECEDING)"
    query = f"""SELECT count(*), count(*) FILTER (ours = theirs)
                FROM (SELECT delay_of_nine_in_ten(dep_delay) {over} AS ours, {plain} {over} AS theirs
                      FROM flights WHERE carrier = 'HA')"""
    assert one(engine, query) == (342, 342)


def test_a_model_that_workers_have_loaded(engine: duckdb.DuckDBPyConnection) -> None:
    rows = engine.execute(
        """SELECT carrier, f.hour, wind_speed, visib, precip, late_risk(carrier, f.hour, wind_speed, visib, precip)
           FROM flights f JOIN weather USING (origin, time_hour) WHERE wind_speed IS NOT NULL"""
    ).fetchall()
    assert len(rows) > 30_000
    model = imported("functions").LateRisk()
    assert [risk for *_, risk in rows] == [model(*row) for *row, _ in rows]


def test_a_stream(engine: duckdb.DuckDBPyConnection, capsys: pytest.CaptureFixture[str]) -> None:
    """Each minute in the air comes from the input, both in the tour's program and in SQL."""
    demo.stream(engine)
    assert "A stream: flights in, their minutes in each hour out" in capsys.readouterr().out
    crosslane.load(engine, demo.STREAM)
    flights = """SELECT time_hour::TIMESTAMP + to_minutes((minute + dep_delay)::BIGINT) AS took_off, air_time AS minutes
                 FROM flights WHERE air_time IS NOT NULL"""
    mapped = one(engine, f"SELECT round(sum(minutes)), count(*) FROM crosslane_map('{flights}', 'aloft')")
    landed = "took_off + to_minutes(minutes::BIGINT) - to_microseconds(1)"
    hours = f"date_diff('hour', took_off, {landed}) + 1"
    assert mapped == one(engine, f"SELECT sum(minutes), sum({hours})::BIGINT FROM ({flights})")
