"""Executors that run in separate processes. Each has its own workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pyspark
import pytest

from ..conftest import FILES, QUICK, Driver, Failed, eventually, lives

#: The first test starts three JVMs.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(drivers: Callable[..., Driver], tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """A session with two executors. They find the functions in the place to which Spark has copied them."""
    # Executors work in a folder of Spark's home.
    home = tmp_path_factory.mktemp("home")
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    folder = tmp_path_factory.mktemp("functions")
    files = [folder / file.name for file in FILES]
    for file, original in zip(files, FILES):
        file.write_bytes(original.read_bytes())
    driver = drivers(SPARK_HOME=str(home))
    driver.begin("local-cluster[2,1,1024]", *files, conf={"spark.executor.extraJavaOptions": QUICK})
    # After this program, both executors exist. They have fetched the files with their first tasks.
    driver.run(
        """
        import time
        while len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) < 3:
            time.sleep(0.1)
        spark.sparkContext.range(0, 4, numSlices=4).foreach(lambda i: time.sleep(1))
        """
    )
    for file in files:
        file.rename(file.with_name(f"gone_{file.name}"))
    driver.files = files
    return driver


def executors(cluster: Driver) -> dict[int, psutil.Process]:
    """The executors by their numbers."""
    found = {}
    for process in cluster.below():
        line = []
        # A process may end between two looks.
        with contextlib.suppress(psutil.NoSuchProcess):
            line = process.cmdline() if lives(process.pid) and process.name() == "java" else []
        if any("CoarseGrainedExecutorBackend" in part for part in line) and "--executor-id" in line:
            found[int(line[line.index("--executor-id") + 1])] = process
    return found


def test_functions_of_files_are_shipped(cluster: Driver) -> None:
    query = "SELECT slug(t), initials(t), shout(t), lua_title(t) FROM (SELECT concat('x y', id) AS t FROM range(0, 8, 1, 8))"
    assert cluster.rows(query) == [[f"x-y{i}", "xy", f"X Y{i}!", f"X Y{i}"] for i in range(8)]


def test_each_executor_has_its_own_workers(cluster: Driver) -> None:
    # Each core runs one task at a time. While a task waits, the other core gets the next task.
    pids = {pid for (pid,) in cluster.rows("SELECT patient(id, 0.5) FROM range(0, 4, 1, 4)")}
    parents = {
        number
        for number, executor in executors(cluster).items()
        if pids & {process.pid for process in executor.children(recursive=True)}
    }
    assert len(parents) == 2
    # The driver's JVM has other workers: only those that have loaded the files.
    assert pids <= {
        process.pid for e in executors(cluster).values() for process in e.children(recursive=True)
    }


def test_registered_functions_are_shipped(cluster: Driver) -> None:
    program = """
    import crosslane.spark
    factor = 7
    class Scaled:
        def __init__(self, by):
            self.by = by
        def scaled(self, x: int) -> int:
            return self.by * x * factor
    crosslane.spark.register(spark, Scaled(3).scaled)
    crosslane.spark.register(spark, lambda x: x[::-1], "reversed_text(x VARCHAR) -> VARCHAR")
    query = "SELECT scaled(plus_one(id)), reversed_text(concat('a', id)) FROM range(0, 4, 1, 4)"
    return [list(row) for row in spark.sql(query).collect()]
    """
    assert cluster.run(program) == [[21 * (i + 1), f"{i}a"] for i in range(4)]


def test_an_error_says_where(cluster: Driver) -> None:
    with pytest.raises(Failed) as caught:
        cluster.rows("SELECT fails_at(id, 3) FROM range(0, 4, 1, 4)")
    text = str(caught.value)
    assert "fails_at: ValueError: no 3" in text
    assert "shop.py:" in text
    assert "  on 127.0.0.1, in stage " in text or "  on localhost, in stage " in text
    assert ", partition 3, task " in text
    # Spark has tried the task as often as its settings say.
    assert "failed 4 times" in text


def test_pyspark_s_functions_on_executors(cluster: Driver, tmp_path: Path) -> None:
    """Groups, broadcast variables, added files, and an accumulator of tasks that are repeated."""
    (tmp_path / "crosslane_sent.py").write_text("def shout(text):\n    return text.upper()\n")
    plans, found, counts = cluster.run(
        """
        import pandas as pd
        from pyspark import TaskContext
        from pyspark.sql import functions as F

        spark.conf.set("spark.crosslane.pyspark.enabled", "true")
        spark.sparkContext.addPyFile(f"{folder}/crosslane_sent.py")
        names = spark.sparkContext.broadcast({number: f"n{number}" for number in range(8)})
        counted = spark.sparkContext.accumulator(0)

        def named(number):
            import crosslane_sent
            return crosslane_sent.shout(names.value[number])

        def of_group(frame):
            counted.add(len(frame))
            if TaskContext.get().attemptNumber() == 0:
                raise ValueError("the first try")
            return pd.DataFrame({"name": [named(frame.id[0])]})

        rows = spark.range(0, 8, 1, 4)
        tables = [
            rows.select(F.udf(named, "string", useArrow=False)("id")),
            rows.groupBy("id").applyInPandas(of_group, "name string"),
        ]
        plans = [table._jdf.queryExecution().executedPlan().toString() for table in tables]
        found = [sorted(row[0] for row in table.collect()) for table in tables]
        spark.conf.unset("spark.crosslane.pyspark.enabled")
        return plans, found, counted.value
        """,
        folder=str(tmp_path),
    )
    assert "CrosslaneEval" in plans[0]
    assert "CrosslaneWorker" in plans[1]
    assert found == [[f"N{number}" for number in range(8)]] * 2
    # Only the successful try of a task counts.
    assert counts == 8


def test_an_executor_that_is_killed(cluster: Driver, tmp_path: Path) -> None:
    # The driver copies files to new executors from their first place.
    for gone in cluster.files:
        gone.with_name(f"gone_{gone.name}").rename(gone)
    file = tmp_path / "who"
    got: list[list[int]] = []
    query = f"SELECT beats(id, '{file}') FROM range(0, 800, 1, 4)"
    thread = threading.Thread(target=lambda: got.extend(cluster.rows(query)))
    before = executors(cluster)
    thread.start()
    number, victim = next(iter(before.items()))

    def works() -> bool:
        """Whether the victim runs a task. If it ran none, another executor could do all tasks that have not
        begun."""
        told = file.read_text().split() if file.exists() else []
        return bool({int(pid) for pid in told} & {process.pid for process in victim.children(recursive=True)})

    assert eventually(works)
    below = victim.children(recursive=True)
    assert below
    victim.kill()
    thread.join(60)
    # The other executor has repeated the victim's tasks. The victim's workers have ended with it.
    assert got == [[i] for i in range(800)]
    assert len(file.read_text().split()) > 800
    assert eventually(lambda: not [process for process in below if lives(process.pid)])
    # A new executor has replaced the victim, and gets the files, too.
    assert eventually(lambda: len(executors(cluster)) == 2 and number not in executors(cluster), 60)
    assert sorted(cluster.rows("SELECT plus_one(id) FROM range(0, 8, 1, 8)")) == [[i + 1] for i in range(8)]
