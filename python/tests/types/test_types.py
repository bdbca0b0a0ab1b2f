"""Signatures accept DuckDB's names of types. For types that functions cannot have, the error says what to
do."""

from __future__ import annotations

import datetime
import pickle
import re
from collections.abc import Iterator

import duckdb
import pytest

import crosslane
from crosslane import _guest

from ..conftest import Library, error, value

#: Forms of types that are in no list of names.
FORMS = [
    "VARCHAR(10)",
    "CHAR(5)",
    "CHARACTER VARYING(5)",
    "TEXT(5)",
    "ROW(a INT, b TEXT)",
    "INT ARRAY",
    "INT ARRAY[3]",
    "STRUCT(a DEC(5,1) ARRAY)[]",
    "TIMESTAMP WITHOUT TIME ZONE",
    "TIME WITHOUT TIME ZONE",
    "FLOAT(24)",
    "FLOAT(53)",
    "DEC(5,1)",
    "TIMESTAMP(0)",
    "TIMESTAMP(3)",
    "TIMESTAMP(6)",
    "TIMESTAMP(9)",
    "DOUBLE PRECISION",
    "TIME WITH TIME ZONE",
    "UNION(a INT, b TEXT[])",
]
#: Names that are no type of a column, or that need parameters to be one.
NO_TYPES = {"array", "enum", "list", "map", "null", "row", "struct", "tuple", "type", "union", "json"}
MISSING = ["TIMESTAMPTZ_NS", "VARIANT", "VARIANT[]", "UNION(a VARIANT)"]


def test_names_of_types_are_those_of_the_database() -> None:
    con = duckdb.connect()
    names = {name.lower() for (name,) in con.execute("SELECT type_name FROM duckdb_types()").fetchall()}
    for name in [*sorted(names - NO_TYPES), *FORMS]:
        described = con.execute(f"DESCRIBE SELECT CAST(NULL AS {name}) AS x").fetchall()[0][1]
        try:
            ours = _guest.parse_type(name)
        except ValueError as problem:
            assert "functions cannot have" in str(problem), name
            continue
        zoned = {"TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE", "TIMETZ": "TIME WITH TIME ZONE"}
        assert zoned.get(ours, ours) == described, name


@pytest.mark.parametrize("name", MISSING)
def test_types_that_functions_cannot_have_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"which functions cannot have: declare [A-Z]+"):
        _guest.parse_type(name)


@pytest.mark.any_duckdb
@pytest.mark.parametrize(("kind", "text"), [("VARIANT", '{"a":1}')])
def test_the_advice_works(kind: str, text: str, con: duckdb.DuckDBPyConnection, library: Library) -> None:
    """A value can be cast to the type that the error recommends. The function returns it, and it can be cast
    back."""
    with pytest.raises(ValueError, match="cast to it") as caught:
        _guest.parse_type(kind)
    (instead,) = re.findall("declare .*?([A-Z]+), and cast", str(caught.value))
    signature = f"same(x {instead}) -> {instead}"
    crosslane.load(con, library(f"@udf({signature!r})\ndef same(x): return x"))
    source = "JSON" if instead == "JSON" else "VARCHAR"
    query = f"SELECT same('{text}'::{source}::{kind}::{instead})::{kind}::VARCHAR, '{text}'::{source}::{kind}::VARCHAR"
    ((back, same),) = con.execute(query).fetchall()
    assert back == same


