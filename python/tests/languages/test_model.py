"""Functions of all languages and kinds on random rows. A model gives the expected answer to each query.

A function gets a number that determines the outcome of its row. It answers with the number of its calls for
that row, so the test compares that number, too. A failure is shown with its seed. `CROSSLANE_SEED=... make
test` (or pytest) repeats the run. `CROSSLANE_QUERIES=...` runs more queries than usual.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import crosslane

from ..conftest import CPUS

pytestmark = pytest.mark.any_duckdb

SEED = int(os.environ.get("CROSSLANE_SEED", random.SystemRandom().randrange(10**9)))
QUERIES = int(os.environ.get("CROSSLANE_QUERIES", "40"))
#: Functions of each language.
FUNCTIONS = 24

#: A row's outcome: a result, an exception, an exception at the first call only, NULL, or a wrong type at
#: the first call only.
FINE, FAILS, FAILS_FIRST, GIVES_NULL, WRONG_FIRST = range(5)
#: A row's number is KINDS times its key, plus the outcome of the row.
KINDS = 8
TYPES: dict[str, Callable[[int], Any]] = {
    "BIGINT": lambda value: value,
    "DOUBLE": float,
    "VARCHAR": str,
    "BIGINT[]": lambda value: [value, None, value],
}
SIZES = (0, 1, 2, 7, 20, 63, 64, 65, 300, 2047, 2048, 2049, 5000)


@dataclass(frozen=True)
class Spec:
    """A function."""

    language: str
    name: str
    kind: str
    concurrency: int
    retries: int
    on_error: str
    nulls: str
    returns: str
    #: Whether it has a second parameter, a text that the function does not use.
    text: bool

    @property
    def signature(self) -> str:
        return f"{self.name}(v BIGINT{', w VARCHAR' if self.text else ''}) -> {self.returns}"


LANGUAGES = {
    "python": ("row", "vectorized", "async"),
    "python-thread": ("row", "vectorized", "async"),
    "javascript": ("row", "vectorized", "async", "promise", "sometimes", "vectorized async"),
    "ruby": ("row", "vectorized", "threads"),
}


def specs(language: str) -> list[Spec]:
    choose = random.Random(f"{SEED} {language}")
    return [
        Spec(
            language=language,
            name=f"f{index}",
            # The functions of a language have all of its kinds.
            kind=LANGUAGES[language][index % len(LANGUAGES[language])],
            concurrency=choose.choice((1, 2, 4, 16)),
            retries=choose.choice((0, 0, 1, 2)),
            on_error=choose.choice(("fail", "null", "null")),
            nulls=choose.choice(("skip", "call")),
            returns=choose.choice(list(TYPES)),
            text=choose.random() < 0.5,
        )
        for index in range(FUNCTIONS)
    ]


# ---- the functions, in each language

PYTHON = """
import asyncio
from crosslane import udf
counts = {}
def behave(v, make):
    if v is None:
        return make(-1)
    key, how = divmod(v, 8)
    n = counts[key] = counts.get(key, 0) + 1
    if how == 1 or (how == 2 and n < 2):
        raise ValueError("as asked for")
    if how == 3:
        return None
    return object() if how == 4 and n < 2 else make(10 * key + n)
def all_of(vs, make, skips):
    # Each row is counted before the batch fails.
    out, failed = [], None
    for v in vs:
        try:
            out.append(None if v is None and skips else behave(v, make))
        except ValueError as error:
            failed = error
    if failed:
        raise failed
    return out
