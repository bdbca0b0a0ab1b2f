"""The columns of `crosslane_functions()`, in every language."""

from __future__ import annotations

import functools
from pathlib import Path

import duckdb
import pytest

import crosslane

COLUMNS = "function, parameters, returns, language, file, line, description"

TEXTS = {
    "py": (
        "Python",
        "@udf",
        """
from crosslane import udf
@udf
def area(width: float, height: float = 1.0) -> float:
    '''The area of a rectangle.

    Both sides in metres.
    '''
    return width * height
@udf
def bare(x: int) -> int: return x
""",
    ),
    "rb": (
        "Ruby",
        "udf",
        """
# Not of the function.

# The area of a rectangle.
#
# Both sides in metres.
udf "area(width DOUBLE, height DOUBLE) -> DOUBLE" do |width, height|
  width * height
end
udf("bare(x BIGINT) -> BIGINT") { |x| x }
""",
    ),
    "js": (
        "JavaScript",
        "udf",
        """
// Not of the function.

/**
 * The area of a rectangle.
 *
 * Both sides in metres.
 */
udf("area(width DOUBLE, height DOUBLE) -> DOUBLE", (width, height) => width * height);
udf("bare(x BIGINT) -> BIGINT", (x) => x);
""",
    ),
    "mjs": (
        "JavaScript",
        "udf",
        """
/* Not of the function. */

// The area of a rectangle.
//
// Both sides in metres.
udf("area(width DOUBLE, height DOUBLE) -> DOUBLE", (width, height) => width * height);
udf("bare(x BIGINT) -> BIGINT", (x) => x);
""",
    ),
}


@pytest.mark.parametrize("suffix", TEXTS)
def test_functions_of_a_file(con: duckdb.DuckDBPyConnection, tmp_path: Path, suffix: str) -> None:
    language, beginning, text = TEXTS[suffix]
    path = tmp_path / f"functions.{suffix}"
    path.write_text(text.strip())
    crosslane.load(con, path)
    rows = con.execute(f"SELECT {COLUMNS} FROM crosslane_functions()").fetchall()
    lines = {row[0]: row[5] for row in rows}
    for line in lines.values():
        assert text.strip().splitlines()[line - 1].startswith(beginning)
    described = "The area of a rectangle.\n\nBoth sides in metres."
    wanted = [
        ("area", "width DOUBLE, height DOUBLE", "DOUBLE", language, str(path), lines["area"], described),
        ("bare", "x BIGINT", "BIGINT", language, str(path), lines["bare"], None),
    ]
    if suffix == "py":
        wanted.insert(1, ("area", "width DOUBLE", "DOUBLE", language, str(path), lines["area"], described))
    assert rows == wanted


@pytest.mark.parametrize("lane", ["process", "thread"])
def test_registered_functions(con: duckdb.DuckDBPyConnection, lane: str) -> None:
    def scale(factor: int, x: int) -> int:
        """Multiplies.\0"""
        return factor * x

    crosslane.register(con, scale, lane=lane)
    crosslane.register(con, functools.partial(scale, 2), "double(x BIGINT) -> BIGINT", lane=lane)
    crosslane.register(con, lambda x: x, "same(x BIGINT) -> BIGINT", lane=lane)
    query = "SELECT function, description, language, file FROM crosslane_functions() ORDER BY function"
    assert con.execute(query).fetchall() == [
        ("double", "Multiplies.\0", "Python", __file__),
        ("same", None, "Python", __file__),
        ("scale", "Multiplies.\0", "Python", __file__),
    ]
