"""Crosslane beside its peers in DuckDB, in one run: prints a table, saves the figures, draws the pictures.

    make bench                  everything (about ten minutes)
    make bench BENCH=bigint     the lines whose name contains "bigint"

Every line compares two things that take turns. The figures are medians.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import date

import duckdb

from ..figures import RESULTS, machine
from ..report import say_written, targets, wide_console
from . import by_columns, costly, loading, other_kinds, process, sandbox, scalar
from .engines import Bench
from .languages import javascript, ruby
from .pictures import Figures, draw

#: All measurements, in their order.
MEASUREMENTS = (
    scalar.bigint,
    scalar.varchar,
    scalar.wide,
    scalar.rows,
    by_columns.by_columns,
    by_columns.leaving,
    loading.loading,
    loading.reloading,
    costly.memoize,
    costly.cache,
    sandbox.sandbox,
    scalar.vectorized,
    scalar.dataframes,
    scalar.scaling,
    scalar.fan_out,
    scalar.waiting,
    scalar.spans,
    scalar.tracing,
    scalar.workers,
    scalar.first_call,
    scalar.stateful,
    other_kinds.tables,
    other_kinds.aggregates,
    other_kinds.streams,
    process.memory,
    process.interrupt,
    javascript.js_numbers,
    javascript.js_text,
    javascript.js_guests,
    javascript.js_memory,
    ruby.ruby_lanes,
    ruby.ruby_v8,
)


def main() -> None:
    """Measures the chosen lines."""
    RESULTS.mkdir(exist_ok=True)
    # A shell makes its background programs ignore Ctrl-C. Without this line, all programs that the benchmark
    # starts would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    console = wide_console()
    with console.status("making tables"):
        bench = Bench()
    figures = Figures(duckdb.__version__, machine(), date.today().isoformat())
    saved = RESULTS / "duckdb.json"
    for measure in MEASUREMENTS:
        if wanted in measure.__name__:
            with console.status(str(measure.__doc__)):
                for line in measure(bench):
                    figures.lines.append(line)
                    console.print(f"[dim]{line.name}: {line.shown}[/]", highlight=False)
            # A run that is interrupted keeps its figures so far.
            figures.depths = bench.depths
            figures.save(saved)
    console.print(targets(figures.lines, f"DuckDB {duckdb.__version__}, {os.cpu_count()} cores"))
    if figures.lines:
        say_written(console, saved, *draw(figures, RESULTS))


if __name__ == "__main__":
    main()
