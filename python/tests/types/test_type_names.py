"""Signatures that name types of the database (`CREATE TYPE`), in all languages and in all ways to register a
function."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, value

TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE SCHEMA shop;
    CREATE TYPE shop.price AS DECIMAL(10, 2);
    CREATE TYPE shop.item AS STRUCT(name VARCHAR, price shop.price, moods mood[]);
    CREATE TYPE "my type" AS BIGINT;
    CREATE TABLE t AS SELECT m::mood AS m, p::shop.price AS p FROM (VALUES ('sad', 1.5), ('happy', 20)) v(m, p);
"""
PYTHON = """
    from typing import Annotated
    from crosslane import udaf, udf, udtf

    @udf("cheered(x Mood) -> MOOD")
    def cheered(x):
        return "happy" if x == "ok" else "ok"

    @udf
    def noted(x: Annotated[str, "mood"], p: Annotated[object, "shop.price"]) -> str:
        return f"{x} {p!r}"

    @udf("packed(m mood, p shop.price) -> shop.item")
    def packed(m, p):
        return {"name": m, "price": p, "moods": [m, "ok"]}

    @udf("counted(x mood, *rest mood[]) -> \\"my type\\"")
    def counted(x, *rest):
        return sum(len(one) for one in rest)

    @udf("kind(x ANY, m mood) -> VARCHAR")
    def kind(x, m):
        return f"{type(x).__name__} {m}"

    @udtf("moods(first mood) -> TABLE(m mood, p shop.price)")
    def moods(first):
        yield (first, 1)
        yield ("ok", 2)

    @udaf("last_mood(x mood) -> mood")
    class LastMood:
        def __init__(self): self.x = None
        def update(self, x): self.x = x
        def merge(self, other): self.x = other.x or self.x
        def finish(self): return self.x
"""


