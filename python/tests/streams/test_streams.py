"""A file may replace or close its streams. Its functions still answer, and output that can be printed reaches
the log."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import eventually, printed, value

pytestmark = pytest.mark.any_duckdb

BEGINNINGS = {
    "py": "import io, os, sys\nfrom crosslane import udf\ntried = set()\n",
    "rb": "require 'stringio'\n$tried = {}\n",
    "js": "const tried = new Set();\n",
}
LANGUAGES = {
    "py": "@udf\ndef {0}(x: int) -> int:\n    {1}\n    return x\n",
    "rb": "udf('{0}(x BIGINT) -> BIGINT') {{ |x| {1}; x }}\n",
    "js": "udf('{0}(x BIGINT) -> BIGINT', (x) => {{ {1}; return x }})\n",
}
WAYS = {
    "py": [
        "sys.stdout = sys.stderr = None",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = io.StringIO()",
        "sys.stdout = sys.stderr = object()",
        "del sys.stdout, sys.stderr",
        "sys.stdin.close(); sys.stdin = None",
        "os.close(0); os.close(1); os.close(2)",
        "sys.__stdout__.close(); sys.__stdout__ = sys.__stderr__ = None",
    ],
    "rb": [
        "$stdout.close; $stderr.close",
        "$stdout = $stderr = StringIO.new",
        "o = Object.new; def o.write(*) = raise('no'); $stdout = $stderr = o",
        "$stdin.close; STDOUT.close; STDERR.close",
        "IO.for_fd(1).close; IO.for_fd(2).close; IO.for_fd(0).close",
        "$stdout.sync = false; $stdout.write 'unfinished'; $stdout.close_on_exec = true",
    ],
    "js": [
        "globalThis.console = null",
        "delete globalThis.console",
        "console.log = null",
        "globalThis.console = { log() { throw new Error('no') } }",
    ],
}
#: Code that the first row in each lane runs. It may not fail.
ATTEMPTS = {
    "py": "if '{0}' not in tried: tried.add('{0}'); exec({1!r})",
    "rb": "$tried[:{0}] ||= begin; {1}; true; end",
    "js": "if (!tried.has('{0}')) {{ tried.add('{0}'); {1}; }}",
}


def assert_answers(con: duckdb.DuckDBPyConnection, function: str) -> None:
    """A function answers in its first lane, and in new lanes."""
    assert value(con, f"SELECT sum({function}(i)) FROM range(5000) r(i) WHERE i < 1") == 0
    assert eventually(lambda: value(con, "SELECT sum(idle + busy) FROM crosslane_pools()") == 0)
    for _ in range(3):
        assert value(con, f"SELECT sum({function}(i)) FROM range(1) r(i)") == 0
    # All lanes end, so that the next function gets no lane that ran this one.
    assert eventually(lambda: value(con, "SELECT sum(idle + busy) FROM crosslane_pools()") == 0)


@pytest.mark.parametrize("language", LANGUAGES)
def test_streams_that_a_file_has_replaced(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, subtests: pytest.Subtests, language: str
) -> None:
    begin, function, ways = BEGINNINGS[language], LANGUAGES[language], WAYS[language]
    path = tmp_path / f"functions.{language}"
    con.execute("CALL crosslane_set('idle_timeout', '0.05')").fetchall()
    con.execute("CALL crosslane_set('warm_lanes', '1')").fetchall()
    for way in ways:
        with subtests.test(f"load, {way}"):
            path.write_text(begin + way + "\n" + function.format("f", "pass" if language == "py" else ""))
            crosslane.load(con, path)
            assert_answers(con, "f")
    names = [f"f{at}" for at in range(len(ways))]
    attempts = [ATTEMPTS[language].format(name, way) for name, way in zip(names, ways)]
    path.write_text(begin + "".join(map(function.format, names, attempts)))
    crosslane.load(con, path)
    for name, way in zip(names, ways):
        with subtests.test(f"call, {way}"):
            assert_answers(con, name)


CLOSED = {
    "py": ("sys.stdout.close(); sys.stderr = None", "print('ping', x)"),
    "rb": ("$stdout.close; $stderr.close", 'puts "ping #{x}"'),
}


@pytest.mark.parametrize("language", CLOSED)
def test_a_closed_stream_is_open_again_in_the_lanes(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, capfd: pytest.CaptureFixture[str], language: str
) -> None:
    at_load, at_call = CLOSED[language]
    path = tmp_path / f"functions.{language}"
    path.write_text(BEGINNINGS[language] + at_load + "\n" + LANGUAGES[language].format("f", at_call))
    crosslane.load(con, path)
    assert value(con, "SELECT f(i) FROM range(7, 8) r(i)") == 7
    con.close()
    printed(capfd, "ping 7\n")
