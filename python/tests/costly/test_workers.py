"""Functions with their own workers: no more than they declare, each with its own GPUs."""

from __future__ import annotations

import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, eventually, processes, value

#: `heavy` has one worker, and `light` has any number.
HEAVY = {
    "py": """
        import os, time
        from crosslane import udf
        def pid():
            time.sleep(0.0005)
            return os.getpid()
        @udf(workers=1, deterministic=False)
        def heavy(x: int) -> int:
            return pid()
        @udf(deterministic=False)
        def light(x: int) -> int:
            return pid()
        """,
    "rb": """
        def pid
          sleep(0.0005)
          Process.pid
        end
        udf("heavy(x BIGINT) -> BIGINT", workers: 1, deterministic: false) { |x| pid }
        udf("light(x BIGINT) -> BIGINT", deterministic: false) { |x| pid }
        """,
}
#: So many rows need several workers, if a function has several.
ROWS = 1000


def pids(con: duckdb.DuckDBPyConnection, function: str) -> set[int]:
    """The workers that the query has called for many rows."""
    query = f"SELECT DISTINCT {function}(i) FROM range({ROWS}) r(i)"
    return {pid for (pid,) in con.execute(query).fetchall()}


@pytest.mark.any_duckdb
@pytest.mark.parametrize("language", HEAVY)
def test_a_function_has_workers_of_its_own(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, language: str
) -> None:
    path = tmp_path / f"functions.{language}"
    path.write_text(textwrap.dedent(HEAVY[language]))
    crosslane.load(con, path)
    heavy, light = pids(con, "heavy"), set[int]()

    def has_two_workers() -> bool:
        light.update(pids(con, "light"))
        return len(light) >= 2

    # There are enough rows for two workers.
    eventually(has_two_workers)
    assert len(heavy) == 1
    assert pids(con, "heavy") == heavy
    assert not heavy & light
    assert "workers=1" in str(
        value(con, "SELECT options FROM crosslane_functions() WHERE function = 'heavy'")
    )


def test_isolates_are_counted(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text("""
        let calls = 0;
        udf("heavy(x BIGINT) -> BIGINT", { workers: 1, deterministic: false }, (x) => ++calls);
        """)
    crosslane.load(con, path)
    # One isolate has counted all calls.
    assert value(con, "SELECT count(DISTINCT heavy(i)) FROM range(200_000) r(i)") == 200_000


def test_only_its_workers_hold_what_a_function_prepares(load: Load, tmp_path: Path) -> None:
    con = load(f"""
        import os, time
        from pathlib import Path
        def note(what):
            with open({str(tmp_path)!r} + "/" + what, "a") as file:
                print(os.getpid(), file=file)
        @udf(workers=2, deterministic=False)
        class model:
            def __init__(self): note("model")
            def __call__(self, x: int) -> int:
                time.sleep(0.0005)
                return os.getpid()
            def close(self): note("closed")
        @udf
        class other:
            def __init__(self): note("other")
            def __call__(self, x: int) -> int: return os.getpid()
        @udf(deterministic=False)
        def light(x: int) -> int:
            return os.getpid()
        """)

    def noted(what: str) -> set[int]:
        path = tmp_path / what
        return {int(line) for line in path.read_text().split()} if path.exists() else set()

    light, models = pids(con, "light"), pids(con, "model")
    assert 1 <= len(models) <= 2
    assert not models & light
    assert models <= noted("model")
    assert len(noted("model")) <= 2
    # The shared workers have prepared only the other class.
    assert light <= noted("other")
    assert not noted("other") & noted("model")
    con.close()
    eventually(lambda: noted("closed") == noted("model"))
    eventually(lambda: not processes())


def test_queries_wait_for_the_only_worker(con: duckdb.DuckDBPyConnection, library: Library) -> None:
    crosslane.load(
        con,
        library("""
        import os, time
        @udf(workers=1, deterministic=False)
        def heavy(x: int) -> int:
            time.sleep(0.001)
            return os.getpid()
        """),
    )

    def run(_: int) -> list[tuple[int, int]]:
        with crosslane.cursor(con) as cursor:
            query = "SELECT heavy(i), count(*) FROM range(300) r(i) GROUP BY ALL"
            return cursor.execute(query).fetchall()

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(run, range(6)))
    assert all(len(rows) == 1 for rows in found)
    assert {rows[0] for rows in found} == {(found[0][0][0], 300)}


