"""Stream functions of files, and declared stream functions: `crosslane.map` with the rows or columns of a
batch."""

from __future__ import annotations

import datetime
import decimal
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest

import crosslane
from crosslane import udtf

pytestmark = pytest.mark.any_duckdb

HEAD = "import os, time\nfrom crosslane import udtf\n"
#: The imports of the files that need pyarrow, which is slow to import.
ARROW = "import pyarrow as pa\nimport pyarrow.compute as pc\n"
LATE = """
@udtf("late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, hours DOUBLE)")
def late(flights):
    "Flights that are late."
    for flight in flights:
        if flight.delay is not None and flight.delay > 60:
            yield flight.id, flight.delay / 64
"""
FLIGHTS = pa.table(
    {
        "id": range(100_000),
        "delay": [None if n % 10 == 0 else n % 90 for n in range(100_000)],
        "by": ["x"] * 100_000,
    }
)
LATE_FLIGHTS = [{"id": n, "hours": n % 90 / 64} for n in range(100_000) if n % 10 and n % 90 > 60]

Mapped = Callable[..., list[dict[str, object]]]


@pytest.fixture
def mapped(tmp_path: Path) -> Mapped:
    """The rows that a function returns for a reader. The function is in a file with this text."""

    def of(text: str, reader: object, function: str = "", **options: object) -> list[dict[str, object]]:
        file = tmp_path / "functions.py"
        file.write_text(HEAD + text)
        with crosslane.map(reader, f"{file}{function}", **{"lanes": 2, **options}) as stream:
            return [row for batch in stream for row in batch.to_pylist()]

    return of


def test_rows_in_and_rows_out(mapped: Mapped) -> None:
    assert mapped(LATE, FLIGHTS) == LATE_FLIGHTS
    got = mapped(LATE, FLIGHTS, ":LATE", ordered=False)
    assert sorted(got, key=lambda row: row["id"]) == LATE_FLIGHTS  # type: ignore[arg-type, return-value]


def test_a_row_is_a_named_tuple_and_a_result_has_any_shape_that_a_row_has(mapped: Mapped) -> None:
    text = """
from dataclasses import dataclass
@dataclass
class Out:
    a: str
    b: int
@udtf('shapes("my rows" TABLE(a INTEGER, "class" INTEGER, "b c" VARCHAR)) -> TABLE(a VARCHAR, b BIGINT)')
def shapes(rows):
    assert isinstance(rows, list)
    first, second, third = rows
    yield repr(first), first[1]
    yield [second[2], second.a]
    yield {"b": len(third), "a": str(third._asdict())}
    yield Out("x", 7)
"""
    given = pa.table({"a": [1, 2, None], "class": [4, 5, 6], "b c": ["x", None, "z"]})
    assert mapped(text, given) == [
        {"a": "row(a=1, _1=4, _2='x')", "b": 4},
        {"a": None, "b": 2},
        {"a": "{'a': None, '_1': 6, '_2': 'z'}", "b": 3},
        {"a": "x", "b": 7},
    ]


@pytest.mark.parametrize("name", ["class", "_rows", "my rows", "None"])
def test_a_parameter_may_have_a_name_that_python_cannot_have(mapped: Mapped, name: str) -> None:
    text = f"""
@udtf('f("{name}" TABLE(n BIGINT)) -> TABLE(s VARCHAR)')
def f(rows):
    yield repr(rows[0])
"""
    assert mapped(text, {"n": [1]}) == [{"s": "row(n=1)"}]


def test_a_function_may_return_rows_or_none(mapped: Mapped) -> None:
    text = """
@udtf("some(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def some(rows):
    return None if rows[0].n == 0 else [row.n for row in rows]
@udtf("wrong(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def wrong(rows):
    return 7
"""
    batches = [{"n": [0, 1]}, {"n": [2, 3]}, {"n": []}]
    assert mapped(text, batches, ":some") == [{"n": 2}, {"n": 3}]
    with pytest.raises(RuntimeError, match="wrong, batch 1: TypeError: returned int where rows are due"):
        mapped(text, batches, ":wrong")


