"""The set-ups of functions are ended with the program, whether or not it closes its database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "py": """
from crosslane import udf

@udf
class Kept:
    def __call__(self, x: int) -> int:
        return x
    def close(self):
        print("torn down", flush=True)
""",
    "rb": """
udf "kept(x BIGINT) -> BIGINT", setup: -> { 1 }, teardown: ->(_) { puts "torn down" } do |_, x|
  x
end
""",
    "js": """
import { udf } from "crosslane";
udf("kept(x BIGINT) -> BIGINT", class { call(x) { return x; } close() { console.log("torn down"); } });
""",
}
PROGRAM = """
import sys
import crosslane
con = crosslane.connect(functions=[sys.argv[1]])
assert con.execute("SELECT kept(7)").fetchall() == [(7,)]
if sys.argv[2] == "closes":
    con.close()
"""


@pytest.mark.parametrize("how", ["closes", "ends"])
@pytest.mark.parametrize("language", FILES)
def test_a_program_that_ends(tmp_path: Path, language: str, how: str) -> None:
    path = tmp_path / f"kept.{language}"
    path.write_text(FILES[language])
    command = [sys.executable, "-c", PROGRAM, str(path), how]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "")
    assert "torn down" in run.stderr


def test_objects_of_the_programs_threads_do_not_hold_it_up(tmp_path: Path) -> None:
    program = """
import crosslane

class Kept:
    def __call__(self, x: int) -> int:
        return x

con = crosslane.connect()
crosslane.register(con, Kept, lane="thread")
assert con.execute("SELECT kept(7)").fetchall() == [(7,)]
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