def test_a_query_that_waits_for_the_only_worker_can_be_cancelled(
    con: duckdb.DuckDBPyConnection, library: Library, tmp_path: Path
) -> None:
    crosslane.load(
        con,
        library(f"""
        import time
        from pathlib import Path
        @udf(workers=1)
        def heavy(x: int) -> int:
            Path({str(tmp_path)!r}, str(x)).touch()
            while not Path({str(tmp_path)!r}, "go").exists():
                time.sleep(0.01)
            return x
        """),
    )
    waiting = crosslane.cursor(con)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: value(crosslane.cursor(con), "SELECT heavy(i) FROM range(1) r(i)"))
        eventually(lambda: (tmp_path / "0").exists())
        waited = value(con, "SELECT sum(waited) FROM crosslane_pools()")
        second = threads.submit(lambda: error(waiting, "SELECT heavy(i + 1) FROM range(1) r(i)"))
        eventually(lambda: value(con, "SELECT sum(waited) FROM crosslane_pools()") > waited)
        crosslane.cancel(waiting)
        assert "cancelled" in second.result().lower() or "interrupt" in second.result().lower()
        (tmp_path / "go").touch()
        assert first.result() == 0
    assert not (tmp_path / "1").exists()


def test_a_worker_that_ends_is_replaced(load: Load, tmp_path: Path) -> None:
    con = load(f"""
        import os
        from pathlib import Path
        @udf(workers=1, retries=1, deterministic=False)
        def heavy(x: int) -> int:
            if not Path({str(tmp_path)!r}, "died").exists():
                Path({str(tmp_path)!r}, "died").touch()
                os._exit(1)
            return os.getpid()
        """)
    assert len(pids(con, "heavy")) == 1


def test_a_registered_function_has_workers_of_its_own(con: duckdb.DuckDBPyConnection) -> None:
    def heavy(x: int) -> int:
        import os

        return os.getpid()

    crosslane.register(con, heavy, workers=1, deterministic=False)
    assert len(pids(con, "heavy")) == 1


GPU = """
    import os, time
    @udf(gpus={gpus}, deterministic=False)
    def seen(x: int) -> str:
        time.sleep(0.0005)
        if x == -1:
            os._exit(1)
        return f"{{os.getpid()}} {{os.environ['CUDA_VISIBLE_DEVICES']}}"
    """


def seen(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """The GPUs that each worker sees."""
    rows = con.execute(f"SELECT DISTINCT seen(i) FROM range({ROWS}) r(i)").fetchall()
    return dict(text.split() for (text,) in rows)


def test_each_worker_sees_its_gpus(
    con: duckdb.DuckDBPyConnection, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    crosslane.load(con, library(GPU.format(gpus=2)))
    gpus: dict[str, str] = {}

    def has_two_workers() -> bool:
        gpus.update(seen(con))
        return len(gpus) == 2

    eventually(has_two_workers)
    # No two workers see the same GPUs.
    assert sorted(gpus.values()) == ["4,5", "6,7"]
    # Workers of other functions see the GPUs of the program.
    crosslane.load(
        con, library("import os\n@udf\ndef f(x: int) -> str: return os.environ['CUDA_VISIBLE_DEVICES']")
    )
    assert value(con, "SELECT f(i) FROM range(1) r(i)") == "4,5,6,7"


def test_the_gpus_of_a_worker_that_ends_are_free_again(
    con: duckdb.DuckDBPyConnection, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    crosslane.load(con, library(GPU.format(gpus=1)))
    (before,) = seen(con).items()
    error(con, "SELECT seen(i - 1) FROM range(1) r(i)")
    (after,) = seen(con).items()
    assert before[0] != after[0]
    assert before[1] == after[1] == "5"


def test_ruby_sees_its_gpus(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    path = tmp_path / "f.rb"
    path.write_text('udf("f(x BIGINT) -> VARCHAR", gpus: 1) { |x| ENV.fetch("CUDA_VISIBLE_DEVICES") }')
    crosslane.load(con, path)
    assert value(con, "SELECT f(i) FROM range(1) r(i)") in ("1", "2")


@pytest.mark.parametrize(
    ("visible", "gpus", "message"),
    [
        (
            None,
            1,
            "gpus=1, and this machine shows no GPU; to do without, set CUDA_VISIBLE_DEVICES= (to nothing)",
        ),
        ("0", 2, "gpus=2, and there are 1: CUDA_VISIBLE_DEVICES=0"),
    ],
)
def test_gpus_that_are_not_there_are_an_error(
    con: duckdb.DuckDBPyConnection,
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    gpus: int,
    message: str,
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    path = library(GPU.format(gpus=gpus))
    # The driver of a cluster loads functions that its workers call.
    crosslane.load(con, path)
    text = error(con, "SELECT seen(i) FROM range(1) r(i)")
    assert message in text
    assert f"{path}:4: function seen" in text
    # A program that sees no GPU may call the function without one.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    crosslane.load(con, path)
    assert list(con.execute("SELECT seen(i) FROM range(1) r(i)").fetchall()[0][0].split()[1:]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("workers=0", "workers is a whole number from 1"),
        ("gpus=1.5", "gpus is a whole number from 1"),
        ("workers=True", "workers is a whole number from 1"),
    ],
)
def test_wrong_numbers_are_errors(
    con: duckdb.DuckDBPyConnection, library: Library, options: str, message: str
) -> None:
    path = library(f"@udf({options})\ndef f(x: int) -> int: return x")
    with pytest.raises(duckdb.Error, match=message):
        crosslane.load(con, path)
