"""Stream functions of JavaScript and Ruby files."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import crosslane
from crosslane._client.stream import MappedStream

from ..conftest import Load, printed
from ..languages.test_ruby import why_refused

pytestmark = pytest.mark.any_duckdb

SIGNATURE = "f(rows TABLE(n BIGINT, s VARCHAR)) -> TABLE(m BIGINT, t VARCHAR)"

Stream = Callable[..., MappedStream]


@pytest.fixture(params=["js", "rb"])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stream(tmp_path: Path, language: str) -> Stream:
    """Maps a stream through a function. The arguments have its text in each language."""

    def of(
        reader: object,
        *,
        js: str,
        rb: str,
        signature: str = SIGNATURE,
        options: dict[str, object] | None = None,
        **how: object,
    ) -> MappedStream:
        path = tmp_path / f"functions.{language}"
        path.write_text(declared(language, signature, {"js": js, "rb": rb}[language], options or {}))
        return crosslane.map(reader, str(path), **how)  # type: ignore[arg-type]

    return of


def declared(language: str, signature: str, function: str, options: dict[str, object]) -> str:
    given = ", ".join(f"{name}: {json.dumps(value)}" for name, value in options.items())
    if language == "js":
        return f"udtf({signature!r}, {{ {given} }}, {function});\n"
    head = f"udtf({', '.join(filter(None, [repr(signature), given]))})"
    return f"{head} {{ {function} }}\n"


def numbers(count: int, rows: int = 1000) -> Iterator[pa.RecordBatch]:
    for start in range(0, count * rows, rows):
        values = range(start, start + rows)
        yield pa.record_batch(
            {"s": [f"s{value}" for value in values], "n": pa.array(values, pa.int64()), "x": [1.5] * rows}
        )


#: A function that returns odd numbers and their texts.
ODD = {
    "js": "function* (rows) { for (const { n, s } of rows) if (n % 2) yield [n, s]; }",
    "rb": "|rows| rows.select { |row| row.n.odd? }.map { |row| [row[:n], row.s] }",
}
ODD_COLUMNS = {
    "js": """({ n, s }) => {
      const odd = s.filter((_, at) => n[at] % 2 === 1);
      return { t: odd, m: Array.from(odd, (text) => Number(text.slice(1))) };
    }""",
    "rb": """|rows|
      odd = rows[:n].each_index.select { |at| rows[:n][at].odd? }
      { m: rows[:n].values_at(*odd), t: rows[:s].values_at(*odd) }""",
}


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("how", [{}, {"lanes": 1, "depth": 1}, {"lanes": 3, "depth": 5}, {"ordered": False}])
def test_rows_and_columns(stream: Stream, vectorized: bool, how: dict[str, object]) -> None:
    texts = ODD_COLUMNS if vectorized else ODD
    results = pa.table(stream(numbers(20), **texts, options={"vectorized": vectorized}, **how))
    assert results.schema == pa.schema({"m": pa.int64(), "t": pa.string()})
    found = results["m"].to_pylist()
    assert (found if how.get("ordered", True) else sorted(found)) == list(range(1, 20_000, 2))
    assert results["t"].to_pylist() == [f"s{number}" for number in found]


def test_what_functions_give(stream: Stream) -> None:
    """A function returns nothing, an iterable, a generator, rows of every shape, or several batches."""
    signature = "f(rows TABLE(n BIGINT)) -> TABLE(m BIGINT)"
    shapes = {
        "() => {}": ("|_| nil", False, []),
        "(rows) => new Set([1, [2], { m: 3 }, null])": (
            "|_| [1, [2], { m: 3 }, nil]",
            False,
            [1, 2, 3, None],
        ),
        "(rows) => rows.map(({ n }) => n)": ("|rows| rows.map(&:n)", False, [7]),
        "function* () { yield* [1, 2]; }": ("|_| [1, 2].lazy", False, [1, 2]),
        "function* () { yield [[1]]; yield { m: [2, 3] }; yield [[]]; }": (
            "|_| [[[1]], { m: [2, 3] }, [[]]]",
            True,
            [1, 2, 3],
        ),
        "() => ({ m: new BigInt64Array([1n, 2n]) })": ("|_| { 'm' => 1..2 }", True, [1, 2]),
        "() => null": ("|_| nil", True, []),
    }
    for js, (rb, vectorized, expected) in shapes.items():
        mapped = stream(
            pa.table({"n": [7]}), js=js, rb=rb, signature=signature, options={"vectorized": vectorized}
        )
        assert pa.table(mapped)["m"].to_pylist() == expected, js


def test_nulls_and_types(stream: Stream) -> None:
    table = pa.table(
        {"N": pa.array([1, None, 3], pa.int32()), "s": ["a", None, ""], "l": [[1, None], None, []]}
    )
    signature = "f(rows TABLE(n BIGINT, s VARCHAR, l INTEGER[])) -> TABLE(n BIGINT, s VARCHAR, l INTEGER[])"
    for vectorized in (False, True):
        results = pa.table(
            stream(
                table,
                js="(rows) => rows",
                rb="|rows| rows",
                signature=signature,
                options={"vectorized": vectorized},
            )
        )
        assert results.to_pydict() == {"n": [1, None, 3], "s": ["a", None, ""], "l": [[1, None], None, []]}


def test_many_rows_for_one(stream: Stream) -> None:
    """A function returns its rows in batches while the engine takes others. Memory is constant, and rows that
    no reader takes are not made."""
    mapped = stream(
        pa.table({"n": range(6)}),
        js="function* (rows) { for (let i = 0; i < 100_000; i++) yield rows[0].n * 100_000 + i; }",
        rb="|rows| (0...100_000).lazy.map { |i| rows[0].n * 100_000 + i }",
        signature="f(rows TABLE(n BIGINT)) -> TABLE(m BIGINT)",
        lanes=2,
    )
    batches = [batch["m"].to_pylist() for batch in mapped]
    assert max(map(len, batches)) == 2048
    assert list(itertools.chain(*batches)) == list(range(100_000)), "one batch of six rows"


def test_an_endless_answer_ends_when_it_is_not_wanted(
    stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    """The ring has more batches, and the function does not begin them."""
    mapped = stream(
        numbers(50, rows=10),
        js="""function* (rows) {
          console.log(`begun at ${rows[0].n}`);
          while (true) yield [1, 'x'.repeat(100)];
        }""",
        rb="""|rows|
          puts "begun at #{rows[0].n}"
          Enumerator.produce([1, 'x' * 100]) { |row| row }""",
        lanes=1,
        depth=4,
    )
    with mapped:
        assert next(mapped).num_rows > 0
        log = printed(capfd, "begun at 0")
    assert log.count("begun") == 1, log


def test_errors(stream: Stream) -> None:
    """An error names the batch. The reader gets the rows before the error."""
    mapped = stream(
        numbers(5, rows=10),
        js="function* (rows) { for (const { n } of rows) { if (n === 25) throw new TypeError('no 25'); yield [n, null]; } }",
        rb="|rows| Enumerator.new { |out| rows.each { |row| row.n == 25 ? raise(TypeError, 'no 25') : out << [row.n, nil] } }",
    )
    found: list[int] = []
    with pytest.raises(RuntimeError, match=r"f, batch 3: TypeError: no 25") as raised:
        for batch in mapped:
            found += batch["m"].to_pylist()
    assert found == list(range(25))
    assert "functions." in str(raised.value), "the place in the file"
    assert "in row 6 of its results" in str(raised.value)
    mapped = stream(numbers(1), js="() => 5", rb="|_| 5")
    with pytest.raises(
        RuntimeError, match=r"TypeError: (returned 5 where rows are due|the block returned Integer)"
    ):
        list(mapped)


def test_on_error(stream: Stream) -> None:
    mapped = stream(
        numbers(3, rows=10),
        js="""function* (rows) {
          for (const { n } of rows) {
            if (n === 14) throw new Error('over');
            yield n === 2 ? new Error('one row') : n === 3 ? ['three', 's'] : [n, 's'];
          }
        }""",
        rb="""|rows|
          Enumerator.new do |out|
            rows.each do |row|
              raise "over" if row.n == 14
              out << (row.n == 2 ? RuntimeError.new("one row") : [row.n == 3 ? "three" : row.n, "s"])
            end
          end""",
        options={"on_error": "null"},
    )
    results = pa.table(mapped).to_pydict()
    assert results["m"] == [0, 1, None, None, *range(4, 14), *range(20, 30)]
    assert results["t"][:5] == ["s", "s", None, None, "s"]
    mapped = stream(
        numbers(1),
        js="function* (rows) { yield new RangeError('one row'); }",
        rb="|_| [RangeError.new('one row')]",
    )
    with pytest.raises(RuntimeError, match=r"f, batch 1: RangeError: one row"):
        list(mapped)


def test_retries(stream: Stream, tmp_path: Path) -> None:
    """A retry does not repeat the rows that were taken. In JavaScript, each worker fails once."""
    marker = tmp_path / "marker"
    mapped = stream(
        numbers(4, rows=10),
        js="""(() => {
          let tries = 0;
          return function* (rows) {
            yield [rows[0].n, null];
            if (rows[0].n === 20 && tries++ === 0) throw new Error('once');
            yield [rows[1].n, null];
          };
        })()""",
        rb=f"""|rows|
          Enumerator.new do |out|
            out << [rows[0].n, nil]
            if rows[0].n == 20 && !File.exist?("{marker}")
              File.write("{marker}", "")
              exit!(3)
            end
            out << [rows[1].n, nil]
          end""",
        options={"retries": 5},
        lanes=1,
    )
    assert pa.table(mapped)["m"].to_pylist() == [0, 1, 10, 11, 20, 21, 30, 31]


UNPREPARED = {
    "py": """from crosslane import udtf
