"""The language-neutral table of cases, for row and vectorized functions of each language on DuckDB."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import crosslane

from ..conftest import eventually
from ..servers import Server

FOLDER = Path(__file__).parents[3] / "conformance"
TABLE = json.loads((FOLDER / "cases.json").read_text())
CASES = TABLE["cases"]
SMALL = [size for size in TABLE["sizes"] if size <= 1]
KINDS = {
    "python-row": "echo",
    "python-vectorized": "echo_columns",
    "thread-row": "thread_echo",
    "thread-vectorized": "thread_echo_columns",
    "js-row": "js_echo",
    "js-vectorized": "js_echo_columns",
    "ruby-row": "ruby_echo",
    "ruby-vectorized": "ruby_echo_columns",
    "lua-row": "lua_echo",
    "lua-vectorized": "lua_echo_columns",
}
#: The guest's handling of a value does not depend on DuckDB's version. On an older version, these kinds test
#: all types.
ADAPTER = ("python-row", "thread-vectorized")
any_duckdb = pytest.mark.any_duckdb
LANGUAGES = {"python": "py", "js": "js", "ruby": "rb", "lua": "lua"}
FOLDERS = {"python": "python", "js": "javascript", "ruby": "ruby", "lua": "lua"}


def file_of(language: str, name: str) -> Path:
    """A file of functions in a language."""
    return FOLDER / FOLDERS[language] / f"{name}.{LANGUAGES[language]}"


saw = runpy.run_path(str(file_of("python", "saw")))["saw"]


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else value["text"] * value["repeat"]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.fixture(scope="module")
def echoes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files with functions for each type, in each language."""
    texts = [file_of(language, "saw").read_text() for language in LANGUAGES]
    lines = ["from crosslane import udf", texts[0]]
    scripts = [texts[1]]
    blocks = [texts[2]]
    chunks = [texts[3]]
    saw_any = "saw_any(x ANY) -> VARCHAR"
    lines.append(f"@udf({'python_' + saw_any!r})\ndef python_saw_any(x): return saw(x)")
    lines.append("@udf('columns_saw_any(x ANY) -> VARCHAR', vectorized=True)")
    lines.append("def columns_saw_any(x): return [str(x.type)] * len(x)")
    scripts.append(f"udf({json.dumps('js_' + saw_any)}, {{ bigint: true }}, saw);")
    blocks.append(f"udf {json.dumps('ruby_' + saw_any)} do |x| saw(x) end")
    chunks.append(f"udf([=[{'lua_' + saw_any}]=], saw)")
    for index, case in enumerate(CASES):
        signature = f"saw_{index}(x {case['type']}) -> VARCHAR"
        lines.append(f"@udf({'python_' + signature!r})\ndef python_saw_{index}(x): return saw(x)")
        scripts.append(f"udf({json.dumps('js_' + signature)}, {{ bigint: true }}, saw);")
        blocks.append(f"udf {json.dumps('ruby_' + signature)} do |x| saw(x) end")
        chunks.append(f"udf([=[{'lua_' + signature}]=], saw)")
        columns = f"columns_saw_{index}(x {case['type']}) -> VARCHAR"
        lines.append(f"@udf({columns!r}, vectorized=True)")
        lines.append(f"def columns_saw_{index}(x): return [str(x.type)] * len(x)")
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
        for name, option in (("lua_echo", ""), ("lua_echo_columns", "{ vectorized = true }, ")):
            signature = f"{name}_{index}(x {case['type']}) -> {case['type']}"
            chunks.append(f"udf([=[{signature}]=], {option}function(x) return x end)")
    folder = tmp_path_factory.mktemp("conformance")
    paths = [folder / f"echoes.{suffix}" for suffix in LANGUAGES.values()]
    for path, content in zip(paths, (lines, scripts, blocks, chunks)):
        path.write_text("\n".join(content))
    return paths


