"""Calls that run beside a task's own thread. The tests check contexts, failures, ends, memory, and reused
workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .conftest import FILES, IS_NEWEST, JAVA, QUICK, Driver, Failed, error, eventually, grows, lives, rows

SHOP = FILES[0].with_name("shop.py")


def works(spark: SparkSession) -> bool:
    """Whether the session still gives right answers, on all lanes."""
    query = "SELECT sum(plus_one(id)), sum(fails_at(id, -1)), max(shout(id)), max(initials(id)) FROM range(0, 10000, 1, 4)"
    total = sum(range(10_000))
    return rows(spark.sql(query)) == [(total + 10_000, total, "9999!", "9")]


def written(file: Path) -> set[int]:
    """The workers that have written to a file."""
    return {int(line) for line in file.read_text().split()} if file.exists() else set()


# The task's context


def test_a_function_s_input_is_read_under_the_task_s_context(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(5):
        lines = "".join(f"file{number}\n" for _ in range(1000 * number + 1))
        (tmp_path / f"file{number}.txt").write_text(lines)
    # One task reads all files. It goes on reading while functions run.
    frame = spark.read.text(str(tmp_path)).coalesce(1)
    seen = rows(frame.selectExpr("slug(input_file_name())", "slug(value)", "value"))
    assert len(seen) == sum(1000 * number + 1 for number in range(5))
    assert [row for row in seen if not row[0].endswith(f"/{row[2]}.txt") or row[1] != row[2]] == []


def test_arguments_that_depend_on_the_partition(spark: SparkSession) -> None:
    query = "SELECT halved(rand(7)), rand(7) FROM range(0, 100, 1, 4)"
    assert [(half, x) for half, x in rows(spark.sql(query)) if half != x / 2] == []


def test_a_row_s_place_is_that_of_its_input(spark: SparkSession) -> None:
    frame = spark.range(0, 9000, 1, 3).selectExpr(
        "id",
        "plus_one(spark_partition_id())",
        "plus_one(monotonically_increasing_id())",
        "spark_partition_id()",
    )
    assert rows(frame) == [
        (i, i // 3000 + 1, (i // 3000 << 33) + i % 3000 + 1, i // 3000) for i in range(9000)
    ]


# Failures


@pytest.mark.parametrize(
    "place",
    [
        # The failure is in the child of the node, or in an argument.
        "SELECT waits_at(id, 0, '{file}') FROM range(0, 100000, 1, 1) WHERE assert_true(id < 100, 'upstream') IS NULL",
        "SELECT waits_at(IF(id < 100, id, raise_error('upstream')), 0, '{file}') FROM range(0, 100000, 1, 1)",
        "SELECT waits_at(100 DIV (100 - id) - 1, 0, '{file}') FROM range(0, 100000, 1, 1)",
    ],
)
def test_an_input_that_fails_while_functions_work(spark: SparkSession, tmp_path: Path, place: str) -> None:
    file = tmp_path / "who"
    # The function waits for ever at its first row. A later row of the input fails at any moment, before or
    # after the call begins.
    for _ in range(10):
        text = error(lambda: spark.sql(place.format(file=file)).collect())
        assert "upstream" in text or "DIVIDE_BY_ZERO" in text
        assert "CrosslaneException" not in text
    # A worker that has not begun a call will not begin it.
    assert eventually(lambda: not any(map(lives, written(file))))
    assert works(spark)


def test_a_function_that_fails_while_the_task_reads(spark: SparkSession) -> None:
    # The input is slow, so the task reads the next batch when the function fails.
    query = (
        "SELECT fails_at(id, 0) FROM range(0, 1000000, 1, 1)"
        " WHERE id < 64 OR java_method('java.lang.Thread', 'holdsLock', 'x') IS NOT NULL"
    )
    text = error(lambda: spark.sql(query).collect())
    assert "fails_at: ValueError: no 0" in text
    assert works(spark)


# Workers


@pytest.mark.any_spark
def test_a_worker_is_used_again(spark: SparkSession) -> None:
    query = "SELECT DISTINCT pid(id) FROM range(0, 100, 1, 1)"
    # A task may get any worker. It depends on the thread that had the worker last, on ready workers of the
    # pool, and on workers that come back from earlier tests. There are only a few of them. A task does not
    # start a worker while another one is idle.
    taken = [pid for _ in range(12) for (pid,) in rows(spark.sql(query))]
    assert len(taken) == 12
    assert len(set(taken)) <= 6
    # A task has one worker at a time. All batches get the same worker, unless a worker of an earlier test
    # comes back to the pool between them.
    assert eventually(lambda: len(rows(spark.sql("SELECT DISTINCT pid(id) FROM range(0, 20000, 1, 1)"))) == 1)


@pytest.mark.any_spark
def test_a_worker_carries_nothing_over(spark: SparkSession) -> None:
    ((_, before),) = rows(spark.sql("SELECT pid(1), environment(1)"))

    def limits_are_the_call_s_own() -> bool:
        ((impatient,),) = rows(spark.sql("SELECT impatient(id, 0) FROM range(1)"))
        ((patient,),) = rows(spark.sql("SELECT patient(id, 1.0) FROM range(1)"))
        return impatient == patient

    # Both calls have the same worker, unless a worker of an earlier test comes back to the pool between them.
    assert eventually(limits_are_the_call_s_own)
    # After errors, output, and rows that were not taken, later queries get their own results.
    error(lambda: spark.sql("SELECT fails_at(id, 70) FROM range(0, 100, 1, 1)").collect())
    spark.sql("SELECT prints(id) FROM range(0, 100, 1, 1)").collect()
    spark.sql("SELECT doubled_text(repeat('x', 1000)) FROM range(0, 100000, 1, 1) LIMIT 1").collect()
    assert rows(spark.sql("SELECT slug(concat('A ', id)) FROM range(0, 1000, 1, 1)")) == [
        (f"a-{i}",) for i in range(1000)
    ]
    # The environment of a worker does not show to which task it belongs.
    ((_, after),) = rows(spark.sql("SELECT pid(id), environment(id) FROM range(5, 6)"))
    assert after == before


def test_a_limit_that_stops_early(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "who"
    got = rows(spark.sql(f"SELECT beats(id, '{file}') FROM range(0, 1000000, 1, 2) LIMIT 3"))
    assert got == [(0,), (1,), (2,)]
    assert eventually(lambda: not grows(file))
    assert len(file.read_text().split()) < 10_000
    assert works(spark)


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_query_that_is_cancelled(spark: SparkSession, tmp_path: Path, interrupt: bool) -> None:
    file = tmp_path / "who"
    failed: list[str] = []

    def query() -> None:
        spark.sparkContext.setJobGroup("waits", "waits for ever", interrupt)
        failed.append(error(lambda: spark.sql(f"SELECT waits_at(id, 0, '{file}') FROM range(1)").collect()))

    thread = threading.Thread(target=query)
    thread.start()
    assert eventually(lambda: bool(written(file)))
    (waiting,) = written(file)
    assert lives(waiting)
    spark.sparkContext.cancelJobGroup("waits")
    thread.join(30)
    assert not thread.is_alive()
    assert "cancelled" in failed[0].lower()
    assert eventually(lambda: not lives(waiting))
    assert works(spark)


@pytest.mark.any_spark
def test_a_time_limit(spark: SparkSession) -> None:
    text = error(lambda: spark.sql("SELECT impatient(id, 1000.0) FROM range(1)").collect())
    assert "impatient: timed out after 0.5 s" in text
    assert "with x = 0, seconds = 1000.0" in text
    assert works(spark)


@pytest.mark.any_spark
def test_a_worker_that_dies(spark: SparkSession) -> None:
    text = error(lambda: spark.sql("SELECT dies_at(id, 150) FROM range(0, 200, 1, 1)").collect())
    assert "dies_at: its worker process ended with exit code 3" in text
    assert "with x = 150, bad = 150" in text
    assert works(spark)


@pytest.mark.any_spark
def test_a_worker_that_another_process_kills(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "who"
    failed: list[str] = []
    query = f"SELECT waits_at(id, 0, '{file}') FROM range(1)"
    thread = threading.Thread(target=lambda: failed.append(error(lambda: spark.sql(query).collect())))
    thread.start()
    assert eventually(lambda: bool(written(file)))
    (waiting,) = written(file)
    os.kill(waiting, signal.SIGKILL)
    thread.join(30)
    assert not thread.is_alive()
    assert "waits_at: its worker process" in failed[0]
    assert "SIGKILL" in failed[0]
    assert works(spark)


@pytest.mark.any_spark
def test_a_call_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    query = f"SELECT dies_once(id, '{tmp_path}') FROM range(0, 300, 1, 2)"
    assert rows(spark.sql(query)) == [(i,) for i in range(300)]
    assert len(list(tmp_path.iterdir())) == 3


# Large values


@pytest.mark.any_spark
def test_a_large_value(spark: SparkSession) -> None:
    query = "SELECT text_length(repeat('ä', CAST(5000000 + id AS INT))), length(doubled_text(repeat('x', 5000000))) FROM range(3)"
    assert rows(spark.sql(query)) == [(5_000_000 + i, 10_000_000) for i in range(3)]


@pytest.fixture(scope="module")
def small(drivers: Callable[[], Driver]) -> Driver:
    """A session with little memory and small batches. Each of four cores runs one task at a time."""
    driver = drivers()
    # The whole heap exists from the beginning, so memory that grows later is outside of the heap.
    # With the newest Spark, the JVM has the compilers and the collector that Java chooses by default.
    java = f"{JAVA if IS_NEWEST else f'{JAVA} {QUICK}'} -Xms768m -XX:+AlwaysPreTouch"
    conf = {
        "spark.driver.extraJavaOptions": java,
        "spark.driver.memory": "768m",
        "spark.executor.cores": "1",
        "spark.driver.maxResultSize": "0",
    }
    driver.begin("local[4]", *FILES, conf=conf, batchRows=100, batchBytes=100_000)
    return driver


@pytest.mark.any_spark
def test_100_mb_in_a_jvm_with_little_memory(small: Driver) -> None:
    # The argument is no constant. Spark would compute a constant while it plans.
    query = "SELECT text_length(repeat(CAST(id % 1 AS STRING), 100000000)) FROM range(1)"
    assert small.rows(query) == [[100_000_000]]
    assert small.rows("SELECT sum(plus_one(id)) FROM range(10000)") == [[sum(range(10_001))]]


def test_failures_leave_no_memory_behind(small: Driver) -> None:
    (jvm,) = [process for process in small.below() if process.name() == "java"]
    # A batch is one row of 4 MB.
    query = (
        "SELECT fails_at(text_length(repeat(CAST(id AS STRING), 4000000)), 4000000) FROM range(1, 9, 1, 1)"
    )

    def fail() -> None:
        with pytest.raises(Failed, match="no 4000000"):
            small.rows(query)

    for _ in range(6):
        fail()
    before = jvm.memory_info().rss
    for _ in range(13):
        fail()
    assert jvm.memory_info().rss - before < 13 * 3_000_000


@pytest.mark.any_spark
def test_batches_are_bounded(small: Driver) -> None:
    seen = small.rows("SELECT rows_at_once(id) FROM range(0, 1000, 1, 1)")
    assert [n for (n,) in seen] == [64] * 64 + [100] * 900 + [36] * 36
    # A row of 4,000 bytes exists twice: as the row itself, and as an argument.
    text = "SELECT rows_at_once(x), text_length(t) FROM (SELECT id AS x, repeat('x', 4000) AS t FROM range(0, 1000, 1, 1))"
    seen = small.rows(text + " WHERE t <> 'y' DISTRIBUTE BY 1")
    assert len(seen) == 1000
    assert {length for _, length in seen} == {4000}
    assert 1 <= max(n for n, _ in seen) <= 26


def overlaps(driver: Driver, tasks: int, folder: Path) -> bool:
    """Whether this number of tasks were in their functions at the same time. Each task waits for the
    others."""
    text = f"SELECT meets(id, '{folder}', {tasks}) FROM range(0, {tasks}, 1, {tasks})"
    return driver.rows(text) == [[True]] * tasks


def test_tasks_run_side_by_side(small: Driver, tmp_path: Path) -> None:
    assert overlaps(small, 4, tmp_path)


@pytest.mark.any_spark
def test_what_functions_print_is_not_data(small: Driver) -> None:
    assert small.rows("SELECT prints(id) FROM range(100, 150, 1, 1)") == [[x] for x in range(100, 150)]
    for kind in ("a", "an error"):
        for x in range(100, 150):
            assert eventually(lambda line=f"{kind} line from {x}\n": line in small.said())


def test_sessions_end_with_all_their_processes(small: Driver) -> None:
    small.rows("SELECT plus_one(id), shout(id), initials(id) FROM range(4)")
    below = small.below()
    assert [process for process in below if "python" in process.name()]
    # In this test, the program ends. Another test kills its JVM.
    small.process.stdin.close()
    assert small.process.wait(60) == 0
    assert eventually(lambda: not [process for process in below if lives(process.pid)])


def test_a_session_that_is_stopped_leaves_no_workers(driver: Driver) -> None:
    driver.begin("local[2]", *FILES)
    driver.rows("SELECT plus_one(id), shout(id), initials(id) FROM range(4)")
    assert driver.workers()
    # The JVM keeps running, for another session.
    driver.run("spark.stop()")
    assert eventually(lambda: not driver.workers()), driver.workers()


def test_a_session_has_settings_of_its_own(driver: Driver) -> None:
    driver.begin("local[2]", SHOP)
    driver.rows("SELECT plus_one(id) FROM range(4)")
    driver.run("spark.stop()")
    try:
        with pytest.raises(Failed, match="no_such_limit"):
            driver.begin("local[2]", SHOP, largest_batch="no_such_limit")
    finally:
        driver.run("from pyspark import SparkContext\nSparkContext.getOrCreate().stop()")


STUCK = """\
import time
from crosslane import udf

