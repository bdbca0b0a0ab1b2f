"""What a PySpark program may use in a function, and how a function may treat a worker of Crosslane's
daemon."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..conftest import Driver, eventually, lives
from .test_groups import same
from .test_scalar import lanes, plan

Frame = pd.DataFrame


@pytest.fixture(scope="module")
def driver(drivers: Callable[..., Driver]) -> Driver:
    """A separate Spark program. Other tests need a JVM that has not loaded Crosslane's native half."""
    return drivers()


def rows(spark: SparkSession, count: int = 6) -> DataFrame:
    return spark.range(0, count, 1, 2)


def row_function(function: Callable[[int], Any], returns: str = "long") -> Any:
    return F.udf(function, returns, useArrow=False)


def in_workers(spark: SparkSession, table: Callable[[], DataFrame]) -> list[Any]:
    """The rows of a table whose functions run in workers of Crosslane's daemon."""
    with lanes(spark, True):
        made = table()
        assert "CrosslaneWorker" in plan(made)
        return [tuple(row) for row in made.collect()]


def test_workers_are_crosslane_s(spark: SparkSession) -> None:
    def parent(_: Frame) -> Frame:
        return pd.DataFrame(
            {"command": [Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")]}
        )

    def table() -> DataFrame:
        return rows(spark).groupBy("id").applyInPandas(parent, "command string")

    assert all(
        "crosslane._engines.spark.workers.daemon" in command for (command,) in in_workers(spark, table)
    )
    assert not any(
        "CROSSLANE_WORKER_IMPORTS" in name for (name,) in in_workers(spark, lambda: environment(spark))
    )


def environment(spark: SparkSession) -> DataFrame:
    def names(_: Frame) -> Frame:
        return pd.DataFrame({"name": list(os.environ)})

    return rows(spark).groupBy("id").applyInPandas(names, "name string")


def test_accumulators_count_each_task_once(spark: SparkSession) -> None:
    counted = spark.sparkContext.accumulator(0)

    def adds(x: int) -> int:
        counted.add(1)
        return x

    def adds_group(frame: Frame) -> Frame:
        counted.add(len(frame))
        return frame

    in_workers(spark, lambda: rows(spark).select(row_function(adds)("id")))
    assert counted.value == 6
    in_workers(spark, lambda: rows(spark).groupBy("id").applyInPandas(adds_group, "id long"))
    assert counted.value == 12

    def fails(x: int) -> int:
        counted.add(1)
        return 1 // (x - 5)

    with pytest.raises(PythonException):
        in_workers(spark, lambda: rows(spark).select(row_function(fails)("id")))
    # The failed task counts nothing. The other task counts its three rows if it ends before.
    assert counted.value in (12, 15)


def test_broadcast_variables(spark: SparkSession) -> None:
    table = spark.sparkContext.broadcast({number: f"n{number}" for number in range(1000)})
    same(
        spark,
        lambda: (
            rows(spark)
            .groupBy("id")
            .applyInPandas(lambda frame: pd.DataFrame({"s": [table.value[frame.id[0]]]}), "s string")
        ),
    )


def test_why_a_function_is_not_called_over_a_lane(spark: SparkSession) -> None:
    counted = spark.sparkContext.accumulator(0)

    def adds(x: int) -> int:
        counted.add(1)
        return x

    def partition(_: int) -> int:
        return TaskContext.get().partitionId()

    of_struct = row_function(lambda row: row.a)
    calls = {
        "adds: it uses an accumulator": lambda: rows(spark).select(row_function(adds)("id")),
        "partition: it uses the task's context": lambda: rows(spark).select(row_function(partition)("id")),
        "argument 1 has the type struct": lambda: rows(spark).select(
            of_struct(F.struct(F.col("id").alias("a")))
        ),
    }
    for reason, table in calls.items():
        with lanes(spark, True):
            assert reason in plan(table())
        same(spark, table)


def test_the_task_s_context_is_that_of_the_task(spark: SparkSession) -> None:
    def context(frame: Frame) -> Frame:
        task = TaskContext.get()
        return pd.DataFrame(
            {
                "id": frame.id,
                "told": [f"{task.partitionId()} {task.attemptNumber()} {task.getLocalProperty('mine')}"],
            }
        )

    for value in ("first", "second", None):
        spark.sparkContext.setLocalProperty("mine", value)
        same(
            spark,
            lambda: rows(spark).groupBy("id").applyInPandas(context, "id long, told string").orderBy("id"),
        )
    with lanes(spark, True):
        stages = (
            rows(spark)
            .groupBy("id")
            .applyInPandas(lambda frame: pd.DataFrame({"stage": [TaskContext.get().stageId()]}), "stage long")
        )
        first, second = stages.collect()[0][0], stages.collect()[0][0]
    # A reused worker does not keep the context of the earlier task.
    assert second > first


def test_files_of_the_program(driver: Driver, tmp_path: Path) -> None:
    """Functions over lanes can use a file of `addPyFile`, and so can functions in workers."""
    (tmp_path / "crosslane_data.txt").write_text("some data")
    (tmp_path / "crosslane_module.py").write_text("def shout(text):\n    return text.upper() + '!'\n")
    with zipfile.ZipFile(tmp_path / "crosslane_archive.zip", "w") as archive:
        archive.writestr("crosslane_zipped/__init__.py", "WORD = 'zipped'\n")
    driver.begin("local[2]", pyspark=True)
    plans, found = driver.run(
        """
        import pandas as pd
        from pyspark.sql import functions as F

        spark.sparkContext.addFile(f"{folder}/crosslane_data.txt")
        spark.sparkContext.addPyFile(f"{folder}/crosslane_module.py")
        spark.sparkContext.addPyFile(f"{folder}/crosslane_archive.zip")

        def reads(x):
            import crosslane_module
            import crosslane_zipped
            from pyspark import SparkFiles

            text = open(SparkFiles.get("crosslane_data.txt")).read()
            return f"{crosslane_module.shout(text)} {crosslane_zipped.WORD} {x}"

        rows = spark.range(0, 2, 1, 1)
        group = lambda frame: pd.DataFrame({"s": [reads(frame.id[0])]})
        tables = [
            rows.select(F.udf(reads, "string", useArrow=False)("id")),
            rows.groupBy("id").applyInPandas(group, "s string"),
        ]
        plans = [table._jdf.queryExecution().executedPlan().toString() for table in tables]
        return plans, [sorted(row[0] for row in table.collect()) for table in tables]
        """,
        folder=str(tmp_path),
    )
    driver.run("spark.stop()")
    assert "CrosslaneEval" in plans[0]
    assert "CrosslaneWorker" in plans[1]
    assert found == [["SOME DATA! zipped 0", "SOME DATA! zipped 1"]] * 2


def test_named_arguments_and_other_types(spark: SparkSession) -> None:
    def of(a: int, b: int = 5) -> int:
        return 10 * a + b

    spark.udf.register("of", F.udf(of, "long"))
    same(spark, lambda: spark.sql("SELECT of(b => id, a => 1), of(a => id) FROM range(0, 3, 1, 1)"))
    day = F.udf(lambda x: x * 2, "interval day to second")
    same(spark, lambda: spark.sql("SELECT INTERVAL '1' DAY AS d").select(day("d")))


def test_profiles(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.pyspark.udf.profiler", "perf")
    try:
        in_workers(spark, lambda: rows(spark).select(row_function(lambda x: x + 1)("id")))
    finally:
        spark.conf.unset("spark.sql.pyspark.udf.profiler")
    assert spark._profiler_collector._perf_profile_results
    spark.profile.clear()


def test_barriers(spark: SparkSession) -> None:
    def told(batches: Iterator[Frame]) -> Iterator[Frame]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        context.barrier()
        for frame in batches:
            yield pd.DataFrame({"tasks": [len(context.getTaskInfos())] * len(frame)})

    same(spark, lambda: rows(spark).mapInPandas(told, "tasks long", barrier=True))


def test_streams(spark: SparkSession, tmp_path: Path) -> None:
    with lanes(spark, True):
        stream = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 5)
            .option("numPartitions", 1)
            .load()
        )
        seen: list[int] = []

        def each(batch: DataFrame, _: int) -> None:
            counted = batch.groupBy(F.col("value") % 2).applyInPandas(
                lambda frame: pd.DataFrame({"rows": [len(frame)]}), "rows long"
            )
            assert "CrosslaneWorker" in plan(counted)
            seen.append(sum(row.rows for row in counted.collect()))

        query = stream.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(each).start()
        try:
            assert eventually(lambda: len(seen) >= 2)
        finally:
            query.stop()
    assert set(seen) == {5}


def test_inserts(spark: SparkSession) -> None:
    with lanes(spark, True):
        table = rows(spark).groupBy("id").applyInPandas(lambda frame: frame, "id long")
        table.write.mode("overwrite").saveAsTable("crosslane_groups")
        spark.sql("INSERT INTO crosslane_groups SELECT id + 100 FROM crosslane_groups")
        assert spark.table("crosslane_groups").count() == 12
        spark.sql("DROP TABLE crosslane_groups")


def test_the_state_of_a_stream(spark: SparkSession) -> None:
    """Spark plans these functions itself. They run in the same way as without Crosslane."""

    def counts(key: tuple[int], frames: Iterator[Frame], state: Any) -> Iterator[Frame]:
        state.update((sum(map(len, frames)),))
        yield pd.DataFrame({"key": [key[0]], "rows": [state.get[0]]})

    stream = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 4)
        .option("numPartitions", 1)
        .load()
    )
    kept = (
        stream.selectExpr("value % 2 AS k")
        .groupBy("k")
        .applyInPandasWithState(counts, "key long, rows long", "rows long", "append", "NoTimeout")
    )
    with lanes(spark, True):
        query = (
            kept.writeStream.format("memory").queryName("crosslane_kept").trigger(availableNow=True).start()
        )
        query.awaitTermination(60)
    assert {row.rows for row in spark.table("crosslane_kept").collect()} == {2}


