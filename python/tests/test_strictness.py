"""What a row function may return and what a vectorized one may are the same values, in JavaScript and Ruby."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import duckdb
import pytest

from .conftest import value

Load = Callable[[str], duckdb.DuckDBPyConnection]


def outcome(con: duckdb.DuckDBPyConnection, function: str) -> str:
    try:
        return str(value(con, f"SELECT {function}(1)::VARCHAR"))
    except duckdb.Error as problem:
        assert ("Error: " in str(problem) and "returned" in str(problem)) or "Arrow" in str(problem), str(
            problem
        )
        return "refused"


#: (the type, results); a typed array of JavaScript's is of the value.
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


@pytest.mark.parametrize("language", ["javascript", "ruby"])
def test_rows_and_columns_are_equally_strict(request: pytest.FixtureRequest, language: str) -> None:
    lines, pairs = [], []
    for at, (kind, results, *views) in enumerate(JAVASCRIPT if language == "javascript" else RUBY):
        for place, result in enumerate(results):
            ways = [result, f"[{result}]"]
            big = result.endswith("n")
            if views and views[0] and not result.startswith("'") and result != "true":
                ways += [f"new {views[0]}([{result}])"] * (big == views[0].startswith("Big"))
            for way, made in enumerate(ways):
                name = f"f_{at}_{place}_{way}"
                if language == "javascript":
                    option = ", { vectorized: true }" if way else ""
                    lines.append(f"udf({f'{name}(x INT) -> {kind}'!r}{option}, (x) => ({made}));")
                else:
                    option = ", vectorized: true" if way else ""
                    lines.append(f'udf("{name}(x INT) -> {kind}"{option}) {{ |x| {made} }}')
                if way:
                    pairs.append((f"f_{at}_{place}_0", name, f"{kind}: {made}"))
    con = request.getfixturevalue("script" if language == "javascript" else "ruby")(
        textwrap.dedent("\n".join(lines))
    )
    different = []
    for row, column, what in pairs:
        one, other = outcome(con, row), outcome(con, column)
        if one != other:
            different.append(f"{what} is {other}, and in a row {one}")
    assert different == []
