"""Python files with inline script metadata (PEP 723), and wheels that are made here."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import psutil
import pytest
from click.testing import CliRunner

import crosslane
from crosslane._cli.program import main
from crosslane._runtime import environments

from ..conftest import error, processes, value

pytestmark = pytest.mark.any_duckdb

#: A function that writes a file with dependencies, and returns the file's path.
Write = Callable[..., Path]


def wheel(folder: Path, version: int) -> None:
    """Makes version VERSION of a package `tiny`, which tells its version."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": f"VERSION = {version}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"tiny-{version}-py3-none-any.whl", "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, and a cache of environments that has none."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Programs of an environment must not import modules from this folder.
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return folder


@pytest.fixture
def write(tmp_path: Path, wheels: Path) -> Write:
    def write(name: str, needs: str, text: str) -> Path:
        path = tmp_path / f"{name}.py"
        metadata = f"""
            # /// script
            # dependencies = [{needs}]
            # [tool.uv]
            # no-index = true
            # find-links = ["{wheels}"]
            # ///
            from crosslane import udf
        """
        path.write_text(textwrap.dedent(metadata) + textwrap.dedent(text))
        return path

    return write


VERSION = """
    import tiny

    @udf
    def {name}() -> int:
        return tiny.VERSION
"""


def test_two_versions_in_one_query(con: duckdb.DuckDBPyConnection, wheels: Path, write: Write) -> None:
    wheel(wheels, 2)
    crosslane.load(con, write("old", "'tiny<2'", VERSION.format(name="old")))
    crosslane.load(con, write("new", "'tiny'", VERSION.format(name="new")))
    assert con.execute("SELECT old(), new()").fetchall() == [(1, 2)]


def test_the_database_s_packages_are_not_there(con: duckdb.DuckDBPyConnection, write: Write) -> None:
    text = """
        import importlib.util
        import sys

        @udf
        def has(name: str) -> bool:
            return importlib.util.find_spec(name) is not None

        @udf
        def prefix_of_it() -> str:
            return sys.prefix
    """
    crosslane.load(con, write("alone", "", text))
    assert con.execute("SELECT has('duckdb'), has('pytest'), has('crosslane')").fetchall() == [
        (False, False, True)
    ]
    assert str(value(con, "SELECT prefix_of_it()")).startswith(f"{environments._folder('environments')}/")


def test_an_environment_is_made_once(write: Write, tmp_path: Path) -> None:
    one, other = (write(name, "'tiny'", VERSION.format(name=name)) for name in ("one", "other"))
    program = f"""
import crosslane
con = crosslane.connect()
for path in ({str(one)!r}, {str(other)!r}):
    crosslane.load(con, path)
assert con.execute("SELECT one(), other()").fetchall() == [(1, 1)]
"""
    started = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    made = [path for path in (tmp_path / "cache/crosslane/environments").iterdir() if path.is_dir()]
    assert len(made) == 1
    # A later program uses the same environment.
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr == ""


def test_a_lock_pins_versions(con: duckdb.DuckDBPyConnection, wheels: Path, write: Write) -> None:
    path = write("pinned", "'tiny'", VERSION.format(name="pinned"))
    done = CliRunner().invoke(main, ["lock", str(path)])
    assert (done.exit_code, "tiny==1" in done.output) == (0, True), done.output
    wheel(wheels, 2)
    crosslane.load(con, path)
    assert value(con, "SELECT pinned()") == 1
    shown = CliRunner().invoke(main, ["doctor", str(path)])
    assert shown.exit_code == 0
    assert "pinned by its lock: tiny==1" in " ".join(shown.output.split())
    environments.lock(str(path), upgrade=True)
    crosslane.load(con, path, replace=True)
    assert value(con, "SELECT pinned()") == 2
    # With another lock, the file gets another environment.
    Path(environments.lock_of(str(path))).unlink()
    crosslane.load(con, path, replace=True)
    assert value(con, "SELECT pinned()") == 2


def test_check_knows_the_environment(write: Write) -> None:
    path = write("checked", "'tiny'", VERSION.format(name="checked"))
    # A child process prints the result of the check.
    done = subprocess.run(
        [sys.executable, "-m", "crosslane._cli", "check", "--explain", path], capture_output=True, text=True
    )
    assert (done.returncode, "by columns" in done.stdout) == (0, False), done.stderr
    assert "row by row" in done.stdout
    assert "it has comprehensions, inner functions" in " ".join(done.stdout.replace("│", " ").split())
    bad = CliRunner().invoke(main, ["check", str(write("bad", "'absent'", VERSION.format(name="bad")))])
    assert bad.exit_code == 1
    assert "absent" in bad.output


def test_errors_of_the_metadata_are_named(con: duckdb.DuckDBPyConnection, write: Write) -> None:
    def refused(path: Path) -> str:
        return error(con, f"CALL crosslane_load('{path}')")

    absent = refused(write("absent", "'absent>=3'", VERSION.format(name="absent")))
    assert "the environment of" in absent
    assert "absent" in absent
    path = write("twice", "'tiny'", VERSION.format(name="twice"))
    text = path.read_text()
    path.write_text(text + "\n# /// script\n# ///\n")
    assert "two blocks `# /// script`" in refused(path)
    path.write_text(text.replace("dependencies = [", "dependencies = "))
    assert "is not TOML" in refused(path)
    path.write_text(text.replace("# [tool.uv]", '# requires-python = "<3.5"\n# [tool.uv]'))
    assert "the environment of" in refused(path)
    # The database goes on.
    crosslane.load(con, write("twice", "'tiny'", VERSION.format(name="twice")))
    assert value(con, "SELECT twice()") == 1