def test_vectorized_functions_get_what_they_are_annotated_with(mapped: Mapped) -> None:
    head = """
DECLARED = "(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, hours DOUBLE)"
"""
    text = f"""{ARROW}{head}
@udtf("batch" + DECLARED, vectorized=True)
def batch(flights):
    late = flights.filter(pc.greater(flights["delay"], 60))
    yield {{"hours": pc.divide(late["delay"].cast("double"), 64), "id": late["id"], "more": late["id"]}}
@udtf("table" + DECLARED, vectorized=True)
def table(flights: pa.Table) -> pa.Table:
    late = flights.filter(pc.greater(flights["delay"], 60))
    return late.append_column("hours", pc.divide(late["delay"].cast("double"), 64))
@udtf("columns" + DECLARED, vectorized=True)
def columns(flights):
    late = flights.filter(pc.greater(flights["delay"], 60))
    yield late["id"].to_pylist(), [delay / 64 for delay in late["delay"].to_pylist()]
@udtf("none" + DECLARED, vectorized=True)
def none(flights):
    return None
@udtf("other" + DECLARED, vectorized=True)
def other(flights):
    return {{"id": [1], "hour": [2], "x": [3]}}
"""
    # These functions are in separate files, since their packages are slow to import.
    pandas = f"""{head}
import pandas as pd
@udtf("pandas" + DECLARED, vectorized=True)
def pandas(flights: pd.DataFrame):
    late = flights[flights["delay"] > 60].copy()
    late["hours"] = late["delay"] / 64
    return late
"""
    polars = f"""{head}
import polars as pl
@udtf("polars" + DECLARED, vectorized=True)
def polars(flights: pl.DataFrame):
    return flights.filter(pl.col("delay") > 60).select("id", hours=pl.col("delay") / 64)
"""
    for name in ("batch", "table", "columns"):
        assert mapped(text, FLIGHTS, f":{name}") == LATE_FLIGHTS, name
    assert mapped(pandas, FLIGHTS) == LATE_FLIGHTS
    assert mapped(polars, FLIGHTS) == LATE_FLIGHTS
    assert mapped(text, FLIGHTS, ":none") == []
    with pytest.raises(
        RuntimeError,
        match=r"other, batch 1: ValueError: yielded the columns id, hour, x, where those .* id, hours",
    ):
        mapped(text, FLIGHTS, ":other")


def test_columns_are_found_by_name_and_cast(mapped: Mapped) -> None:
    text = """
@udtf("same(rows TABLE(a BIGINT, B VARCHAR, c DECIMAL(9,2), d DATE)) -> TABLE(a BIGINT, b VARCHAR, c DECIMAL(9,2), d DATE)")
def same(rows):
    return rows
"""
    day = datetime.date(2026, 11, 24)
    given = pa.table(
        {
            "D": [day],
            "c": pa.array([7], pa.int8()),
            "x": [object.__name__],
            "b": pa.array(["x"]).dictionary_encode(),
            "A": pa.array([1], pa.uint8()),
        }
    )
    row = {"a": 1, "b": "x", "c": decimal.Decimal("7.00"), "d": day}
    assert mapped(text, given) == [row]
    relation = duckdb.connect().sql("SELECT 1::UTINYINT AS a, 'x' AS b, 7.001 AS c, DATE '2026-11-24' AS d")
    assert mapped(text, relation) == [row]
    with pytest.raises(ValueError, match="the input has no column a, c; it has b, D"):
        mapped(text, given.select(["b", "D"]))
    with pytest.raises(ValueError, match=r"column a: .*one"):
        mapped(text, given.set_column(4, "a", pa.array(["one"])))
    with pytest.raises(ValueError, match="2 columns B"):
        mapped(text, given.append_column("b", pa.array(["y"])))
    with pytest.raises(TypeError, match="column d: int64 where DATE is due"):
        mapped(text, given.set_column(0, "d", pa.array([1])))


