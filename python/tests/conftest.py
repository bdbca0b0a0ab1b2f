from __future__ import annotations

import contextlib
import os
import shutil
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

import crosslane

# A background command of a shell ignores this signal. Without this line, all processes that the tests start
# would ignore it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Library = Callable[[str], Path]
Load = Callable[[str], duckdb.DuckDBPyConnection]


def processes() -> list[psutil.Process]:
    """All running processes below this one."""
    return [process for process in psutil.Process().children(recursive=True) if lives(process)]


def lives(process: psutil.Process) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def name(process: psutil.Process) -> str:
    """A process's name, or an empty text if the process has ended. Any process may end between two looks."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def kill(victims: Iterable[psutil.Process]) -> None:
    """Kills processes. A process may already have ended, by itself or with another one."""
    for process in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


#: Whether this is the version of DuckDB that runs all tests.
IS_NEWEST = not duckdb.__version__.startswith("1.")
#: The number of tests that another version leaves out.
LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that do not depend on DuckDB's version, unless this is the newest."""
    if not IS_NEWEST:
        every = len(items)
        items[:] = [item for item in items if item.get_closest_marker("any_duckdb") is None]
        config.stash[LEFT_OUT] = every - len(items)


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    count = config.stash.get(LEFT_OUT, 0)
    return f"{count} tests do not depend on DuckDB's version and run with the newest" if count else ""


#: A browser and its driver, as Debian has them.
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
#: The number of processors that lanes may use. A library has at most as many warm lanes.
CPUS = len(os.sched_getaffinity(0))


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    """Whether a condition becomes true in time. One look counts for at most 0.5 s, because the whole machine
    may pause."""
    while seconds > 0:
        begun = time.monotonic()
        if condition():
            return True
        time.sleep(0.02)
        seconds -= min(time.monotonic() - begun, 0.5)
    return condition()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a process running, unless its module keeps an engine for all its tests."""
    before = set(processes())
    yield
    kept = {"engine", "engines", "flight_server", "fns", "served_client", "served_engine", "tables"}
    if kept & set(request.fixturenames):
        return
    assert eventually(lambda: set(processes()) <= before), f"left behind: {set(processes()) - before}"


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with Crosslane."""
    connection = crosslane.connect(config={"threads": 2})
    yield connection
    connection.close()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Writes a file of functions and returns its path."""
    count = 0

    def write(text: str) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"functions_{count}.py"
        path.write_text("from crosslane import udf\n" + textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def load(con: duckdb.DuckDBPyConnection, library: Library) -> Load:
    """Loads a text as a file of functions and returns the connection."""

    def load(text: str) -> duckdb.DuckDBPyConnection:
        crosslane.load(con, library(text))
        return con

    return load


def _loading(con: duckdb.DuckDBPyConnection, path: Path) -> Load:
    def load(text: str) -> duckdb.DuckDBPyConnection:
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        crosslane.load(con, path)
        return con

    return load


@pytest.fixture
def python(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> Load:
    """Loads a text as a file of Python functions, the same file each time, and returns the connection."""
    return _loading(con, tmp_path / "functions.py")


@pytest.fixture
def script(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> Load:
    """Loads a text as a file of JavaScript functions and returns the connection."""
    return _loading(con, tmp_path / "functions.js")


@pytest.fixture
def ruby(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> Load:
    """Loads a text as a file of Ruby functions and returns the connection."""
    return _loading(con, tmp_path / "functions.rb")


@pytest.fixture
def lua(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> Load:
    """Loads a text as a file of Lua functions and returns the connection."""
    return _loading(con, tmp_path / "functions.lua")


@pytest.fixture
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    if not BROWSER or not DRIVER:
        pytest.skip("there is no Chromium (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in ("--headless=new", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(option)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER)) as driver:
        yield driver


def printed(capfd: pytest.CaptureFixture[str], *until: str) -> str:
    """The content of the log once all of `until` are in it. Nothing is printed to stdout. Closing waits for
    no log."""
    # The test reads the file of descriptor 2 itself, because pytest would cut off text that is written during
    # a read.
    log = Path("/proc/self/fd/2")
    assert eventually(lambda: all(text.encode() in log.read_bytes() for text in until)), log.read_bytes()
    out, err = capfd.readouterr()
    assert out == ""
    return err


def value(con: duckdb.DuckDBPyConnection, query: str) -> object:
    """The only value of a query's result."""
    ((result,),) = con.execute(query).fetchall()
    return result


@contextlib.contextmanager
def once_at_work(con: duckdb.DuckDBPyConnection, act: Callable[[], object]) -> Iterator[None]:
    """Does something while a lane works on the query of the block, however long the query takes to begin."""
    busy = "SELECT sum(busy) > 0 FROM crosslane_pools()"
    with con.cursor() as watch:
        # A query before this one may still be ending. The loop below would take it for this one.
        assert eventually(lambda: not value(watch, busy))
        begun: list[bool] = []

        def run() -> None:
            begun.append(eventually(lambda: bool(value(watch, busy)), 30))
            # The call runs by now in most cases, and the query has always begun.
            time.sleep(0.1)
            act()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        assert begun == [True]


def ready(con: duckdb.DuckDBPyConnection, function: str) -> None:
    """Waits until the engine has all lanes over which it may spread a function. A call makes the engine start
    the second lane."""
    con.execute(f"SELECT {function}(i) FROM range(1) r(i)").fetchall()
    assert eventually(lambda: value(con, "SELECT idle FROM crosslane_pools()") == CPUS)


def error(con: duckdb.DuckDBPyConnection, query: str) -> str:
    """The error that a query ends with."""
    with pytest.raises(duckdb.Error) as caught:
        con.execute(query).fetchall()
    return str(caught.value)