@pytest.fixture(scope="module")
def engine(echoes: list[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    con = crosslane.connect(functions=echoes, config={"threads": 2})
    con.execute("SET TimeZone = 'UTC'")
    for index, case in enumerate(CASES):
        for name, vectorized in (("thread_echo", False), ("thread_echo_columns", True)):
            signature = f"{name}_{index}(x {case['type']}) -> {case['type']}"
            crosslane.register(con, lambda x: x, signature, lane="thread", vectorized=vectorized)
    yield con
    con.close()


@pytest.fixture(scope="module")
def served_engine(echoes: list[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the same functions of a server."""
    with Server(*echoes) as server:
        con = crosslane.connect(config={"threads": 2})
        con.execute("SET TimeZone = 'UTC'")
        con.execute(f"CALL crosslane_attach('{server.address}')")
        yield con
        con.close()


@pytest.fixture(scope="module")
def served_client(echoes: list[Path]) -> Iterator[crosslane.Client]:
    """A client of a server with the same functions."""
    with Server(*echoes) as server, crosslane.Client(server.address) as client:
        yield client


def fill(
    con: duckdb.DuckDBPyConnection,
    case: dict[str, Any],
    size: int,
    pattern: str,
    values: list[str],
    table: str = "data",
) -> None:
    null = {
        "none": "false",
        "all": "true",
        "first": "i = 0",
        "last": f"i = {size - 1}",
        "third": "i % 3 = 0",
    }[pattern]
    con.execute("CREATE OR REPLACE TEMP TABLE picks (n INTEGER, x " + case["type"] + ")")
    sql = [text if case.get("expressions") else quoted(text) for text in values]
    rows = ", ".join(f"({n}, CAST({value} AS {case['type']}))" for n, value in enumerate(sql))
    con.execute(f"INSERT INTO picks VALUES {rows}, (-1, NULL)")
    con.execute(
        # The NULL is a row of `picks`. DuckDB 1.5 has no CASE over arrays. In DuckDB 2.0.0, an outer join
        # that fills arrays with NULLs corrupts memory.
        f"CREATE OR REPLACE TABLE {table} AS SELECT i, x FROM range({size}) r(i)"
        f" JOIN picks ON n = CASE WHEN {null} THEN -1 ELSE i % {len(values)} END ORDER BY i"
    )


class Tables:
    """The tables of a type. Functions of all kinds read them, because filling a table takes longer than a
    query over it."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._index = -1
        self._names: dict[tuple[int, str, tuple[str, ...]], str] = {}

    def of(self, index: int, size: int, pattern: str, values: list[str]) -> str:
        if index != self._index:
            for name in self._names.values():
                self._con.execute(f"DROP TABLE {name}")
            self._index, self._names = index, {}
        key = (size, pattern, tuple(values))
        if key not in self._names:
            name = f"data_{len(self._names)}"
            fill(self._con, CASES[index], size, pattern, values, name)
            assert self._con.execute(f"SELECT count(*) FROM {name}").fetchall() == [(size,)]
            self._names[key] = name
        return self._names[key]


@pytest.fixture(scope="module")
def filled(engine: duckdb.DuckDBPyConnection) -> Tables:
    return Tables(engine)


def differences(
    con: duckdb.DuckDBPyConnection, function: str, type_: str, table: str = "data"
) -> list[tuple[Any, ...]]:
    differ = next(one["differ"] for one in TABLE["comparisons"] if re.search(one["types"], type_))
    return con.execute(
        f"SELECT x, y FROM (SELECT x, {function}(x) AS y FROM {table}) WHERE {differ} LIMIT 3"
    ).fetchall()


def comes_back(type_: str, kind: str) -> bool:
    """Whether values keep their order. A Lua table has no order: keys that are texts come back in
    alphabetical order."""
    return not (kind.startswith("lua") and "MAP(VARCHAR" in type_)


@pytest.mark.parametrize(
    ("index", "kind"),
    [
        pytest.param(
            index,
            kind,
            id=f"{case['type'][:40]}-{kind}",
            marks=() if kind in ADAPTER else any_duckdb,
        )
        for index, case in enumerate(CASES)
        for kind in KINDS
        if comes_back(case["type"], kind)
    ],
)
def test_values_come_back_unchanged(
    engine: duckdb.DuckDBPyConnection, filled: Tables, index: int, kind: str
) -> None:
    case = CASES[index]
    function = f"{KINDS[kind]}_{index}"
    values = [text_of(value) for value in case["values"]]
    beyond = case.get("beyond", {})
    values += sorted(
        {text for texts in beyond.values() for text in texts}
        - set(beyond.get(kind.replace("thread", "python"), []))
    )
    for size in SMALL if case.get("large") else TABLE["sizes"]:
        # The largest size shows how batches follow each other, which no pattern changes.
        for pattern in ["third"] if size > 10_000 else TABLE["patterns"]:
            if size > 10_000 and kind.endswith("-row") and len(case["type"]) > 60:
                continue
            table = filled.of(index, size, pattern, values)
            assert differences(engine, function, case["type"], table) == [], f"{size} rows, NULLs: {pattern}"


@any_duckdb
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case["type"][:40] for case in CASES])
def test_values_come_back_from_a_server(served_engine: duckdb.DuckDBPyConnection, index: int) -> None:
    case = CASES[index]
    values = [text_of(value) for value in case["values"]]
    fill(served_engine, case, 1 if case.get("large") else 2049, "third", values)
    for kind, name in KINDS.items():
        if not kind.startswith("thread") and comes_back(case["type"], kind):
            assert differences(served_engine, f"{name}_{index}", case["type"]) == [], kind


@any_duckdb
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case["type"][:40] for case in CASES])
def test_values_come_back_to_a_client(
    engine: duckdb.DuckDBPyConnection, served_client: crosslane.Client, index: int
) -> None:
    case = CASES[index]
    values = [text_of(value) for value in case["values"]]
    fill(engine, case, len(values) + 1, "last", values)
    objects: list[Any] = []
    take = f"take_{index}"
    signature = f"{take}(x {case['type']}) -> BOOLEAN"
    crosslane.register(engine, lambda x: objects.append(x) or True, signature, lane="thread", replace=True)
    engine.execute(f"SELECT {take}(x) FROM data WHERE x IS NOT NULL ORDER BY i").fetchall()
    assert len(objects) == len(values)
    seen = [saw(value) for value in objects]
    for name in ("echo", "echo_columns"):
        assert [saw(served_client.call(f"{name}_{index}", value)) for value in objects] == seen
    assert served_client.call(f"echo_{index}", None) is None
    # As Python's values, and as the arrays that these become.
    array = served_client.call_batch(f"echo_{index}", [*objects, None])
    for column in (
        [*objects, None],
        array,
        array.slice(1),
        pa.chunked_array([array.slice(0, 1), array.slice(1)]),
    ):
        texts = seen[len(seen) + 1 - len(column) :]
        assert served_client.call_batch(f"python_saw_{index}", column).to_pylist() == [*texts, None]
        back = served_client.call_batch(f"echo_columns_{index}", column)
        assert back.type == array.type
        assert served_client.call_batch(f"python_saw_{index}", back).to_pylist() == [*texts, None]