def test_the_error_of_a_load_says_what_to_declare(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    path = library('@udf("f(x VARIANT) -> BIGINT")\ndef f(x): return 1')
    text = error(con, f"FROM crosslane_load('{path}')")
    assert re.search("type than VARIANT, which functions cannot have: declare JSON, and cast to it", text)


#: (type, language, result, error): values that resemble those of the type but are no such values.
WRONG = [
    ("TIMETZ", "py", "datetime.time(12)", "ValueError: returned a time without a zone where TIMETZ is due"),
    ("TIMETZ", "py", "datetime.time(12, tzinfo=zone(16 * 3600))", "OverflowError: .*does not fit TIMETZ"),
    ("TIMETZ", "py", "'12:00:00+00'", "TypeError: .*where TIMETZ is due"),
    ("TIMETZ", "js", "'12:00:00'", "TypeError: returned .* without a zone where TIMETZ is due"),
    ("TIMETZ", "js", "'12:00:00+16:00'", "RangeError: .*does not fit TIMETZ"),
    ("TIMETZ", "js", "'24:00:00.1+00'", "RangeError: .*does not fit TIMETZ"),
    ("TIMETZ", "rb", "Crosslane::TimeOfDay.at(12)", "ArgumentError: .*has no zone, where TIMETZ is due"),
    ("TIMETZ", "rb", "Crosslane::TimeOfDay.at(12, utc_offset: 57_600)", "RangeError: .*does not fit TIMETZ"),
    (
        "TIME",
        "py",
        "datetime.time(12, tzinfo=zone(0))",
        "ValueError: returned a time with a zone where TIME is due",
    ),
    ("TIME", "js", "'12:00:00+00'", "TypeError: returned .* with a zone where TIME is due"),
    (
        "TIME",
        "rb",
        "Crosslane::TimeOfDay.at(12, utc_offset: 0)",
        "ArgumentError: .*has a zone, where none is due",
    ),
    ("TIME_NS", "py", "'12:00:00'", "TypeError: .*where TIME_NS is due"),
    ("TIME_NS", "js", "'24:00:00.000000001'", "RangeError: .*does not fit TIME_NS"),
    ("TIME_NS", "rb", "12", "TypeError: .*where TIME_NS is due"),
    ("BIT", "py", "'102'", "returned '102' where BIT is due: text of 0 and 1"),
    ("BIT", "py", "''", "returned '' where BIT is due: text of 0 and 1"),
    ("BIT", "py", "101", "TypeError: .*where BIT is due"),
    ("BIT", "js", "'102'", "returned '102' where BIT is due: text of 0 and 1"),
    ("BIT", "js", "101", "TypeError: .*where BIT is due"),
    ("BIT", "rb", "'102'", "returned '102' where BIT is due: text of 0 and 1"),
    ("BIT", "rb", "101", "TypeError: .*where BIT is due"),
    ("BIGNUM", "py", "1.0", "TypeError: .*where BIGNUM is due"),
    ("BIGNUM", "py", "1 << (8 * 8388607)", "InvalidResult: .*does not fit BIGNUM"),
    ("BIGNUM", "js", "1.5", "RangeError: .*does not fit BIGNUM"),
    ("BIGNUM", "js", "'1'", "TypeError: .*where BIGNUM is due"),
    ("BIGNUM", "rb", "1.0", "TypeError: .*where BIGNUM is due"),
    ("GEOMETRY", "py", "b'abc'", "where GEOMETRY is due: the WKB must be little-endian"),
    ("GEOMETRY", "py", "bytes([1, 2, 0, 0, 0, 9, 0, 0, 0])", "where GEOMETRY is due: the WKB ends early"),
    ("GEOMETRY", "py", "'POINT (1 2)'", "TypeError: .*where GEOMETRY is due"),
    ("GEOMETRY", "js", "new Uint8Array(0)", "where GEOMETRY is due: the WKB ends early"),
    ("GEOMETRY", "rb", "'POINT (1 2)'", "where GEOMETRY is due: the WKB must be little-endian"),
    ("UNION(a INT, b TEXT)", "py", "5", "TypeError: .*is due; return crosslane.Tagged"),
    ("UNION(a INT, b TEXT)", "py", "('c', 5)", "ValueError: returned the tag str 'c', which no member of"),
    ("UNION(a INT, b TEXT)", "py", "('a', 'x')", "TypeError: .*'x' where INTEGER is due"),
    ("UNION(a INT, b TEXT)", "js", "5", "TypeError: .*is due; return { tag, value }"),
    ("UNION(a INT, b TEXT)", "js", "({ tag: 'c', value: 5 })", "RangeError: .*whose tag no member of"),
    ("UNION(a INT, b TEXT)", "rb", "5", "ArgumentError: .*is due; return Crosslane::Tagged.new"),
    (
        "UNION(a INT, b TEXT)",
        "rb",
        "Crosslane::Tagged.new('c', 5)",
        "ArgumentError: returned a tag that no member of UNION\\(a INTEGER, b VARCHAR\\) has",
    ),
    ("UNION(a INT, b TEXT)", "rb", "Crosslane::Tagged.new('a', 'x')", "TypeError: .*where .* is due"),
]
FORMATS = {
    "py": "def f{0}(x): return {1}",
    "js": "udf('f{0}(x INT) -> {2}', (x) => {1})",
    "rb": "udf 'f{0}(x INT) -> {2}' do |x| {1} end",
}


#: Functions that return dicts with some fields of their type, or with all fields.
PRESENCE = """
from dataclasses import dataclass
from typing import NotRequired, Required, TypedDict

class Partly(TypedDict):
    key: str
    note: str | None
    rank: "NotRequired[int]"

class Loosely(TypedDict, total=False):
    key: Required[str]
    note: str

@dataclass
class Named:
    key: str
    note: str | None

class Missing(dict):
    def __missing__(self, key):
        raise ValueError(key)

VALUES = {
    "whole": {"key": "a", "note": "b", "rank": 1},
    "partly": {"key": "a"},
    "none": {"key": "a", "note": None},
    "keyless": {"note": "b"},
    "raises": Missing(key="a"),
}

@udf
def partly(name: str) -> Partly: return VALUES[name]
@udf
def loosely(name: str) -> Loosely: return VALUES[name]
@udf
def named(name: str) -> Named: return VALUES[name]
@udf
def many(name: str) -> list[Partly]: return [VALUES[name]] * 2
@udf
def has(value: Partly) -> str: return repr(value)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("wrong")
    lines: dict[str, list[str]] = {language: [] for language in FORMATS}
    lines["py"] = [
        "import datetime",
        "from crosslane import udf",
        "def zone(seconds): return datetime.timezone(datetime.timedelta(seconds=seconds))",
        PRESENCE,
    ]
    for index, (kind, language, result, _) in enumerate(WRONG):
        if language == "py":
            lines["py"].append(f"@udf('f{index}(x INT) -> {kind}')")
        lines[language].append(FORMATS[language].format(index, result, kind))
    paths = [folder / f"wrong.{language}" for language in FORMATS]
    for path, content in zip(paths, lines.values()):
        path.write_text("\n".join(content))
    con = crosslane.connect(functions=paths)
    yield con
    con.close()


@pytest.mark.any_duckdb
def test_results_that_are_no_values_of_their_type(
    engine: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    for index, (kind, language, result, message) in enumerate(WRONG):
        with subtests.test(f"{kind} {language}: {result}"):
            assert re.search(message, error(engine, f"SELECT f{index}(1)"))


@pytest.mark.any_duckdb
def test_vectorized_functions_make_the_new_types(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    crosslane.load(
        con,
        library(
            """
            import datetime, decimal
            import pyarrow as pa
            @udf("zones(x INT) -> TIMETZ", vectorized=True)
            def zones(x):
                return pa.array([{"time": datetime.time(1), "offset": -1800}] * len(x))
            @udf("far(x INT) -> TIMETZ", vectorized=True)
            def far(x):
                return pa.array([{"time": datetime.time(1), "offset": 57600}] * len(x))
            @udf("half(x INT) -> TIMETZ", vectorized=True)
            def half(x):
                return pa.array([{"time": datetime.time(1), "offset": None}] * len(x), "zones")
            @udf("big(x INT) -> BIGNUM", vectorized=True)
            def big(x): return [decimal.Decimal(10**75)] * len(x)
            @udf("bits(x INT) -> BIT", vectorized=True)
            def bits(x): return ["101"] * len(x)
            @udf("members(x INT) -> UNION(a INT, b TEXT)", vectorized=True)
            def members(x): return pa.array([{"tag": "b", "a": None, "b": "x"}] * len(x))
            @udf("twice(x INT) -> UNION(a INT, b TEXT)", vectorized=True)
            def twice(x): return pa.array([{"tag": "b", "a": 1, "b": "x"}] * len(x))
        """.replace(', "zones")', ', pa.struct([("time", pa.time64("us")), ("offset", pa.int32())]))')
        ),
    )
    query = "SELECT zones(1)::VARCHAR, big(1)::VARCHAR, bits(1)::VARCHAR, members(1), union_tag(members(1))::VARCHAR"
    assert con.execute(query).fetchall() == [("01:00:00-00:30", "1" + "0" * 75, "101", "x", "b")]
    assert "does not fit TIMETZ" in error(con, "SELECT far(1)")
    assert "has a NULL in the time or the offset of a TIMETZ" in error(con, "SELECT half(1)")
    assert "returned a UNION that has more than b := 'x'" in error(con, "SELECT twice(1)")


def test_times_with_nanoseconds() -> None:
    plain, fine = datetime.time(12, 30), crosslane.TimeNs(12, 30, nanosecond=5)
    assert plain < fine < datetime.time(12, 30, 0, 1)
    assert fine != plain
    assert crosslane.TimeNs(12, 30) == plain
    assert hash(crosslane.TimeNs(12, 30)) == hash(plain)
    assert pickle.loads(pickle.dumps(fine)) == fine.replace(hour=12) == fine
    assert fine.replace(nanosecond=6).isoformat() == "12:30:00.000000006"
    assert repr(fine) == "TimeNs(12:30:00.000000005)"
    assert crosslane.TimeNs(1, tzinfo=datetime.UTC, nanosecond=7).isoformat() == "01:00:00.000000007+00:00"
    with pytest.raises(ValueError, match=r"0\.\.999"):
        crosslane.TimeNs(1, nanosecond=1000)


@pytest.mark.any_duckdb
def test_a_dict_may_lack_what_may_be_none_or_is_not_required(
    engine: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    for call, result in (
        ("partly('whole')", {"key": "a", "note": "b", "rank": 1}),
        ("partly('partly')", {"key": "a", "note": None, "rank": None}),
        ("partly('none')", {"key": "a", "note": None, "rank": None}),
        ("loosely('partly')", {"key": "a", "note": None}),
        ("named('partly')", {"key": "a", "note": None}),
        ("many('partly')", [{"key": "a", "note": None, "rank": None}] * 2),
        ("has({'key': 'a', 'note': NULL, 'rank': 1})", "{'key': 'a', 'note': None, 'rank': 1}"),
    ):
        with subtests.test(call):
            assert value(engine, f"SELECT {call}") == result


@pytest.mark.any_duckdb
def test_a_dict_must_have_all_other_fields(
    engine: duckdb.DuckDBPyConnection, subtests: pytest.Subtests
) -> None:
    for call, reason in (
        ("partly('keyless')", "which lacks the field key"),
        ("loosely('keyless')", "which lacks the field key"),
        ("named('keyless')", "which lacks the field key"),
        # An exception of a mapping that is no KeyError does not mean that the field is missing.
        ("partly('raises')", "which lacks the field note"),
    ):
        with subtests.test(call):
            assert reason in error(engine, f"SELECT {call}")
