"""The same functions and the same SQL on DuckDB and on Spark, on 336,776 real flights, compared row by row.

    .venv-spark-4.3/bin/python examples/spark/compare.py

The functions are those of examples/flights, in Python, JavaScript and Ruby. Each query runs on both engines as it stands
here. A row is equal if all its values are; floating-point numbers may differ by one part in a billion, because a sum
depends on the order of its parts. The exit code is 1 if there is a difference.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import crosslane
import crosslane.spark

FLIGHTS = Path(__file__).resolve().parents[1] / "flights"
sys.path.insert(0, str(FLIGHTS))
import demo  # noqa: E402

FILES = [FLIGHTS / name for name in ("functions.py", "functions.js", "functions.rb", "streams.py")]
TABLES = ("flights", "airports", "weather")
#: So far apart may floating-point numbers be, relative to their size.
TOLERANCE = 1e-9
console = Console()

Row = tuple[Any, ...]

QUERIES = [
    (
        "A function of rows: distances of all routes",
        """SELECT origin, dest, count(*), avg(great_circle(o.lat, o.lon, d.lat, d.lon)), avg(distance)
           FROM flights JOIN airports o ON o.faa = origin JOIN airports d ON d.faa = dest
           GROUP BY origin, dest""",
    ),
    (
        "Strings and NULLs: tail numbers and airports",
        """SELECT registration(tailnum), full_name(name), count(*)
           FROM flights JOIN airports ON faa = dest GROUP BY 1, 2""",
    ),
    (
        "A STRUCT for each flight",
        """SELECT leg.verdict, leg.made_up, count(*), avg(leg.mph)
           FROM (SELECT leg(distance, air_time, dep_delay, arr_delay) AS leg FROM flights) GROUP BY 1, 2""",
    ),
    (
        "A column at a time: wind chill, with pyarrow",
        "SELECT origin, month, day, hour, wind_chill(temp, wind_speed) FROM weather",
    ),
    (
        "A column at a time: headwind, in JavaScript",
        "SELECT origin, month, day, hour, headwind(wind_dir, wind_speed, 130) FROM weather",
    ),
    (
        "Many rows at once: an HTTP service",
        "SELECT faa, time_zone(faa) FROM airports",
    ),
    (
        "JavaScript with a library: arrivals by local clocks",
        """SELECT slug(name), a.weekday, count(*), max(a.clock), count(*) FILTER (WHERE a.next_day)
           FROM (SELECT name, arrival(time_hour::TIMESTAMP, air_time, tzone) AS a
                 FROM flights JOIN airports ON faa = dest WHERE hour >= 20) GROUP BY 1, 2""",
    ),
    (
        "Ruby: days in words, and planes by their STRUCT",
        """SELECT in_words(make_date(year, month, day)), avg(arr_delay), count(DISTINCT tail(tailnum).digits)
           FROM flights GROUP BY 1""",
    ),
    (
        "Three languages in one query",
        """SELECT carrier, avg(great_circle(o.lat, o.lon, d.lat, d.lon)),
                  avg(great_circle_js(o.lat, o.lon, d.lat, d.lon)), avg(great_circle_rb(o.lat, o.lon, d.lat, d.lon))
           FROM flights JOIN airports o ON o.faa = origin JOIN airports d ON d.faa = dest GROUP BY carrier""",
    ),
    (
        "A table function: the way from JFK to Honolulu",
        """SELECT mile, w.lat, w.lon, min_by(name, great_circle(w.lat, w.lon, a.lat, a.lon))
           FROM waypoints(40.64, -73.78, 21.32, -157.92, every => 100) w, airports a GROUP BY 1, 2, 3""",
    ),
    (
        "An aggregate: delays by carrier and airport",
        "SELECT carrier, dest, count(*), delay_of_nine_in_ten(dep_delay) FROM flights GROUP BY 1, 2",
    ),
    (
        "An aggregate in a window: flights to Honolulu",
        """SELECT time_hour::TIMESTAMP, delay_of_nine_in_ten(dep_delay) OVER (ORDER BY time_hour ROWS 29 PRECEDING)
           FROM flights WHERE carrier = 'HA'""",
    ),
    (
        "A model that workers have loaded",
        """SELECT carrier, f.hour, f.month, count(*), avg(late_risk(carrier, f.hour, wind_speed, visib, precip))
           FROM flights f JOIN weather USING (origin, time_hour) GROUP BY 1, 2, 3""",
    ),
]

#: The input of a stream, and what is compared of its output. DuckDB calls it in SQL, Spark by `crosslane.spark.map`.
ALOFT = """SELECT time_hour::TIMESTAMP + INTERVAL '1' MINUTE * (minute + dep_delay)::BIGINT AS took_off,
                  air_time AS minutes FROM flights WHERE air_time IS NOT NULL"""
PLANES = "SELECT hour, sum(minutes), count(*) FROM {aloft} GROUP BY hour"


def on_duckdb() -> duckdb.DuckDBPyConnection:
    """The flights in DuckDB, with the functions."""
    con = crosslane.connect(functions=FILES)
    con.execute("SET TimeZone = 'UTC'")
    demo.prepare(con)
    return con


def on_spark(con: duckdb.DuckDBPyConnection, folder: Path) -> SparkSession:
    """The same tables and functions in Spark."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        # TIMESTAMP has no time zone, as in DuckDB.
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.shuffle.partitions": str(os.cpu_count()),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[*]").config(map=conf)
    spark = crosslane.spark.enable(builder, *FILES).getOrCreate()
    # It warns of every window without partitions.
    spark.sparkContext.setLogLevel("ERROR")
    for table in TABLES:
        file = folder / f"{table}.parquet"
        con.execute(f"COPY {table} TO '{file}' (FORMAT parquet)")
        spark.read.parquet(str(file)).createOrReplaceTempView(table)
    return spark


