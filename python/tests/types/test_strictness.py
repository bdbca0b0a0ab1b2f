"""Row functions and vectorized functions may return the same values, in all languages."""

from __future__ import annotations

import duckdb
import pytest

from ..conftest import error, value

pytestmark = pytest.mark.any_duckdb


def outcome(con: duckdb.DuckDBPyConnection, function: str) -> str:
    try:
        return str(value(con, f"SELECT {function}(1)::VARCHAR"))
    except duckdb.Error as problem:
        assert ("Error: " in str(problem) and "returned" in str(problem)) or "Arrow" in str(problem), str(
            problem
        )
        return "refused"


#: (the type, results, the class of the typed array into which the test puts each result)
JAVASCRIPT = [
    ("TINYINT", ["300", "1.5", "'1'", "true", "1n"], "Float64Array"),
    ("UTINYINT", ["-1", "255", "256"], "Int32Array"),
    ("INTEGER", ["1.5", "2 ** 31", "NaN"], "Float64Array"),
    ("INTEGER", ["-1", "2n ** 40n"], "BigInt64Array"),
    ("BIGINT", ["1.5", "2 ** 53", "NaN"], "Float64Array"),
    ("UBIGINT", ["-1n", "1n"], "BigInt64Array"),
    ("FLOAT", ["1e300", "1.5", "NaN"], "Float64Array"),
    ("DOUBLE", ["2n ** 60n", "1n"], "BigInt64Array"),
    ("BOOLEAN", ["1", "0"], "Uint8Array"),
    ("VARCHAR", ["1"], "Uint8Array"),
    ("DECIMAL(4,1)", ["1.25", "1000"], "Float64Array"),
    ("BIGNUM", ["1.5", "7"], "Float64Array"),
    ("TIMETZ", ["'12:00'", "'12:00+01'"], None),
    ("BIT", ["101", "'101'", "'2'"], None),
]
RUBY = [
    ("TINYINT", ["300", "1.5", "'1'", "true", "1.0"]),
    ("BIGINT", ["2**63", "1.0", "BigDecimal(1)"]),
    ("FLOAT", ["1e300", "1", "1.5r"]),
    ("BOOLEAN", ["1", "'true'"]),
    ("VARCHAR", ["1", ":a", "'\\xFF'"]),
    ("DECIMAL(4,1)", ["1.25", "1000", "'1'"]),
    ("DATE", ["Time.at(0)", "Date.new(2020)", "'2020-01-01'"]),
    ("BIGINT[]", ["1", "[1.0]", "1..3"]),
    ("STRUCT(a BIGINT)", ["{ b: 1 }", "[1]", "{ a: 1, b: 2 }"]),
]


