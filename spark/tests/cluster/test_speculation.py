"""Tasks that Spark runs twice at the same time, because the first attempt takes long."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from ..conftest import QUICK, Driver, eventually, lives

#: Five JVMs start: a master, two workers with an executor each, and the driver's.
pytestmark = [pytest.mark.timeout(240), pytest.mark.any_spark]

#: Functions whose first attempt at row 3 does not end by itself. It notes its process, and that it has ended. The
#: second attempt finds the note.
FUNCTIONS = """\
import os
import pathlib
import time

from crosslane import udf


@udf
def attempted(number: int, folder: str) -> int:
    if number == 3:
        try:
            with open(f"{folder}/first", "x") as note:
                note.write(str(os.getpid()))
        except FileExistsError:
            return number
        try:
            while True:
                time.sleep(0.01)
        finally:
            pathlib.Path(folder, "ended").touch()
    return number
"""

#: Tables of a function of a file, and of PySpark's own functions: over a lane, of batches over a lane, and of groups
#: in PySpark's worker.
TABLES = {
    "file": "spark.sql(f\"SELECT attempted(id, '{folder}') FROM range(0, 4, 1, 4)\")",
    "udf": "rows.select(F.udf(lambda id: attempted(id, folder), 'long')('id'))",
    "batches": "rows.mapInPandas(lambda frames: map(changed, frames), 'id long')",
    "groups": "rows.groupBy('id').applyInPandas(changed, 'id long')",
}

PROGRAM = """
import sys
from pyspark.sql import functions as F

sys.path.insert(0, home)
from attempts import attempted

seen = spark.sparkContext.accumulator(0)
rows = spark.range(0, 4, 1, 4)

def changed(frame):
    if counts:
        seen.add(len(frame))
    return frame.assign(id=[attempted(id, folder) for id in frame.id])

table = {table}
return sorted(row[0] for row in table.collect()), seen.value
"""


@pytest.fixture(scope="module")
def standalone(
    drivers: Callable[..., Driver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Driver, Path]]:
    """A session on a cluster whose two hosts are addresses of this machine. Spark never starts the second attempt
    on the host of the first."""
    folder = tmp_path_factory.mktemp("standalone")
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"

    with contextlib.ExitStack() as stack:

        def begin(kind: str, host: str, *arguments: str) -> Path:
            log = folder / f"{host}.{kind}"
            command = [program, f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", host]
            with log.open("w") as written:
                process = stack.enter_context(
                    subprocess.Popen(
                        [*command, "--port", "0", "--webui-port", "0", *arguments],
                        stdout=written,
                        stderr=written,
                    )
                )
            stack.callback(process.kill)
            return log

        log = begin("Master", "127.0.0.1")
        told: list[str] = []
        assert eventually(
            lambda: bool(told.extend(re.findall(r"spark://[\d.]+:\d+", log.read_text())) or told), 60
        )
        for host in ("127.0.0.2", "127.0.0.3"):
            begin("Worker", host, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / host), told[0])
        file, module = folder / "functions.py", folder / "attempts.py"
        file.write_text(FUNCTIONS)
        # Spark sends the file of functions already, and a name only once.
        module.write_text(FUNCTIONS)
        driver = drivers()
        conf = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.locality.wait": "0",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1",
            "spark.crosslane.pyspark.enabled": "true",
        }
        driver.begin(told[0], file, conf=conf)
        driver.run("spark.sparkContext.addPyFile(path)", path=str(module))
        yield driver, folder
        driver.run("spark.stop()")


@pytest.mark.parametrize("kind", TABLES)
def test_the_second_attempt_gives_the_rows_and_the_first_one_ends(
    standalone: tuple[Driver, Path], tmp_path: Path, kind: str
) -> None:
    driver, home = standalone
    # A function with an accumulator runs in PySpark's worker.
    counts = kind == "groups"
    program = PROGRAM.replace("{table}", TABLES[kind])
    found, seen = driver.run(program, folder=str(tmp_path), home=str(home), counts=counts)
    assert found == [0, 1, 2, 3]
    # Only attempts that succeed count.
    assert seen == (4 if counts else 0)
    first = int((tmp_path / "first").read_text())
    assert eventually(lambda: (tmp_path / "ended").exists() or not lives(first))
