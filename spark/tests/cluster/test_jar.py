"""A jar that contains the native half runs on machines without the Python package."""

from __future__ import annotations

import platform
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import crosslane
import crosslane.spark

from ..conftest import HERE, Driver, Failed, conf

PACKAGE = Path(crosslane.__file__).parent


def write_jar(path: Path) -> None:
    """Writes a jar that contains the native half of this machine, in the place where `tools/packaging/jar`
    puts it."""
    path.write_bytes(Path(crosslane.spark.jar_path()).read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        name = f"dev/crosslane/spark/linux-{platform.machine()}/libcrosslane_jni.so"
        archive.write(PACKAGE / "libcrosslane_jni.so", name)


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jar") / "crosslane-spark.jar"
    write_jar(path)
    return path


@pytest.fixture(scope="module")
def bare(drivers: Callable[..., Driver], jar: Path) -> Driver:
    """A session whose interpreter does not have the package."""
    driver = drivers()
    folder = driver.folder
    (folder / "twice.js").write_text('udf("twice(x BIGINT) -> BIGINT", (x) => 2 * x);\n')
    (folder / "python3").write_text("#!/bin/sh\necho 'No module named crosslane' >&2\nexit 1\n")
    (folder / "python3").chmod(0o755)
    # A folder with the hosts of the languages, but without the native half.
    hosts = folder / "hosts"
    hosts.mkdir()
    for name in ("crosslane-js", "crosslane-js.so", "node", "guests"):
        (hosts / name).symlink_to(PACKAGE / name)
    own = {
        "spark.crosslane.functions": f"{folder}/twice.js,{HERE}/files/shop.lua",
        "spark.crosslane.python": str(folder / "python3"),
        "spark.crosslane.home": str(hosts),
        "spark.crosslane.pyspark.enabled": "true",
    }
    begin(driver, jar, **own)
    return driver


def begin(driver: Driver, jar: Path, **settings: str) -> None:
    """Begins a session without code of the package."""
    own = {"spark.jars": str(jar), "spark.sql.extensions": "dev.crosslane.spark.CrosslaneExtensions"}
    program = """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
    """
    driver.run(program, conf={**conf(driver.folder), **own, **settings})


def test_functions_of_other_languages_need_no_package(bare: Driver) -> None:
    assert bare.rows("SELECT sum(twice(id)), max(lua_title('a b')) FROM range(1000)") == [[999 * 1000, "A B"]]


def test_pyspark_s_functions_run_where_their_interpreter_has_it(bare: Driver) -> None:
    plan, result = bare.run(
        """
        from pyspark.sql.functions import udf
        frame = spark.range(3).select(udf(lambda x: x + 1, "long")("id"))
        result = [row[0] for row in frame.collect()]
        return frame._jdf.queryExecution().executedPlan().toString(), result
        """
    )
    assert result == [1, 2, 3]
    assert "CrosslaneEval" in plan


def test_a_missing_package_is_named_for_python_functions(bare: Driver) -> None:
    with pytest.raises(Failed, match="is the package crosslane installed for this interpreter"):
        bare.run(
            "import crosslane.spark; crosslane.spark.register(spark, lambda x: x, 'same(x BIGINT) -> BIGINT')"
        )


def test_another_version_of_the_package(drivers: Callable[..., Driver], jar: Path) -> None:
    driver = drivers()
    python = driver.folder / "python3"
    python.write_text("#!/bin/sh\necho 0.0.9 /opt/old/crosslane\n")
    python.chmod(0o755)
    (driver.folder / "twice.js").write_text('udf("twice(x BIGINT) -> BIGINT", (x) => 2 * x);\n')
    with pytest.raises(
        Failed, match=r"the jar is of crosslane 0\.1\.0, and the package in /opt/old/crosslane of 0\.0\.9"
    ):
        begin(driver, jar, **{"spark.crosslane.functions": "twice.js", "spark.crosslane.python": str(python)})