@any_duckdb
@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        (index, kind, text)
        for index, case in enumerate(CASES)
        for language, texts in case.get("beyond", {}).items()
        for kind in KINDS
        if kind.replace("thread", "python") == language
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


@any_duckdb
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case["type"][:40] for case in CASES])
def test_what_functions_see(engine: duckdb.DuckDBPyConnection, index: int, language: str) -> None:
    case = CASES[index]
    values = [text_of(value) for value in case["values"]]
    fill(engine, case, len(values), "none", values)
    # With the type declared, and from the argument.
    query = f"SELECT {language}_saw_{index}(x), {language}_saw_any(x) FROM data ORDER BY i"
    seen, seen_of_any = zip(*engine.execute(query).fetchall())
    assert seen == seen_of_any
    if not case.get("large"):
        assert list(seen) == case["sees"][language]
    if language == "python":
        arrow = engine.execute(f"SELECT columns_saw_{index}(x), columns_saw_any(x) FROM data").fetchall()
        assert arrow == [(case["sees"]["arrow"],) * 2] * len(values)


def test_a_large_value_in_a_full_chunk(engine: duckdb.DuckDBPyConnection) -> None:
    index = next(i for i, case in enumerate(CASES) if case["type"] == "VARCHAR")
    engine.execute("CREATE OR REPLACE TABLE data AS SELECT repeat('ä', 5000 + i) AS x FROM range(5000) t(i)")
    assert differences(engine, f"echo_{index}", "VARCHAR") == []
    assert differences(engine, f"echo_columns_{index}", "VARCHAR") == []


