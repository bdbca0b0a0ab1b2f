"""Functions in a sandbox, against the same functions without one."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb

import crosslane

from ..figures import Line
from .engines import FOLDER, TABLES, Bench, compared, microseconds, milliseconds
from .https.server import server

#: The names of the lines, and their queries.
QUERIES = {
    "row function": "SELECT sum(plus_one_called(i)) FROM ints5",
    "vectorized function": "SELECT sum(plus_one_vectorized(i)) FROM ints5",
    "JavaScript": "SELECT count(js_slugify(s)) FROM titles",
    "Ruby": "SELECT count(rb_up(s)) FROM titles",
}
FILES = ("scalar.py", "scalar.js", "scalar.rb")
ASKS = Path(__file__).parent / "https" / "asks.py"
#: Requests of one median.
REQUESTS = 100
#: Workers that are booted for one median.
BOOTS = 8


def sandbox(bench: Bench) -> Iterator[Line]:
    """Queries in a sandbox and without, and the boots of their workers."""
    engines = {name: _engine(name) for name in ("on", "off")}
    for name, query in QUERIES.items():
        runs = {
            state: lambda state=state, query=query: bench.seconds(engines[state], query, 2)
            for state in engines
        }
        taken = bench.alternate(runs)
        yield compared(f"{name} in a sandbox", "without a sandbox", taken["on"], taken["off"], 0.97)
    for con in engines.values():
        con.close()
    taken = bench.alternate({state: lambda state=state: _boot(state) for state in ("on", "off")})
    more = (statistics.median(taken["on"]) - statistics.median(taken["off"])) * 1e3
    texts = (milliseconds(taken["on"]), milliseconds(taken["off"]))
    yield Line("boot of a worker in a sandbox", "without a sandbox", *texts, more, 0.2, "ms more")
    yield _requests(bench)


def _requests(bench: Bench) -> Line:
    """Requests over HTTPS to a listed host, and without a sandbox."""
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (port, certificate):
        allowed = {"sandbox": "on", "allow_net": f"localhost:{port}", "allow_read": certificate}
        engines = {
            name: crosslane.connect(functions=[ASKS], settings=settings, config={"threads": 1})
            for name, settings in (("list", allowed), ("free", {}))
        }
        query = f"SELECT sum(asks({port}, '{certificate}')) FROM range({REQUESTS})"
        taken = bench.alternate(
            {name: lambda con=con: bench.seconds(con, query, 1) / REQUESTS for name, con in engines.items()}
        )
        for con in engines.values():
            con.close()
    line = ("HTTPS request to a listed host", "without a sandbox")
    return compared(*line, taken["list"], taken["free"], 0.91, shown=microseconds)


def _engine(state: str) -> duckdb.DuckDBPyConnection:
    con = crosslane.connect(functions=[FOLDER / file for file in FILES], settings={"sandbox": state})
    for table in ("ints5", "titles"):
        con.execute(f"CREATE TABLE {table} AS {TABLES[table]}")
    return con


def _boot(state: str) -> float:
    """The median time of a boot of a Python worker, in seconds."""
    with crosslane.connect(settings={"sandbox": state, "warm_lanes": BOOTS}) as con:
        con.execute("CALL crosslane_trace(true)")
        crosslane.load(con, FOLDER / "costly.py")
        query = "SELECT duration_us FROM crosslane_events() WHERE kind = 'boot'"
        con.execute("SELECT works_each(i) FROM range(10000) r(i)").fetchall()
        while len(boots := con.execute(query).fetchall()) < BOOTS:
            time.sleep(0.01)
        return statistics.median(duration for (duration,) in boots) / 1e6
