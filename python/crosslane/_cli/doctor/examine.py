"""What Crosslane needs, looked for on this machine."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crosslane._runtime.languages import Guest, guests

OLDEST_DUCKDB = (1, 5, 6)
OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
#: The first and the last version of Spark that the plugin is tried with.
SPARKS = ((4, 0), (4, 3))


@dataclass
class Finding:
    """One line of the report: ``state`` is ``good``, ``bad``, or ``optional`` (missing, but only some need it)."""

    state: str
    what: str
    text: str
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Looks at everything, in the order in which one thing needs the other; nothing that is broken ends it."""
    yield _platform()
    yield _python()
    yield _tried("guest", _guest)
    engine = [_tried("DuckDB", _duckdb)]
    if engine[-1].state == "good":
        engine.append(_tried("extension", _extension))
    yield from engine
    languages = {"a function": _function, "JavaScript": _javascript, "Ruby": _ruby}
    languages |= {guest.language: partial(_further, guest) for guest in guests()}
    for what, look in languages.items():
        if engine[-1].state == "good":
            yield _tried(what, look)
        else:
            yield Finding("optional", what, f"not tried, without the {engine[-1].what}")
    yield _optional("pyarrow", "vectorized functions", "pip install 'crosslane[vectorized]'")
    for name in ("numpy", "pandas", "polars"):
        yield _optional(name, f"vectorized functions with {name}", f"pip install {name}")
    yield _optional("cloudpickle", "crosslane.register", "pip install cloudpickle")
    yield from _spark()
    yield _tried("open files", _descriptors)


def _tried(what: str, look: Callable[[], Finding]) -> Finding:
    """What a look at something finds, or what it failed with."""
    try:
        return look()
    except Exception as error:
        return Finding("bad", what, _described(error), "pip install . again, or see the message above")


def _described(error: Exception) -> str:
    return (
        str(error)
        if type(error).__module__.lstrip("_").startswith("duckdb")
        else f"{type(error).__name__}: {error}"
    )


def _platform() -> Finding:
    here = f"{platform.system()} {platform.release()} on {platform.machine()}, {os.cpu_count()} cores"
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        return Finding("good", "platform", here)
    return Finding("bad", "platform", here, "Crosslane runs on Linux on x86-64 and arm64")


def _python() -> Finding:
    here = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("bad", "Python", here, "install Python 3.11 or newer")
    return Finding("good", "Python", here)


def _guest() -> Finding:
    try:
        guest = importlib.import_module("crosslane._guest")
    except ImportError as error:
        return Finding(
            "bad", "guest", str(error), "the native part was built for another Python: pip install . again"
        )
    return Finding("good", "guest", f"native loop {guest.__version__}")


def _duckdb() -> Finding:
    advice = "pip install 'duckdb>=1.5.6'"
    try:
        import duckdb
    except ImportError as error:
        return Finding("bad", "DuckDB", str(error), advice)
    version = tuple(int(part) for part in duckdb.__version__.split(".")[:3] if part.isdigit())
    if version < OLDEST_DUCKDB:
        return Finding("bad", "DuckDB", f"{duckdb.__version__} is too old", advice)
    return Finding("good", "DuckDB", duckdb.__version__)


def _extension() -> Finding:
    import crosslane

    path = crosslane.extension_path()
    try:
        crosslane.connect().close()
    except Exception as error:
        return Finding("bad", "extension", f"{path}: {_described(error)}", "pip install . again")
    text = f"{path}\nin any client: SET allow_unsigned_extensions at start, then LOAD '{path}'"
    return Finding("good", "extension", text)


def _function() -> Finding:
    text = "from crosslane import udf\n@udf\ndef crosslane_doctor_guest() -> int: return 42\n"
    return _ran("a function", ".py", text, lambda value: f"ran in a worker and returned {value}")


def _javascript() -> Finding:
    import crosslane

    host = crosslane.javascript_path()
    if not host.exists():
        return Finding("optional", "JavaScript", "built without V8", "run tools/v8, then pip install . again")

    def found(value: object) -> str:
        version = subprocess.run([host, "version"], capture_output=True, text=True).stdout.strip()
        return f"{version}; a function ran in an isolate and returned {value}"

    return _ran("JavaScript", ".js", 'udf("crosslane_doctor_guest() -> INTEGER", () => 42);', found)


