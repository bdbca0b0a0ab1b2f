"""A shorter way to the results of functions of rows that Arrow carries, for common types."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from crosslane._engines.spark.arrow_types import arrow_type
from crosslane._engines.spark.rows import stopped
from crosslane._engines.spark.support import is_true, version

_LEGACY = "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled"
#: Integers beyond this number are not exact as floats.
_EXACT = 2**53


class Shortcut:
    """Calls a function of rows in Arrow's batches (101), in fewer steps than Spark's code."""

    #: Types whose columns are the same lists by `to_pylist` as by Spark's code.
    _LISTED = frozenset({"boolean", "byte", "short", "integer", "long", "float", "double", "string", "date"})

    def __init__(self, function: Callable[..., Any], count: int, returns: Any, conf: dict[str, str]) -> None:
        #: Whether Spark converts columns by pandas.
        self._pandas = version() < (4, 1)
        self._returns = returns.typeName()
        self._kind = arrow_type(returns, conf) if self._returns in self._LISTED else None
        self._each = _each(function, count)

    @classmethod
    def is_one(cls, types: list[Any], conf: dict[str, str]) -> bool:
        """Whether there is a shortcut for arguments of these types."""
        plain = version() < (4, 1) or cls.has_plain_values(conf)
        return plain and all(kind.typeName() in cls._LISTED for kind in types)

    @staticmethod
    def has_plain_values(conf: dict[str, str]) -> bool:
        """Whether values stay as they are, because pandas has no part in it."""
        return version() >= (4, 1) and not is_true(conf, _LEGACY, "false")

    def results(self, arrays: tuple[Any, ...]) -> list[Any]:
        """The results of the function for the rows."""
        try:
            return self._each(*map(self._listed, arrays))  # type: ignore[no-any-return]
        except StopIteration as error:
            raise stopped(error)  # noqa: B904

    def _listed(self, array: Any) -> list[Any]:
        import pyarrow.types as kinds

        if (
            self._pandas
            and array.null_count
            and (kinds.is_integer(array.type) or kinds.is_floating(array.type))
        ):
            # In pandas, numbers with NULLs are floats, and NULL is NaN.
            return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        return array.to_pylist()  # type: ignore[no-any-return]

    def array(self, results: list[Any]) -> Any:
        """The results as an array; None if only Spark's code can convert them."""
        import pyarrow as pa

        if self._kind is None:
            return None
        classes = set(map(type, results))
        has_none = type(None) in classes
        classes.discard(type(None))
        if len(classes) != 1 or classes.pop() is not _CLASSES[self._returns]:
            return None
        try:
            if self._returns in ("float", "double"):
                # In pandas, NaN is NULL.
                made = pa.array(results, pa.float64(), from_pandas=self._pandas)
                return made.cast(self._kind, safe=False) if self._returns == "float" else made
            made = pa.array(results, self._kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return None
        if has_none and self._pandas and self._returns == "long" and not _is_exact(made):
            return None
        return made


#: The usual class of results, by their type.
_CLASSES = {
    "boolean": bool, "byte": int, "short": int, "integer": int, "long": int, "float": float, "double": float,
    "string": str, "date": datetime.date,
}  # fmt: skip


def _is_exact(array: Any) -> bool:
    """Whether integers are exact as floats: in pandas, integers with NULLs are floats."""
    import pyarrow.compute as pc

    most = pc.min_max(array).as_py()
    return most["min"] is None or (most["min"] >= -_EXACT and most["max"] <= _EXACT)


def _each(function: Callable[..., Any], count: int) -> Callable[..., list[Any]]:
    """A loop over columns. CPython specializes the call in it for this one function."""
    names = [f"value_{number}" for number in range(count)]
    columns = [f"column_{number}" for number in range(count)]
    values = columns[0] if count == 1 else f"zip({', '.join(columns)})"
    source = (
        f"def around(function, zip):\n def each({', '.join(columns)}):\n"
        f"  return [function({', '.join(names)}) for {', '.join(names)} in {values}]\n return each\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), namespace)
    return namespace["around"](function, zip)  # type: ignore[no-any-return]
