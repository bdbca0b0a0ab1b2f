"""Columns of a Parquet file go into lanes without becoming rows, and results stay columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import crosslane.spark

from .conftest import rows
from .drop_in.test_scalar import lanes, plan, same

#: Columns of each type, with NULLs or without, with values of a dictionary or not.
COLUMNS = {
    "flag": "id % 3 = 0",
    "tiny": "cast(id % 100 as tinyint)",
    "small": "cast(if(id % 7 = 0, NULL, id % 30000) as smallint)",
    "number": "cast(id * 3 as int)",
    "few": "cast(if(id % 11 = 0, NULL, id % 5) as bigint)",
    "ratio": "cast(id / 7 as float)",
    "real": "if(id % 5 = 0, NULL, id / 3)",
    "title": "concat('Title ', id)",
    "kind": "if(id % 13 = 0, NULL, concat('kind ', id % 4))",
    "bytes": "cast(concat('b', id) as binary)",
    "day": "date_add(date'1969-12-01', cast(id % 60 as int))",
    "moment": "timestamp'1969-12-31 23:59:59.5' + make_dt_interval(0, 0, id)",
    "local_moment": "timestamp_ntz'2026-03-29 02:30:00' + make_dt_interval(0, 0, id)",
    "price": "cast(id / 100 as decimal(9, 2))",
    "much": "if(id % 2 = 0, NULL, cast(id as decimal(38, 10)) * 12345678901234567)",
    "tags": "if(id % 3 = 0, NULL, array(concat('t', id), NULL, 'x'))",
    "person": "if(id % 4 = 0, NULL, named_struct('name', concat('n', id), 'age', if(id % 8 = 1, NULL, id)))",
    "counts": "map('a', id, 'b', NULL)",
    "nothing": "cast(NULL as bigint)",
}
COUNT = 10_000


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Parquet file with partitions. `part` is the column of its folders."""
    path = str(tmp_path_factory.mktemp("columns"))
    chosen = [F.expr(f"{value} AS {name}") for name, value in COLUMNS.items()]
    frame = spark.range(0, COUNT, 1, 1).select("id", *chosen, F.expr("concat('p', id % 2)").alias("part"))
    frame.write.mode("overwrite").partitionBy("part").parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("many_columns")
    yield "many_columns"
    spark.catalog.dropTempView("many_columns")


READER = "spark.sql.parquet.enableVectorizedReader"


def input_of(frame: DataFrame) -> str:
    """The node below the lowest lane in the plan of a query that has run. The results of that lane must be
    columns."""
    final = plan(frame).split("== Initial Plan ==")[0]
    lines = [line.lstrip(" +-*:0123456789()") for line in final.splitlines()]
    lowest = max(index for index, line in enumerate(lines) if line.startswith("CrosslaneE"))
    assert lines[lowest - 1].split()[0] in ("ColumnarToRow", "CrosslaneEval")
    return lines[lowest + 1].split()[0]


def of_rows_and_columns(
    spark: SparkSession, query: Callable[[], DataFrame], node: str = "FileScan"
) -> list[Row]:
    """The rows of a query. They are the same if Spark reads Parquet files as rows."""
    spark.conf.set(READER, False)
    try:
        expected = query().collect()
    finally:
        spark.conf.unset(READER)
    frame = query()
    found = frame.collect()
    assert input_of(frame) == node
    assert found == expected
    return found


@pytest.mark.parametrize(
    "column", [*(column for column in COLUMNS if column not in ("person", "counts")), "part"]
)
def test_a_column_of_each_type(spark: SparkSession, table: str, column: str) -> None:
    """The column is an argument and a result, and also a column that the query itself needs."""
    kind = spark.table(table).schema[column].dataType
    same_value = F.udf(lambda value: value, kind, useArrow=False)
    frame = spark.table(table).select(same_value(column).alias("result"), column, "id").where("id % 3 > 0")
    same(spark, lambda: frame.orderBy("id"))
    with lanes(spark, True):
        found = frame.collect()
    assert len(found) == COUNT * 2 // 3
    assert all(row.result == row[column] for row in found)


