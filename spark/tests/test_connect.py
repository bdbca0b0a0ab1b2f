"""A client of Spark Connect: functions of files, and functions that the client has pickled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .conftest import HERE, conf

PROGRAM = """
import contextlib, io, json, sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import crosslane.spark

file, settings = json.loads(sys.argv[1])
builder = SparkSession.builder.remote("local[1]").config(map=settings)
spark = crosslane.spark.enable(builder, file, pyspark=True).getOrCreate()


@F.udtf(returnType="word string")
class Twice:
    def eval(self, word: str):
        yield (word,)
        yield (word,)


spark.udtf.register("twice", Twice)
spark.sql("CREATE FUNCTION initial(t STRING) RETURNS STRING LANGUAGE python AS $$ t[0] $$")
names = ["a", "b"]
tables = {
    "file": spark.sql("SELECT slug('A b')"),
    "defined": spark.sql("SELECT initial('A b')"),
    "rows": spark.range(2).select(F.udf(lambda x: names[x], "string")("id")),
    "groups": spark.range(2).groupBy("id").applyInPandas(
        lambda frame: pd.DataFrame({"word": [names[frame.id[0]]]}), "word string"
    ),
    "tables": spark.sql("SELECT word FROM twice('x')"),
}
answers = {}
for name, table in tables.items():
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        table.explain()
    answers[name] = [plan.getvalue(), sorted(row[0] for row in table.collect())]
print(json.dumps(answers))
spark.stop()
"""


@pytest.mark.any_spark
def test_a_client(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    asked = json.dumps([str(HERE / "files" / "shop.py"), conf(tmp_path)])
    # The client starts the server as a separate process.
    ran = subprocess.run(
        [sys.executable, program, asked],
        cwd=tmp_path,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    answers = json.loads(ran.stdout.splitlines()[-1])
    shown = {name: plan for name, (plan, _) in answers.items()}
    assert {name: values for name, (_, values) in answers.items()} == {
        "file": ["a-b"],
        "defined": ["A"],
        "rows": ["a", "b"],
        "groups": ["a", "b"],
        "tables": ["x", "x"],
    }
    assert "CrosslaneEval [slug" in shown["file"]
    assert "[pyspark]" in shown["rows"]
    assert "CrosslaneWorker" in shown["groups"]
    assert "CrosslaneWorker twice" in shown["tables"]
