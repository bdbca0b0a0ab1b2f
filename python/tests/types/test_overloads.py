"""Functions with the same name and other types of parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import crosslane
from crosslane._cli import main

from ..conftest import Library, Load, error, value

#: The declaration of f for a type, in each language. The function returns the type's name and its argument as
#: text.
LANGUAGES: dict[str, Callable[[str], str]] = {
    "py": lambda sql: f"@udf('f(x {sql}) -> VARCHAR', overload=True)\ndef f(x): return '{sql} ' + str(x)\n",
    "js": lambda sql: f"udf('f(x {sql}) -> VARCHAR', {{ overload: true }}, (x) => '{sql} ' + x);\n",
    "rb": lambda sql: f"udf('f(x {sql}) -> VARCHAR', overload: true) {{ |x| '{sql} ' + x.to_s }}\n",
    "lua": lambda sql: (
        f"udf('f(x {sql}) -> VARCHAR', {{ overload = true }}, function(x) return '{sql} ' .. tostring(x) end)\n"
    ),
}
each_language = pytest.mark.parametrize("suffix", LANGUAGES)
each_lane = pytest.mark.parametrize("lane", ["process", "thread"])


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file in a language. The file declares f for each of these types."""

    def write(suffix: str, *types: str, name: str = "functions") -> Path:
        path = tmp_path / f"{name}.{suffix}"
        head = "from crosslane import udf\n" if suffix == "py" else ""
        path.write_text(head + "".join(map(LANGUAGES[suffix], types)))
        return path

    return write


def signatures(con: duckdb.DuckDBPyConnection) -> list[str]:
    """The list of `crosslane_functions`."""
    return [row[0] for row in con.execute("SELECT signature FROM crosslane_functions()").fetchall()]


@each_language
def test_overloads_of_a_file(
    con: duckdb.DuckDBPyConnection, file: Callable[..., Path], suffix: str, subtests: pytest.Subtests
) -> None:
    with subtests.test("a call reaches the function for its types"):
        types = ["BIGINT", "VARCHAR", "BOOLEAN", "INTEGER[]", "VARCHAR[]"]
        loaded = crosslane.load(con, file(suffix, *types))
        assert loaded == [f"f(x {sql}) -> VARCHAR" for sql in types]
        assert signatures(con) == loaded
        options = con.execute("SELECT DISTINCT options FROM crosslane_functions()").fetchall()
        assert options == [("overload=true",)]
        queries = ["i", "i::VARCHAR", "i > 0", "[i::INTEGER]", "[i::VARCHAR]"]
        shown = [value(con, f"SELECT f({query}) FROM range(3, 4) r(i)") for query in queries]
        assert [str(text).split()[0] for text in shown] == types
        assert value(con, "SELECT f(NULL::VARCHAR)") is None
        rows = con.execute("SELECT f(i), f(i::VARCHAR) FROM range(5000) r(i)").fetchall()
        assert rows == [(f"BIGINT {i}", f"VARCHAR {i}") for i in range(5000)]
    with subtests.test("a file that is loaded again has its own functions only"):
        crosslane.load(con, file(suffix, "VARCHAR", "DATE"))
        assert signatures(con) == ["f(x VARCHAR) -> VARCHAR", "f(x DATE) -> VARCHAR"]
        assert str(value(con, "SELECT f(DATE '2024-02-29')")).startswith("DATE ")
        assert value(con, "SELECT f('a')") == "VARCHAR a"
        assert "No function matches" in error(con, "SELECT f([1])")
    with subtests.test("a name is dropped with all its overloads"):
        dropped = con.execute("SELECT signature FROM crosslane_drop('F')").fetchall()
        assert dropped == [("f(x VARCHAR) -> VARCHAR",), ("f(x DATE) -> VARCHAR",)]
        assert signatures(con) == []
        for call in ("f(DATE '2024-02-29')", "f('a')"):
            assert "was dropped" in error(con, f"SELECT {call}")
        crosslane.load(con, file(suffix, "VARCHAR", "DATE"))
        crosslane.unregister(con, "f")
        assert "f does not exist" in error(con, "SELECT f('a')")