def in_order(rows: list[Row]) -> list[Row]:
    """Rows in an order that both engines' rows have. Floating-point numbers count last: they are not quite equal."""

    def key(row: Row) -> list[tuple[bool, Any]]:
        exact = [value for value in row if not isinstance(value, float)]
        return [(value is not None, value) for value in (*exact, *row)]

    return sorted(rows, key=key)


def are_equal(ours: Any, theirs: Any) -> bool:
    """Whether two values are the same, or floating-point numbers that are as good as the same."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=TOLERANCE) or (math.isnan(ours) and math.isnan(theirs))
    return type(ours) is type(theirs) and ours == theirs


def difference(duck: list[Row], spark: list[Row]) -> str | None:
    """The first row that the engines do not agree on."""
    for ours, theirs in zip_longest(in_order(duck), in_order(spark)):
        if (
            ours is None
            or theirs is None
            or len(ours) != len(theirs)
            or not all(map(are_equal, ours, theirs))
        ):
            return f"DuckDB: {ours}\nSpark: {theirs}"
    return None


def compare(duck: duckdb.DuckDBPyConnection, spark: SparkSession) -> list[tuple[str, list[Row], list[Row]]]:
    """The rows of all queries on both engines."""

    def stream() -> list[Row]:
        crosslane.spark.map(spark.sql(ALOFT), "aloft").createOrReplaceTempView("aloft")
        return collected(spark, PLANES.format(aloft="aloft"))

    runs: list[tuple[str, str, Callable[[], list[Row]]]] = [
        (title, query, lambda query=query: collected(spark, query)) for title, query in QUERIES
    ]
    mapped = "crosslane_map('{}', 'aloft')".format(ALOFT.replace("'", "''"))
    runs.append(("A stream: planes in the air, by hour", PLANES.format(aloft=mapped), stream))
    compared = []
    for title, query, run in runs:
        with console.status(title):
            compared.append((title, duck.execute(query).fetchall(), run()))
    return compared


def collected(spark: SparkSession, query: str) -> list[Row]:
    """The rows of a query on Spark."""
    return [tuple(row) for row in spark.sql(query).collect()]


def main() -> int:
    """Compares the engines; returns the exit code."""
    # Workers of both engines have it in their environment.
    os.environ["FLIGHTS_SERVICE"] = demo.start_service()
    table = Table(header_style="bold")
    table.add_column("query")
    table.add_column("rows", justify="right")
    table.add_column("DuckDB and Spark")
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        duck = on_duckdb()
        spark = on_spark(duck, Path(folder))
        for title, ours, theirs in compare(duck, spark):
            found = difference(ours, theirs)
            differences += found is not None
            table.add_row(title, f"{len(ours):,}", "[green]equal[/]" if found is None else f"[red]{found}[/]")
        spark.stop()
        duck.close()
    console.print(table)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
