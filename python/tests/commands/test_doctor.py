"""What the doctor says about Spark. Without Spark nothing is wrong. The doctor names each broken part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import crosslane
from crosslane._cli.doctor.finding import optional

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).parents[3]
PACKAGE = Path(crosslane.__file__).parent
POM = "META-INF/maven/dev.crosslane/crosslane-spark_2.13/pom.properties"

PROGRAM = """if True:
    import dataclasses, json, sys
    # An editable installation would bring back what is gone.
    sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
    from crosslane._cli.doctor import spark
    {patch}
    print(json.dumps([dataclasses.asdict(finding) for finding in spark.examine_spark()]))
"""


def findings(
    folder: Path, python: Path | str = sys.executable, patch: str = "pass", **variables: str
) -> dict[str, tuple[str, str]]:
    """The state of each part and the doctor's text about it, with a package in the folder."""
    result = subprocess.run(
        [python, "-c", PROGRAM.format(patch=patch)],
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return {one["what"]: (one["state"], one["text"]) for one in json.loads(result.stdout)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a package that a test may break, a Spark that has only its version, and a Java."""
    (tmp_path / "crosslane").mkdir()
    for file in PACKAGE.iterdir():
        (tmp_path / "crosslane" / file.name).symlink_to(file)
    (tmp_path / "pyspark.py").write_text('__version__ = "4.2.0"')
    java(tmp_path, "1>&2 echo 'openjdk version \"21.0.1\" 2023-10-17'")
    return tmp_path


def java(folder: Path, script: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "java").chmod(0o755)


def replace(folder: Path, name: str, content: str | None = None) -> None:
    file = folder / "crosslane" / name
    file.unlink()
    if content is not None:
        file.write_text(content)


def other_jar(folder: Path) -> None:
    replace(folder, "crosslane-spark.jar")
    with zipfile.ZipFile(folder / "crosslane" / "crosslane-spark.jar", "w") as jar:
        jar.writestr(POM, "groupId=dev.crosslane\r\nversion=0.0.9\r\n")


#: What is wrong: the part, its state, some words of the text, and the function that breaks it.
MATTERS: dict[str, tuple[str, str, str, Callable[[Path], object]]] = {
    "an old Spark": (
        "pyspark",
        "optional",
        "3.5.1; the plugin is tried with 4.0 to 4.3",
        lambda folder: (folder / "pyspark.py").write_text('__version__ = "3.5.1"'),
    ),
    "a broken Spark": (
        "pyspark",
        "optional",
        "is broken (ZeroDivisionError",
        lambda folder: (folder / "pyspark.py").write_text("1 / 0"),
    ),
    "no Java": (
        "Java",
        "optional",
        "no java in JAVA_HOME; only needed for Spark",
        lambda folder: (folder / "bin" / "java").unlink(),
    ),
    "an old Java": (
        "Java",
        "optional",
        "1.8.0_392 at",
        lambda folder: java(folder, "1>&2 echo 'openjdk version \"1.8.0_392\"'"),
    ),
    "no Java at all": (
        "Java",
        "optional",
        "does not tell its version: install one first",
        lambda folder: java(folder, "echo install one first; exit 1"),
    ),
    "no plugin": (
        "Spark's plugin",
        "optional",
        "built without Maven",
        lambda folder: replace(folder, "crosslane-spark.jar"),
    ),
    "another plugin": ("Spark's plugin", "bad", "is of version 0.0.9, and this package of", other_jar),
    "not a plugin": (
        "Spark's plugin",
        "bad",
        "BadZipFile",
        lambda folder: replace(folder, "crosslane-spark.jar", "nonsense"),
    ),
    "no library": (
        "Spark's library",
        "bad",
        "libcrosslane_jni.so is not there",
        lambda folder: replace(folder, "libcrosslane_jni.so"),
    ),
    "not a library": (
        "Spark's library",
        "bad",
        "OSError",
        lambda folder: replace(folder, "libcrosslane_jni.so", "nonsense"),
    ),
}


def test_without_spark_there_is_one_line(folder: Path) -> None:
    (folder / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\")")
    text = "not installed; only needed for functions in Spark"
    assert findings(folder, JAVA_HOME=str(folder)) == {"pyspark": ("optional", text)}


@pytest.mark.parametrize("matter", MATTERS)
def test_what_is_missing_or_broken(folder: Path, matter: str) -> None:
    what, state, text, make_it_so = MATTERS[matter]
    make_it_so(folder)
    said = findings(
        folder,
        patch=f"spark._native_version = lambda path: {crosslane.__version__!r}",
        JAVA_HOME=str(folder),
    )
    assert said[what][0] == state
    assert text in said[what][1]
    assert {other: told for other, (told, _) in said.items() if other != what and told != "good"} == {}


def test_the_version_of_the_library_is_known_from_java_only(folder: Path) -> None:
    patch = "spark._native_version = lambda path: '0.0.9'"
    assert findings(folder, patch=patch, JAVA_HOME=str(folder))["Spark's library"][0] == "bad"
    (folder / "bin" / "java").unlink()
    state, text = findings(folder, patch=patch, JAVA_HOME=str(folder))["Spark's library"]
    assert state == "good"
    assert "not looked at" in text


@pytest.mark.parametrize("version", ["4.0", "4.3"])
def test_java_loads_the_library_that_is_here(version: str, tmp_path: Path) -> None:
    said = findings(PACKAGE.parent, ROOT / f".venv-spark-{version}" / "bin" / "python")
    assert {state for state, _ in said.values()} == {"good"}, said
    assert said["pyspark"][1].startswith(version)
    assert said["Spark's library"][1] == f"{crosslane.__version__}; loaded by Java"
    assert str(Path("bin", "java")) in said["Java"][1]


def test_the_doctor_names_only_threads_that_an_import_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    # A thread that another check has started ends during the import.
    end = threading.Event()
    before = threading.Thread(target=end.wait)
    before.start()
    monkeypatch.setattr(threading, "before", (end, before), raising=False)
    ends = "import threading\nend, thread = threading.before\nend.set()\nthread.join()\n"
    (tmp_path / "ends_one.py").write_text(ends)
    assert optional("ends_one", "", "").text == "installed"
    starts = "import threading\nend = threading.Event()\nthread = threading.Thread(target=end.wait)\nthread.start()\n"
    (tmp_path / "starts_one.py").write_text(starts)
    try:
        assert "its import starts threads" in optional("starts_one", "", "").text
    finally:
        sys.modules["starts_one"].end.set()
        sys.modules["starts_one"].thread.join()
