"""The language-neutral table of cases, for row and vectorized functions of each language on DuckDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "cases.json").read_text())
CASES = TABLE["cases"]
SMALL = [size for size in TABLE["sizes"] if size <= 1]
KINDS = {
    "python-row": "echo",
    "python-vectorized": "echo_columns",
    "js-row": "js_echo",
    "js-vectorized": "js_echo_columns",
    "ruby-row": "ruby_echo",
    "ruby-vectorized": "ruby_echo_columns",
}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else value["text"] * value["repeat"]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    lines = ["from crosslane import udf"]
    scripts = []
    blocks = []
    for index, case in enumerate(CASES):
        for name, option in (("echo", ""), ("echo_columns", ", vectorized=True")):
            signature = f"{name}_{index}(x {case['type']}) -> {case['type']}"
            lines.append(f"@udf({signature!r}{option})")
            lines.append(f"def {name}_{index}(x): return x")
        for name, option in (("js_echo", ""), ("js_echo_columns", ", vectorized: true")):
            signature = f"{name}_{index}(x {case['type']}) -> {case['type']}"
            scripts.append(f"udf({json.dumps(signature)}, {{ bigint: true{option} }}, (x) => x);")
        for name, option in (("ruby_echo", ""), ("ruby_echo_columns", ", vectorized: true")):
            signature = f"{name}_{index}(x {case['type']}) -> {case['type']}"
            blocks.append(f"udf {json.dumps(signature)}{option} do |x| x end")
    folder = tmp_path_factory.mktemp("conformance")
    paths = [folder / "echoes.py", folder / "echoes.js", folder / "echoes.rb"]
    for path, content in zip(paths, (lines, scripts, blocks)):
        path.write_text("\n".join(content))
    con = crosslane.connect(functions=paths, config={"threads": 2})
    con.execute("SET TimeZone = 'UTC'")
    yield con
    con.close()


def fill(
    con: duckdb.DuckDBPyConnection, case: dict[str, Any], size: int, pattern: str, values: list[str]
) -> None:
    null = {
        "none": "false",
        "all": "true",
        "first": "i = 0",
        "last": f"i = {size - 1}",
        "third": "i % 3 = 0",
    }[pattern]
    con.execute("CREATE OR REPLACE TEMP TABLE picks (n INTEGER, x " + case["type"] + ")")
    rows = ", ".join(f"({n}, CAST({quoted(text)} AS {case['type']}))" for n, text in enumerate(values))
    con.execute(f"INSERT INTO picks VALUES {rows}, (-1, NULL)")
    con.execute(
        # The NULL is one of the picks: DuckDB 1.5 has no CASE over arrays, and in 2.0.0 an outer join that
        # fills them up with NULLs corrupts memory.
        f"CREATE OR REPLACE TABLE data AS SELECT i, x FROM range({size}) r(i)"
        f" JOIN picks ON n = CASE WHEN {null} THEN -1 ELSE i % {len(values)} END ORDER BY i"
    )


def differences(con: duckdb.DuckDBPyConnection, function: str) -> list[tuple[Any, ...]]:
    return con.execute(
        f"SELECT x, y FROM (SELECT x, {function}(x) AS y FROM data)"
        " WHERE x::VARCHAR IS DISTINCT FROM y::VARCHAR OR (x IS NULL) <> (y IS NULL) LIMIT 3"
    ).fetchall()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case["type"][:40] for case in CASES])
def test_values_come_back_unchanged(engine: duckdb.DuckDBPyConnection, index: int, kind: str) -> None:
    case = CASES[index]
    function = f"{KINDS[kind]}_{index}"
    values = [text_of(value) for value in case["values"]]
    beyond = case.get("beyond", {})
    values += {text for texts in beyond.values() for text in texts} - set(beyond.get(kind, []))
    for size in SMALL if case.get("large") else TABLE["sizes"]:
        # The largest size shows how batches follow each other, which no pattern changes.
        for pattern in ["third"] if size > 10_000 else TABLE["patterns"]:
            if size > 10_000 and kind.endswith("-row") and len(case["type"]) > 60:
                continue
            fill(engine, case, size, pattern, values)
            assert differences(engine, function) == [], f"{size} rows, NULLs: {pattern}"
            ((count,),) = engine.execute(
                f"SELECT count(*) FROM (SELECT {function}(x) AS y FROM data)"
            ).fetchall()
            assert count == size


@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        (index, kind, text)
        for index, case in enumerate(CASES)
        for kind, texts in case.get("beyond", {}).items()
        for text in texts
    ],
)
def test_values_that_a_language_lacks_are_refused(
    engine: duckdb.DuckDBPyConnection, index: int, kind: str, text: str
) -> None:
    case = CASES[index]
    fill(engine, case, 1, "none", [text])
    row = r"[\s\S]*in row 1" if kind.endswith("-row") else ""
    with pytest.raises(duckdb.Error, match=r"(Overflow|Range)Error: .*(outside|no datetime)" + row):
        engine.execute(f"SELECT {KINDS[kind]}_{index}(x) FROM data").fetchall()


def test_a_large_value_in_a_full_chunk(engine: duckdb.DuckDBPyConnection) -> None:
    index = next(i for i, case in enumerate(CASES) if case["type"] == "VARCHAR")
    engine.execute("CREATE OR REPLACE TABLE data AS SELECT repeat('ä', 5000 + i) AS x FROM range(5000) t(i)")
    assert differences(engine, f"echo_{index}") == []
    assert differences(engine, f"echo_columns_{index}") == []


def test_a_string_larger_than_the_ring(engine: duckdb.DuckDBPyConnection) -> None:
    index = next(i for i, case in enumerate(CASES) if case["type"] == "VARCHAR")
    engine.execute("CREATE OR REPLACE TABLE data AS SELECT repeat('0123456789', 20000000) AS x")
    for name in KINDS.values():
        query = f"SELECT md5({name}_{index}(x)) = md5(x), length({name}_{index}(x)) FROM data"
        assert engine.execute(query).fetchall() == [(True, 200_000_000)]
