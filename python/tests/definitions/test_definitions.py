"""``CREATE FUNCTION ... LANGUAGE ... AS $$ ... $$``."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import value

#: The language and body of a function of a BIGINT `x` and of any number of VARCHARs `rest`, which
#: returns both as text.
BODIES = {
    "python": "\n    text = str(x)\n    return text + ' ' + ','.join(rest)\n",
    "an expression in python": "f'{x} ' + ','.join(rest)",
    "a function in python": "\nimport os\ndef f(x, *rest):\n    return f'{x} ' + ','.join(rest)\n",
    "javascript": "\n  const text = `${x} `;\n  return text + rest.join(',');\n",
    "an expression in javascript": "`${x} ` + rest.join(',');",
    "typescript": "\n  const text: string = `${x} `;\n  return text + rest.join(',');\n",
    "ruby": '\n  return "#{x} " + rest.join(",") if x\n  "never"\n',
    "an expression in ruby": '"#{x} " + rest.join(",")',
    "a function in ruby": "def f(x, *rest)\n  x.to_s + ' ' + rest.join(',')\nend\n",
    "lua": "\n  local text = x .. ' '\n  return text .. table.concat(rest, ',')\n",
    "an expression in lua": "x .. ' ' .. table.concat(rest, ',')",
}


def create(con: duckdb.DuckDBPyConnection, text: str) -> list[str]:
    """Defines a function with the command that all clients have."""
    return [row[1] for row in con.execute("FROM crosslane_create(?)", [textwrap.dedent(text)]).fetchall()]


def error(con: duckdb.DuckDBPyConnection, text: str) -> str:
    with pytest.raises(duckdb.Error) as raised:
        crosslane.execute(con, textwrap.dedent(text).strip())
    return str(raised.value)


@pytest.mark.any_duckdb
@pytest.mark.parametrize("form", BODIES)
def test_bodies(con: duckdb.DuckDBPyConnection, form: str) -> None:
    language = form.split()[-1]
    handler = "handler = 'f'" if form.startswith("a function") else ""
    created = create(
        con,
        f"CREATE FUNCTION joined(x BIGINT, *rest VARCHAR) RETURNS VARCHAR LANGUAGE {language} {handler}"
        f" AS $$\n{BODIES[form]}$$",
    )
    assert created == ["joined(x BIGINT, *rest VARCHAR) -> VARCHAR"]
    assert value(con, "SELECT joined(7, 'a', 'b')") == "7 a,b"
    assert value(con, "SELECT joined(NULL, 'a')") is None


@pytest.mark.any_duckdb
def test_options_are_those_of_the_language(con: duckdb.DuckDBPyConnection) -> None:
    options = "timeout = 2.5, memory_limit = '500 MB' deterministic = FALSE, retries = 2 on_error = $$null$$"
    for language in ("python", "javascript", "ruby", "lua"):
        create(
            con,
            f"CREATE FUNCTION f_{language}() RETURNS BIGINT LANGUAGE {language} {options} AS $$ return 1 $$",
        )
    expected = "deterministic=false, timeout=2.5, memory_limit=500000000, on_error=null, retries=2"
    shown = con.execute("SELECT DISTINCT options FROM crosslane_functions()").fetchall()
    assert [set(row[0].replace(",", "").split()) for row in shown] == [set(expected.replace(",", "").split())]


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    ("language", "body"),
    [
        ("python", "for i in range(n): yield i, str(i)"),
        ("javascript", "\nfor (let i = 0n; i < n; i++) yield [i, String(i)];"),
        ("ruby", "\n  return (0...n).lazy.map { |i| [i, i.to_s] }\n"),
    ],
)
def test_table_functions(con: duckdb.DuckDBPyConnection, language: str, body: str) -> None:
    create(
        con,
        f"CREATE FUNCTION rows_of(n BIGINT) RETURNS TABLE(i BIGINT, s VARCHAR) LANGUAGE {language} AS $$ {body} $$",
    )
    assert con.execute("FROM rows_of(2) ORDER BY i").fetchall() == [(0, "0"), (1, "1")]


@pytest.mark.any_duckdb
def test_async_bodies(con: duckdb.DuckDBPyConnection) -> None:
    create(
        con,
        """CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE python AS $$
        import asyncio
        await asyncio.sleep(0)
        return x + 1 $$""",
    )
    create(
        con, "CREATE FUNCTION g(x INT) RETURNS INT LANGUAGE javascript AS $$ await Promise.resolve(x + 1) $$"
    )
    assert con.execute("SELECT f(1), g(1)").fetchall() == [(2, 2)]
    assert value(con, "SELECT options FROM crosslane_functions() WHERE function = 'f'") == "concurrency=16"


@pytest.mark.any_duckdb
def test_texts_of_all_characters(con: duckdb.DuckDBPyConnection) -> None:
    """Names, options and bodies are never run as code of another language."""
    body = '"\'#{1}\\\\ \\u00e9 " + x'
    for language in ("python", "javascript", "ruby", "lua"):
        shown = body.replace("\\u00e9", "\\u{e9}") if language == "lua" else body
        glued = shown.replace(" + x", " .. x") if language == "lua" else shown
        glued = glued.replace("#{", "\\#{") if language == "ruby" else glued
        create(
            con,
            f'CREATE FUNCTION "{language} ""#{{f}}""\n"(x VARCHAR) RETURNS VARCHAR LANGUAGE {language} AS $é$ {glued} $é$',
        )
        assert value(con, f'SELECT "{language} ""#{{f}}""\n"(\'!\')') == "'#{1}\\ é !"


def test_a_name_is_taken_once(con: duckdb.DuckDBPyConnection) -> None:
    f = "CREATE {} FUNCTION {} f(x {}) RETURNS {} LANGUAGE python AS $$ {} $$"
    crosslane.execute(con, f.format("", "", "INT", "INT", "x"))
    assert "there is a function f; write CREATE OR REPLACE FUNCTION f(...)" in error(
        con, f.format("", "", "INT", "INT", "0")
    )
    crosslane.execute(con, f.format("", "IF NOT EXISTS", "INT", "INT", "0"))
    assert value(con, "SELECT f(1)") == 1
    # This is also an error for another type of the result.
    crosslane.execute(con, f.format("OR REPLACE", "", "INT", "VARCHAR", "f'<{x}>'"))
    assert value(con, "SELECT f(1)") == "<1>"
    con.execute("CREATE MACRO m(x) AS x")
    m = f.replace(" f(", " m(")
    assert "the name m is taken by a macro" in error(con, m.format("", "", "INT", "INT", "x + 1"))
    crosslane.execute(con, m.format("OR REPLACE", "", "INT", "INT", "x + 1"))
    assert value(con, "SELECT m(1)") == 2
    kept = con.execute(
        "SELECT function, signature, language FROM crosslane.definitions ORDER BY 1"
    ).fetchall()
    assert kept == [("f", "f(x INTEGER) -> VARCHAR", "python"), ("m", "m(x INTEGER) -> INTEGER", "python")]


def test_overloads_stay_beside_each_other(con: duckdb.DuckDBPyConnection) -> None:
    f = "CREATE OR REPLACE FUNCTION f(x {}) RETURNS VARCHAR LANGUAGE python overload = true AS $$ '{}' $$"
    for type_, text in (("INT", "old"), ("VARCHAR", "text"), ("INT", "int")):
        crosslane.execute(con, f.format(type_, text))
    assert con.execute("SELECT f(1), f('')").fetchall() == [("int", "text")]
    assert value(con, "SELECT count(*) FROM crosslane.definitions") == 2


def test_statements_around_definitions(con: duckdb.DuckDBPyConnection) -> None:
    got = crosslane.execute(
        con,
        """CREATE TABLE t(x INT); INSERT INTO t VALUES (1), (2);
        CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE python AS $$ x; $$;
        CREATE FUNCTION f_macro(language) AS language + 1; -- DuckDB's own
        SELECT f(x) + f_macro(x) FROM t WHERE x = $x""",
        {"x": 2},
    )
    assert got is con
    assert con.fetchall() == [(5,)]
    crosslane.execute(con, "DROP FUNCTION f; DROP FUNCTION f_macro; DROP FUNCTION IF EXISTS f")
    names = "SELECT function_name FROM duckdb_functions() WHERE function_name LIKE 'f\\_macro' ESCAPE '\\'"
    assert con.execute(names).fetchall() == []
    assert value(con, "SELECT count(*) FROM crosslane.definitions") == 0
    assert "f" in error(con, "DROP FUNCTION f")
    created = crosslane.execute(con, "CREATE TEMP FUNCTION f() RETURNS INT LANGUAGE ruby AS $$ 1 $$")
    assert created.fetchall() == [("f() -> INTEGER",)]


@pytest.mark.any_duckdb
def test_errors_name_the_place(con: duckdb.DuckDBPyConnection) -> None:
    head = "CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE "
    for text, *expected in (
        (head + "python AS $$\n  y = 1\n  return x / 0\n$$; SELECT f(1)", "ZeroDivisionError", "f.py:3", "return x / 0"),
        (head + "javascript AS $$\n  const y = 1;\n  return y.z.a;\n$$; SELECT f(1)", "TypeError", "f.js:3"),
        (head + "python AS $$\n\n  x / 0\n$$; SELECT f(1)", "ZeroDivisionError", "f.py:3", "x / 0"),
        (head + "javascript AS $$\n\n  x.z.a\n$$; SELECT f(1)", "TypeError", "f.js:3"),
        (head + "lua AS $$\n\n  x.z.a\n$$; SELECT f(1)", "f.lua:3"),
        (head + "ruby AS $$\n  y = 1\n  y / 0\n$$; SELECT f(1)", "ZeroDivisionError", "f.rb:3"),
        (head + "lua AS $$\n  local y = 1\n  return y.z.a\n$$; SELECT f(1)", "f.lua:3"),
        (head + "python AS $$\n  y = 1\n  y\n$$", "the text of the function returns nothing; write `return`"),
        (head + "python AS $$\n  return (\n$$", "SyntaxError", "f.py"),
        (head + "python AS $$ $$", "the text of the function is empty"),
        (head + "cobol AS $$ x $$", "there is no language cobol; the languages are python, javascript"),
        (head + "python timeout = 'soon' AS $$ x $$", "timeout is a positive number of seconds"),
        (head + "python colour = 1 AS $$ x $$", "colour"),
        (head + "python handler = 'a b' AS $$ x $$", "the option handler is the name of a function"),
        (head + "ruby packages = ['x'] AS $$ x $$", "the option packages is for Python"),
        ("CREATE FUNCTION f(x INTT)\nRETURNS INT LANGUAGE python AS $$ x $$", "line 2", "a SQL type"),
        ("CREATE FUNCTION f() RETURNS TABLE(x INT) LANGUAGE lua AS $$ x $$", "Lua has no table functions"),
        ("CREATE FUNCTION f() RETURNS TABLE(x INT) LANGUAGE python AS $$ x $$", "no `yield`"),
    ):  # fmt: skip
        said = error(con, text)
        assert all(part in said for part in expected), said
        con.execute("FROM crosslane_functions()").fetchall()
        crosslane.execute(con, "DROP FUNCTION IF EXISTS f")


@pytest.mark.any_duckdb
def test_types_of_the_database(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    create(con, "CREATE FUNCTION better(m mood) RETURNS mood LANGUAGE python AS $$ 'happy' $$")
    assert value(con, "SELECT better('sad')") == "happy"


@pytest.mark.any_duckdb
def test_what_has_external_access_off_defines_nothing(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("SET enable_external_access = false")
    assert "external access is off" in error(
        con, "CREATE FUNCTION f() RETURNS INT LANGUAGE python AS $$ 1 $$"
    )


@pytest.mark.any_duckdb
def test_the_command_line_defines(tmp_path: Path) -> None:
    query = """CREATE TEMP FUNCTION f(x INT) RETURNS INT LANGUAGE python AS $$ x + 1 $$;
    SELECT f(1) AS f; DROP FUNCTION f; CREATE MACRO m(x) AS x; DROP FUNCTION m; SELECT 2 AS two"""
    command = [sys.executable, "-m", "crosslane._cli", "sql", "--format", "csv", query]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "defined\nf(x INTEGER) -> INTEGER\nf\n2\ntwo\n2\n"


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    ("language", "body", "expected"),
    [
        ("python", "'return: ' + x['error']", "return: e"),
        ("python", "x['error']  # the error", "e"),
        ("python", '\ntext = """a\nb"""\nreturn text\n', "a\nb"),
        ("python", '\n    text = """\nhello\n"""\n    return text\n', "\nhello\n"),
        ("python", "if len(x) > 9:\n    return 'big'\nreturn 'small'", "small"),
        ("python", "\n    import json\n    return shown(x) if False else json.dumps(x)\n", '{"error": "e"}'),
        ("javascript", 'x.error // the "error"', "e"),
        ("javascript", "[...x.error].map(c => { return c + c; }).join('');", "ee"),
        ("javascript", "\n  x\n    .error\n    .includes('return')\n    ? 'yes' : 'no'\n", "no"),
        ("ruby", "x['error'] # the error", "e"),
        ("lua", "x.error .. ' error' -- return", "e error"),
    ],
)  # fmt: skip
def test_texts_are_taken_as_they_are_meant(
    con: duckdb.DuckDBPyConnection, language: str, body: str, expected: str
) -> None:
    create(
        con,
        f"CREATE FUNCTION shown(\n  x STRUCT(error VARCHAR) -- the argument\n) RETURNS VARCHAR LANGUAGE {language} AS $${body}$$",
    )
    assert value(con, "SELECT shown({'error': 'e'})") == expected


@pytest.mark.any_duckdb
def test_a_function_may_have_the_name_of_one_that_it_calls(con: duckdb.DuckDBPyConnection) -> None:
    create(con, "CREATE FUNCTION oct(x BIGINT) RETURNS VARCHAR LANGUAGE python AS $$ oct(x) $$")
    assert value(con, "SELECT oct(8)") == "0o10"
    waits = (
        "\n  import asyncio\n  async def go(): await asyncio.sleep(0); return x\n  return asyncio.run(go())\n"
    )
    create(con, f"CREATE FUNCTION ran(x BIGINT) RETURNS BIGINT LANGUAGE python AS $${waits}$$")
    assert value(con, "SELECT ran(8)") == 8


@pytest.mark.any_duckdb
@pytest.mark.parametrize(
    ("language", "name"),
    [
        ("python", "class"),
        ("python", "b c"),
        ("javascript", "new"),
        ("ruby", "end"),
        ("ruby", "Key"),
        ("lua", "größe"),
    ],
)
def test_parameters_have_names_of_the_language(
    con: duckdb.DuckDBPyConnection, language: str, name: str
) -> None:
    said = error(con, f'CREATE FUNCTION f("{name}" INT) RETURNS INT LANGUAGE {language} AS $$ 1 $$')
    assert f"the parameter {name} cannot have this name in {language}" in said
