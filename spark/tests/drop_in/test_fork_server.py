"""The zygotes of all queries are forks of one process, which has imported the modules that they need."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ..conftest import eventually, lives
from .test_scalar import lanes

#: The places of the lane, its zygote and the fork server in the list of a lane and its parents.
LANE, ZYGOTE, SERVER = 0, 1, 3


def parents() -> str:
    """The process ids of this process and of all its parents, up to the JVM."""
    found, pid = [], os.getpid()
    while "java" not in (stat := Path(f"/proc/{pid}/stat").read_text()):
        found.append(str(pid))
        pid = int(stat.rpartition(")")[2].split()[1])
    return " ".join(found)


def of_rows(spark: SparkSession) -> list[int]:
    """A lane for a function of rows, and its parents."""

    @F.udf("string", useArrow=False)
    def found(_: int) -> str:
        return parents()

    return pids(spark, found)


def of_columns(spark: SparkSession) -> list[int]:
    """The same for a function of columns."""

    @F.pandas_udf("string")
    def found(column: pd.Series) -> pd.Series:
        return pd.Series([parents()] * len(column))

    return pids(spark, found)


def pids(spark: SparkSession, found: Callable[..., object]) -> list[int]:
    with lanes(spark, True):
        (row,) = spark.range(0, 1, 1, 1).select(found("id")).collect()
    return [int(pid) for pid in row[0].split()]


def test_libraries_share_a_fork_server(spark: SparkSession) -> None:
    first, second = of_rows(spark), of_columns(spark)
    assert first[ZYGOTE] != second[ZYGOTE]
    assert first[SERVER] == second[SERVER]


@pytest.mark.any_spark
def test_a_fork_server_that_was_killed_is_started_again(spark: SparkSession) -> None:
    before = of_rows(spark)
    os.kill(before[SERVER], signal.SIGKILL)
    assert eventually(lambda: not any(map(lives, before)))
    # The zygote of the first function's library starts again. Other libraries find the new fork server.
    after = of_rows(spark)
    assert after[SERVER] == of_columns(spark)[SERVER] != before[SERVER]


@pytest.mark.any_spark
def test_idle_workers_of_a_query_end_before_its_zygote(spark: SparkSession) -> None:
    found = of_rows(spark)
    # Other idle workers live for a minute.
    assert eventually(lambda: not lives(found[LANE]))
    assert lives(found[ZYGOTE])
