from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import crosslane.spark

from .support import conformance

HERE = Path(__file__).parent
FILES = sorted((HERE / "files").iterdir())

#: Options of all JVMs.
JAVA = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
#: Options of most JVMs. These JVMs end so soon that the best compiler does not pay.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: The configuration of all sessions.
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"{JAVA} {QUICK}",
    # If a task does not give its memory back, Spark raises an error.
    "spark.unsafe.exceptionOnMemoryLeak": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "false",
}

#: The folder of Spark, for the programs that Spark starts.
os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = sys.executable


#: The version of Spark that runs all tests.
NEWEST = "4.3"
IS_NEWEST = pyspark.__version__.startswith(f"{NEWEST}.")
#: The number of tests that another version leaves out.
LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that do not depend on Spark's version, unless this is the newest."""
    if not IS_NEWEST:
        every = len(items)
        items[:] = [item for item in items if item.get_closest_marker("any_spark") is None]
        config.stash[LEFT_OUT] = every - len(items)


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    count = config.stash.get(LEFT_OUT, 0)
    return f"{count} tests do not depend on Spark's version and run with {NEWEST}" if count else ""


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether a condition becomes true in time. One check counts for at most a second, because the machine
    may pause."""
    while seconds > 0:
        begun = time.monotonic()
        if condition():
            return True
        time.sleep(0.05)
        seconds -= min(time.monotonic() - begun, 1)
    return condition()


def lives(pid: int) -> bool:
    """Whether this process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def name(process: psutil.Process) -> str:
    """A process's name, or an empty text if the process has ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def grows(path: Path) -> bool:
    """Whether a process writes to a file."""
    before = path.stat().st_size
    time.sleep(0.5)
    return path.stat().st_size > before


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for Spark's files."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> Iterator[SparkSession]:
    """The session of most tests. It knows the functions of all files."""
    written = tmp_path_factory.mktemp("conformance")
    files = [*FILES, *conformance.write_echoes(written), *conformance.write_kinds(written)]
    builder = SparkSession.builder.master("local[2]").config(map=conf(warehouse))
    session = crosslane.spark.enable(builder, *files).getOrCreate()
    yield session
    session.stop()


#: The setting for the most rows of a batch.
MOST = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def short_batches(spark: SparkSession) -> Iterator[None]:
    """Makes many batches of a few thousand rows."""
    spark.conf.set(MOST, 100)
    yield
    spark.conf.unset(MOST)


def conf(folder: Path) -> dict[str, str]:
    """The configuration of a session with its files in a folder."""
    return {
        **CONF,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }


def told(text: str) -> str:
    """The text of an error without the stack traces of Java, and without the driver's text after a task's error."""
    lines = [
        line for line in text.split("Driver stacktrace:")[0].splitlines() if not line.startswith("\tat ")
    ]
    return "\n".join(lines)


class Failed(Exception):
    """The error of a program in a driver."""


class Driver:
    """A Spark program in its own process."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.log = folder / "stderr"
        self.folder = folder
        self.asked = 0
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "support" / "driver.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**os.environ, **environment},
            )

    def run(self, program: str, seconds: float = 110, **values: Any) -> Any:
        """The result of a program: the body of a function. Values that JSON can represent are its variables."""
        variables = "".join(f"{name} = json.loads({json.dumps(value)!r})\n" for name, value in values.items())
        text = f"import json\n{variables}{textwrap.dedent(program)}"
        self.asked += 1
        self.process.stdin.write(json.dumps([self.asked, text]).encode() + b"\n")
        self.process.stdin.flush()
        answer = {"asked": 0}
        # A test that timed out may have left its answer unread.
        while answer["asked"] < self.asked:
            answer = json.loads(self._line(seconds))
        if "error" in answer:
            raise Failed(told(answer["error"]))
        return answer["value"]

    def _line(self, seconds: float) -> bytes:
        selector = selectors.DefaultSelector()
        selector.register(self.process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            raise TimeoutError(f"no answer after {seconds} s; the log ends with\n{self.said()[-5000:]}")
        line = self.process.stdout.readline()
        assert line, f"the driver has ended: {self.said()[-5000:]}"
        return line

    def begin(self, master: str, *files: Path, conf: dict[str, str] | None = None, **settings: Any) -> None:
        """Begins a session. Programs have it as `spark`."""
        self.run(
            "spark = session(master, files, settings, conf)",
            master=master,
            files=[str(file) for file in files],
            settings=settings,
            conf={**globals()["conf"](self.folder), **(conf or {})},
        )

    def said(self) -> str:
        """The text of the driver's log so far."""
        return self.log.read_text(errors="replace")

    def below(self) -> list[psutil.Process]:
        """All processes below the driver."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """The processes of guests, and those that begin or end guests.

        A bash is not one of them. Spark's start script becomes the JVM by `exec`, and may do so before it has reaped
        the subshell of its process substitution. That subshell is a zombie as long as the JVM lives.
        """
        return [process for process in self.below() if name(process) not in ("java", "bash", "")]

    def rows(self, query: str) -> list[list[Any]]:
        """The rows of a query in the form of JSON."""
        return self.run("return [list(row) for row in spark.sql(query).collect()]", query=query)

    def close(self) -> None:
        if self.process.poll() is None:
            below = self.below()
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
            # Spark removes its folders when it ends.
            javas = [process for process in below if name(process) == "java"]
            for process in psutil.wait_procs(javas, timeout=20)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Driver]]:
    """Starts drivers. They end with the tests."""
    begun: list[Driver] = []

    def driver(**environment: str) -> Driver:
        begun.append(Driver(tmp_path_factory.mktemp("driver"), **environment))
        return begun[-1]

    yield driver
    for one in begun:
        one.close()


@pytest.fixture(scope="session")
def driver(drivers: Callable[..., Driver]) -> Driver:
    """A Spark program that begins and stops sessions. No test leaves a session."""
    return drivers()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return [tuple(row) for row in frame.collect()]


def value(spark: SparkSession, query: str) -> Any:
    """The only value of a query's result."""
    ((result,),) = spark.sql(query).collect()
    return result


def error(run: Callable[[], object]) -> str:
    """The error of a query, without the JVM's stack."""
    with pytest.raises(Exception) as caught:
        run()
    return told(str(caught.value))
