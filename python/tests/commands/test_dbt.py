"""The plugin of dbt, in the objects that dbt-duckdb makes from a profile. docs/clients.md shows that dbt
itself works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dbt.adapters.duckdb import environments
from dbt.adapters.duckdb.credentials import DuckDBCredentials

from ..conftest import Library

#: A function that answers a query with a handle of its own, as dbt does for a model.
Query = Callable[[str], object]
#: A function that makes such a handle from the plugin's options and the rest of the profile.
Profile = Callable[..., Query]


@pytest.fixture
def profile() -> Iterator[Profile]:
    made = []

    def read(config: dict[str, Any], **rest: Any) -> Query:
        plugins = [{"module": "crosslane.dbt", "config": config}]
        credentials = DuckDBCredentials.from_dict({"schema": "main", "plugins": plugins, **rest})
        environment = environments.create(credentials)
        made.append(environment)

        def query(text: str) -> object:
            handle = environment.handle()
            try:
                ((value,),) = handle.cursor().execute(text).fetchall()
                return value
            finally:
                handle.close()

        return query

    yield read
    for environment in made:
        environment.close()


@pytest.fixture
def double(library: Library) -> str:
    return str(library("@udf\ndef double(x: int) -> int: return 2 * x"))


def test_files_in_several_languages(profile: Profile, double: str, tmp_path: Path) -> None:
    script = tmp_path / "functions.js"
    script.write_text('udf("half(x BIGINT) -> BIGINT", (x) => x / 2)')
    query = profile({"files": [double, str(script)]})
    assert query("SELECT half(double(21))") == 21
    assert query("SELECT double(21)") == 42


def test_a_database_that_is_closed_between_models(profile: Profile, double: str, tmp_path: Path) -> None:
    query = profile({"files": double}, path=str(tmp_path / "kept.duckdb"), keep_open=False)
    assert query("CREATE TABLE answers AS SELECT double(21) AS answer") == 1
    assert query("SELECT double(answer) FROM answers") == 84


def test_relative_paths_start_in_the_folder_that_dbt_runs_in(
    profile: Profile, double: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(double).parent)
    assert profile({"files": [Path(double).name]})("SELECT double(21)") == 42


def test_built_in_functions_are_replaced_only_if_it_is_said(profile: Profile, library: Library) -> None:
    file = str(library("@udf\ndef upper(text: str) -> str: return text.upper() + '!'"))
    with pytest.raises(RuntimeError, match=r"config\.files: .*upper.*replace"):
        profile({"files": [file]})("SELECT upper('a')")
    assert profile({"files": [file], "replace": True})("SELECT upper('a')") == "A!"


def test_settings_of_the_profile_are_no_options(profile: Profile, double: str) -> None:
    query = profile({"files": [double]}, settings={"threads": 2}, config_options={"memory_limit": "1GB"})
    assert query("SELECT double(current_setting('threads')::BIGINT)") == 4


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"file": ["functions.py"]}, "config has no option file; it has files and replace"),
        ({}, "config.files must be a list of paths, such as [functions.py], not None"),
        ({"files": []}, "config.files must be a list of paths, such as [functions.py], not []"),
        ({"files": [1]}, "config.files must be a list of paths, such as [functions.py], not [1]"),
        ({"files": ["functions.py"], "replace": "yes"}, "config.replace must be true or false, not 'yes'"),
    ],
)
def test_wrong_options(profile: Profile, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        profile(config)
    assert str(caught.value) == f"plugin crosslane.dbt in profiles.yml: {reason}"


def test_a_missing_file(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError) as caught:
        profile({"files": ["missing.py"]})("SELECT 1")
    said = f"plugin crosslane.dbt in profiles.yml: config.files: Invalid Input Error: cannot load {tmp_path}/missing.py"
    assert str(caught.value).startswith(said)


def test_a_file_with_an_error(profile: Profile, library: Library) -> None:
    file = library("1 / 0")
    with pytest.raises(RuntimeError, match=rf"config\.files: .*{file}(.|\n)*ZeroDivisionError"):
        profile({"files": [str(file)]})("SELECT 1")


def test_a_profile_that_forbids_unsigned_extensions(profile: Profile, double: str) -> None:
    forbidden = profile({"files": [double]}, config_options={"allow_unsigned_extensions": False})
    reason = "config_options.allow_unsigned_extensions of the profile must be true, or be left out"
    with pytest.raises(RuntimeError) as caught:
        forbidden("SELECT 1")
    assert str(caught.value) == f"plugin crosslane.dbt in profiles.yml: {reason}"
    allowed = profile({"files": [double]}, config_options={"allow_unsigned_extensions": "true"})
    assert allowed("SELECT double(21)") == 42
