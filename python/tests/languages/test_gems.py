"""The gems of the Gemfile beside a file of Ruby functions."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import crosslane
from crosslane._cli import main

from ..conftest import Load, value

pytestmark = pytest.mark.any_duckdb


def gem(folder: Path, name: str, text: str) -> None:
    """A gem in its own folder, which Bundler finds by its path."""
    (folder / name / "lib").mkdir(parents=True)
    (folder / name / "lib" / f"{name}.rb").write_text(text)
    (folder / name / f"{name}.gemspec").write_text(
        f'Gem::Specification.new {{ |s| s.name = "{name}"; s.version = "1.0"; s.summary = s.authors = "x"; '
        's.files = Dir["lib/*"] }\n'
    )


def test_the_gems_of_a_gemfile_are_there(ruby: Load, tmp_path: Path) -> None:
    gem(tmp_path, "greeter", 'module Greeter; def self.hello(name) = "hello #{name}"; end')
    (tmp_path / "Gemfile").write_text('gem "greeter", path: "greeter"\n')
    text = """
        require "greeter"
        udf("hello(name VARCHAR) -> VARCHAR") { |name| Greeter.hello(name) }
        """
    con = ruby(text)
    assert value(con, "SELECT hello('Ada')") == "hello Ada"
    checked = CliRunner().invoke(main, ["check", str(tmp_path / "functions.rb")])
    assert checked.exit_code == 0, checked.output
    assert "hello(name VARCHAR)" in checked.output


def test_two_files_have_gems_of_their_own(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    for version in ("one", "two"):
        folder = tmp_path / version
        gem(folder, "greeter", f'GREETING = "{version}"')
        (folder / "Gemfile").write_text('gem "greeter", path: "greeter"\n')
        path = folder / "functions.rb"
        path.write_text(f'require "greeter"\nudf("{version}() -> VARCHAR") {{ GREETING }}\n')
        crosslane.load(con, path)
    plain = tmp_path / "plain.rb"
    plain.write_text('udf("plain() -> BOOLEAN") { ENV["BUNDLE_GEMFILE"].nil? }\n')
    crosslane.load(con, plain)
    assert con.execute("SELECT one(), two(), plain()").fetchone() == ("one", "two", True)


def test_gems_that_are_not_there(ruby: Load, tmp_path: Path) -> None:
    text = 'udf("f() -> BIGINT") { 1 }'
    for gemfile, parts in [
        ('gem "not-there-at-all"', ["not-there-at-all", f"Run `bundle install` in {tmp_path}"]),
        ("gem 5 5", ["Gemfile"]),
    ]:
        (tmp_path / "Gemfile").write_text(gemfile + "\n")
        with pytest.raises(duckdb.Error) as caught:
            ruby(text)
        for part in ["cannot load", str(tmp_path / "Gemfile"), *parts]:
            assert part in str(caught.value)
    (tmp_path / "Gemfile").unlink()
    assert value(ruby(text), "SELECT f()") == 1
