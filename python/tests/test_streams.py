"""A file may do what it likes to its streams: its functions answer, and what still can be printed reaches the log."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import crosslane

from .conftest import printed, value

pytestmark = pytest.mark.any_duckdb

LANGUAGES = {
    "py": "import io, os, sys\nfrom crosslane import udf\n{0}\n@udf\ndef f(x: int) -> int:\n    {1}\n    return x\n",
    "rb": "require 'stringio'\n{0}\nudf('f(x BIGINT) -> BIGINT') {{ |x| {1}; x }}\n",
    "js": "{0}\nudf('f(x BIGINT) -> BIGINT', (x) => {{ {1}; return x }})\n",
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
CASES = [(language, way) for language, ways in WAYS.items() for way in ways]


@pytest.mark.parametrize(("language", "way"), CASES)
@pytest.mark.parametrize("when", ["load", "call"])
def test_streams_that_a_file_has_replaced(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str, way: str, when: str
) -> None:
    path = tmp_path / f"functions.{language}"
    at_load, at_call = (way, "") if when == "load" else ("", way)
    # The second row finds less to do.
    attempt = {
        "py": f"try: exec({at_call!r})\n    except Exception: pass",
        "rb": f"begin; {at_call}; rescue StandardError; nil; end",
        "js": f"try {{ {at_call} }} catch {{}}",
    }
    path.write_text(LANGUAGES[language].format(at_load, attempt[language]))
    crosslane.load(con, path)
    assert value(con, "SELECT sum(f(i)) FROM range(5000) r(i) WHERE i < 1") == 0
    con.execute("CALL crosslane_set('idle_timeout', '0.05')").fetchall()
    # New lanes too.
    for _ in range(3):
        assert value(con, "SELECT sum(f(i)) FROM range(1) r(i)") == 0


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
    path.write_text(LANGUAGES[language].format(at_load, at_call))
    crosslane.load(con, path)
    assert value(con, "SELECT f(i) FROM range(7, 8) r(i)") == 7
    con.close()
    printed(capfd, "ping 7\n")
