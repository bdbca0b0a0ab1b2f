"""The decorators as mypy sees them: they keep the types of what they decorate."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

#: The comment of each line names the error that mypy reports, or the type that it reveals.
PROGRAM = """
from collections.abc import Iterator

import crosslane
from crosslane import udaf, udf, udtf
from crosslane.testing import call

@udf
def twice(x: int) -> int:
    return 2 * x

@udf("later(key VARCHAR) -> VARCHAR", concurrency=8, timeout=2, memoize="1 MB", rate="5/s")
async def later(key: str, retries: int = 3) -> str:
    return key

@udf(name="city_of")
class CityOf:
    def __init__(self, default: str = "") -> None:
        self.default = default

    def __call__(self, code: str) -> str | None:
        return self.default or None

@udtf(cardinality=5)
def numbers(n: int, *, step: int = 1) -> Iterator[tuple[int, str]]:
    yield n, str(step)

@udaf
class Total:
    def update(self, x: int) -> None: ...
    def merge(self, other: "Total") -> None: ...
    def finish(self) -> int:
        return 1

reveal_type(twice)  # reveals: def (x: builtins.int) -> builtins.int
reveal_type(later)  # reveals: def (key: builtins.str, retries: builtins.int =) -> typing.Coroutine[Any, Any, builtins.str]
reveal_type(numbers)  # reveals: def (n: builtins.int, *, step: builtins.int =) -> typing.Iterator[tuple[builtins.int, builtins.str]]
reveal_type(CityOf("x")("y"))  # reveals: builtins.str | None
reveal_type(Total().finish())  # reveals: builtins.int
reveal_type(udf(len)([]))  # reveals: builtins.int

twice("2")  # error: arg-type
twice(1, 2)  # error: call-arg
text: str = twice(1)  # error: assignment
Total().update("x")  # error: arg-type
udaf(twice)  # error: call-overload
udf(5)  # error: call-overload

@udf(on_error="ignore")  # error: call-overload
def one() -> int:
    return 1

@udf(partitions=lambda: [1])  # error: call-overload
def two() -> int:
    return 2

@udf(time_out=5)  # error: call-overload
def three() -> int:
    return 3

con = crosslane.connect(functions=["functions.py", twice])
crosslane.register(con, twice, nulls="call", lane="thread")
crosslane.register(con, twice, nulls="never")  # error: arg-type
crosslane.register(con, twice, lane="fiber")  # error: arg-type
call(twice, [1, 2], timeout=5)
call("functions.js:slug", ["x"])
call(twice, [1], time_out=5)  # error: call-arg
"""


#: The test does not need the types of other packages, which would take mypy ten seconds.
SETTINGS = """
[mypy]
strict = true
disable_error_code = untyped-decorator
follow_imports = silent
[mypy-cloudpickle.*,duckdb.*,numpy.*,pandas.*,polars.*,pyarrow.*,pytest.*]
follow_imports = skip
"""


def test_decorators_keep_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", program.name]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    expected = [
        (line, what)
        for line, text in enumerate(PROGRAM.splitlines(), 1)
        for what in re.findall("# (?:error|reveals): (.+)", text)
    ]
    found = [
        (int(line), code or revealed)
        for line, code, revealed in re.findall(
            r"^program\.py:(\d+): (?:error: .*\[([\w-]+)\]|note: Revealed type is \"(.*)\")$",
            run.stdout,
            re.MULTILINE,
        )
    ]
    assert found == expected, run.stdout + run.stderr