def test_values_of_all_kinds(mapped: Mapped) -> None:
    columns = "e ENUM('a', 'b'), u UUID, l INTEGER[], s STRUCT(x BIGINT, y VARCHAR), h HUGEINT, t TIMESTAMPTZ, b BLOB, m MAP(VARCHAR, INTEGER)"
    text = f"""
@udtf("rows(rows TABLE({columns})) -> TABLE({columns})")
def rows(rows):
    return rows
@udtf("batches(rows TABLE({columns})) -> TABLE({columns})", vectorized=True)
def batches(rows):
    return rows
"""
    key = uuid.UUID(int=7)
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    given = con.sql(f"""
        SELECT 'b'::ENUM('a', 'b') AS e, '{key}'::UUID AS u, [1, NULL] AS l, {{x: 1, y: 'z'}} AS s, 2::HUGEINT ** 100 AS h,
            TIMESTAMPTZ '2026-11-24 01:02:03+00' AS t, 'x'::BLOB AS b, MAP {{'k': 1}} AS m
        UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    """).to_arrow_table()
    expected = [
        {
            "e": "b",
            "u": key.bytes,
            "l": [1, None],
            "s": {"x": 1, "y": "z"},
            "h": 2**100,
            "t": datetime.datetime(2026, 11, 24, 1, 2, 3, tzinfo=datetime.UTC),
            "b": b"x",
            "m": [("k", 1)],
        },
        dict.fromkeys("eulshtbm"),
    ]
    given = given.set_column(4, "h", pa.array([2**100, None], pa.decimal256(39, 0)))
    for name in ("rows", "batches"):
        assert mapped(text, given, f":{name}") == expected, name


def test_an_error_is_of_a_row_or_of_its_batch(mapped: Mapped) -> None:
    text = """
DECLARED = "(rows TABLE(n BIGINT)) -> TABLE(n BIGINT, half DOUBLE)"
def halves(rows):
    for row in rows:
        yield (row.n, row.n / 2) if row.n % 3 else ValueError(f"no {row.n}")
@udtf("strict" + DECLARED)
def strict(rows):
    yield from halves(rows)
@udtf("lenient" + DECLARED, on_error="null")
def lenient(rows):
    yield from halves(rows)
@udtf("raising" + DECLARED, on_error="null")
def raising(rows):
    for row in rows:
        yield row.n, 1 / (row.n - 2)
"""
    batches = [{"n": [1, 2]}, {"n": [3, 4]}]
    with pytest.raises(RuntimeError, match="strict, batch 2: ValueError: no 3"):
        mapped(text, batches, ":strict")
    none = {"n": None, "half": None}
    assert mapped(text, batches, ":lenient") == [
        {"n": 1, "half": 0.5},
        {"n": 2, "half": 1.0},
        none,
        {"n": 4, "half": 2.0},
    ]
    # After an exception, the batch has no more results.
    assert [row["n"] for row in mapped(text, batches, ":raising")] == [1, 3, 4]


def test_a_batch_that_failed_is_tried_again_without_the_rows_that_were_taken(
    mapped: Mapped, tmp_path: Path
) -> None:
    text = f"""
@udtf("dies(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)", retries=1)
def dies(rows):
    for row in rows:
        if row.n == 30_000:
            try:
                os.close(os.open({str(tmp_path / "once")!r}, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os._exit(7)
        yield row.n
"""
    assert [row["n"] for row in mapped(text, {"n": list(range(60_000))})] == list(range(60_000))
    with pytest.raises(RuntimeError, match=r"dies, batch 1: .*exit code 7"):
        mapped(text.replace(", retries=1", "").replace("once", "again"), {"n": [30_000]})


