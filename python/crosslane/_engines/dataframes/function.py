"""The call of one function with columns."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from crosslane._engines.dataframes.columns import Column, column_of, loaded
from crosslane._engines.dataframes.database import Database
from crosslane._runtime.sql import quoted

#: The rows of a part of the arguments and of the results. DuckDB 1.5 scans each batch on one thread,
#: so one batch of all rows would keep all other threads waiting.
_ROWS = 122_880


class Function:
    """One function of :class:`crosslane.Functions`, which is called with columns."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        #: The name, the kind and the signatures.
        self.declared = database.declared[name]
        self.__name__ = name
        self.__doc__ = self.declared.description

    def __repr__(self) -> str:
        return f"<crosslane function {self.declared}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Function, (self._database, self.__name__)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the function; :class:`crosslane.Functions` says with what, and what it returns."""
        declared = self.declared
        if declared.kind == "stream":
            raise TypeError(
                f"{declared} is a stream function: crosslane.map(table, 'FILE:{self.__name__}') calls it"
            )
        if declared.kind == "table":
            return self._table(arguments, named)
        if named:
            # In Python's words: polars passes `return_dtype`, and looks for them in the error.
            raise TypeError(f"{declared} got an unexpected keyword argument '{next(iter(named))}'")
        declared.check_count(len(arguments))
        if any(isinstance(one, loaded("polars", "Expr")) for one in arguments):
            return self._expression(arguments)
        columns = self._columns(arguments)
        first = next(filter(None, columns), None)
        with _interruptible(), self._database.call() as cursor:
            rows = cursor.from_arrow(self._rows(columns))
            call = duckdb.FunctionExpression(self.__name__, *self._operands(arguments, columns))
            if declared.kind == "aggregate":
                return rows.aggregate([call.alias("result")]).fetchall()[0][0]
            if first is None:
                return rows.select(call).fetchall()[0][0]
            result = rows.select(call).to_arrow_table(_ROWS).column(0)
        return first.like(result)

    @cached_property
    def result_type(self) -> pa.DataType | None:
        """The Arrow type of the results, or None if overloads have several."""
        if len(self.declared.results) != 1:
            return None
        (sql,) = self.declared.results
        with self._database.cursor() as cursor:
            return cursor.sql(f"SELECT NULL::{sql}").to_arrow_table().schema.field(0).type

    def _expression(self, arguments: Sequence[Any]) -> Any:
        """The call as an expression of polars."""
        from crosslane._engines.dataframes.expressions import expression

        for place, argument in enumerate(arguments):
            if not isinstance(argument, loaded("polars", "Expr")) and column_of(argument):
                # polars calls the function with any part of the rows of its frame.
                raise TypeError(
                    f"{self.__name__}: {self.declared.label(place)} is a column beside expressions: put it into the "
                    "frame, or pass polars.lit(polars.Series(...))"
                )
        return expression(self, arguments, self.result_type, self.declared.kind == "aggregate")

    def _columns(self, arguments: Sequence[Any]) -> list[Column | None]:
        columns: list[Column | None] = []
        first: tuple[str, Column] | None = None
        for place, argument in enumerate(arguments):
            label = self.declared.label(place)
            try:
                column = column_of(argument)
            except TypeError as error:
                raise TypeError(f"{self.__name__}: {label} {error}") from error.__cause__
            columns.append(column)
            if column is None:
                continue
            if first is None:
                first = label, column
                continue
            self._check_pair(*first, label, column)
        return columns

    def _check_pair(self, name: str, one: Column, other_name: str, other: Column) -> None:
        """Raises a ValueError if two columns do not have the same rows."""
        if len(one.values) != len(other.values):
            raise ValueError(
                f"{self.__name__}: columns have the same number of rows, but {name} has {len(one.values)} "
                f"and {other_name} has {len(other.values)}"
            )
        if one.index is not None and other.index is not None and not one.index.equals(other.index):
            raise ValueError(
                f"{self.__name__}: the indexes of {name} and {other_name} differ: align them, or pass "
                f"{other_name}.to_numpy() to pair the rows by their positions"
            )

    def _rows(self, columns: Sequence[Column | None]) -> pa.Table:
        """The columns as a table, cut so that all threads have work."""
        values = {str(place): column.values for place, column in enumerate(columns) if column}
        table = pa.table(values or {"row": pa.nulls(1)})
        return pa.Table.from_batches(table.to_batches(max_chunksize=_ROWS), table.schema)

    def _operands(
        self, arguments: Sequence[Any], columns: Sequence[Column | None]
    ) -> Iterator[duckdb.Expression]:
        for place, (argument, column) in enumerate(zip(arguments, columns)):
            if column:
                yield duckdb.ColumnExpression(str(place))
                continue
            try:
                yield _constant(_value(argument))
            except (TypeError, duckdb.Error) as error:
                raise TypeError(
                    f"{self.__name__}: {self.declared.label(place)} is neither a column nor a value of SQL: {error}"
                ) from None

    def _table(self, arguments: Sequence[Any], named: dict[str, Any]) -> pa.Table:
        """The rows of a table function."""
        if any(column_of(one) for one in (*arguments, *named.values())):
            raise TypeError(
                f"{self.__name__} is a table function and takes values, no columns: {self.declared}"
            )
        marks = ", ".join(["?"] * len(arguments) + [f"{quoted(name)} := ?" for name in named])
        with _interruptible(), self._database.call() as cursor:
            query = f"FROM {quoted(self.__name__)}({marks})"
            return cursor.sql(
                query, params=[*map(_value, arguments), *map(_value, named.values())]
            ).to_arrow_table(_ROWS)


def _value(argument: Any) -> Any:
    """An argument that is no column, as a value that DuckDB knows."""
    if isinstance(argument, pa.Scalar):
        return argument.as_py()
    if isinstance(argument, loaded("numpy", "number")):
        return argument.item()
    return argument


def _constant(value: Any) -> duckdb.Expression:
    if isinstance(value, float) and math.isnan(value):
        # DuckDB 1.5 takes NaN for NULL.
        return duckdb.ConstantExpression("nan").cast("DOUBLE")
    return duckdb.ConstantExpression(value)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt after Ctrl-C, for which DuckDB has other exceptions, too."""
    try:
        yield
    except (RuntimeError, duckdb.Error) as error:
        if str(error).startswith(("Query interrupted", "KeyboardInterrupt")):
            raise KeyboardInterrupt from None
        raise