def test_columns_of_all_types(spark: SparkSession, table: str) -> None:
    """The columns go through a stream, and are in a query with results of another column."""
    frame = spark.table(table)
    same(spark, lambda: frame.mapInArrow(lambda batches: batches, frame.schema).orderBy("id"))
    found = of_rows_and_columns(
        spark, lambda: spark.sql(f"SELECT slug(title) AS slug, * FROM {table} ORDER BY id")
    )
    assert [row.slug for row in found] == [row.title.lower().replace(" ", "-") for row in found]


@pytest.mark.parametrize(
    "condition", ["few > 1 AND number % 2 = 0", "id >= 0", "id % 9999 = 5000", "id < 3 OR id = 9998"]
)
def test_rows_of_a_condition(spark: SparkSession, table: str, condition: str) -> None:
    query = f"SELECT slug(title), plus_one(few), id, tags FROM {table} WHERE {condition} ORDER BY id"
    found = of_rows_and_columns(spark, lambda: spark.sql(query))
    count = spark.table(table).where(condition).count()
    assert [row[0] for row in found] == [f"title-{row.id}" for row in found]
    assert len(found) == count


def test_conditions_of_other_tables(spark: SparkSession, table: str) -> None:
    query = f"""SELECT slug(title) FROM {table}
        WHERE id > (SELECT max(few) FROM {table}) AND length(title) = (SELECT 7 FROM range(1)) ORDER BY 1"""
    found = of_rows_and_columns(spark, lambda: spark.sql(query), node="Subquery")
    assert [row[0] for row in found] == ["title-5", "title-6", "title-7", "title-8", "title-9"]


def test_results_in_all_places_of_a_query(spark: SparkSession, table: str) -> None:
    """Operators above a lane keep strings. These strings do not change when a later batch comes."""
    query = f"""SELECT max(slug(title)) AS last, min(slug(title)) AS first, kind, count(*) AS n FROM {table}
        WHERE plus_one(id) % 2 = 0 GROUP BY kind"""
    of_rows_and_columns(spark, lambda: spark.sql(f"{query} ORDER BY kind"))
    ((last, first),) = of_rows_and_columns(
        spark, lambda: spark.sql(f"SELECT max(slug(title)), min(slug(title)) FROM {table}")
    )
    assert (first, last) == ("title-0", "title-9999")
    of_rows_and_columns(
        spark,
        lambda: spark.sql(
            f"SELECT first(s), last(s), max_by(s, id), sort_array(collect_list(s)) FROM (SELECT id, slug(title) s FROM {table})"
        ),
    )
    joined = f"""SELECT a.id, slug(a.title) s, slug(b.kind) k FROM {table} a JOIN {table} b ON slug(a.title) = slug(b.title)
        WHERE a.few = 3 ORDER BY s LIMIT 20"""
    of_rows_and_columns(spark, lambda: spark.sql(joined))


def test_without_generated_code(spark: SparkSession, table: str) -> None:
    """In this case Spark reads files as rows. The results are still columns."""
    setting = "spark.sql.codegen.wholeStage"
    spark.conf.set(setting, False)
    try:
        frame = spark.sql(f"SELECT slug(title) FROM {table} WHERE few = 1")
        found = sorted(row[0] for row in frame.collect())
        assert "ColumnarToRow" in plan(frame)
    finally:
        spark.conf.unset(setting)
    assert found == sorted(f"title-{id_}" for id_ in range(COUNT) if id_ % 11 and id_ % 5 == 1)


def test_a_condition_sees_only_rows_that_those_before_it_let_through(spark: SparkSession, table: str) -> None:
    conditions = "try_cast(title AS INT) > 5 AND CAST(title AS INT) < 10"
    assert rows(spark.sql(f"SELECT slug(title) FROM {table} WHERE {conditions}")) == []


def test_a_column_that_a_file_lacks(spark: SparkSession, table: str) -> None:
    (path,) = {file.rsplit("/part=", 1)[0] for file in spark.table(table).inputFiles()}
    wider = spark.read.schema("id BIGINT, added BIGINT, text STRING, title STRING").parquet(path)
    frame = wider.selectExpr("plus_one(added)", "slug(text)", "slug(title)", "added", "id").where("id = 17")
    assert rows(frame) == [(None, None, "title-17", None, 17)]


