"""Functions of groups and windows with pandas: faster parts for Spark's loops.

Spark's loops convert each group from Arrow to pandas, call the function, and convert its result
back. For a small group, these conversions take ten times as long as the function. The loops stay,
and find the faster parts under the names of Spark's own:

- ``ArrowBatchTransformer.to_pandas``: the columns of a group,
- ``pd.concat``: a data frame of them,
- ``pd.Series``: the results of functions that return one value,
- ``PandasToArrowConversion.convert``: results as Arrow's columns.

They convert common types. Everything else goes through Spark's code, one column at a time. All
results are those of Spark's code, also the class and the text of each error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import worker
from pyspark.sql import conversion
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from crosslane._engines.spark.workers.closures import cells

#: Arrow's types whose columns are the same by `to_numpy` as by Spark's code.
_QUICK = frozenset(
    {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.binary()}
)
#: In pandas 3, columns of text have a type of their own.
_TEXTS = frozenset({pa.string()} if int(pd.__version__.split(".")[0]) < 3 else ())
#: The types of pandas' columns that become Arrow's without a cast, by the types of Spark.
_SAME = {
    "boolean": np.dtype(bool), "byte": np.dtype("i1"), "short": np.dtype("i2"), "integer": np.dtype("i4"),
    "long": np.dtype("i8"), "float": np.dtype("f4"), "double": np.dtype("f8"), "string": np.dtype(object),
}  # fmt: skip
#: The classes of single values that become Arrow's without a cast.
_CLASSES = {
    "boolean": {bool, np.bool_}, "long": {int, np.int64}, "double": {float, np.float64}, "string": {str},
}  # fmt: skip
#: Data frames of more columns get one block of memory for each type of columns, as in Spark.
_BLOCKS = 16


def improve(loop: Callable[..., Any], frames: bool, conf: Any) -> None:
    """Gives faster parts to one of Spark's loops.

    Args:
        loop: the loop over groups.
        frames: whether its function gets data frames. Otherwise, it gets series.
        conf: the settings of the query.
    """
    if not conf.prefer_int_ext_dtype:
        cells(loop)["pd"].cell_contents = _Pandas()
        worker.ArrowBatchTransformer, worker.PandasToArrowConversion = _Arrows, _Results
        _Arrows.frames, _Results.fields = frames, {}


class _Column:
    """A column of a group, until it is part of a data frame."""

    __slots__ = ("iloc", "name")

    def __init__(self, name: str, values: Any) -> None:
        self.name = name
        #: The values. Spark's loops take the first one of a key from it. The function may change
        #: them, and Arrow's memory cannot be written.
        self.iloc = values if values.flags.writeable else values.copy()

    def series(self) -> pd.Series:
        return pd.Series(self.iloc, name=self.name, copy=False)


class _Arrows(conversion.ArrowBatchTransformer):
    #: Whether the loop makes data frames of all columns.
    frames = False

    @classmethod
    def to_pandas(cls, batch: Any, **conf: Any) -> list[Any]:  # type: ignore[override]
        made: list[Any] = []
        for number, field in enumerate(batch.schema):
            if field.type in _QUICK or field.type in _TEXTS:
                quick = _Column(field.name, batch.column(number).to_numpy(zero_copy_only=False))
                made.append(quick if cls.frames else quick.series())
            else:
                made += conversion.ArrowBatchTransformer.to_pandas(batch.select([number]), **conf)
        return made or conversion.ArrowBatchTransformer.to_pandas(batch, **conf)


class _Single:
    """Results of a function that returns one value: a series that was not made yet."""

    def __init__(self, values: list[Any], times: int = 1) -> None:
        self.values = values
        self._times = times

    def repeat(self, times: int) -> _Single:
        """The one result for each row of its group."""
        return _Single(self.values, times)

    def array(self, field: _Field) -> Any:
        """The results as Arrow has them; None if only Spark's code can convert them."""
        kinds = set(map(type, self.values))
        if type(None) in kinds and field.kind == "long" and len(kinds) > 1:
            # In pandas, integers with NULLs are floats.
            return None
        kinds.discard(type(None))
        if not kinds <= _CLASSES.get(field.kind, set()):
            return None
        try:
            made = pa.array(self.values, field.type, from_pandas=True)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return None
        return made if self._times == 1 else pa.repeat(made[0], self._times)

    def series(self) -> pd.Series:
        made = pd.Series(self.values)
        return made if self._times == 1 else made.repeat(self._times)