def test_files_with_the_same_needs_in_two_folders(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, wheels: Path, write: Write
) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / "wheels").mkdir(parents=True)
        wheel(folder / "wheels", number)
        text = write(f"of_{number}", "'tiny'", VERSION.format(name=f"of_{number}")).read_text()
        path = folder / f"of_{number}.py"
        path.write_text(text.replace(str(wheels), "wheels"))
        crosslane.load(con, path)
    assert con.execute("SELECT of_1(), of_2()").fetchall() == [(1, 2)]


def test_a_broken_environment_is_made_again(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, write: Write
) -> None:
    path = write("again", "'tiny'", VERSION.format(name="again"))
    (cache,) = {environments._folder(part).rsplit("/", 1)[0] for part in ("notes", "environments")}
    crosslane.load(con, path)
    (note,) = (one for one in Path(cache, "notes").iterdir() if one.suffix != ".lock")
    (folder,) = (one for one in Path(cache, "environments").iterdir() if one.is_dir())
    (folder / "bin/python").unlink()
    (folder / "bin/python").symlink_to(tmp_path / "gone")
    crosslane.load(con, path, replace=True)
    assert value(con, "SELECT again()") == 1
    for text in ("", "[]", "null", json.dumps(json.loads(note.read_text()) | {"package": "/gone"})):
        note.write_text(text)
        crosslane.load(con, path, replace=True)
        assert value(con, "SELECT again()") == 1


def test_settings_for_other_programs_of_uv(
    con: duckdb.DuckDBPyConnection, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("UV_FROZEN", "1"),
        ("UV_PYTHON", "3.7"),
        ("UV_NO_MANAGED_PYTHON", "1"),
        ("VIRTUAL_ENV", "/"),
    ):
        monkeypatch.setenv(name, text)
    (path := write("plain", "'tiny'", VERSION.format(name="plain"))).with_name(".python-version").write_text(
        "3.7"
    )
    crosslane.load(con, path)
    assert value(con, "SELECT plain()") == 1


def test_a_lock_that_is_out_of_date(con: duckdb.DuckDBPyConnection, wheels: Path, write: Write) -> None:
    path = write("late", "'tiny'", VERSION.format(name="late"))
    environments.lock(str(path))
    wheel(wheels, 2)
    path.write_text(path.read_text().replace("'tiny'", "'tiny>=2'"))
    assert f"`crosslane lock {path}` makes a new lock" in error(con, f"CALL crosslane_load('{path}')")


def test_a_cache_that_cannot_be_used(
    con: duckdb.DuckDBPyConnection, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("cached", "'tiny'", VERSION.format(name="cached"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert "set XDG_CACHE_HOME to another folder" in error(con, f"CALL crosslane_load('{path}')")


def test_a_zygote_that_restarts_has_the_same_packages(
    con: duckdb.DuckDBPyConnection, wheels: Path, write: Write
) -> None:
    path = write("restarted", "'tiny'", VERSION.format(name="restarted"))
    lock = Path(environments.lock(str(path)))
    pinned = lock.read_text()
    lock.unlink()
    wheel(wheels, 2)
    crosslane.load(con, path)
    assert value(con, "SELECT restarted()") == 2
    # The lock is good, and has the older version.
    lock.write_text(pinned)
    workers = processes()
    for process in workers:
        process.kill()
    psutil.wait_procs(workers, 10)
    assert "has changed since it was loaded" in error(con, "SELECT restarted()")
    crosslane.load(con, path, replace=True)
    assert value(con, "SELECT restarted()") == 1


def test_paths_and_files_of_other_languages_are_refused(
    con: duckdb.DuckDBPyConnection, wheels: Path, write: Write, tmp_path: Path
) -> None:
    path = write("paths", "'tiny'", VERSION.format(name="paths"))
    wheel_file = wheels / "tiny-1-py3-none-any.whl"
    source = f'# [tool.uv.sources]\n# tiny = {{ path = "{wheel_file}" }}\n# ///\nfrom'
    path.write_text(path.read_text().replace("# ///\nfrom", source))
    assert "an environment is never changed" in error(con, f"CALL crosslane_load('{path}')")
    (tmp_path / "other.rb").write_text("# /// script\n# dependencies = []\n# ///\n")
    done = CliRunner().invoke(main, ["lock", str(tmp_path / "other.rb")])
    assert (done.exit_code, (tmp_path / "other.rb.lock").exists()) == (1, False)


def test_a_file_that_starts_threads(con: duckdb.DuckDBPyConnection, write: Write) -> None:
    text = """
        import threading
        import tiny

        started = threading.Thread(target=threading.Event().wait, daemon=True)
        started.start()

        @udf
        def threaded() -> int:
            return tiny.VERSION + started.is_alive()
    """
    crosslane.load(con, write("threaded", "'tiny'", text))
    assert value(con, "SELECT threaded()") == 2
