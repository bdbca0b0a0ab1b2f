"""The works of Spark's benchmark, and the configurations that do each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The places where the functions run.
MASTER = "local[2]"
#: Rows of a query.
MANY, FEW = 5_000_000, 1_000_000

#: The functions that run over lanes, by their files.
FILES = {
    "rows.py": """\
from crosslane import udf


@udf
def plus_one(x: int) -> int:
    return x + 1


@udf(inline=False)
def plus_one_called(x: int) -> int:
    return x + 1
""",
    "columns.py": """\
from typing import Annotated

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udf

Series = Annotated[pd.Series, "BIGINT"]


@udf(vectorized=True)
def vector_add(x: pa.Int64Array) -> pa.Int64Array:
    return pc.add(x, 1)


@udf(vectorized=True)
def vector_twice(x: pa.Int64Array) -> pa.Int64Array:
    return pc.multiply(x, 2)


@udf(vectorized=True)
def vector_less(x: pa.Int64Array) -> pa.Int64Array:
    return pc.subtract(x, 3)


@udf(vectorized=True)
def series_add(x: Series) -> Series:
    return x + 1


@udf(vectorized=True)
def series_twice(x: Series) -> Series:
    return x * 2


@udf(vectorized=True)
def series_less(x: Series) -> Series:
    return x - 3
""",
    "rows.js": """\
udf("js_plus_one(x BIGINT) -> BIGINT", (x) => x + 1);
""",
    "rows.rb": """\
udf("rb_plus_one(x BIGINT) -> BIGINT") { |x| x + 1 }
""",
}
#: The files of Python functions.
PYTHON = ("rows.py", "columns.py")


@dataclass(frozen=True)
class Run:
    """One configuration of a work: the functions that a query calls, and the Spark that runs it."""

    who: str
    session: str
    functions: tuple[str, ...]
    drop_in: bool = False
    #: A program of `kinds.py`, in place of functions.
    program: str = ""

    @property
    def ours(self) -> bool:
        """Whether the functions run over lanes."""
        return self.session == "crosslane" and (self.drop_in or self.who != OFF)

    def question(self, rows: int) -> dict[str, Any]:
        """The request to the session for this many rows."""
        asked: dict[str, Any] = {"drop_in": self.drop_in}
        return asked | (
            {"program": self.program, "rows": rows} if self.program else {"query": self.query(rows)}
        )

    def query(self, rows: int) -> str:
        """A query for the sums of the functions' results over this many rows."""
        sums = ", ".join(f"sum({function}(id))" for function in self.functions)
        return f"SELECT {sums} FROM range(0, {rows}, 1, 2)"

    def sums(self, rows: int) -> list[int]:
        """The result of that query."""
        total = rows * (rows - 1) // 2
        return [total + rows, 2 * total, total - 3 * rows][: len(self.functions)]


@dataclass(frozen=True)
class Work:
    """A computation that several configurations do."""

    name: str
    rows: int
    runs: tuple[Run, ...]
    #: The largest number of rounds. Some programs take Spark a minute.
    rounds: int = 99
    #: Whether the plan of its last query shows where its functions run.
    shows: bool = True


OURS, CALLED, ON, OFF = "Crosslane", "Crosslane, called for each row", "drop-in on", "drop-in off"
WITH_PANDAS, JAVASCRIPT, RUBY = "Crosslane, pandas", "Crosslane, JavaScript", "Crosslane, Ruby"


def theirs(kind: str, *functions: str) -> tuple[Run, Run]:
    """Spark's own functions of a kind, in both of its modes."""
    return Run(f"Spark, {kind}", "spark", functions), Run(f"Spark, {kind}, pipelined", "pipelined", functions)


PICKLED, ARROW = theirs("pickled", "pickled"), theirs("Arrow", "arrow")
ROWS = Work(
    "Python row function, 5M rows",
    MANY,
    (
        Run(OURS, "crosslane", ("plus_one",)),
        Run(CALLED, "crosslane", ("plus_one_called",)),
        # The pipelined mode with pickles takes half a minute. `LANGUAGES` measures it with fewer
        # rows.
        PICKLED[0],
        *ARROW,
    ),
)
COLUMNS = Work(
    "Python vectorized function, 5M rows",
    MANY,
    (Run(OURS, "crosslane", ("vector_add",)), *theirs("arrow_udf", "arrow_add")),
)
THREE = Work(
    "three functions in one query, 1M rows",
    FEW,
    (
        Run(OURS, "crosslane", ("vector_add", "vector_twice", "vector_less")),
        Run(WITH_PANDAS, "crosslane", ("series_add", "series_twice", "series_less")),
        *theirs("pandas_udf", "pandas_add", "pandas_twice", "pandas_less"),
    ),
)


def unchanged(kind: str, function: str) -> Work:
    """A program of PySpark's with the drop-in and without."""
    runs = Run(ON, "crosslane", (function,), drop_in=True), Run(OFF, "crosslane", (function,))
    return Work(f"unchanged PySpark program, {kind}, 5M rows", MANY, runs)


UNCHANGED, UNCHANGED_PANDAS = unchanged("udf", "plain"), unchanged("pandas_udf", "pandas_add")
LANGUAGES = Work(
    "JavaScript and Ruby row functions, 1M rows",
    FEW,
    (
        Run(JAVASCRIPT, "crosslane", ("js_plus_one",)),
        Run(RUBY, "crosslane", ("rb_plus_one",)),
        *PICKLED,
        *ARROW,
    ),
)


def kind(name: str, rows: int, program: str, rounds: int = 3, shows: bool = True) -> Work:
    """A program of PySpark's with the drop-in, and in Spark's own workers in both modes."""
    runs = (
        Run(ON, "crosslane", (), True, program),
        Run("Spark", "spark", (), False, program),
        Run("Spark, pipelined", "pipelined", (), False, program),
    )
    return Work(f"{name}, {rows / 1e6:g}M rows", rows, runs, rounds, shows)


#: Works with all kinds of PySpark's functions, and the wanted ratio of Spark's time to Crosslane's.
KINDS = {
    kind("applyInPandas, groups of 1,000", FEW, "groups of 1,000 rows"): 1.5,
    kind("applyInPandas, groups of 10", FEW, "groups of 10 rows", rounds=2): 2,
    kind("applyInPandas, a group of nearly all rows", MANY, "a skewed group", rounds=2): 1,
    kind("@pandas_udf of groups of 100", FEW, "aggregates"): 1.5,
    kind("@pandas_udf over windows of 100", FEW, "windows"): 1.3,
    kind("@pandas_udf over the 100 rows around each", FEW // 10, "sliding"): 1.3,
    kind("@udtf, 10 rows for each", FEW // 10, "tables"): 2,
    kind("@udf with a broadcast dictionary", MANY, "broadcast"): 2,
    kind("@arrow_udf of numbers of a Parquet file", MANY, "numbers of a file", rounds=7): 2.5,
    kind("@arrow_udf of texts of a Parquet file", MANY, "texts of a file", rounds=7): 2.5,
    kind("a program of ten queries", FEW // 5, "ten queries", shows=False): 1.5,
}
WORKS = (ROWS, COLUMNS, THREE, UNCHANGED, UNCHANGED_PANDAS, LANGUAGES, *KINDS)