def test_a_string_larger_than_the_ring(engine: duckdb.DuckDBPyConnection) -> None:
    index = next(i for i, case in enumerate(CASES) if case["type"] == "VARCHAR")
    engine.execute("CREATE OR REPLACE TABLE data AS SELECT repeat('0123456789', 4000000) AS x")
    for name in KINDS.values():
        query = f"SELECT y = x, length(y) FROM (SELECT x, {name}_{index}(x) AS y FROM data)"
        assert engine.execute(query).fetchall() == [(True, 40_000_000)]


#: Languages with table functions, and how one that yields the values of a list in turn is declared.
TABLES = {
    "python": (
        "from crosslane import udtf\n",
        """@udtf({signature!r})
def rows_{index}(values, n):
    for i in range(n):
        yield (values[i % len(values)],)
""",
    ),
    "js": (
        "",
        """udtf({signature!r}, {{ bigint: true }}, function* (values, n) {{
  for (let i = 0; i < n; i++) yield [values[i % values.length]];
}});
""",
    ),
    "ruby": (
        "",
        """udtf({signature!r}) {{ |values, n| n.times.lazy.map {{ |i| [values[i % values.size]] }} }}
""",
    ),
}


#: Where the functions of a language may run.
PLACES = [
    "python",
    "thread",
    *(pytest.param(place, marks=any_duckdb) for place in ("js", "ruby")),
    *(pytest.param(f"served {language}", marks=any_duckdb) for language in TABLES),
]


def language_of(place: str) -> str:
    return "python" if place == "thread" else place.removeprefix("served ")


def add(con: duckdb.DuckDBPyConnection, files: list[Path], place: str, stack: ExitStack) -> None:
    """Loads the functions of files, attaches them on a server, or registers them on threads of this
    process."""
    if place.startswith("served"):
        con.execute(f"CALL crosslane_attach('{stack.enter_context(Server(*files)).address}')")
    elif place != "thread":
        for file in files:
            crosslane.load(con, file)
    else:
        for file in files:
            register(con, file)


def register(con: duckdb.DuckDBPyConnection, file: Path) -> None:
    names: dict[str, Any] = {"__name__": file.stem}
    exec(file.read_text(), names)
    for function in {id(named): named for named in names.values()}.values():
        if hasattr(function, "__crosslane__"):
            crosslane.register(con, function, lane="thread")


