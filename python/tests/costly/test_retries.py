"""The engine repeats failed calls. These tests check the pauses, and that a pause is no lack of progress."""

from __future__ import annotations

import email.message
import pickle
import textwrap
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

import crosslane
from crosslane._runtime.retries import retry_after

from ..conftest import Load, error, value

#: The code that functions of Python and Ruby call. The first two calls raise `RAISED`, which the tests
#: replace. The third call returns the time since the first call, and the number of workers that were called.
PYTHON = """
import os, time
from crosslane import Retry, udf
begun, workers = [], set()
def called():
    begun.append(time.monotonic())
    workers.add(os.getpid())
    if len(begun) < 3:
        raise RAISED
    return [begun[-1] - begun[0], float(len(workers))]
"""
RUBY = """
$begun = []
$workers = {}
def called
  $begun << Process.clock_gettime(Process::CLOCK_MONOTONIC)
  $workers[Process.pid] = true
  raise RAISED if $begun.size < 3
  [$begun.last - $begun.first, $workers.size]
end
"""
#: The functions, by the names of their files. The tests replace `OPTIONS`.
TWICE = {
    "row.py": """
@udf("f(x BIGINT) -> DOUBLE[]", OPTIONS)
def f(x): return called()
""",
    "async.py": """
@udf("f(x BIGINT) -> DOUBLE[]", OPTIONS)
async def f(x): return called()
""",
    "vectorized.py": """
@udf("f(x BIGINT) -> DOUBLE[]", vectorized=True, OPTIONS)
def f(x): return [called()] * len(x)
""",
    "row.rb": 'udf("f(x BIGINT) -> DOUBLE[]", OPTIONS) { |x| called }',
    "concurrent.rb": 'udf("f(x BIGINT) -> DOUBLE[]", concurrency: 4, OPTIONS) { |x| called }',
}


def loaded(con: duckdb.DuckDBPyConnection, folder: Path, file: str, raised: str, **options: float) -> str:
    """Loads a function of ``TWICE``, and returns its name."""
    name = file.replace(".", "_")
    is_python = file.endswith(".py")
    given = ", ".join(
        f"{name}={value}" if is_python else f"{name}: {value}" for name, value in options.items()
    )
    path = folder / file
    text = (PYTHON if is_python else RUBY) + TWICE[file]
    text = text.replace("RAISED", raised).replace("OPTIONS", given).replace('"f(', f'"{name}(')
    path.write_text(text)
    crosslane.load(con, path)
    return name