"""
PYTHON_MAKE = {
    "BIGINT": "lambda x: x",
    "DOUBLE": "float",
    "VARCHAR": "str",
    "BIGINT[]": "lambda x: [x, None, x]",
}


def python(spec: Spec) -> str:
    options = f"nulls={spec.nulls!r}, retries={spec.retries}, on_error={spec.on_error!r}, deterministic=False"
    parameters = "v, w" if spec.text else "v"
    make = PYTHON_MAKE[spec.returns]
    if spec.kind == "vectorized":
        options += ", vectorized=True"
        body = (
            f"    out = all_of(v.to_pylist(), {make}, {spec.nulls == 'skip'})\n"
            f"    return pa.array(out, {ARROW[spec.returns]})"
        )
        return f"import pyarrow as pa\n@udf({spec.signature!r}, {options})\ndef {spec.name}({parameters}):\n{body}"
    if spec.kind == "async":
        options += f", concurrency={spec.concurrency}"
        body = f"    await asyncio.sleep((v or 0) * 7 % 3 / 1000)\n    return behave(v, {make})"
        return f"@udf({spec.signature!r}, {options})\nasync def {spec.name}({parameters}):\n{body}"
    return f"@udf({spec.signature!r}, {options})\ndef {spec.name}({parameters}): return behave(v, {make})"


ARROW = {
    "BIGINT": "pa.int64()",
    "DOUBLE": "pa.float64()",
    "VARCHAR": "pa.string()",
    "BIGINT[]": "pa.list_(pa.int64())",
}

JAVASCRIPT = """
const counts = new Map();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
function behave(v, make) {
  if (v === null) return make(-1);
  const key = Math.floor(v / 8), how = v % 8;
  const n = (counts.get(key) ?? 0) + 1;
  counts.set(key, n);
  if (how === 1 || (how === 2 && n < 2)) throw new TypeError("as asked for");
  if (how === 3) return null;
  return how === 4 && n < 2 ? { wrong: 1 } : make(10 * key + n);
}
function allOf(vs, make) {
  let failed;
  const out = Array.from(vs, (v) => {
    try { return behave(v, make); } catch (error) { failed = error; }
  });
  if (failed) throw failed;
  return out;
}
async function waits(v, make) {
  await (v % 2 ? sleep((v * 7) % 3) : null);
  return behave(v, make);
}
"""
JAVASCRIPT_MAKE = {
    "BIGINT": "(x) => x",
    "DOUBLE": "(x) => x",
    "VARCHAR": "String",
    "BIGINT[]": "(x) => [x, null, x]",
}


def javascript(spec: Spec) -> str:
    options: dict[str, Any] = {"nulls": spec.nulls, "retries": spec.retries, "on_error": spec.on_error}
    options |= {"deterministic": False, "vectorized": "vectorized" in spec.kind}
    if spec.kind in ("async", "promise", "sometimes"):
        options["concurrency"] = spec.concurrency
    make = JAVASCRIPT_MAKE[spec.returns]
    body = {
        "row": f"(v) => behave(v, {make})",
        "vectorized": f"(vs) => allOf(vs, {make})",
        "vectorized async": f"async (vs) => {{ await sleep(1); return allOf(vs, {make}); }}",
        "async": f"async (v) => await waits(v, {make})",
        "promise": f"(v) => waits(v, {make})",
        "sometimes": f"(v) => v % 24 < 8 ? waits(v, {make}) : behave(v, {make})",
    }[spec.kind]
    return f"udf({json.dumps(spec.signature)}, {json.dumps(options)}, {body});"


RUBY = """
COUNTS = Hash.new(0)
def behave(v)
  return yield(-1) if v.nil?
  key, how = v.divmod(8)
  n = COUNTS[key] += 1
  raise ArgumentError, "as asked for" if how == 1 || (how == 2 && n < 2)
  return nil if how == 3
  how == 4 && n < 2 ? Object.new : yield(10 * key + n)
end
def all_of(vs, &make)
  failed = nil
  out = vs.map { |v| behave(v, &make) rescue failed = $! }
  raise failed if failed
  out
end
"""
RUBY_MAKE = {"BIGINT": "x", "DOUBLE": "x.to_f", "VARCHAR": "x.to_s", "BIGINT[]": "[x, nil, x]"}


def ruby(spec: Spec) -> str:
    options = (
        f"nulls: :{spec.nulls}, retries: {spec.retries}, on_error: :{spec.on_error}, deterministic: false"
    )
    make = f"{{ |x| {RUBY_MAKE[spec.returns]} }}"
    call = f"behave(v) {make}"
    if spec.kind == "vectorized":
        options += ", vectorized: true"
        call = f"all_of(vs) {make}"
    elif spec.kind == "threads":
        options += f", concurrency: {spec.concurrency}"
        call = f"sleep(v.to_i * 7 % 3 / 1000.0); {call}"
    first = "vs" if spec.kind == "vectorized" else "v"
    parameters = f"{first}, w" if spec.text else first
    return f"udf {json.dumps(spec.signature)}, {options} do |{parameters}| {call} end"


SOURCES = {
    "python": (PYTHON, python, "py"),
    "javascript": (JAVASCRIPT, javascript, "js"),
    "ruby": (RUBY, ruby, "rb"),
}


def load(con: duckdb.DuckDBPyConnection, language: str, folder: Path) -> list[Spec]:
    """Loads the functions of a language."""
    declared = specs(language)
    if language == "python-thread":
        scope: dict[str, Any] = {"asyncio": asyncio, "pa": pa}
        exec(PYTHON + "\n".join(map(python, declared)), scope)
        for spec in declared:
            crosslane.register(con, scope[spec.name], lane="thread")
        return declared
    start, write, ending = SOURCES[language]
    path = folder / f"model.{ending}"
    path.write_text("\n".join([start, *map(write, declared)]))
    crosslane.load(con, path)
    return declared


# ---- the rows and their outcomes

Row = tuple["int | None", "str | None"]


def rows_of(spec: Spec, query: int, choose: random.Random) -> list[Row]:
    size = choose.choice(SIZES)
    nulls = choose.choice((0, 0, 0.1, 0.5, 1))
    if "vectorized" in spec.kind:
        # A batch fails as a whole, and the engine chooses the rows of a batch. So all rows fail, or none.
        failing = choose.choice((0, 0, size)) if size <= 300 else 0
        odd = choose.choice((FAILS, FAILS_FIRST))
        nulls = 0 if failing and spec.nulls == "call" else nulls
    else:
        # The test limits rows that are called again, because they take time.
        most = 300 if spec.retries == 0 else 12 if spec.kind not in ("row", "sometimes") else 3
        failing = min(most, int(size * choose.choice((0, 0.05, 0.3, 1))))
        odd = None
    culprits = set(choose.sample(range(size), failing))
    rows: list[Row] = []
    for index in range(size):
        how = choose.choice((FINE, FINE, FINE, GIVES_NULL))
        if index in culprits:
            how = choose.choice((FAILS, FAILS_FIRST, WRONG_FIRST)) if odd is None else odd
        v = None if choose.random() < nulls else ((query + 1) * 10_000 + index) * KINDS + how
        w = None if spec.text and choose.random() < nulls / 2 else "text"
        rows.append((v, w))
    return rows


@dataclass
class Expected:
    """The model's answer to a query."""

    values: list[Any]
    #: The rows that may end the query. One of them does.
    culprits: list[int]
    retries: int = 0


