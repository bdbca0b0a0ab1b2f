"""A Spark program that runs queries for `session.py`. It runs in Spark's environment."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

DROP_IN = "spark.crosslane.pyspark.enabled"


def plus_one(x):
    """The cheapest function of rows, for Spark."""
    return x + 1


def arrow_add(x: pa.Array) -> pa.Array:
    """The cheapest function of columns, for Spark."""
    return pc.add(x, 1)


def pandas_add(x: pd.Series) -> pd.Series:
    """The first of three functions in one query."""
    return x + 1


def pandas_twice(x: pd.Series) -> pd.Series:
    """The second."""
    return x * 2


def pandas_less(x: pd.Series) -> pd.Series:
    """The third."""
    return x - 3


def registered(spark: Any) -> None:
    """Registers the functions of this program in a session, as Spark's own."""
    from pyspark.sql.functions import arrow_udf, pandas_udf, udf

    spark.udf.register("plain", udf(plus_one, "bigint"))
    spark.udf.register("pickled", udf(plus_one, "bigint", useArrow=False))
    spark.udf.register("arrow", udf(plus_one, "bigint", useArrow=True))
    spark.udf.register("arrow_add", arrow_udf(arrow_add, "bigint"))
    for function in (pandas_add, pandas_twice, pandas_less):
        spark.udf.register(function.__name__, pandas_udf(function, "bigint"))


def serve(master: str, session: str, folder: str, *files: str) -> None:
    """Answers questions, which come as lines of JSON. Each answer is a line of JSON, too."""
    import pyspark
    from pyspark.sql import SparkSession

    # The output of Spark and its workers goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": f"{folder}/{session}",
        "spark.sql.warehouse.dir": f"{folder}/{session}/warehouse",
        "spark.log.level": "ERROR",
    }
    if session == "pipelined":
        conf["spark.python.udf.pipelined.enabled"] = "true"
    builder = SparkSession.builder.master(master).config(map=conf)
    if session == "crosslane":
        import crosslane.spark

        builder = crosslane.spark.enable(builder, *files)
    spark = builder.getOrCreate()
    registered(spark)
    # PySpark's decorators need a session.
    import kinds
    from pyspark import cloudpickle

    # Workers do not find this folder.
    cloudpickle.register_pickle_by_value(kinds)
    print(json.dumps({"version": pyspark.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if session == "crosslane":
                spark.conf.set(DROP_IN, str(asked["drop_in"]).lower())
            begun = time.perf_counter()
            if "program" in asked:
                frame = kinds.PROGRAMS[asked["program"]](spark, asked["rows"])
            else:
                frame = spark.sql(asked["query"])
            (row,) = frame.collect()
            seconds = time.perf_counter() - begun
            plan = frame._jdf.queryExecution().executedPlan().toString()
            answer = {"seconds": seconds, "values": list(row), "lanes": "Crosslane" in plan}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    serve(*sys.argv[1:])
