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

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from crosslane._declare.declaration import DeclarationError
from crosslane._declare.decorators import udaf, udf, udtf
from crosslane.types import Interval, Tagged, TimeNs, TimestampNs

if TYPE_CHECKING:
    from crosslane._client.async_client import AsyncClient
    from crosslane._client.client import Client
    from crosslane._client.map import map
    from crosslane._engines.duckdb import (
        cancel,
        connect,
        cursor,
        extension_path,
        javascript_path,
        load,
        register,
        ruby_path,
        unregister,
    )

__all__ = [
    "AsyncClient",
    "Client",
    "DeclarationError",
    "Interval",
    "Tagged",
    "TimeNs",
    "TimestampNs",
    "cancel",
    "connect",
    "cursor",
    "extension_path",
    "javascript_path",
    "load",
    "map",
    "register",
    "ruby_path",
    "udaf",
    "udf",
    "udtf",
    "unregister",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Lanes import this package too, and need no DuckDB.
    if name in __all__:
        # Streams and clients need no DuckDB either.
        homes = {"map": "_client.map", "Client": "_client.client", "AsyncClient": "_client.async_client"}
        return getattr(import_module(f"crosslane.{homes.get(name, '_engines.duckdb')}"), name)
    raise AttributeError(f"module 'crosslane' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