class _Pandas:
    """Stands in for the module pandas in Spark's loops."""

    Series = _Single

    def __getattr__(self, name: str) -> Any:
        return getattr(pd, name)

    @staticmethod
    def concat(columns: Sequence[Any], axis: int) -> pd.DataFrame:
        """A data frame of columns that were converted."""
        names = [column.name for column in columns]
        if not all(type(column) is _Column for column in columns) or len(set(names)) < len(names):
            series = [one.series() if type(one) is _Column else one for one in columns]
            return pd.concat(series, axis=axis)
        if len(names) > _BLOCKS:
            return pd.DataFrame({column.name: column.iloc for column in columns})
        values = {column.name: column.iloc for column in columns}
        return pd.DataFrame(values, index=pd.RangeIndex(len(columns[0].iloc)), copy=False)


class _Field:
    """A column of results."""

    def __init__(self, field: StructField, conf: dict[str, Any]) -> None:
        self._schema = StructType([field])
        self._conf = conf
        self.kind = field.dataType.typeName()
        self._same = _SAME.get(self.kind)
        self._safe = conf["safecheck"]
        self.type = to_arrow_type(
            field.dataType, timezone=conf["timezone"], prefers_large_types=conf["prefers_large_types"]
        )

    def array(self, column: Any) -> Any:
        """The results as Arrow has them."""
        if type(column) is _Single:
            made = column.array(self)
            if made is not None:
                return made
            column = column.series()
        elif type(column) is pd.Series and column.dtype == self._same:
            try:
                return pa.array(column.values, self.type, from_pandas=True, safe=self._safe)
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                # Spark's code says what is wrong.
                pass
        converted = conversion.PandasToArrowConversion.convert([column], self._schema, **self._conf)
        return converted.column(0)


class _Results(conversion.PandasToArrowConversion):
    #: The columns of each struct of this task.
    fields: dict[int, tuple[StructType, list[_Field], list[Any]]] = {}

    @classmethod
    def convert(cls, data: Any, schema: StructType, **conf: Any) -> Any:  # type: ignore[override]
        if isinstance(data[0], pd.DataFrame):
            struct = schema.fields[0].dataType
            names, frame = struct.names, data[0]
            columns = _columns(frame, names, conf["assign_cols_by_name"])
            if columns is None:
                return conversion.PandasToArrowConversion.convert(data, schema, **conf)
            fields, arrow = cls._fields(struct, conf)
            arrays = [field.array(column) for field, column in zip(fields, columns)]
            return pa.RecordBatch.from_arrays([pa.StructArray.from_arrays(arrays, fields=arrow)], ["_0"])
        fields, _ = cls._fields(schema, conf)
        arrays = [field.array(column) for field, column in zip(fields, data)]
        return pa.RecordBatch.from_arrays(arrays, schema.names)

    @classmethod
    def _fields(cls, struct: StructType, conf: dict[str, Any]) -> tuple[list[_Field], list[Any]]:
        known = cls.fields.get(id(struct))
        if known is None:
            fields = [_Field(field, conf) for field in struct.fields]
            arrow = [pa.field(name, field.type) for name, field in zip(struct.names, fields)]
            known = cls.fields[id(struct)] = (struct, fields, arrow)
        return known[1], known[2]


def _columns(frame: pd.DataFrame, names: list[str], by_name: bool) -> list[pd.Series] | None:
    """The columns of a result in the declared order; None if the result or a name is unusual."""
    if type(frame) is not pd.DataFrame or not names or not len(frame.columns):
        return None
    if by_name and any(isinstance(name, str) for name in frame.columns):
        columns = [frame[name] for name in names]
    else:
        columns = [frame.iloc[:, number] for number in range(len(names))]
    return columns if all(type(column) is pd.Series for column in columns) else None
