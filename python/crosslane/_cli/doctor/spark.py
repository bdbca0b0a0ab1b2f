"""Looks for Spark, and for what its plugin needs."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from crosslane._cli.doctor.finding import Finding, optional, tried
from crosslane._runtime.languages import PACKAGE

OLDEST_JAVA = 17
#: The first and the last version of Spark that the plugin is tested with.
SPARKS = ((4, 0), (4, 3))


def examine_spark() -> Iterator[Finding]:
    """Looks for Spark and what its plugin needs. Without Spark, there is only one finding."""
    advice = "pip install 'pyspark>=4.0,<4.4'"
    spark = optional("pyspark", "functions in Spark", advice)
    if spark.state != "good":
        yield spark
        return
    version = tuple(int(part) for part in spark.text.split(".")[:2] if part.isdigit())
    if not SPARKS[0] <= version <= SPARKS[1]:
        spark = Finding("optional", "pyspark", f"{spark.text}; the plugin is tried with 4.0 to 4.3", advice)
    yield spark
    engine = [tried("Java", _java), tried("Spark's plugin", _plugin)]
    yield from engine
    runs = all(finding.state == "good" for finding in engine)
    yield tried("Spark's library", partial(_native_half, runs))


def _java_path() -> str | None:
    """The Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java")


def _java() -> Finding:
    advice = f"install Java {OLDEST_JAVA} or newer, or set JAVA_HOME to where it is"
    java = _java_path()
    if java is None:
        where = "in JAVA_HOME" if os.environ.get("JAVA_HOME") else "on PATH"
        return Finding("optional", "Java", f"no java {where}; only needed for Spark", advice)
    result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    said = result.stderr + result.stdout
    version = re.search(r'version "((\d+)[^"]*)"', said)
    if version is None:
        return Finding("optional", "Java", f"{java} does not tell its version: {said.strip()}", advice)
    if int(version[2]) < OLDEST_JAVA:
        text = f"{version[1]} at {java} is too old; only needed for Spark"
        return Finding("optional", "Java", text, advice)
    return Finding("good", "Java", f"{version[1]} at {java}")


def _plugin() -> Finding:
    from crosslane import __version__
    from crosslane.spark import jar_path

    try:
        path = jar_path()
    except FileNotFoundError:
        advice = "install a JDK and Maven, then pip install . again (in the source tree: run tools/spark)"
        return Finding("optional", "Spark's plugin", "built without Maven", advice)
    with zipfile.ZipFile(path) as jar:
        properties = jar.read("META-INF/maven/dev.crosslane/crosslane-spark_2.13/pom.properties").decode()
    version = re.search(r"^version=(.*?)\s*$", properties, re.MULTILINE)[1]
    if version != __version__:
        text = f"{path} is of version {version}, and this package of {__version__}"
        return Finding("bad", "Spark's plugin", text, "pip install . again, or run tools/spark")
    return Finding("good", "Spark's plugin", f"{version} at {path}")


def _native_half(runs: bool) -> Finding:
    """Looks for the native library, and loads it in Java if ``runs`` says that it can."""
    from crosslane import __version__

    what, advice = "Spark's library", "pip install . again"
    path = PACKAGE / "libcrosslane_jni.so"
    if not path.exists():
        return Finding("bad", what, f"{path} is not there", advice)
    ctypes.CDLL(str(path))
    if not runs:
        return Finding(
            "good", what, "can be loaded; its version was not looked at, without Java and the plugin"
        )
    version = _native_version(path)
    if version != __version__:
        return Finding(
            "bad", what, f"{path} is of version {version}, and this package of {__version__}", advice
        )
    return Finding("good", what, f"{version}; loaded by Java")


def _native_version(path: Path) -> str:
    from py4j.java_gateway import JavaGateway
    from pyspark.find_spark_home import _find_spark_home

    from crosslane.spark import jar_path

    (py4j,) = Path(_find_spark_home()).glob("jars/py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        jarpath=str(py4j), classpath=str(jar_path()), java_path=_java_path(), die_on_exit=True
    )
    try:
        gateway.jvm.java.lang.System.load(str(path))
        return gateway.jvm.dev.crosslane.spark.Native.version()
    finally:
        gateway.shutdown()
        gateway.java_process.communicate()
