"""Calls of functions with columns: names, wrong arguments, threads, Ctrl-C and the end of the program."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import crosslane
from crosslane import udf

from ..conftest import Library, eventually

#: The function creates a file to show that it has begun, and waits for another file.
WAITS = """
import pathlib, time

@udf
def waits(folder: str, x: int) -> int:
    folder = pathlib.Path(folder)
    (folder / "begun").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return x
"""


@pytest.mark.any_duckdb
def test_names(fns: crosslane.Functions) -> None:
    assert {"slug", "twice", "sum_of", "numbers", "late", "polars"} <= set(dir(fns))
    assert "  twice(x BIGINT) -> BIGINT\n  twice(x VARCHAR) -> VARCHAR\n" in repr(fns)
    assert (len(fns), "slug" in fns, "slugs" in fns) == (19, True, False)
    assert repr(fns.slug) == "<crosslane function slug(title VARCHAR) -> VARCHAR>"
    assert (fns.slug.__name__, fns.slug.__doc__) == ("slug", "The title in an address.")
    # An attribute is always the method of that name. The function can still be called by its name.
    assert fns["close"]([1]) == fns["my close"]([1]) == [1]
    with pytest.raises(AttributeError, match="there is no function Slugs; did you mean slug"):
        fns.Slugs  # noqa: B018
    with pytest.raises(KeyError, match="there is no function zzz; there are slug, plus_one, "):
        fns["zzz"]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda fns: fns.plus([1, 2], [1, 2, 3]),
            ValueError,
            "plus: columns have the same number of rows, but x has 2 and y has 3",
        ),
        (
            lambda fns: fns.twice([1, 2], [3]),
            TypeError,
            "twice was called with 2 arguments, but it is twice(x BIGINT) -> BIGINT or twice(x VARCHAR) -> VARCHAR",
        ),
        (lambda fns: fns.plus([1]), TypeError, "plus was called with 1 argument, but it is plus(x BIGINT, y"),
        (lambda fns: fns.slug([1], title=2), TypeError, "got an unexpected keyword argument 'title'"),
        (lambda fns: fns.total([1], [2, 3], [4]), ValueError, "numbers has 1 and numbers has 2"),
        (
            lambda fns: fns.plus(pd.Series([1, 2]), pd.Series([1, 2], [1, 0])),
            ValueError,
            "plus: the indexes of x and y differ: align them, or pass y.to_numpy()",
        ),
        (
            lambda fns: fns.slug(pa.table({"a": ["x"]})),
            TypeError,
            "slug: title is a table (Table), and not a column",
        ),
        (
            lambda fns: fns.slug(pd.DataFrame()),
            TypeError,
            "slug: title is a table (DataFrame), and not a column",
        ),
        (
            lambda fns: fns.halved(np.zeros((2, 2))),
            TypeError,
            "halved: x has 2 dimensions, and a column has one",
        ),
        (
            lambda fns: fns.told([1, "a"]),
            TypeError,
            "told: x is a list without a type in Arrow: Could not convert 'a'",
        ),
        (
            lambda fns: fns.told([2**70]),
            TypeError,
            "told: x is a list without a type in Arrow: Python int too large",
        ),
        (lambda fns: fns.told({1, 2}), TypeError, "told: x is neither a column nor a value of SQL: "),
        (
            lambda fns: fns.numbers([1], 2),
            TypeError,
            "numbers is a table function and takes values, no columns",
        ),
        (
            lambda fns: fns.late([1]),
            TypeError,
            "is a stream function: crosslane.map(table, 'FILE:late') calls it",
        ),
        (lambda fns: fns.slug([1]), duckdb.BinderException, "slug(BIGINT)"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_wrong_arguments(
    fns: crosslane.Functions, call: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        call(fns)
    assert message in str(caught.value)


@pytest.mark.any_duckdb
def test_wrong_functions(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="takes files of functions"):
        crosslane.Functions()
    with pytest.raises(TypeError, match=r"files and functions, one by one, and not \['a.py'\]"):
        crosslane.Functions(["a.py"])  # type: ignore[arg-type]
    with pytest.raises(duckdb.Error, match=r"cannot load .*/missing.py: .*No such file"):
        crosslane.Functions(tmp_path / "missing.py")


def test_an_exception_of_a_function(fns: crosslane.Functions) -> None:
    with pytest.raises(duckdb.Error) as caught:
        fns.reciprocal([1, 0])
    assert "reciprocal: ZeroDivisionError: division by zero\n  at " in str(caught.value)
    assert "functions.py:75 in reciprocal\n    return 1 / x" in str(caught.value)
    assert "with x = 0" in str(caught.value)
    assert fns.reciprocal([2]) == [0.5]


@pytest.mark.any_duckdb
def test_languages_and_functions_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "f.js").write_text('udf("in_js(x BIGINT) -> BIGINT", (x) => x + 1);')
    (tmp_path / "f.rb").write_text('udf("in_ruby(x BIGINT) -> BIGINT") { |x| x + 2 }')
    (tmp_path / "f.lua").write_text('udf("in_lua(x BIGINT) -> BIGINT", function(x) return x + 3 end)')

    def in_python(x: int) -> int:
        return x + 4

    five = udf("with_signature(x BIGINT) -> BIGINT")(lambda x: x + 5)
    files = [tmp_path / f"f.{suffix}" for suffix in ("js", "rb", "lua")]
    with crosslane.Functions(*files, in_python, five) as fns:
        results = {name: fns[name]([1, None]) for name in fns}
    assert results == {
        "in_js": [2, None],
        "in_ruby": [3, None],
        "in_lua": [4, None],
        "in_python": [5, None],
        "with_signature": [6, None],
    }


def test_threads_call_at_the_same_time(fns: crosslane.Functions) -> None:
    numbers = np.arange(100_000)
    wrong: list[object] = []

    def run(first: int) -> None:
        try:
            for rows in (10, 90_000, 3000):
                part = numbers[first : first + rows]
                if not np.array_equal(fns.plus(part, first), part + first):
                    wrong.append((first, rows))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("argument", [[1, 2], 1], ids=["column", "value"])
def test_ctrl_c(library: Library, tmp_path: Path, argument: Any) -> None:
    begun: list[bool] = []

    def press() -> None:
        begun.append(eventually((tmp_path / "begun").exists, 30))
        os.kill(os.getpid(), signal.SIGINT)

    with crosslane.Functions(library(WAITS)) as fns:
        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            fns.waits(str(tmp_path), argument)
        thread.join()
        assert begun == [True]
        (tmp_path / "go").touch()
        assert fns.waits(str(tmp_path), [3]) == [3]


@pytest.mark.any_duckdb
def test_close_lets_calls_end(library: Library, tmp_path: Path) -> None:
    fns = crosslane.Functions(library(WAITS))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(fns.waits(str(tmp_path), [1])))
    thread.start()
    assert eventually((tmp_path / "begun").exists)
    fns.close()
    with pytest.raises(duckdb.ConnectionException, match="these functions are closed"):
        fns.waits(str(tmp_path), [1])
    (tmp_path / "go").touch()
    thread.join()
    assert results == [[1]]
    fns.close()


@pytest.mark.any_duckdb
def test_a_fork_is_told(fns: crosslane.Functions) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            fns.slug(["a"])
        except duckdb.ConnectionException as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading) as pipe:
        assert (
            f"these functions were made in process {os.getpid()}, and a fork cannot use them" in pipe.read()
        )


@pytest.mark.any_duckdb
def test_pickles(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = library("@udf\ndef twice(x: int) -> int: return x * 2")
    monkeypatch.chdir(path.parent)
    with crosslane.Functions(path.name, threads=1) as fns:
        pickled = pickle.dumps((fns, fns.twice))
    monkeypatch.chdir("/")
    again, twice = pickle.loads(pickled)
    assert (again.twice([1]), twice([2])) == ([2], [4])
    assert again.cursor().execute("SELECT current_setting('threads')").fetchall() == [(1,)]
    # Functions that are unpickled again have the same workers until somebody closes them.
    third, _ = pickle.loads(pickled)
    again.close()
    with pytest.raises(duckdb.ConnectionException):
        third.twice([1])
    with pickle.loads(pickled)[0] as fourth:
        assert fourth.twice([3]) == [6]


@pytest.mark.any_duckdb
def test_functions_of_a_program_are_not_pickled() -> None:
    def twice(x: int) -> int:
        return x * 2

    with crosslane.Functions(twice) as fns:
        with pytest.raises(TypeError, match=r"cannot be pickled: put <function .*twice at .*> into a file"):
            pickle.dumps(fns)


@pytest.mark.any_duckdb
def test_cancel(library: Library, tmp_path: Path) -> None:
    with crosslane.Functions(library(WAITS)) as fns:
        outcome: list[str] = []

        def run() -> None:
            with pytest.raises(duckdb.Error) as caught:
                fns.waits(str(tmp_path), [1])
            outcome.append(str(caught.value))

        thread = threading.Thread(target=run)
        thread.start()
        assert eventually((tmp_path / "begun").exists)
        fns.cancel()
        thread.join()
        assert outcome[0].endswith(("waits: cancelled", "Interrupted!"))
        (tmp_path / "go").touch()
        assert fns.waits(str(tmp_path), [1]) == [1]


@pytest.mark.any_duckdb
def test_the_end_of_a_program_ends_calls(library: Library, tmp_path: Path) -> None:
    """Threads of polars may still be in a call, and Python does not wait for them."""
    program = f"""
import threading, time, pathlib, crosslane
fns = crosslane.Functions({str(library(WAITS))!r})
threading.Thread(target=fns.waits, args=({str(tmp_path)!r}, [1]), daemon=True).start()
while not pathlib.Path({str(tmp_path)!r}, "begun").exists():
    time.sleep(0.01)
threading.excepthook = lambda _: None
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
