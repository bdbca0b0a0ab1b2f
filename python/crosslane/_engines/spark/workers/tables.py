"""PySpark's table functions of rows: a shorter way for usual rows.

A row of such a function may be anything that stands for one, so Spark checks and converts each row.
Tuples of the right length, with values of the declared types, need neither. All other rows go
through Spark's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from crosslane._engines.spark.workers.closures import cells

#: Numbers of ``pyspark.util.PythonEvalType``: rows that are pickled, and rows that Arrow carries.
PICKLED, ARROW = 300, 301

#: The classes of values that become Arrow's without a conversion, by the types of Spark.
_CLASSES = {
    "boolean": bool, "byte": int, "short": int, "integer": int, "long": int, "float": float, "double": float,
    "string": str,
}  # fmt: skip


def improve(loop: Callable[..., Any], eval_type: int, conf: Any) -> None:
    """Gives a loop of Spark's the shorter way, if there is one."""
    if eval_type == PICKLED:
        _improve_pickled(loop)
    elif eval_type == ARROW and not conf.use_legacy_pandas_udtf_conversion:
        _improve_arrow(loop)


def _improve_pickled(loop: Callable[..., Any]) -> None:
    of_loop = cells(loop)
    for method in ("eval", "terminate"):
        evaluate = of_loop[method].cell_contents
        if evaluate is not None:
            cell = cells(evaluate)["verify_and_convert_result"]
            cell.cell_contents = _unconverted(cell.cell_contents)


def _unconverted(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    of_convert = cells(convert)
    length = of_convert["return_type_size"].cell_contents
    schema = of_convert["toInternal"].cell_contents.__self__
    if (
        of_convert["check_output_row_against_schema"].cell_contents is not None
        or schema._needSerializeAnyField
    ):
        return convert

    def converted(row: Any) -> Any:
        # A `Row` is a tuple, too, and may have its fields in another order.
        return row if type(row) is tuple and len(row) == length else convert(row)

    return converted


def _improve_arrow(loop: Callable[..., Any]) -> None:
    cell = cells(cells(loop)["evaluate_rows"].cell_contents)["convert_rows_to_arrow"]
    cell.cell_contents = _in_columns(cell.cell_contents)


def _in_columns(convert: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    import pyarrow as pa
    from pyspark import worker
    from pyspark.sql import conversion

    of_convert = cells(convert)
    struct = of_convert["return_type"].cell_contents
    arrow = list(of_convert["arrow_return_type"].cell_contents)
    classes = [_CLASSES.get(field.dataType.typeName()) for field in struct.fields]
    check = cells(of_convert["check_return_value"].cell_contents)["check_output_row_against_schema"]
    if check.cell_contents is not None or None in classes or not arrow:
        return convert
    length = len(arrow)
    usual = [{kind, type(None)} if field.nullable else {kind} for kind, field in zip(classes, struct.fields)]

    class Wrapping(conversion.ArrowBatchTransformer):
        @staticmethod
        def wrap_struct(batch: Any) -> Any:
            if type(batch) is not pa.StructArray:
                return conversion.ArrowBatchTransformer.wrap_struct(batch)
            return pa.RecordBatch.from_arrays([batch], ["_0"])

    worker.ArrowBatchTransformer = Wrapping

    def converted(rows: Any, method: str) -> list[Any]:
        if not isinstance(rows, Iterable):
            return convert(rows, method)
        rows = list(rows)
        if not rows or set(map(type, rows)) != {tuple} or set(map(len, rows)) != {length}:
            return convert(rows, method)
        columns = list(zip(*rows))
        if not all(set(map(type, column)) <= kinds for column, kinds in zip(columns, usual)):
            return convert(rows, method)
        try:
            arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow)]
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            # Spark's code says what is wrong.
            return convert(rows, method)
        return [pa.StructArray.from_arrays(arrays, fields=arrow)]

    return converted