@pytest.mark.any_duckdb
@each_language
def test_a_name_that_is_taken(
    con: duckdb.DuckDBPyConnection, file: Callable[..., Path], suffix: str, subtests: pytest.Subtests
) -> None:
    for second, why in (
        (
            "BIGINT",
            "SQL cannot tell calls of the two apart: f(x BIGINT) -> VARCHAR and f(x BIGINT) -> VARCHAR",
        ),
        ("VARCHAR", "; give it another name, or the option overload to keep both"),
    ):
        with subtests.test(second):
            path = file(suffix, "BIGINT", second, name=f"twice_{second}")
            if second == "VARCHAR":
                # The second declaration does not say that it is an overload.
                text = path.read_text()
                at = text.rindex("VARCHAR", 0, text.rindex("overload"))
                path.write_text(
                    text[:at] + re.sub(r", (\{ )?overload\W+true( \})?", "", text[at:], flags=re.IGNORECASE)
                )
            lines = [at for at, line in enumerate(path.read_text().splitlines(), 1) if "udf(" in line]
            message = f"function f: the name is taken by line {lines[0]} of {path.resolve()}"
            said = error(con, f"FROM crosslane_load('{path}')")
            assert message in said
            assert why in said
            assert re.search(rf"at \S*{re.escape(path.name)}:{lines[1]}\b", said), said
            checked = CliRunner().invoke(main, ["check", str(path)])
            assert checked.exit_code == 1
            assert message in checked.stderr
            assert why in checked.stderr
            assert signatures(con) == []


@pytest.mark.any_duckdb
@each_language
def test_check_lists_each(file: Callable[..., Path], suffix: str) -> None:
    checked = CliRunner().invoke(main, ["check", str(file(suffix, "BIGINT", "VARCHAR"))])
    assert checked.exit_code == 0, checked.output
    assert "f(x BIGINT) -> VARCHAR" in checked.output
    assert "f(x VARCHAR) -> VARCHAR" in checked.output


OVERLOADS = """
@udf(overload=True)
def fails(x: int) -> int: return 1 // x
@udf(overload=True)
def fails(x: str) -> int: return len(x) // 0

@udf
def early(x: int) -> str: return f"int {x}"
@udf(overload=True)
def early(x: str) -> str: return f"str {x}"
@udf(name="Early", overload=True)
def of_both(x: int, y: str) -> str: return f"both {x} {y}"

@udf
def again(x: int) -> str: return "first"
@udf
def again(x: int) -> str: return "last"

@udf(overload=True)
def usual(x: int, y: int = 3) -> str: return f"int {x} {y}"
@udf(overload=True)
def usual(x: str, *rest: int) -> str: return f"str {x} {rest}"

@udf(overload=True)
def sees(x: int | None) -> str: return f"int {x}"
@udf(overload=True)
def sees(x: str) -> str: return f"str {x}"

@udf("f(x STRUCT(a INTEGER)) -> VARCHAR", overload=True)
def f(x): return "a"
@udf("f(x STRUCT(b INTEGER, c INTEGER)) -> VARCHAR", overload=True)
def f(x): return "b, c"
@udf("g(x DECIMAL(10,2)) -> DECIMAL(10,2)", overload=True)
def g(x): return x
@udf("g(x DECIMAL(18,3), y BIGINT) -> DECIMAL(18,3)", overload=True)
def g(x, y): return x * y
"""


def test_overloads_of_python_functions(load: Load, subtests: pytest.Subtests) -> None:
    con = load(OVERLOADS)
    with subtests.test("an error is that of the function that was called"):
        said = error(con, "SELECT fails(0)")
        assert "fails: ZeroDivisionError" in said
        assert ":4 in fails" in said
        assert ":6 in fails" in error(con, "SELECT fails('a')")
    with subtests.test("the first one need not say it"):
        rows = con.execute("SELECT early(1), early('a'), early(1, 'a')").fetchall()
        assert rows == [("int 1", "str a", "both 1 a")]
    with subtests.test("a function that is redefined is the last"):
        assert value(con, "SELECT again(1)") == "last"
    with subtests.test("a function with defaults has overloads"):
        rows = con.execute("SELECT usual(1), usual(1, 2), usual('a'), usual('a', 1, 2)").fetchall()
        assert rows == [("int 1 3", "int 1 2", "str a ()", "str a (1, 2)")]
    with subtests.test("parameters of an overload have their own rules for NULL"):
        rows = con.execute("SELECT sees(NULL::BIGINT), sees(NULL::VARCHAR)").fetchall()
        assert rows == [("int None", None)]
    with subtests.test("types of one name with other parameters"):
        assert con.execute("SELECT f({'a': 1}), f({'b': 1, 'c': 2})").fetchall() == [("a", "b, c")]
        rows = con.execute("SELECT g(1.25), g(1.125, 2)").fetchall()
        assert rows == [(Decimal("1.25"), Decimal("2.250"))]


