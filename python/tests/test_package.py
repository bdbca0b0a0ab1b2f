"""The wheel, built, installed into an empty environment, and used there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Who builds; the interpreter of these tests may have no setuptools.
BUILDER = (ROOT / ".venv" / "bin").resolve() / "python"

PROGRAM = """
import crosslane, pathlib
pathlib.Path("f.py").write_text("from crosslane import udf\\n@udf\\ndef f(x: int) -> int: return x + 1")
pathlib.Path("g.js").write_text('udf("g(x VARCHAR) -> VARCHAR", (x) => x.toLocaleUpperCase("tr"))')
pathlib.Path("h.rb").write_text('udf("h(x BIGINT) -> BIGINT") { |x| x * 2 }')
con = crosslane.connect(functions=["f.py", "g.js", "h.rb"])
print(con.execute("SELECT f(h(20)), g('abi')").fetchall())
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
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and with what the wheel needs."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-q", "build", "-b", folder / "build", "bdist_wheel", "-d", folder]
    run(BUILDER, "setup.py", *build, cwd=ROOT / "python")
    (wheel,) = folder.glob("*.whl")
    made = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", made, cwd=folder)
    python = made / "bin" / "python"
    install = ["--python", python, "install", "-q", "--no-deps", "--no-index", wheel]
    run(BUILDER, "-m", "pip", *install, cwd=folder)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return made


def test_functions_run_where_the_wheel_is_installed(environment: Path, tmp_path: Path) -> None:
    printed = run(
        environment / "bin" / "python", "-c", PROGRAM, cwd=tmp_path, LD_LIBRARY_PATH=""
    ).splitlines()
    assert printed[0] == "[(41, 'ABİ')]"
    assert printed[1].startswith(str(environment))
    assert run(environment / "bin" / "crosslane", "--version", cwd=tmp_path).startswith("crosslane, version")


def test_the_wheel_has_all_that_v8_needs(environment: Path, tmp_path: Path) -> None:
    (program,) = environment.glob("lib/python*/site-packages/crosslane/crosslane-js")
    listed = run("ldd", program, cwd=tmp_path, LD_LIBRARY_PATH="")
    libraries = dict(re.findall(r"(\S+) => (\S+)", listed))
    assert any(name.startswith("libicu") for name in libraries)
    system = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so")
    elsewhere = [name for name, path in libraries.items() if not path.startswith(str(program.parent))]
    assert [name for name in elsewhere if not system.match(name)] == []


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
        assert set(re.findall(r"path: \[(.*)\]", shown)) <= {"$ORIGIN/v8"}, file


def test_licences_and_marks(environment: Path) -> None:
    (package,) = environment.glob("lib/python*/site-packages/crosslane")
    assert "Apache License" in (package / "LICENSE").read_text()
    assert (package / "py.typed").exists()
    notices = (package / "THIRD_PARTY_LICENSES").read_text()
    for crate in ("pyo3", "serde_json", "rustix"):
        assert re.search(rf"^==== (.*, )?{crate} \d", notices, re.MULTILINE)
    assert "Permission is hereby granted" in notices