@udf
def waits(x: int) -> int:
    time.sleep(1000)
    return x
"""


def test_functions_of_a_query_leave_no_processes_behind(driver: Driver) -> None:
    driver.begin("local[2]", pyspark=True, idle_timeout=0.5)
    # The query returns all parents of a lane, up to the JVM.
    query = """
        import os, sys
        from pathlib import Path
        from pyspark.sql import functions as F

        @F.udf("array<long>", useArrow=False)
        def parents(_):
            assert "pandas" not in sys.modules, "a function of rows pays for pandas"
            found, pid = [], os.getppid()
            while "java" not in (stat := Path(f"/proc/{pid}/stat").read_text()):
                found.append(pid)
                pid = int(stat.rpartition(")")[2].split()[1])
            return found

        rows = spark.range(0, 4, 1, 2).select(parents("id").alias("pids")).collect()
        return sorted({pid for row in rows for pid in row.pids})
    """
    try:
        for _ in range(2):
            # Tasks that begin late may have another zygote.
            processes = driver.run(query)
            # These are the zygote, the fork server, and the reapers of both.
            assert len(processes) >= 4
            assert eventually(lambda pids=processes: not any(map(lives, pids)))
    finally:
        driver.run("spark.stop()")


@pytest.mark.any_spark
def test_a_worker_that_is_stuck_is_reported_and_ended(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "stuck.py"
    file.write_text(STUCK)
    # Spark's own settings for its workers have the same effect.
    conf = {"spark.python.worker.idleTimeoutSeconds": "1", "spark.python.worker.killOnIdleTimeout": "true"}
    driver.begin("local[1]", file, conf=conf)
    try:
        with pytest.raises(Failed) as caught:
            driver.rows("SELECT waits(id) FROM range(5)")
        shown = str(caught.value)
        assert "waits: timed out after 1 s" in shown
        assert "stuck.py:6 in waits\n  where it was then" in shown
        # Another thread writes the log.
        assert eventually(lambda: "makes no progress; its stack:" in driver.said())
    finally:
        driver.run("spark.stop()")


def test_a_jvm_that_is_killed_leaves_no_processes(driver: Driver, tmp_path: Path) -> None:
    driver.begin("local[*]", *FILES)
    cores = len(os.sched_getaffinity(0))
    folder = tmp_path / "meeting"
    folder.mkdir()
    assert overlaps(driver, cores, folder)
    file = tmp_path / "who"
    driver.run(
        """
        import threading
        threading.Thread(target=lambda: spark.sql(query).collect(), daemon=True).start()
        """,
        query=f"SELECT waits_at(id, 0, '{file}'), shout(id), initials(id) FROM range(1)",
    )
    assert eventually(lambda: bool(written(file)))
    below = driver.below()
    assert written(file) <= {process.pid for process in below}
    (jvm,) = [process for process in below if process.name() == "java"]
    jvm.kill()
    assert eventually(lambda: not [process for process in below if lives(process.pid)])
