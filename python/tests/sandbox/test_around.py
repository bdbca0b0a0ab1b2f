"""A library in a sandbox cannot change the code that runs before the sandbox or outside of it."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import error, eventually, value

pytestmark = pytest.mark.any_duckdb

ON = {"sandbox": "on"}
DOUBLE = {
    "py": "from crosslane import udf\n@udf\ndef double(x: int) -> int:\n    return 2 * x\n",
    "rb": 'udf("double(x BIGINT) -> BIGINT") { |x| 2 * x }\n',
    "js": 'udf("double(x BIGINT) -> BIGINT", (x) => 2 * x);\n',
    "lua": 'udf("double(x BIGINT) -> BIGINT", function(x) return 2 * x end)\n',
}
PLAIN = "from crosslane import udf\n@udf\ndef f(x: int) -> int:\n    return x\n"


def test_no_environment_is_made(tmp_path: Path) -> None:
    """Making an environment runs code of packages."""
    (tmp_path / "evil").mkdir()
    made = tmp_path / "made"
    (tmp_path / "evil" / "setup.py").write_text(f"open({str(made)!r}, 'w')\n")
    needs = f'# /// script\n# dependencies = ["evil @ file://{tmp_path}/evil"]\n# ///\n'
    (tmp_path / "functions.py").write_text(needs + PLAIN)
    with pytest.raises(duckdb.Error, match=r"crosslane doctor .* makes it"):
        crosslane.connect(functions=[tmp_path / "functions.py"], settings=ON)
    assert not made.exists()


def test_no_gemfile_runs(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (tmp_path / "Gemfile").write_text(f"File.write({str(made)!r}, 'x')\n")
    (tmp_path / "functions.rb").write_text('udf("f(x BIGINT) -> BIGINT") { |x| x }\n')
    with pytest.raises(duckdb.Error, match="has a Gemfile beside it"):
        crosslane.connect(functions=[tmp_path / "functions.rb"], settings=ON)
    assert not made.exists()


def test_what_runs_outside_cannot_be_allowed_to_change(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "functions.py").write_text(PLAIN)
    package = Path(crosslane.__file__).parent
    for folder, why in ((library, "contains"), (tmp_path, "contains"), (package / "_worker", "is a part of")):
        with pytest.raises(duckdb.Error, match=f"allow_write names {folder}, which {why}"):
            crosslane.connect(functions=[library / "functions.py"], settings={**ON, "allow_write": [folder]})


@pytest.mark.parametrize("language", ["py", "rb", "js", "lua"])
def test_the_users_cache_cannot_be_allowed_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    """The cache has the commands of environments, and results of other functions."""
    cache = tmp_path / "cache"
    (cache / "crosslane").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (tmp_path / "library").mkdir()
    file = tmp_path / "library" / f"functions.{language}"
    file.write_text(DOUBLE[language])
    with pytest.raises(duckdb.Error, match=f"allow_write names {cache}, which contains"):
        crosslane.connect(functions=[file], settings={**ON, "allow_write": [cache]})


def test_a_link_beside_the_library_leads_nowhere(tmp_path: Path) -> None:
    library, outside = tmp_path / "library", tmp_path / "outside"
    library.mkdir()
    outside.mkdir()
    (outside / "secret.py").write_text("SECRET = 1\n")
    (library / "folder.py").symlink_to(outside)
    (library / "file.py").symlink_to(outside / "secret.py")
    text = """
        from crosslane import udf
        @udf(deterministic=False)
        def read(path: str) -> str:
            return open(path).read()
        """
    (library / "functions.py").write_text(textwrap.dedent(text))
    with crosslane.connect(functions=[library / "functions.py"], settings=ON) as con:
        for path in (library / "file.py", library / "folder.py" / "secret.py", outside / "secret.py"):
            assert "PermissionError" in error(con, f"SELECT read('{path}')")


CACHED = """
    from crosslane import _guest, udf
    _guest.hashes = lambda files: {claimed}
    @udf(cache={cache})
    def price(x: int) -> int:
        return {price}
    """


def test_results_are_kept_only_where_the_functions_may_write(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    library = tmp_path / "library"
    library.mkdir()
    for name in ("allowed", "forbidden"):
        cache = repr(str(tmp_path / name / "results.db"))
        text = f"from crosslane import udf\n@udf(cache={cache})\ndef {name}(x: int) -> int:\n    return x\n"
        (library / f"{name}.py").write_text(text)
    settings = {**ON, "allow_write": [tmp_path / "allowed"]}
    with crosslane.connect(settings=settings) as con:
        crosslane.load(con, library / "allowed.py")
        assert value(con, "SELECT allowed(1)") == 1
        with pytest.raises(duckdb.Error, match="its sandbox allows no cache in"):
            crosslane.load(con, library / "forbidden.py")
    assert (tmp_path / "allowed" / "results.db").exists()
    assert not (tmp_path / "forbidden").exists()


def test_a_library_cannot_claim_the_results_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, price in (("victim", "10 * x"), ("attacker", "-666")):
        (tmp_path / name).mkdir()
        # Both files claim to have the same content.
        claimed = "{'lib.py': '0'}"
        text = CACHED.format(claimed=claimed, cache=True, price=price)
        (tmp_path / name / "lib.py").write_text(textwrap.dedent(text))
    with crosslane.connect(functions=[tmp_path / "attacker" / "lib.py"], settings=ON) as con:
        assert value(con, "SELECT price(7)") == -666
    with crosslane.connect(functions=[tmp_path / "victim" / "lib.py"]) as con:
        assert value(con, "SELECT price(7)") == 70


def test_registered_functions_keep_their_sandbox(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")

    def read(path: str) -> str:
        return open(path).read()

    con.execute("CALL crosslane_set('sandbox', 'on')")
    crosslane.register(con, read)
    con.execute("CALL crosslane_set('sandbox', 'off')")
    with pytest.raises(duckdb.Error, match="have the same sandbox"):
        crosslane.register(con, lambda x: x, "other(x BIGINT) -> BIGINT")
    assert "PermissionError" in error(con, f"SELECT read('{tmp_path}/secret')")
    con.execute("CALL crosslane_drop('read')")
    crosslane.register(con, lambda x: x, "other(x BIGINT) -> BIGINT")
    assert value(con, "SELECT other(1)") == 1


def test_no_other_query_is_cancelled(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """A zygote reports Ctrl-C to the engine. A library could send such a report itself."""
    text = """
        import json, os, struct, time
        from crosslane import udf
        reports = 0
        if os.fork() == 0:
            while True:
                message = json.dumps({"op": "interrupted", "at": time.monotonic_ns()}).encode()
                os.write(3, struct.pack("<I", len(message)) + message)
                time.sleep(0.01)
        @udf
        def f(x: int) -> int:
            return x
        """
    (tmp_path / "attacker.py").write_text(textwrap.dedent(text))
    text = """
        import time
        from crosslane import udf
        @udf(deterministic=False)
        def slow(x: int) -> int:
            time.sleep(0.3)
            return x
        """
    (tmp_path / "victim.py").write_text(textwrap.dedent(text))
    crosslane.load(con, tmp_path / "victim.py")
    crosslane.load(con, tmp_path / "attacker.py", sandbox=True)
    assert value(con, "SELECT slow(1)") == 1


def test_the_engine_reads_only_files(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """A library reports the files from which it was loaded. They may be no regular files."""
    os.mkfifo(tmp_path / "pipe")
    text = f"""
        from crosslane import _guest, udf
        _guest.hashes = lambda files: {{{str(tmp_path / "pipe")!r}: "0"}}
        @udf
        def f(x: int) -> int:
            return x
        """
    (tmp_path / "functions.py").write_text(textwrap.dedent(text))
    crosslane.load(con, tmp_path / "functions.py", sandbox=True)
    con.execute("CALL crosslane_reload()").fetchall()
    assert value(con, "SELECT f(1)") == 1


def test_a_lane_that_ends_before_it_is_ready_is_an_error(tmp_path: Path) -> None:
    text = """
        import os
        from crosslane import udf
        os.register_at_fork(after_in_child=lambda: os._exit(7))
        @udf
        def f(x: int) -> int:
            return x
        """
    (tmp_path / "functions.py").write_text(textwrap.dedent(text))
    with crosslane.connect(functions=[tmp_path / "functions.py"], settings=ON) as con:
        assert eventually(lambda: "before it was ready" in error(con, "SELECT f(1)"))
