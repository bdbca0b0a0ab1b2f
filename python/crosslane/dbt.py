"""Crosslane's functions in the models of dbt: a plugin for dbt-duckdb.

A profile names this module and the files of functions::

    plugins:
      - module: crosslane.dbt
        config:
          files: [functions.py, functions.js]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
from dbt.adapters.duckdb.credentials import DuckDBCredentials
from dbt.adapters.duckdb.plugins import BasePlugin

from crosslane._engines.duckdb import load

_UNSIGNED = "allow_unsigned_extensions"


class Refused(RuntimeError):
    """The profile or one of its files is wrong. dbt shows the message, and ends."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"plugin crosslane.dbt in profiles.yml: {reason}")


class Plugin(BasePlugin):
    """Loads Crosslane and files of functions into the database whenever dbt opens it.

    Its options, under ``config``:

    - ``files``: a path, or a list of paths. Relative ones start in the folder that dbt runs in.
    - ``replace``: whether the functions may take the names of macros and of built-in functions, as
      in :func:`crosslane.load`; by default they may not.

    Raises:
        Refused: if an option is missing, unknown or of another type, if the profile forbids
            unsigned extensions, or if a file cannot be loaded.
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Checks the options."""
        # dbt-duckdb adds the settings of the profile to the plugin's options.
        settings = (self.creds.settings if self.creds else None) or {}
        unknown = plugin_config.keys() - settings.keys() - {"files", "replace"}
        if unknown:
            raise Refused(f"config has no option {', '.join(sorted(unknown))}; it has files and replace")
        files = plugin_config.get("files")
        self._files = [files] if isinstance(files, str) else files
        if not (
            isinstance(self._files, list)
            and self._files
            and all(isinstance(file, str) for file in self._files)
        ):
            raise Refused(f"config.files must be a list of paths, such as [functions.py], not {files!r}")
        self._replace = plugin_config.get("replace", False)
        if not isinstance(self._replace, bool):
            raise Refused(f"config.replace must be true or false, not {self._replace!r}")

    def update_connection_config(self, creds: DuckDBCredentials, config: dict[str, Any]) -> None:
        """Allows unsigned extensions, which DuckDB allows only while it opens a database."""
        if str(config.setdefault(_UNSIGNED, True)).lower() not in ("true", "1"):
            raise Refused(f"config_options.{_UNSIGNED} of the profile must be true, or be left out")

    def configure_connection(self, conn: duckdb.DuckDBPyConnection) -> None:
        """Loads Crosslane and the files."""
        for file in self._files:
            try:
                load(conn, Path(file).absolute(), replace=self._replace)
            except duckdb.Error as error:
                raise Refused(f"config.files: {error}") from error