def test_functions_one_after_the_other(spark: SparkSession, table: str) -> None:
    query = f"SELECT id, plus_one(x) AS y FROM (SELECT id, plus_one(number) AS x FROM {table}) WHERE x % 4 = 0 ORDER BY id"
    found = of_rows_and_columns(spark, lambda: spark.sql(query))
    assert found == [(id_, 3 * id_ + 2) for id_ in range(COUNT) if (3 * id_ + 1) % 4 == 0]


def test_expressions_as_arguments(spark: SparkSession, table: str) -> None:
    query = f"""SELECT plus_one(id + few), slug(concat(title, ' ', kind)), add(id, 5), slug(input_file_name()), id FROM {table}
        WHERE number % 2 = 0 ORDER BY id"""
    found = of_rows_and_columns(spark, lambda: spark.sql(query))
    assert [row[2] for row in found] == [row.id + 5 for row in found]
    assert all("part=p" in row[3] for row in found)


def test_streams(spark: SparkSession, table: str) -> None:
    def doubled(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield pd.concat([batch, batch])

    def lengths(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield batch.str.len()

    few = spark.table(table).where("few = 2").select("id", "title")
    same(spark, lambda: few.mapInPandas(doubled, "id long, title string").orderBy("id"))
    length = F.pandas_udf(lengths, "long", F.PandasUDFType.SCALAR_ITER)
    same(spark, lambda: few.select("id", length("title")).orderBy("id"))
    assert (
        len(rows(crosslane.spark.map(few.selectExpr("id AS i", "title AS s"), "doubled"))) == 2 * few.count()
    )


def test_a_cached_table(spark: SparkSession, table: str) -> None:
    cached = spark.table(table).select("id", "number", "real").cache()
    try:
        frame = cached.selectExpr("id", "plus_one(number)", "halved(real)")
        found = sorted(frame.collect())
        assert input_of(frame) == "InMemoryTableScan"
    finally:
        cached.unpersist()
    assert [row[1] for row in found] == [3 * id_ + 1 for id_ in range(COUNT)]
    assert [row[2] for row in found] == [None if id_ % 5 == 0 else id_ / 3 / 2 for id_ in range(COUNT)]


def test_a_limit_reads_little(spark: SparkSession, table: str) -> None:
    """The first batches are short, although the batches of the file are long. The condition does not see
    later rows either."""
    files = f"SELECT id FROM {table} WHERE part = 'p1'"
    for condition in ("fails_at(id, 4001) % 2 = 1", "10 / (id - 4001) <> 0 AND fails_at(id, 4001) % 2 = 1"):
        frame = spark.sql(f"{files} AND {condition} LIMIT 3")
        assert rows(frame) == [(1,), (3,), (5,)]
        assert input_of(frame) == "FileScan"


def test_large_values(spark: SparkSession, table: str) -> None:
    """A batch has at most little more bytes than the settings allow, also if its first values are small."""
    path = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")).parent / "large"
    text = F.expr("if(id < 80, 'x', repeat('x', 1000000))")
    spark.range(0, 260, 1, 1).select("id", text.alias("text")).write.mode("overwrite").parquet(str(path))
    frame = spark.read.parquet(str(path)).selectExpr(
        "rows_at_once(id) AS n", "length(text) AS length", "slug(text)", "id"
    )
    found = frame.where("id >= 0").collect()
    assert len(found) == 260
    assert max(row.n for row in found if row.length > 1) <= 80 - 64 + 4 + 16


def test_a_limit_gives_the_memory_back(spark: SparkSession, table: str) -> None:
    """If a successful task does not give its memory back, these tests report an error."""
    frame = spark.sql(f"SELECT id, tags, title FROM {table} WHERE fails_at(id, -1) % 2 = 1 LIMIT 3")
    assert len(frame.collect()) == 3
    assert input_of(frame) == "FileScan"


def test_a_function_that_fails(spark: SparkSession, table: str) -> None:
    with pytest.raises(Exception, match="no 7"):
        spark.sql(f"SELECT fails_at(id, 7), tags, title FROM {table}").collect()