def test_the_pauses_grow(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    name = loaded(con, tmp_path, "row.py", 'ValueError("no")', retries=2)
    time, _ = value(con, f"SELECT {name}(i) FROM range(1) r(i)")
    # At least half of 50 ms and half of 100 ms.
    assert time >= 0.075


@pytest.mark.any_duckdb
def test_a_pause_is_as_long_as_the_error_says_and_no_lack_of_progress(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """Each pause is longer than the timeout."""

    def twice(file: str) -> tuple[float, float]:
        named = (
            'Retry("busy", after=1.2)' if file.endswith(".py") else 'Crosslane::Retry.new("busy", after: 1.2)'
        )
        with crosslane.cursor(con) as cursor:
            return value(
                cursor,
                f"SELECT {loaded(cursor, tmp_path, file, named, timeout=1, retries=2)}(i) FROM range(1) r(i)",
            )

    with ThreadPoolExecutor() as threads:
        for file, (time, workers) in zip(TWICE, threads.map(twice, TWICE), strict=True):
            assert time >= 2.4, file
            assert workers == 1, file


@pytest.mark.parametrize("file", TWICE)
@pytest.mark.parametrize(("retries", "after"), [(1, 0.01), (1000, 1e9)])
def test_the_error_of_the_last_try_is_that_of_the_query(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, file: str, retries: int, after: float
) -> None:
    """The engine never pauses for longer than an hour. It does not repeat a call that asks for a longer
    pause."""
    raised = (
        f'Retry("busy", after={after})'
        if file.endswith(".py")
        else f'Crosslane::Retry.new("busy", after: {after})'
    )
    name = loaded(con, tmp_path, file, raised, retries=retries)
    kind = "crosslane.Retry" if file.endswith(".py") else "Crosslane::Retry"
    assert f"{kind}: busy" in error(con, f"SELECT {name}(i) FROM range(1) r(i)")


def test_a_table_function_waits_as_its_error_says(load: Load, tmp_path: Path) -> None:
    con = load("""
        import time
        from pathlib import Path
        from crosslane import Retry, udtf
        @udtf("t(path VARCHAR) -> TABLE(waited DOUBLE)", retries=1)
        def t(path):
            if not Path(path).exists():
                Path(path).write_text(str(time.monotonic()))
                raise Retry("busy", after=0.5)
            yield (time.monotonic() - float(Path(path).read_text()),)
        """)
    assert value(con, f"SELECT waited FROM t('{tmp_path / 'begun'}')") >= 0.5


def test_a_guest_cannot_pause_for_ever(load: Load) -> None:
    """Each pause belongs to a try of a row, so a function that never returns is late."""
    con = load("""
        import time
        from crosslane import Retry, udf
        calls = []
        @udf(timeout=0.3, retries=1)
        def f(x: int) -> int:
            calls.append(x)
            if len(calls) == 1:
                raise Retry(after=0.01)
            time.sleep(1e6)
        """)
    assert "0.3 s" in error(con, "SELECT f(i) FROM range(1) r(i)")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "stuck.py",
            """
            import time
            from crosslane import Retry, udf
            @udf(timeout=0.5, retries=1, concurrency=2)
            async def f(x: int) -> int:
                if x == 0:
                    raise Retry(after=3000)
                time.sleep(1e6)
            """,
        ),
        (
            "stuck.rb",
            """
            udf("f(x BIGINT) -> BIGINT", timeout: 0.5, retries: 1, concurrency: 2) do |x|
              raise Crosslane::Retry.new(after: 3000) if x == 0
              # This cannot be interrupted.
              Thread.handle_interrupt(Object => :never) { sleep }
            end
            """,
        ),
    ],
)
def test_a_row_that_is_stuck_beside_one_that_pauses_is_late(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, file: str, text: str
) -> None:
    (tmp_path / file).write_text(textwrap.dedent(text))
    crosslane.load(con, tmp_path / file)
    assert "timed out after 0.5 s" in error(con, "SELECT f(i) FROM range(2) r(i)")


@pytest.mark.parametrize("raised", ["ScriptError", "exit", "Class.new(Exception)"])
def test_an_exception_of_ruby_whose_methods_fail_is_shown(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, raised: str
) -> None:
    path = tmp_path / "f.rb"
    path.write_text(f"""
        class Odd < StandardError
          def retry_after = {raised if raised == "exit" else "raise(" + raised + ")"}
        end
        udf("f(x BIGINT) -> BIGINT", retries: 1) {{ |x| raise Odd, "why" }}
        """)
    crosslane.load(con, path)
    assert "Odd: why" in error(con, "SELECT f(i) FROM range(1) r(i)")


def headers(**named: str) -> email.message.Message:
    """Headers in the form that urllib gives them."""
    message = email.message.Message()
    for name, text in named.items():
        message[name.replace("_", "-")] = text
    return message


def test_the_header_of_an_answer_is_read() -> None:
    def failed(text: str) -> Exception:
        return urllib.error.HTTPError("http://x", 429, "no", headers(retry_after=text), None)

    assert retry_after(failed("120")) == 120
    assert retry_after(failed(" 1.5 ")) == 1.5
    soon = retry_after(failed(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)))
    assert soon is not None
    assert 90 < soon <= 100
    assert retry_after(failed("Wed, 21 Oct 2015 07:28:00 GMT")) == 0
    assert retry_after(failed("soon")) is None
    assert retry_after(urllib.error.HTTPError("http://x", 429, "no", headers(), None)) is None
    # requests, httpx
    answered = Exception("429")
    answered.response = SimpleNamespace(headers=headers(Retry_After="7"))  # type: ignore[attr-defined]
    assert retry_after(answered) == 7
    assert retry_after(ValueError("no")) is None


def test_an_exception_whose_attributes_fail_names_no_time() -> None:
    class Odd(Exception):
        @property
        def retry_after(self) -> float:
            raise SystemExit

    assert retry_after(Odd()) is None


@pytest.mark.parametrize("after", [-1, float("nan"), "2", True, None])
def test_a_time_that_cannot_be_is_an_error(after: object) -> None:
    with pytest.raises(ValueError, match="after is a number of seconds from 0"):
        crosslane.Retry("no", after=after)  # type: ignore[arg-type]


def test_it_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(crosslane.Retry("busy", after=2)))
    assert (str(again), again.retry_after) == ("busy", 2.0)