def expect(spec: Spec, rows: list[Row]) -> Expected:
    make = TYPES[spec.returns]
    expected = Expected([], [])
    for index, (v, w) in enumerate(rows):
        value = None
        if v is None or (spec.text and w is None):
            called = spec.nulls == "call"
            if called and v is None:
                value = make(-1)
            if v is None or not called:
                expected.values.append(value)
                continue
        key, how = divmod(v, KINDS)
        tries = 1
        if how in (FAILS_FIRST, WRONG_FIRST):
            tries = min(2, 1 + spec.retries)
        elif how == FAILS:
            tries = 1 + spec.retries
        expected.retries += tries - 1
        if how == FAILS or (how in (FAILS_FIRST, WRONG_FIRST) and tries < 2):
            expected.culprits.append(index)
        elif how != GIVES_NULL:
            value = make(10 * key + tries)
        expected.values.append(value)
    return expected


# ---- the comparison


@pytest.fixture(params=list(LANGUAGES))
def engine(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[Spec]]]:
    con = crosslane.connect(config={"threads": max(2, CPUS)})
    yield con, load(con, request.param, tmp_path)
    con.close()


def failure_counts(con: duckdb.DuckDBPyConnection, spec: Spec) -> tuple[int, int]:
    query = "SELECT errors, retries FROM crosslane_stats() WHERE function = ?"
    (found,) = con.execute(query, [spec.name]).fetchall() or [(0, 0)]
    return found


def check(con: duckdb.DuckDBPyConnection, spec: Spec, rows: list[Row]) -> None:
    """Compares a query with the model."""
    expected = expect(spec, rows)
    con.execute(
        "CREATE OR REPLACE TABLE model AS SELECT unnest($1::BIGINT[]) AS v, unnest($2::VARCHAR[]) AS w",
        [[v for v, _ in rows], [w for _, w in rows]],
    )
    before = failure_counts(con, spec)
    query = f"SELECT {spec.name}({'v, w' if spec.text else 'v'}) FROM model ORDER BY rowid"
    if expected.culprits and spec.on_error == "fail":
        with pytest.raises(duckdb.Error) as caught:
            con.execute(query).fetchall()
        if "vectorized" not in spec.kind:
            (blamed,) = re.findall(r"with v = (\d+)", str(caught.value))
            assert int(blamed) in [rows[index][0] for index in expected.culprits]
        return
    assert [value for (value,) in con.execute(query).fetchall()] == expected.values
    if "vectorized" not in spec.kind:
        after = failure_counts(con, spec)
        made = (after[0] - before[0], after[1] - before[1])
        assert made == (len(expected.culprits), expected.retries), "errors and retries"


def test_answers_are_those_of_the_model(engine: tuple[duckdb.DuckDBPyConnection, list[Spec]]) -> None:
    con, declared = engine
    for query in range(QUERIES):
        choose = random.Random(f"{SEED} {query}")
        spec = declared[query % len(declared)]
        rows = rows_of(spec, query, choose)
        try:
            check(con, spec, rows)
        except BaseException:
            print(f"CROSSLANE_SEED={SEED}, query {query}: {len(rows)} rows, {spec}")
            raise
