"""Functions written in Python, JavaScript and Ruby, called from SQL, on every core.

Declare functions with :func:`udf` in a file, load the file, call them from SQL::

    from crosslane import udf

    @udf
    def slug(title: str) -> str:
        return "-".join(title.lower().split())

>>> import crosslane
>>> con = crosslane.connect(functions=["examples/quickstart.py"])
>>> con.execute("SELECT slug('Hello Wide World')").fetchall()
[('hello-wide-world',)]
"""

# Modules without an underscore are public: `crosslane`, `crosslane.types`, `crosslane.testing`,
# `crosslane.spark` and `crosslane.dbt`. A folder with an underscore is private; the modules in it have none.
# python/pyproject.toml says which folder may import which:
#
#   _cli       the program `crosslane`, with a module or a folder for each command
#   _testing   what `crosslane.testing` consists of, and pytest's plugin
#   _engines   what runs in the program of an engine: DuckDB, data frames, host lanes, functions of PySpark
#   _client    clients of a server, and `crosslane.map`
#   _worker    what runs in worker processes: the zygote, and what the native loops call
#   _declare   decorators, declarations, signatures, libraries and pickles of functions
#   _arrow     Arrow arrays and their SQL types
#   _runtime   errors, forks, child processes, the native programs, names in SQL

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from crosslane._declare.declaration import DeclarationError
from crosslane._declare.decorators import udaf, udf, udtf
from crosslane._runtime.retries import Retry
from crosslane.types import Interval, Tagged, TimeNs, TimestampNs

if TYPE_CHECKING:
    from crosslane._client.async_client import AsyncClient
    from crosslane._client.client import Client
    from crosslane._client.map import map
    from crosslane._engines.dataframes.functions import Functions
    from crosslane._engines.duckdb import (
        cancel,
        connect,
        cursor,
        extension_path,
        javascript_path,
        load,
        register,
        reload,
        ruby_path,
        unregister,
    )
    from crosslane._engines.statements import execute
    from crosslane._engines.tracing.trace import trace

__all__ = [
    "AsyncClient",
    "Client",
    "DeclarationError",
    "Functions",
    "Interval",
    "Retry",
    "Tagged",
    "TimeNs",
    "TimestampNs",
    "cancel",
    "connect",
    "cursor",
    "execute",
    "extension_path",
    "javascript_path",
    "load",
    "map",
    "register",
    "reload",
    "ruby_path",
    "trace",
    "udaf",
    "udf",
    "udtf",
    "unregister",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported at its first use: lanes import this package without DuckDB, and streams and clients
    # do not need it either.
    if name == "load_ipython_extension":
        return import_module("crosslane._engines.notebook").load_ipython_extension
    if name in __all__:
        homes = {
            "map": "_client.map",
            "Client": "_client.client",
            "AsyncClient": "_client.async_client",
            "execute": "_engines.statements",
            "Functions": "_engines.dataframes.functions",
            "trace": "_engines.tracing.trace",
        }
        return getattr(import_module(f"crosslane.{homes.get(name, '_engines.duckdb')}"), name)
    raise AttributeError(f"module 'crosslane' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