@pytest.fixture(scope="module", params=PLACES)
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A connection with the table functions of a language."""
    language = language_of(request.param)
    head, declaration = TABLES[language]
    declared = [
        declaration.format(
            signature=f"rows_{index}(xs {case['type']}[], n BIGINT) -> TABLE(x {case['type']})", index=index
        )
        for index, case in enumerate(CASES)
    ]
    path = tmp_path_factory.mktemp("tables") / f"rows.{LANGUAGES[language]}"
    path.write_text(head + "".join(declared))
    con = crosslane.connect(config={"threads": 2})
    con.execute("SET TimeZone = 'UTC'")
    with ExitStack() as stack:
        add(con, [path, file_of(language, "tables")], request.param, stack)
        yield con
        con.close()


@pytest.mark.parametrize("case", TABLE["tables"], ids=[case["query"][:60] for case in TABLE["tables"]])
def test_table_functions(tables: duckdb.DuckDBPyConnection, case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(duckdb.Error) as failed:
            tables.execute(case["query"]).fetchall()
        assert case["error"] in str(failed.value)
        assert f"in row {case['row']} of its table" in str(failed.value)
    else:
        rows = tables.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({case['query']})").fetchall()
        assert rows == [tuple(row) for row in case["rows"]]
    # A scan that needs no more rows gives its lane back a moment later.
    used = "SELECT sum(busy), sum(discarded) FROM crosslane_pools()"
    assert eventually(lambda: tables.execute(used).fetchall() == [(0, 0)])


@pytest.mark.parametrize(
    "index",
    [pytest.param(index, id=case["type"][:40]) for index, case in enumerate(CASES) if not case.get("large")],
)
def test_table_functions_yield_values_unchanged(tables: duckdb.DuckDBPyConnection, index: int) -> None:
    case = CASES[index]
    texts = [text_of(value) for value in case["values"]]
    size, count = 2049, len(texts) + 1
    sql = [text if case.get("expressions") else quoted(text) for text in texts]
    values = ", ".join(f"CAST({value} AS {case['type']})" for value in sql)
    x, y = ("x", "y") if case["type"].startswith(("UHUGEINT", "UNION")) else ("x::VARCHAR", "y::VARCHAR")
    # The query compares the values of each round with the values of the list itself.
    query = (
        f"SELECT count(*), count(*) FILTER ({x} IS DISTINCT FROM {y}) FROM"
        f" (SELECT x, ((row_number() OVER () - 1) % {count}) + 1 AS place FROM rows_{index}([{values}, NULL], {size}))"
        f" JOIN (SELECT unnest([{values}, NULL]) AS y, unnest(range(1, {count + 1})) AS place) USING (place)"
    )
    assert tables.execute(query).fetchall() == [(size, 0)]


@any_duckdb
@pytest.mark.parametrize("language", TABLES)
@pytest.mark.parametrize(
    "case", TABLE["streams"], ids=[f"{case['function']}: {case['input'][:50]}" for case in TABLE["streams"]]
)
def test_stream_functions(language: str, case: dict[str, Any]) -> None:
    con = duckdb.connect()
    file = file_of(language, "streams")
    mapped = crosslane.map(con.cursor().sql(case["input"]), f"{file}:{case['function']}")
    if "error" in case:
        with pytest.raises((RuntimeError, ValueError)) as failed:
            list(mapped)
        assert case["error"] in str(failed.value)
    else:
        rows = con.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({case['query']})").fetchall()
        assert rows == [tuple(row) for row in case["rows"]]


@pytest.fixture(scope="module", params=PLACES)
def engines(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A connection with the aggregates and the stateful functions of a language."""
    con = crosslane.connect(config={"threads": 4})
    # With this setting, even small tables have tasks for all threads.
    con.execute("PRAGMA verify_parallelism")
    for statement in TABLE["data"]:
        con.execute(statement)
    language = language_of(request.param)
    with ExitStack() as stack:
        add(con, [file_of(language, name) for name in ("aggregates", "stateful")], request.param, stack)
        yield con
        con.close()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case["query"][:60]) for case in TABLE["aggregates"] + TABLE["stateful"]],
)
def test_aggregates_and_stateful_functions(engines: duckdb.DuckDBPyConnection, case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(duckdb.Error) as failed:
            engines.execute(case["query"]).fetchall()
        assert case["error"] in str(failed.value)
    else:
        rows = engines.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({case['query']})").fetchall()
        assert rows == [tuple(row) for row in case["rows"]]
    # No worker holds states any more.
    assert eventually(lambda: engines.execute("SELECT sum(busy) FROM crosslane_pools()").fetchall() == [(0,)])
