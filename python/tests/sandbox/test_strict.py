"""Functions in a strict sandbox open nothing once their file is loaded."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

from ..conftest import error, value

pytestmark = pytest.mark.any_duckdb


def strict(file: Path, text: str, **allowed: Any) -> duckdb.DuckDBPyConnection:
    file.write_text(textwrap.dedent(text))
    settings = {"sandbox": "strict"} | allowed
    return crosslane.connect(functions=[file], settings=settings, config={"threads": 2})


WORK = {
    "py": """
        import asyncio
        import numpy
        import numpy.typing
        from crosslane import udf
        @udf
        def double(x: int) -> int:
            return 2 * x
        @udf(vectorized=True)
        def by_numpy(x: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.int64]:
            return x + numpy.abs(x)
        @udf
        async def waits(x: int) -> int:
            await asyncio.sleep(0)
            return 2 * x
        @udf(timeout=0.3)
        def endless(x: int) -> int:
            while x: pass
            return x
        @udf(memory_limit="64 MB")
        def large(x: int) -> int:
            return len(bytearray(x << 20))
        """,
    "rb": 'udf("double(x BIGINT) -> BIGINT") { |x| 2 * x }\n',
    "js": 'udf("double(x BIGINT) -> BIGINT", (x) => 2 * x);\n',
    "lua": 'udf("double(x BIGINT) -> BIGINT", function(x) return 2 * x end)\n',
}


@pytest.mark.parametrize("language", WORK)
def test_functions_compute(tmp_path: Path, language: str) -> None:
    with strict(tmp_path / f"functions.{language}", WORK[language]) as con:
        assert value(con, "SELECT sum(double(i)) FROM range(100000) r(i)") == 2 * sum(range(100000))
        assert "sandbox=strict" in value(con, "SELECT any_value(options) FROM crosslane_functions()")


def test_columns_tasks_and_limits_work(tmp_path: Path) -> None:
    with strict(tmp_path / "functions.py", WORK["py"]) as con:
        for function in ("by_numpy", "waits"):
            assert value(con, f"SELECT sum({function}(i)) FROM range(1000) r(i)") == 2 * sum(range(1000))
        assert "0.3 s" in error(con, "SELECT endless(1)")
        assert "MemoryError" in error(con, "SELECT large(200)")
        assert value(con, "SELECT large(1)") == 1 << 20


OPENS = {
    "py": """
        import os
        from crosslane import udf
        LOADED = open({data!r}).read()
        @udf(deterministic=False)
        def loaded() -> str:
            return LOADED
        @udf(deterministic=False)
        def opens(path: str) -> str:
            return open(path).read()
        @udf(deterministic=False)
        def size(path: str) -> int:
            return os.stat(path).st_size
        @udf(deterministic=False)
        def imports(path: str) -> str:
            import colorsys
            return colorsys.__name__
        """,
    "rb": """
        LOADED = File.read({data!r})
        udf("loaded() -> VARCHAR", deterministic: false) {{ LOADED }}
        udf("opens(path VARCHAR) -> VARCHAR", deterministic: false) {{ |path| File.read(path) }}
        udf("size(path VARCHAR) -> BIGINT", deterministic: false) {{ |path| File.stat(path).size }}
        udf("imports(path VARCHAR) -> VARCHAR", deterministic: false) {{ |path| require "open3" }}
        """,
    "lua": """
        local file = assert(io.open({data!r}))
        local text = file:read("a")
        udf("loaded() -> VARCHAR", {{ deterministic = false }}, function() return text end)
        udf("opens(path VARCHAR) -> VARCHAR", {{ deterministic = false }}, function(path)
          return assert(io.open(path)):read("a")
        end)
        """,
}


@pytest.mark.parametrize("language", OPENS)
def test_what_is_allowed_is_allowed_while_the_file_is_loaded(tmp_path: Path, language: str) -> None:
    data = tmp_path / "data"
    data.write_text("known")
    text = OPENS[language].format(data=str(data))
    with strict(tmp_path / f"functions.{language}", text, allow_read=[data]) as con:
        assert value(con, "SELECT loaded()") == "known"
        for function in ("opens", "size", "imports") if language != "lua" else ("opens",):
            assert "a strict sandbox allows" in error(con, f"SELECT {function}('{data}')")


def test_workers_must_not_load_the_file_themselves(tmp_path: Path) -> None:
    text = """
        import threading
        from crosslane import udf
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        @udf
        def f(x: int) -> int: return x
        """
    with pytest.raises(duckdb.Error, match="which a strict sandbox forbids"):
        strict(tmp_path / "functions.py", text)