def test_a_daemon_of_the_program_stays(driver: Driver) -> None:
    driver.begin("local[1]", conf={"spark.python.daemon.module": "pyspark.daemon"}, pyspark=True)
    shown = driver.run(
        """
        table = spark.range(3).groupBy("id").applyInPandas(lambda frame: frame, "id long")
        assert len(table.collect()) == 3
        return table._jdf.queryExecution().executedPlan().toString()
        """
    )
    driver.run("spark.stop()")
    assert "CrosslaneDeclined <lambda>: spark.python.daemon.module is set" in shown


def test_an_interpreter_without_the_package(driver: Driver, tmp_path: Path) -> None:
    """Spark's own daemon starts the workers. The program runs in the same way as without Crosslane."""
    import sys

    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nfor one; do case $one in *crosslane*) exit 1;; esac; done\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    driver.begin("local[1]", conf={"spark.pyspark.python": str(python)}, pyspark=True, python=sys.executable)
    rows = driver.run(
        """
        table = spark.range(3).groupBy("id").applyInPandas(lambda frame: frame, "id long")
        return [tuple(row) for row in table.collect()]
        """
    )
    driver.run("spark.stop()")
    assert sorted(map(tuple, rows)) == [(0,), (1,), (2,)]


def test_a_worker_that_dies(spark: SparkSession) -> None:
    def dies(frame: Frame) -> Frame:
        os.kill(os.getpid(), signal.SIGKILL)
        return frame

    def table(function: Callable[[Frame], Frame]) -> DataFrame:
        return rows(spark).groupBy("id").applyInPandas(function, "id long")

    with lanes(spark, True):
        with pytest.raises(Exception, match="exited unexpectedly"):
            table(dies).collect()
        assert table(lambda frame: frame).count() == 6