def _ruby() -> Finding:
    import crosslane

    if not crosslane.ruby_path().exists():
        advice = "install Ruby with its headers, then pip install . again"
        return Finding("optional", "Ruby", "built without Ruby", advice)
    if shutil.which("ruby") is None:
        return Finding("optional", "Ruby", "no ruby on PATH; only needed for Ruby functions", "install Ruby")
    text = 'udf("crosslane_doctor_guest() -> VARCHAR") { RUBY_VERSION }'
    return _ran("Ruby", ".rb", text, lambda version: f"Ruby {version}; a function ran in a worker")


def _further(guest: Guest) -> Finding:
    if not guest.program.exists():
        reason, _, advice = guest.missing.partition("; ")
        return Finding("optional", guest.language, reason, advice)

    def found(version: object) -> str:
        return f"{version}; a function ran in a worker"

    return _ran(guest.language, guest.suffixes[0], guest.example, found)


def _ran(language: str, suffix: str, text: str, found: Callable[[object], str]) -> Finding:
    """Runs a function of a file in that language."""
    import crosslane

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"doctor{suffix}"
        file.write_text(text)
        try:
            con = crosslane.connect(functions=file)
            try:
                value = con.execute("SELECT crosslane_doctor_guest()").fetchall()[0][0]
            finally:
                con.close()
            return Finding("good", language, found(value))
        except Exception as error:
            advice = "see the message above; what the worker printed is on stderr"
            return Finding("bad", language, _described(error), advice)


def _optional(name: str, purpose: str, advice: str) -> Finding:
    from crosslane._runtime.forks import lost_threads

    before = lost_threads()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return Finding("optional", name, f"not installed; only needed for {purpose}", advice)
    except Exception as error:
        text = f"is broken ({_described(error)}); only needed for {purpose}"
        return Finding("optional", name, text, advice)
    version = getattr(module, "__version__", "installed")
    if lost_threads() != before:
        version += "\nits import starts threads: each worker loads a file that imports it anew"
    return Finding("good", name, version)


def _spark() -> Iterator[Finding]:
    """Spark and what its plugin needs; one line where there is no Spark."""
    advice = "pip install 'pyspark>=4.0,<4.4'"
    spark = _optional("pyspark", "functions in Spark", advice)
    if spark.state != "good":
        yield spark
        return
    version = tuple(int(part) for part in spark.text.split(".")[:2] if part.isdigit())
    if not SPARKS[0] <= version <= SPARKS[1]:
        spark = Finding("optional", "pyspark", f"{spark.text}; the plugin is tried with 4.0 to 4.3", advice)
    yield spark
    engine = [_tried("Java", _java), _tried("Spark's plugin", _plugin)]
    yield from engine
    runs = all(finding.state == "good" for finding in engine)
    yield _tried("Spark's library", partial(_native_half, runs))


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
        properties = jar.read("META-INF/maven/dev.crosslane/crosslane-spark/pom.properties").decode()
    version = re.search(r"^version=(.*?)\s*$", properties, re.MULTILINE)[1]
    if version != __version__:
        text = f"{path} is of version {version}, and this package of {__version__}"
        return Finding("bad", "Spark's plugin", text, "pip install . again, or run tools/spark")
    return Finding("good", "Spark's plugin", f"{version} at {path}")


def _native_half(runs: bool) -> Finding:
    """Loads the library as Spark does, if there is what that takes."""
    from crosslane import __version__

    what, advice = "Spark's library", "pip install . again"
    path = Path(__file__).parent.parent.with_name("libcrosslane_jni.so")
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


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A lane takes three or four in the engine, and a machine may have many cores.
    wanted = 64 + 8 * (os.cpu_count() or 1)
    if soft >= wanted:
        return Finding("good", "open files", f"{soft} allowed")
    return Finding("bad", "open files", f"only {soft} allowed", f"ulimit -n {max(wanted, 1024)}")