@pytest.fixture
def shop(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    con.execute(TYPES)
    return con


def test_all_kinds_of_functions(shop: duckdb.DuckDBPyConnection, load: Load) -> None:
    load(textwrap.dedent(PYTHON))
    assert shop.sql("SELECT cheered(m), cheered('ok') FROM t ORDER BY m").fetchall() == [
        ("ok", "happy"),
        ("ok", "happy"),
    ]
    # The result can be stored in a column of the type.
    shop.execute("UPDATE t SET m = cheered(m) WHERE m = 'sad'")
    assert shop.sql("SELECT m, noted(m, p) FROM t ORDER BY m").fetchall() == [
        ("ok", "ok Decimal('1.50')"),
        ("happy", "happy Decimal('20.00')"),
    ]
    assert (
        value(shop, "SELECT packed('sad', 3)::VARCHAR") == "{'name': sad, 'price': 3.00, 'moods': [sad, ok]}"
    )
    assert value(shop, "SELECT typeof((packed('sad', 3)::shop.item).price)") == "DECIMAL(10,2)"
    assert value(shop, "SELECT counted(m, [m, m], ['ok'::mood]) FROM t LIMIT 1") == 3
    assert value(shop, "SELECT kind(p, m) FROM t WHERE m = 'ok'") == "Decimal ok"
    assert shop.sql("FROM moods('happy'::mood)").fetchall() == [("happy", 1), ("ok", 2)]
    assert value(shop, "SELECT last_mood(m ORDER BY m) FROM t") == "happy"
    assert "Could not convert string 'angry' to" in error(shop, "SELECT cheered('angry')")


OTHERS = {
    "javascript": """
        udf("cheered(x mood) -> mood", (x) => x === "ok" ? "happy" : "ok");
        udf("doubled(x shop.price) -> shop.price", (x) => x + x);
        udtf("moods(first mood) -> TABLE(m mood)", function* (first) { yield [first]; yield ["ok"]; });
    """,
    "ruby": """
        udf("cheered(x mood) -> mood") { |x| x == "ok" ? "happy" : "ok" }
        udf("doubled(x shop.price) -> shop.price") { |x| x + x }
        udtf("moods(first mood) -> TABLE(m mood)") { |first| [[first], ["ok"]] }
    """,
}


@pytest.mark.parametrize("language", OTHERS)
def test_other_languages(shop: duckdb.DuckDBPyConnection, language: str, script: Load, ruby: Load) -> None:
    {"javascript": script, "ruby": ruby}[language](OTHERS[language])
    assert shop.sql("SELECT cheered(m) FROM t").fetchall() == [("ok",), ("ok",)]
    assert [row[0] for row in shop.sql("FROM moods('sad'::mood)").fetchall()] == ["sad", "ok"]
    assert "doubled(x DECIMAL(10,2)) -> DECIMAL(10,2)" in {
        row[0] for row in shop.sql("SELECT signature FROM crosslane_functions()").fetchall()
    }


def test_lua(shop: duckdb.DuckDBPyConnection, lua: Load) -> None:
    lua('udf("cheered(x mood) -> mood", function(x) return x == "ok" and "happy" or "ok" end)')
    assert shop.sql("SELECT cheered(m) FROM t").fetchall() == [("ok",), ("ok",)]


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_functions_of_a_program(shop: duckdb.DuckDBPyConnection, lane: Any) -> None:
    signature = crosslane.register(
        shop, lambda x, y: [x] * len(y), "repeated(x mood, y ANY) -> mood[]", lane=lane
    )
    assert signature == "repeated(x ENUM('sad', 'ok', 'happy'), y ANY) -> ENUM('sad', 'ok', 'happy')[]"
    assert value(shop, "SELECT repeated(m, 'ab') FROM t WHERE m = 'sad'") == ["sad", "sad"]
    with pytest.raises(crosslane.DeclarationError) as caught:
        crosslane.register(shop, len, "size(x shop.prize) -> BIGINT", lane=lane)
    # The error names five types, in alphabetical order.
    assert "expected a SQL type; types of this database are main.mood, main.my type, memory.main.mood" in str(
        caught.value
    )


def test_a_type_is_what_it_was_when_its_file_was_loaded(
    con: duckdb.DuckDBPyConnection, library: Library
) -> None:
    path = library('from crosslane import udf\n@udf("cheered(x mood) -> mood")\ndef cheered(x): return x')
    with pytest.raises(duckdb.Error, match="expected a SQL type at column 11"):
        crosslane.load(con, path)
    con.execute("CREATE TYPE moon AS ENUM ('full'); CREATE TYPE main.size AS INTEGER")
    with pytest.raises(duckdb.Error, match="expected a SQL type; types of this database are") as caught:
        crosslane.load(con, path)
    assert "moon" in str(caught.value)
    assert "size" in str(caught.value)
    con.execute("CREATE TYPE mood AS ENUM ('sad')")
    crosslane.load(con, path)
    assert value(con, "SELECT cheered('sad')") == "sad"
    con.execute("DROP TYPE mood; CREATE TYPE mood AS ENUM ('ok')")
    assert value(con, "SELECT cheered('sad')") == "sad"
    crosslane.load(con, path)
    assert value(con, "SELECT cheered('ok')") == "ok"


def test_a_library_that_its_lanes_load_again(shop: duckdb.DuckDBPyConnection, load: Load) -> None:
    load(
        """
        import threading
        from crosslane import udf
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        @udf("cheered(x mood) -> mood")
        def cheered(x): return x
        """
    )
    assert value(shop, "SELECT cheered(m) FROM t LIMIT 1") == "sad"


def test_a_type_that_is_longer_than_an_argument_of_a_program(
    con: duckdb.DuckDBPyConnection, load: Load
) -> None:
    con.execute("CREATE TYPE long_one AS ENUM (SELECT 'value ' || i FROM range(20_000) r(i))")
    load(
        """
        import threading
        from crosslane import udf
        threads = [threading.Thread(target=threading.Event().wait, daemon=True)]
        threads[0].start()
        @udf("running(x long_one) -> BOOLEAN")
        def running(x): return threads[0].is_alive()
        """
    )
    assert value(con, "SELECT running('value 19999')") is True


def test_types_of_other_databases(con: duckdb.DuckDBPyConnection, load: Load, tmp_path: Path) -> None:
    con.execute(f"ATTACH '{tmp_path / 'other.duckdb'}' AS other; CREATE TYPE other.mood AS ENUM ('far')")
    con.execute("CREATE SCHEMA other.s; CREATE TYPE other.s.mood AS ENUM ('further')")
    load(
        """
        from crosslane import udf
        @udf("far(x other.mood) -> other.main.mood")
        def far(x): return x
        @udf("further(x Other.S.Mood) -> VARCHAR")
        def further(x): return x
        """
    )
    assert value(con, "SELECT far('far')") == "far"
    assert value(con, "SELECT further('further')") == "further"


def test_all_names_are_listed(shop: duckdb.DuckDBPyConnection) -> None:
    known = dict(shop.sql("FROM crosslane_types()").fetchall())
    assert known["mood"] == known["main.mood"] == "ENUM('sad', 'ok', 'happy')"
    assert known["shop.price"] == "DECIMAL(10,2)"
    assert known["shop.item"] == (
        "STRUCT(name VARCHAR, price DECIMAL(10,2), moods ENUM('sad', 'ok', 'happy')[])"
    )
    assert "price" not in known
    # The list leaves out a type that functions cannot have.
    shop.execute("CREATE TYPE other AS VARIANT")
    assert dict(shop.sql("FROM crosslane_types()").fetchall()) == known