def test_cancelled_queries_end_their_workers(driver: Driver) -> None:
    driver.begin("local[2]", pyspark=True)
    driver.run(
        """
        import threading, time, os
        import pandas as pd

        def slow(frame):
            open(place, "a").write(f"{os.getpid()}\\n")
            time.sleep(600)
            return frame

        def query():
            spark.sparkContext.setJobGroup("slow", "", interruptOnCancel=True)
            try:
                spark.range(0, 4, 1, 2).groupBy("id").applyInPandas(slow, "id long").collect()
            except Exception as error:
                errors.append(str(error))

        errors = []
        thread = threading.Thread(target=query)
        thread.start()
        globals().update(thread=thread, errors=errors)
        """,
        place=str(driver.folder / "pids"),
    )
    pids = driver.folder / "pids"
    assert eventually(lambda: pids.exists() and pids.read_text().count("\n") >= 1)
    driver.run('spark.sparkContext.cancelJobGroup("slow"); thread.join(); assert errors')
    assert eventually(lambda: not any(lives(int(pid)) for pid in pids.read_text().split()))
    driver.run("spark.stop()")


def test_a_limit_ends_early(spark: SparkSession, tmp_path: Path) -> None:
    called = tmp_path / "called"

    def counted(frame: Frame) -> Frame:
        with called.open("a") as file:
            file.write("x")
        return frame

    with lanes(spark, True):
        table = spark.range(0, 100_000, 1, 1).groupBy("id").applyInPandas(counted, "id long")
        assert len(table.limit(1).collect()) == 1
    # Spark sends no more groups when it has its one row.
    assert 0 < called.stat().st_size < 50_000