@udtf("f(t TABLE(n BIGINT)) -> TABLE(m BIGINT)", on_error="null", retries=2, vectorized={vectorized})
class F:
    def __init__(self):
        print("prepares")
        raise ValueError("no model")
    def __call__(self, rows):
        return None
""",
    "js": """udtf("f(t TABLE(n BIGINT)) -> TABLE(m BIGINT)", {{ on_error: "null", retries: 2, vectorized: {vectorized} }}, class {{
  constructor() {{ console.log("prepares"); throw new Error("no model"); }}
  call(rows) {{ return null; }}
}});
""",
    "rb": """prepares = lambda do
  puts "prepares"
  raise "no model"
end
udtf "f(t TABLE(n BIGINT)) -> TABLE(m BIGINT)", on_error: :null, retries: 2, vectorized: {vectorized}, setup: prepares do |_, rows|
end
""",
}


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("suffix", UNPREPARED)
def test_a_set_up_that_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], suffix: str, vectorized: bool
) -> None:
    """`retries` and `on_error` do not count for a set-up, because no row was begun."""
    path = tmp_path / f"functions.{suffix}"
    shown = str(vectorized) if suffix == "py" else str(vectorized).lower()
    path.write_text(UNPREPARED[suffix].format(vectorized=shown))
    with pytest.raises(RuntimeError, match=r"f, batch 1: .*no model\n  in the set-up of f") as raised:
        list(crosslane.map(numbers(1), str(path), lanes=1))
    assert "of its results" not in str(raised.value)
    # The first set-up was for the new lane, and the second for the batch.
    assert printed(capfd, "prepares").count("prepares") == 2


def test_timeout(stream: Stream) -> None:
    """The timeout is the time without a row. A function that yields rows is not late, however many batches
    wait."""
    mapped = stream(
        numbers(4, rows=5),
        js="""async function* (rows) {
          for (const { n } of rows) {
            await new Promise((done) => setTimeout(done, n === 12 ? 60_000 : 60));
            yield [n, null];
          }
        }""",
        rb="|rows| rows.lazy.map { |row| sleep(row.n == 12 ? 60 : 0.06); [row.n, nil] }",
        options={"timeout": 0.5},
        lanes=1,
        depth=4,
    )
    found: list[int] = []
    error = (TimeoutError, RuntimeError)
    with pytest.raises(error, match=r"batch 3.*(0.5 s|timed out|timeout)") as raised:
        for batch in mapped:
            found += batch["m"].to_pylist()
    assert found == list(range(12)), raised.value


def test_memory_limit(stream: Stream) -> None:
    mapped = stream(
        numbers(3, rows=10),
        js="(rows) => { if (rows[0].n === 10) { const all = []; while (true) all.push(new Array(1000).fill(1)); } return []; }",
        rb="|rows| rows[0].n == 10 ? Array.new(10) { 'x' * 50_000_000 }.map { |text| [0, text] } : []",
        options={"memory_limit": "100 MB"},
        lanes=1,
    )
    with pytest.raises(RuntimeError, match=r"f, batch 2: (RangeError|NoMemoryError)"):
        list(mapped)


#: Options and signatures that are refused, and the errors.
REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"partitions": True}, SIGNATURE, "partitions"),
    ({"cardinality": 5}, SIGNATURE, "cardinality"),
    ({"projection": True}, SIGNATURE, "projection"),
    ({"concurrency": 2}, SIGNATURE, "concurrency"),
    ({}, "f(rows TABLE(n BIGINT), x BIGINT) -> TABLE(m BIGINT)", "no parameter beside a TABLE"),
    ({}, "f(rows TABLE) -> TABLE(m BIGINT)", "columns of both tables are declared"),
    ({}, "f(rows TABLE(n BIGINT)) -> TABLE", "columns of both tables are declared"),
    ({}, "f(rows TABLE(n BIGINT)) -> BIGINT", "TABLE"),
]


def test_what_cannot_be_declared(
    stream: Stream, language: str, ruby: Load, subtests: pytest.Subtests
) -> None:
    # Ruby takes long to start, so one process tries all declarations except one.
    tried = REFUSED[1:] if language == "rb" else []
    for options, signature, what in REFUSED[: len(REFUSED) - len(tried)]:
        with subtests.test(f"{options} {signature}"), pytest.raises(RuntimeError, match=what):
            stream(numbers(1), js="() => null", rb="|rows| nil", options=options, signature=signature)
    texts = [declared(language, signature, "|rows| nil", options) for options, signature, _ in tried]
    for (options, signature, what), why in zip(tried, why_refused(ruby, texts) if texts else [], strict=True):
        with subtests.test(f"{options} {signature}"):
            assert "DeclarationError" in why
            assert what in why


def test_a_slow_reader_of_results_holds_back_the_function(stream: Stream) -> None:
    """The rings are full, the workers wait, and the engine reads no more input."""
    taken = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in numbers(1000, rows=100):
            taken += 1
            yield batch

    mapped = stream(
        counted(),
        js="function* (rows) { for (const { n } of rows) yield [n, 'x'.repeat(20_000)]; }",
        rb="|rows| rows.lazy.map { |row| [row.n, 'x' * 20_000] }",
        lanes=2,
        depth=2,
    )
    with mapped:
        rows = next(mapped).num_rows
        time.sleep(0.3)
        # The second worker may not have started yet.
        assert rows <= 100
        assert taken <= 4


def test_streams_of_threads(stream: Stream) -> None:
    """Several threads use streams of one file at the same time."""
    mapped = [stream(numbers(10), **ODD, lanes=1) for _ in range(3)]
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda one=one: counts.append(pa.table(one).num_rows)) for one in mapped
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [5000] * 3