def test_limits(mapped: Mapped) -> None:
    text = """
@udtf("hangs(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)", timeout=0.3)
def hangs(rows):
    yield 1
    time.sleep(60)
@udtf("slow(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)", timeout=0.5)
def slow(rows):
    for n in range(8):
        time.sleep(0.1)
        yield n
@udtf("large(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)", memory_limit="64 MB")
def large(rows):
    yield len(bytearray(1 << 30))
"""
    with pytest.raises(TimeoutError, match="hangs, batch 1"):
        mapped(text, {"n": [1]}, ":hangs")
    # Each row is progress, so the timeout begins again.
    assert [row["n"] for row in mapped(text, {"n": [1]}, ":slow")] == list(range(8))
    with pytest.raises(RuntimeError, match="MemoryError"):
        mapped(text, {"n": [1]}, ":large")


def test_errors_name_the_row_of_the_results(mapped: Mapped) -> None:
    text = """
@udtf("yields(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)", timeout=0.5)
def yields(rows):
    for i in range(5000):
        if i == 4000:
            if rows[0].n == 1:
                yield "none"
            elif rows[0].n == 2:
                os._exit(3)
            else:
                time.sleep(60)
        yield i
@udtf("times(rows TABLE(n BIGINT)) -> TABLE(t TIME)", vectorized=True)
def times(rows):
    values = [0] * 100_000
    values[70_000] = 10**12
    yield {"t": pa.array(values, pa.int64()).view(pa.time64("us"))}
"""
    for n, what in [(1, "'none' where BIGINT is due"), (2, "exit code 3"), (3, "timed out after 0.5 s")]:
        with pytest.raises((RuntimeError, TimeoutError), match=what) as raised:
            mapped(ARROW + text, {"n": [n]}, ":yields")
        assert str(raised.value).endswith("\n  in row 4001 of its results")
    with pytest.raises(RuntimeError, match="which does not fit TIME, in row 70001"):
        mapped(ARROW + text, {"n": [1]}, ":times")


def test_a_stateful_function(mapped: Mapped, tmp_path: Path) -> None:
    text = f"""
@udtf("tagged(rows TABLE(n BIGINT)) -> TABLE(n BIGINT, pid BIGINT, calls BIGINT)")
class Tagged:
    def __init__(self):
        self.pid, self.calls = os.getpid(), 0
    def __call__(self, rows):
        self.calls += 1
        return [(row.n, self.pid, self.calls) for row in rows]
    def close(self):
        open({str(tmp_path)!r} + f"/closed{{self.pid}}", "w").close()
"""
    got = mapped(text, [{"n": [n]} for n in range(20)], lanes=1)
    assert [row["n"] for row in got] == list(range(20))
    assert len({row["pid"] for row in got}) == 1
    assert [row["calls"] for row in got] == list(range(1, 21))


def test_long_results_stream_through(mapped: Mapped) -> None:
    text = """
@udtf("many(rows TABLE(n BIGINT)) -> TABLE(n BIGINT, s VARCHAR)")
def many(rows):
    for n in range(200_000):
        yield n, "x" * 20
@udtf("wide(rows TABLE(n BIGINT)) -> TABLE(s VARCHAR)", vectorized=True)
def wide(rows):
    yield {"s": ["x" * 100_000] * 200}
    yield pa.table({"s": pa.array(["y" * 1000] * 20_000)})
"""
    rows = mapped(ARROW + text, {"n": [1]}, ":many")
    assert [row["n"] for row in rows] == list(range(200_000))
    rows = mapped(ARROW + text, {"n": [1]}, ":wide")
    assert [len(row["s"]) for row in rows] == [100_000] * 200 + [1000] * 20_000  # type: ignore[arg-type]