def pairs(language: str) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Declarations, and of each vectorized function the one for rows, its own name, and what it returns."""
    lines, pairs = [], []
    for at, (kind, results, *views) in enumerate({"script": JAVASCRIPT, "ruby": RUBY, "load": []}[language]):
        for place, result in enumerate(results):
            ways = [result, f"[{result}]"]
            big = result.endswith("n")
            if views and views[0] and not result.startswith("'") and result != "true":
                ways += [f"new {views[0]}([{result}])"] * (big == views[0].startswith("Big"))
            for way, made in enumerate(ways):
                name = f"one_{at}_{place}_{way}"
                if language == "script":
                    option = ", { vectorized: true }" if way else ""
                    lines.append(f"udf({f'{name}(x INT) -> {kind}'!r}{option}, (x) => ({made}));")
                else:
                    option = ", vectorized: true" if way else ""
                    lines.append(f'udf("{name}(x INT) -> {kind}"{option}) {{ |x| {made} }}')
                if way:
                    pairs.append((f"one_{at}_{place}_0", name, f"{kind}: {made}"))
    return lines, pairs


TYPES = [
    *(
        "BOOLEAN",
        "TINYINT",
        "BIGINT",
        "UBIGINT",
        "HUGEINT",
        "BIGNUM",
        "FLOAT",
        "DOUBLE",
        "DECIMAL(4,1)",
        "VARCHAR",
    ),
    *(
        "BLOB",
        "BIT",
        "DATE",
        "TIME",
        "TIMETZ",
        "TIMESTAMP",
        "TIMESTAMPTZ",
        "INTERVAL",
        "UUID",
        "ENUM('a', 'b')",
    ),
    *("BIGINT[]", "BIGINT[1]", "STRUCT(a BIGINT)", "MAP(VARCHAR, BIGINT)", "UNION(a BIGINT, b VARCHAR)"),
]
#: Values in each language. None stands for NULL, and may stand for an error. The last value fits no type.
VALUES = {
    "load": [
        *("True", "0", "1", "-1", "300", "2**40", "2**63", "2**70", "1.0", "1.5", "math.inf", "1e300"),
        *("decimal.Decimal(1)", "decimal.Decimal('1.25')", "'a'", "'1'", "'101'", "'2020-01-01'", "b'a'"),
        *(
            "day",
            "day.date()",
            "day.replace(tzinfo=zone)",
            "datetime.time(12)",
            "datetime.time(12, tzinfo=zone)",
        ),
        *("datetime.timedelta(1)", "crosslane.Interval(1)", "uuid.UUID(int=5)", "[1]", "(1,)", "[1.0]"),
        *(
            "{'a': 1}",
            "{'a': 1.0}",
            "crosslane.Tagged('a', 1)",
            "np.float64(1)",
            "np.int64(1)",
            "np.bool_(True)",
        ),
        *("np.datetime64('2020-01-01')", "object"),
    ],
    "script": [
        *(
            "true",
            "0",
            "1",
            "-1",
            "300",
            "1.5",
            "NaN",
            "Infinity",
            "2 ** 40",
            "2 ** 53",
            "1e300",
            "1n",
            "-1n",
        ),
        *("2n ** 64n", "'a'", "'1'", "'101'", "'12:00'", "'12:00+01'", "'2020-01-01'", "new Date(0)"),
        *(
            "new Uint8Array([97])",
            "[1]",
            "[1.5]",
            "{ a: 1 }",
            "{ a: 1.5 }",
            "{ b: 1 }",
            "new Map([['a', 1]])",
        ),
        *("{ tag: 'a', value: 1 }", "{ months: 1, days: 0, microseconds: 0n }"),
        *("'00000000-0000-0000-0000-000000000005'", "() => 1"),
    ],
    "ruby": [
        *(
            "true",
            "0",
            "1",
            "-1",
            "300",
            "2**40",
            "2**63",
            "2**70",
            "1.0",
            "1.5",
            "Float::NAN",
            "Float::INFINITY",
        ),
        *("1e300", "BigDecimal('1.25')", "1r", "'a'", ":a", "'1'", "'101'", "'2020-01-01'", "'\\xFF'.b"),
        *("Date.new(2020)", "DateTime.new(2020)", "Time.at(0).utc", "Crosslane::TimeOfDay.at(12)"),
        *("Crosslane::TimeOfDay.at(12, utc_offset: 0)", "[1]", "[1.0]", "1..3", "{ a: 1 }", "{ 'a' => 1 }"),
        *("{ a: 1.0 }", "{ b: 1 }", "Struct.new(:a).new(1)", "Crosslane::Tagged.new('a', 1)"),
        *("Crosslane::Interval.new(1, 0, 0)", "'00000000-0000-0000-0000-000000000005'", "Object"),
    ],
}
#: The code with which functions of each language return the value of a number, in a row and in columns of
#: objects.
WAYS = {
    "load": [
        "values[n]",
        "[values[n[0].as_py()]]",
        "pd.Series([values[n[0].as_py()]], dtype=object)",
        "objects(values[n[0].as_py()])",
    ],
    "script": ["values[n]", "[values[n[0]]]"],
    "ruby": ["VALUES[n]", "[VALUES[n[0]]]"],
}
#: Vectorized functions may also return values as they get them. Arrow has these types as Decimals, and numpy
#: has no zones.
AS_IN_ARROW = {
    ("HUGEINT", "decimal.Decimal(1)"),
    ("BIGNUM", "decimal.Decimal(1)"),
    ("TIMESTAMPTZ", "np.datetime64('2020-01-01')"),
}


def declarations(language: str) -> str:
    """The text of a function `f_TYPE_WAY(n)` for each type and way. `g_TYPE_WAY(n)` gives NULL where
    `f_TYPE_WAY(n)` fails."""
    values = ", ".join(VALUES[language])
    lines = {
        "load": [
            "import crosslane, datetime, decimal, math, numpy as np, pandas as pd, uuid",
            "day, zone = datetime.datetime(2020, 1, 1), datetime.timezone.utc",
            f"values = [{values}]",
            "def objects(value):",
            "    column = np.empty(1, object)",
            "    column[0] = value",
            "    return column",
        ],
        "script": [f"const values = [{values}];"],
        "ruby": ["require 'bigdecimal'", "require 'date'", f"VALUES = [{values}]"],
    }[language]
    for at, kind in enumerate(TYPES):
        for way, result in enumerate(WAYS[language]):
            for name, on_error in (("f", "fail"), ("g", "null")):
                signature = f"{name}_{at}_{way}(n BIGINT) -> {kind}"
                if language == "load":
                    options = f"deterministic=False, on_error={on_error!r}, vectorized={way > 0}"
                    lines += [f"@udf({signature!r}, {options})", f"def {name}_{at}_{way}(n): return {result}"]
                    continue
                options = f"deterministic: false, on_error: {on_error!r}, vectorized: {str(way > 0).lower()}"
                if language == "script":
                    lines.append(f"udf({signature!r}, {{ {options} }}, (n) => {result});")
                else:
                    lines.append(f'udf("{signature}", {options}) {{ |n| {result} }}')
    return "\n".join(lines)


def assert_all_values(con: duckdb.DuckDBPyConnection, language: str) -> None:
    values = VALUES[language]
    different = set()
    for at, kind in enumerate(TYPES):
        rows, *columns = (
            con.execute(
                "SELECT " + ", ".join(f"g_{at}_{way}({n})::VARCHAR" for n in range(len(values)))
            ).fetchone()
            for way in range(len(WAYS[language]))
        )
        assert any(rows), kind
        assert rows[-1] is None, kind
        for column in columns:
            different |= {(kind, one) for one, row, other in zip(values, rows, column) if row != other}
        # The errors have the same words, and name the same row.
        last = len(values) - 1
        rows, *columns = (
            error(con, f"SELECT f_{at}_{way}({last})").replace(f"f_{at}_{way}", "f")
            for way in range(len(WAYS[language]))
        )
        assert f"in row 1 of the batch, with n = {last}" in rows
        assert set(columns) == {rows}
    assert different == (AS_IN_ARROW if language == "load" else set())


#: Returns its argument, except for one row.
NAMED = {
    "load": '@udf("named(n BIGINT) -> BIGINT", vectorized=True)\n'
    "def named(n): return [0.5 if x == 3 else x for x in n.to_pylist()]",
    "script": "udf('named(n BIGINT) -> BIGINT', { vectorized: true }, (n) => Array.from(n, (x) => x === 3 ? 0.5 : x));",
    "ruby": "udf('named(n BIGINT) -> BIGINT', vectorized: true) { |n| n.map { |x| x == 3 ? 0.5 : x } }",
}


@pytest.mark.parametrize("language", VALUES)
def test_rows_and_columns_are_equally_strict(
    request: pytest.FixtureRequest, subtests: pytest.Subtests, language: str
) -> None:
    lines, both = pairs(language)
    con = request.getfixturevalue(language)("\n".join([declarations(language), *lines, NAMED[language]]))
    for row, column, what in both:
        with subtests.test(what):
            assert outcome(con, column) == outcome(con, row)
    with subtests.test("all values of all types"):
        assert_all_values(con, language)
    with subtests.test("the row that is named is that of the value"):
        con.execute("CREATE TABLE t AS FROM (VALUES (0), (NULL), (1), (NULL), (3), (2)) t(n)")
        assert "in row 5 of the batch, with n = 3" in error(con, "SELECT named(n) FROM t")
