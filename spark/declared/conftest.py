"""The Spark session of these tests."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import pytest
from comparing import (
    CONF,
    KEYS,
    ZONE,
)
from pyspark.sql import SparkSession

#: Replaces Spark's own daemon. Its workers inherit these imports.
DAEMON = """\
import runpy
import pandas, pyarrow.compute, pyspark.worker, pyspark.sql.pandas.types
runpy.run_module("pyspark.daemon", run_name="__main__")
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # The time zone of Python's processes differs from that of the session.
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    os.environ.setdefault("JAVA_HOME", "/usr/lib/jvm/java-17-openjdk-amd64")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "quick_daemon.py").write_text(DAEMON)
    # Workers import the modules of this folder.
    here = os.path.dirname(__file__)
    os.environ["PYTHONPATH"] = f"{folder}:{here}:{os.environ.get('PYTHONPATH', '')}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": ZONE,
        "spark.python.daemon.module": "quick_daemon",
        # The JVM lives so shortly that better code does not pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for key in KEYS:
        # This version of Spark may not know the setting.
        with contextlib.suppress(Exception):
            CONF[key] = session.conf.get(key)
    yield session
    session.stop()