def test_declared_functions_of_the_program() -> None:
    class Out(NamedTuple):
        n: int

    @udtf("odd(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
    def odd(numbers: list[Out]) -> Iterator[Out]:
        return (Out(row.n) for row in numbers if row.n % 2)

    stream = crosslane.map({"N": list(range(10))}, odd, lanes=1)
    assert stream.schema == pa.schema({"n": pa.int64()})
    assert pa.table(stream)["n"].to_pylist() == [1, 3, 5, 7, 9]
    # The mapping has not changed the function.
    assert list(odd([Out(1), Out(2)])) == [(1,)]

    @udtf("counted(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
    class Counted:
        def __init__(self) -> None:
            self.batches = 0

        def __call__(self, numbers: list[Out]) -> list[int]:
            self.batches += 1
            return [self.batches]

    stream = crosslane.map([{"n": [1]}, {"n": [2]}], Counted, lanes=1)
    assert pa.table(stream)["n"].to_pylist() == [1, 2]
    # `crosslane.map` calls a function that is declared as another kind like any callable.
    plain = crosslane.map({"n": [1, 2]}, udtf("f(n BIGINT) -> TABLE(n BIGINT)")(lambda batch: batch), lanes=1)
    assert pa.table(plain)["n"].to_pylist() == [1, 2]


def test_the_columns_of_the_results_are_known_from_the_start(mapped: Mapped, tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(HEAD + LATE)
    with crosslane.map(iter(()), file, lanes=1) as stream:
        assert stream.schema == pa.schema({"id": pa.int64(), "hours": pa.float64()})
        assert pa.table(stream).num_rows == 0


def test_a_file_without_the_function(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    scalar = '@udtf("n() -> TABLE(n BIGINT)")\ndef n(): yield 1\n'
    for text, name, what in [
        (LATE, ":early", "no stream function early; it has late"),
        (LATE + LATE.replace("late", "later"), "", "has the stream functions late, later; name one"),
        (scalar, "", "has no stream function$"),
        (scalar, ":late", "has no stream function late, and no other"),
        (scalar, ":n", r"n\(\) -> TABLE\(n BIGINT\) is no stream function: its parameter is no TABLE"),
    ]:
        file.write_text(HEAD + text)
        with pytest.raises(crosslane.DeclarationError, match=what):
            crosslane.map({"n": [1]}, f"{file}{name}")
    with pytest.raises(FileNotFoundError, match=r"no file .*functions\.py:x"):
        crosslane.map({"n": [1]}, f"{file}:x:late")
    file.write_text(HEAD + "1 / 0")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        crosslane.map({"n": [1]}, file)


def test_options_of_the_declaration_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(HEAD + LATE)
    for option in ({"retries": 1}, {"schema": pa.schema({"id": pa.int64()})}, {"timeout": 1}, {"name": "x"}):
        with pytest.raises(
            crosslane.DeclarationError, match=f"the option {next(iter(option))} belongs to the function's"
        ):
            crosslane.map(FLIGHTS, file, **option)  # type: ignore[arg-type]


TABLE = "f(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)"


@pytest.mark.parametrize(
    ("signature", "options", "parameters", "what"),
    [
        (
            "f(rows TABLE(n BIGINT), x BIGINT) -> TABLE(n BIGINT)",
            "",
            "rows, x",
            "no parameter beside a TABLE",
        ),
        (
            "f(x BIGINT, rows TABLE(n BIGINT)) -> TABLE(n BIGINT)",
            "",
            "x, rows",
            "as a function's only parameter",
        ),
        ("f(rows TABLE) -> TABLE(n BIGINT)", "", "rows", "the columns of both tables are declared"),
        ("f(rows TABLE(n BIGINT)) -> TABLE", "", "rows", r"ends with -> TABLE\(column TYPE"),
        ("f(rows TABLE(n BIGINT)) -> BIGINT", "", "rows", "expected TABLE"),
        (TABLE, "", "rows=None", "one parameter, which has no default; its parameters are rows=None"),
        (TABLE, "", "rows, *, wanted", "its parameters are rows, wanted"),
        (TABLE, "", "*rows", "its parameters are \\*rows"),
        (TABLE, "", "", "its parameters are none"),
        (TABLE, ", partitions=list", "rows", "takes a table, and so has no option partitions"),
        (TABLE, ", cardinality=7", "rows", "takes a table, and so has no option cardinality"),
        (TABLE, ", nulls='call'", "rows", "takes a table, and so has no option nulls"),
    ],
)
def test_declarations_that_cannot_work(
    tmp_path: Path, signature: str, options: str, parameters: str, what: str
) -> None:
    file = tmp_path / "functions.py"
    file.write_text(HEAD + f'@udtf("{signature}"{options})\ndef f({parameters}): yield 1\n')
    with pytest.raises(RuntimeError, match=what):
        crosslane.map({"n": [1]}, file)


def test_a_stream_function_is_no_other_function(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    for word in ("udf", "udaf"):
        body = (
            "def f(rows): return 1"
            if word == "udf"
            else (
                "class F:\n  def update(self, rows): pass\n  def merge(self, other): pass\n  def finish(self): return 1"
            )
        )
        file.write_text(f'from crosslane import {word}\n@{word}("{TABLE}")\n{body}\n')
        with pytest.raises(RuntimeError, match="decorate it with udtf"):
            crosslane.map({"n": [1]}, file)
    file.write_text(HEAD + f'@udtf("{TABLE}")\nasync def f(rows): pass\n')
    with pytest.raises(RuntimeError, match="cannot be async"):
        crosslane.map({"n": [1]}, file)


def test_the_command_line_shows_it(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(HEAD + LATE)
    command = [sys.executable, "-m", "crosslane._cli", "check", str(file)]
    shown = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=True
    ).stdout
    assert "late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, hours DOUBLE)" in shown
    assert "stream" in shown


#: The same function in each language: it returns late flights, and raises an error for a flight without a
#: delay.
IN_EACH = {
    "js": """
udtf("late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, hours DOUBLE)", function* (flights) {
  for (const { id, delay } of flights) if (delay > 60) yield [id, delay / 64];
});
udtf("lenient(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT)", { on_error: "null" }, function* (flights) {
  for (const { id, delay } of flights) yield delay === null ? new Error("no delay") : { id };
});
udtf("columns(flights TABLE(id BIGINT)) -> TABLE(flights BIGINT)", { vectorized: true }, ({ id }) => [[[id.length]]]);
udf("other(n BIGINT) -> BIGINT", (n) => n);
""",
    "rb": """
udtf "late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, hours DOUBLE)" do |flights|
  flights.select { |flight| flight.delay.to_i > 60 }.map { |flight| [flight.id, flight.delay / 64.0] }
end
udtf "lenient(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT)", on_error: "null" do |flights|
  flights.map { |flight| flight.delay.nil? ? RuntimeError.new("no delay") : { id: flight.id } }
end
udtf "columns(flights TABLE(id BIGINT)) -> TABLE(flights BIGINT)", vectorized: true do |flights|
  [[[flights[:id].size]]]
end
udf("other(n BIGINT) -> BIGINT") { |n| n }
""",
}


@pytest.mark.parametrize("suffix", IN_EACH)
def test_files_of_other_languages(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"functions.{suffix}"
    file.write_text(IN_EACH[suffix])

    def made(function: str, **options: object) -> list[dict[str, object]]:
        with crosslane.map(FLIGHTS, f"{file}:{function}", lanes=2, **options) as stream:  # type: ignore[arg-type]
            return [row for batch in stream for row in batch.to_pylist()]

    assert made("late") == LATE_FLIGHTS
    unordered = made("LATE", ordered=False)
    assert sorted(unordered, key=lambda row: row["id"]) == LATE_FLIGHTS  # type: ignore[arg-type, return-value]
    assert [row["id"] for row in made("lenient")] == [n if n % 10 else None for n in range(100_000)]
    assert sum(row["flights"] for row in made("columns")) == 100_000  # type: ignore[misc]
    with pytest.raises(ValueError, match="the input has no column delay; it has id"):
        list(crosslane.map(FLIGHTS.select(["id"]), f"{file}:late"))
    with pytest.raises(
        crosslane.DeclarationError, match="has the stream functions late, lenient, columns; name one"
    ):
        crosslane.map(FLIGHTS, file)
    with pytest.raises(
        crosslane.DeclarationError, match=r"other\(n BIGINT\) -> BIGINT is no stream function"
    ):
        crosslane.map(FLIGHTS, f"{file}:other")
