"""Spark: the functions of files, and of programs, on a cluster.

>>> import crosslane.spark
>>> from pyspark.sql import SparkSession
>>> builder = crosslane.spark.enable(SparkSession.builder.master("local[2]"), "examples/quickstart.py")
>>> spark = builder.getOrCreate()
>>> spark.sql("SELECT slug('Hello Wide World') AS slug").first().slug
'hello-wide-world'
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from crosslane._declare.declaration import DeclarationError, Options
from crosslane._declare.programs import of_program
from crosslane._runtime.settings import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The class that `spark.sql.extensions` names.
EXTENSIONS = "dev.crosslane.spark.CrosslaneExtensions"


def jar_path() -> Path:
    """The path of the plugin, for `spark.jars` of sessions that are not made in Python.

    Raises:
        FileNotFoundError: if this package was built without the plugin.
    """
    path = Path(__file__).with_name("crosslane-spark.jar")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: this package was built without Spark's part; `tools/spark` builds it"
        )
    return path


def enable(
    builder: SparkSession.Builder, *functions: str | PathLike[str], **settings: object
) -> SparkSession.Builder:
    """Prepares a session with the plugin, which runs the functions of these files over lanes.

    The files may be in any language. Spark sends them to the executors; modules that they import
    must be there (docs/spark.md). With a local master, workers run in this program's interpreter,
    unless `PYSPARK_PYTHON`, `spark.pyspark.python` or the setting `python` names another. On a
    cluster, they run in the interpreter of PySpark's workers.

    Args:
        builder: the builder of a session. Spark must not run yet, because it reads all this at its
            start.
        functions: files of functions.
        settings: values of other settings `spark.crosslane.<name>`, such as ``batchRows=1000`` or
            ``idle_timeout=10``; docs/spark.md lists them. ``pyspark=True`` sets
            `spark.crosslane.pyspark.enabled`. A list means its items with commas between them.

    Returns:
        The same builder.

    Raises:
        FileNotFoundError: if there is no such file, or no plugin.
        RuntimeError: if Spark runs in this program already.
    """
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise RuntimeError(
            "Spark runs already in this program: stop it first (spark.stop()), since it reads its plugins when it starts; "
            "crosslane.spark.register adds functions to a session that has the plugin"
        )
    paths = [Path(path).expanduser().resolve() for path in functions]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
    options = dict(getattr(builder, "_options", {}))
    _append(options, "spark.jars", str(jar_path()))
    _append(options, "spark.sql.extensions", EXTENSIONS)
    for path in paths:
        _append(options, "spark.crosslane.functions", str(path))
    # Only on this machine do executors find this interpreter.
    masters = (str(options.get(name, "")) for name in ("spark.master", "spark.remote"))
    is_local = any(master.startswith("local") for master in masters)
    if is_local and "spark.pyspark.python" not in options and "PYSPARK_PYTHON" not in os.environ:
        # PySpark's own workers take the interpreter from the environment.
        options["spark.pyspark.python"] = os.environ["PYSPARK_PYTHON"] = sys.executable
    for name, value in settings.items():
        key = "pyspark.enabled" if name == "pyspark" else name
        options[f"spark.crosslane.{key}"] = text_of(value)
    return builder.config(map=options)


def _append(options: dict[str, Any], name: str, value: str) -> None:
    there = [one for one in str(options.get(name, "")).split(",") if one]
    options[name] = ",".join(there if value in there else [*there, value])


def register(
    spark: SparkSession,
    function: Callable[..., Any],
    signature: str | None = None,
    **options: Unpack[Options],
) -> str:
    """Makes one Python function callable in a session, from a notebook or a script; returns its
    signature.

    It is pickled as by :func:`crosslane.register`, and runs in workers of the executors. Queries
    that begin afterwards call it in place of an earlier function of the same name.

    Args:
        spark: a session that :func:`enable` has prepared.
        function: any callable, as for :func:`crosslane.register`.
        signature: the types, if annotations do not tell them; a lambda needs one.
        options: those of :func:`crosslane.udf`.

    Raises:
        DeclarationError: if its types are missing or cannot work, or if something that it refers to
            cannot be pickled.
        RuntimeError: if the session has no plugin.
    """
    from crosslane._declare.pickles import dump

    plugin = _plugin(spark)
    declaration, declared = of_program(function, signature, options)
    if declaration.overload:
        raise declaration.error("Spark has one function of a name, and no overloads: give it another name")
    pickled = dump(declaration, declared, is_near=False)
    return plugin.register(spark._jsparkSession, declared[0].name, bytearray(pickled))[0]


def map(table: DataFrame, function: str) -> DataFrame:
    """The rows that a stream function makes of a table, with a stream for each partition.

    Args:
        table: a table with the columns of the function's input, by name. Each is cast to its type.
        function: the name of a stream function of the session's files, or of a registered one.

    Raises:
        pyspark.errors.AnalysisException: if the table lacks a column, or has one of a type that
            cannot be cast.
        RuntimeError: if the session has no plugin.
    """
    from pyspark.sql import DataFrame

    return DataFrame(_plugin(table.sparkSession).map(table._jdf, function), table.sparkSession)


def _plugin(spark: SparkSession) -> Any:
    """The object of the plugin in the JVM."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise RuntimeError(
            "functions are registered in the program that runs Spark's driver, and this session is a client of another"
        )
    plugin = jvm.org.apache.spark.sql.crosslane.Plugin
    if not callable(getattr(plugin, "register", None)):
        raise RuntimeError(
            "this session has no Crosslane: build it with crosslane.spark.enable(SparkSession.builder)"
        )
    return plugin


__all__ = ["EXTENSIONS", "DeclarationError", "enable", "jar_path", "map", "register"]