def test_overloads_of_all_kinds_of_calls(load: Load) -> None:
    con = load("""
        from crosslane import udf
        import pyarrow as pa
        @udf(overload=True)
        async def f(x: int) -> str: return f"async {x}"
        @udf("f(x DOUBLE) -> VARCHAR", vectorized=True, overload=True)
        def f(x): return pa.array([f"vectorized {one}" for one in x.to_pylist()])
        @udf(name="f", overload=True)
        class OfText:
            def __call__(self, x: str) -> str: return f"stateful {x}"
    """)
    query = "SELECT f(1), f(1.5::DOUBLE), f('a')"
    assert con.execute(query).fetchall() == [("async 1", "vectorized 1.5", "stateful a")]


#: Pairs of types that DuckDB does not tell apart when it looks for a function.
ALIKE = [
    ("DECIMAL(10,2)", "DECIMAL(18,3)"),
    ("DECIMAL(10,2)[]", "DECIMAL(18,3)[]"),
    ("ENUM('a')", "ENUM('b')"),
    ("MAP(INTEGER, INTEGER)", "MAP(INTEGER, VARCHAR)"),
]


def test_types_that_duckdb_does_not_tell_apart(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    # If DuckDB told one of the pairs apart, the two signatures would be two functions.
    one, other = (
        f"f({', '.join(f'x{n} {pair[which]}' for n, pair in enumerate(ALIKE))}) -> VARCHAR"
        for which in range(2)
    )
    declared = (f"@udf({signature!r}, overload=True)\ndef f(*x): return 'f'\n" for signature in (one, other))
    said = error(con, f"FROM crosslane_load('{library(''.join(declared))}')")
    assert "SQL cannot tell calls of the two apart" in said
    nulls = ", ".join(f"NULL::{later}" for _, later in ALIKE)
    for lane in ("process", "thread"):
        for signature in (one, other):
            crosslane.register(con, lambda *x: f"of {signature}", signature, lane=lane, overload=True)  # noqa: B023
        assert signatures(con) == [other]
        assert value(con, f"SELECT f({nulls}) FROM range(1)") is None


@pytest.mark.any_duckdb
def test_modules_bring_their_overloads_along(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "from crosslane import udf\n" + "".join(map(LANGUAGES["py"], ["BIGINT", "DATE"]))
    )
    path = tmp_path / "main.py"
    path.write_text("from helper import f\n")
    assert crosslane.load(con, path) == ["f(x BIGINT) -> VARCHAR", "f(x DATE) -> VARCHAR"]
    for _ in range(2):
        checked = CliRunner().invoke(main, ["check", str(path), str(tmp_path / "helper.py")])
        assert (checked.exit_code, checked.output.count("f(x DATE) -> VARCHAR")) == (0, 2), checked.output


@pytest.mark.any_duckdb
def test_what_has_no_overloads(
    con: duckdb.DuckDBPyConnection, library: Library, subtests: pytest.Subtests
) -> None:
    for text, why in (
        ("@udf(overload=1)\ndef f(x: int) -> int: return x", "overload is True or False, not 1"),
        (
            "from crosslane import udtf\n@udtf('f(n BIGINT) -> TABLE(i BIGINT)')\ndef f(n): yield n\n"
            "@udf(overload=True)\ndef f(x: str) -> str: return x",
            "which is of the kind table; only scalar functions have overloads",
        ),
    ):
        with subtests.test(why):
            assert why in error(con, f"FROM crosslane_load('{library(text)}')")


def test_only_scalar_functions_have_overloads(con: duckdb.DuckDBPyConnection) -> None:
    class Total:
        def __init__(self) -> None:
            self.total = 0

        def update(self, x: int) -> None:
            self.total += x

        def merge(self, other: Total) -> None:
            self.total += other.total

        def finish(self) -> int:
            return self.total

    for function, signature, kind in (
        (lambda n: [n], "f(n BIGINT) -> TABLE(i BIGINT)", "table"),
        (Total, "f(x BIGINT) -> BIGINT", "aggregate"),
    ):
        with pytest.raises(
            duckdb.Error, match=f"only scalar functions have overloads, and it is of the kind {kind}"
        ):
            crosslane.register(con, function, signature, overload=True)


@each_lane
def test_registered_overloads(con: duckdb.DuckDBPyConnection, lane: str) -> None:
    def register(sql: str, said: str, **options: bool) -> None:
        crosslane.register(con, lambda x: f"{said} {x}", f"f(x {sql}) -> VARCHAR", lane=lane, **options)

    register("BIGINT", "first")
    register("VARCHAR", "second", overload=True)
    register("INTEGER[]", "third", overload=True)
    query = "SELECT f(i), f(i::VARCHAR), f([i::INTEGER]), f(NULL::VARCHAR) FROM range(1, 2) r(i)"
    con.execute(f"PREPARE p AS {query}")
    assert con.execute("EXECUTE p").fetchall() == [("first 1", "second 1", "third [1]", None)]
    register("BIGINT", "fourth", overload=True)
    assert con.execute("EXECUTE p").fetchall() == [("fourth 1", "second 1", "third [1]", None)]
    assert sorted(signatures(con)) == [
        "f(x BIGINT) -> VARCHAR",
        "f(x INTEGER[]) -> VARCHAR",
        "f(x VARCHAR) -> VARCHAR",
    ]
    crosslane.register(con, lambda x: x, "other(x BIGINT) -> BIGINT", lane=lane)
    assert con.execute(query).fetchall() == [("fourth 1", "second 1", "third [1]", None)]
    # A registration without `overload` replaces all overloads.
    register("DATE", "last")
    assert sorted(signatures(con)) == ["f(x DATE) -> VARCHAR", "other(x BIGINT) -> BIGINT"]
    assert value(con, "SELECT f(DATE '2024-02-29')") == "last 2024-02-29"
    assert "f(BIGINT)" in error(con, "SELECT f(i) FROM range(1) r(i)")
    crosslane.unregister(con, "f")
    assert signatures(con) == ["other(x BIGINT) -> BIGINT"]


def test_registered_overloads_of_both_lanes(con: duckdb.DuckDBPyConnection) -> None:
    crosslane.register(con, lambda x: "process", "f(x BIGINT) -> VARCHAR")
    crosslane.register(con, lambda x: "thread", "f(x VARCHAR) -> VARCHAR", lane="thread", overload=True)
    assert con.execute("SELECT f(1), f('a')").fetchall() == [("process", "thread")]
    crosslane.register(con, lambda x: "thread", "f(x BIGINT) -> VARCHAR", lane="thread", overload=True)
    assert con.execute("SELECT f(1), f('a')").fetchall() == [("thread", "thread")]
    crosslane.register(con, lambda x: "process", "f(x VARCHAR) -> VARCHAR")
    assert con.execute("SELECT signature, library FROM crosslane_functions()").fetchall() == [
        ("f(x VARCHAR) -> VARCHAR", "registered functions")
    ]


def test_functions_of_several_files(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    numbers = library("@udf\ndef f(x: int) -> str: return 'number'")
    texts = library("@udf(overload=True)\ndef f(x: str) -> str: return 'text'")
    dates = library("from datetime import date\n@udf\ndef f(x: date) -> str: return 'date'")
    crosslane.load(con, numbers)
    crosslane.load(con, texts)
    assert con.execute("SELECT f(1), f('a')").fetchall() == [("number", "text")]
    crosslane.register(con, lambda x: x, "other(x BIGINT) -> BIGINT")
    assert con.execute("SELECT f(1), f('a')").fetchall() == [("number", "text")]
    con.execute("PREPARE p AS SELECT f(i) FROM range(1) r(i)")
    crosslane.load(con, dates)
    assert signatures(con) == ["f(x DATE) -> VARCHAR", "other(x BIGINT) -> BIGINT"]
    said = error(con, "EXECUTE p")
    assert "f(x BIGINT) -> VARCHAR was removed when" in said
    assert "was loaded; it is now f(x DATE)" in said


def test_a_registration_takes_nothing_back(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    crosslane.register(con, lambda x, y=0: f"program {x} {y}", "f(x BIGINT, y BIGINT) -> VARCHAR")

    def pair(x: int, y: int = 0) -> str:
        return f"program {x} {y}"

    crosslane.register(con, pair)
    text = "from crosslane import udf\n@udf(overload=True)\ndef pair(x: int, y: int) -> str: return 'file'\n"
    crosslane.load(con, library(text))
    crosslane.register(con, lambda x: x, "other(x BIGINT) -> BIGINT")
    assert value(con, "SELECT pair(1)") == "program 1 0"
    assert value(con, "SELECT pair(1, 2)") == "file"
    assert value(con, "SELECT f(1, 2)") == "program 1 2"
