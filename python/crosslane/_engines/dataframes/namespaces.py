"""Functions as methods of columns: a namespace of polars, an accessor of pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any


class Namespace:
    """The functions as methods of one column, which is their first argument."""

    functions: Any

    def __init__(self, column: Any) -> None:
        self._column = column

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            function = self.functions[name]
        except KeyError as error:
            raise AttributeError(*error.args) from None
        return partial(function, self._column)

    def __dir__(self) -> Iterable[str]:
        return list(self.functions)


def polars(functions: Any, name: str) -> None:
    """Adds the namespace to expressions and Series of polars."""
    from polars import Expr, Series, api

    _add(functions, name, {Expr: api.register_expr_namespace, Series: api.register_series_namespace})


def pandas(functions: Any, name: str) -> None:
    """Adds the accessor to Series of pandas."""
    from pandas import Series, api

    _add(functions, name, {Series: api.extensions.register_series_accessor})


def _add(functions: Any, name: str, places: Mapping[type, Callable[[str], Callable[[type], type]]]) -> None:
    made = type("Namespace", (Namespace,), {"functions": functions})
    for place, register in places.items():
        before = getattr(place, name, None)
        if isinstance(before, type) and issubclass(before, Namespace):
            # The libraries warn if a name is taken. Ours may be replaced, as when a cell runs again.
            delattr(place, name)
        register(name)(made)
