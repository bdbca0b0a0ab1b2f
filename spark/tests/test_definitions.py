"""``CREATE FUNCTION ... LANGUAGE ... AS $$ ... $$`` in Spark's SQL."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from .conftest import error, rows, value


def defined(spark: SparkSession, text: str) -> list[str]:
    return [row.signature for row in spark.sql(text).collect()]


@pytest.mark.parametrize(
    ("language", "body"),
    [
        ("python", "\n    # it's; a comment\n    return f'{x + 1}'\n"),
        ("javascript", "`${x + 1}`"),
        ("ruby", "(x + 1).to_s"),
        ("lua", "tostring(x + 1)"),
    ],
)
def test_a_function_of_each_language(spark: SparkSession, language: str, body: str) -> None:
    text = f"-- CREATE\nCREATE FUNCTION next_in_{language}(x INTEGER) RETURNS VARCHAR LANGUAGE {language} AS $${body}$$;"
    assert defined(spark, text) == [f"next_in_{language}(x INTEGER) -> VARCHAR"]
    numbers = spark.range(3).selectExpr(f"next_in_{language}(CAST(id AS INT)) AS next")
    assert rows(numbers) == [("1",), ("2",), ("3",)]
    # The function belongs to the session.
    spark.sql(f"DROP TEMPORARY FUNCTION next_in_{language}")
    assert "next_in_" in error(lambda: spark.sql(f"SELECT next_in_{language}(1)"))


def test_a_name_is_taken_once(spark: SparkSession) -> None:
    f = "CREATE {} FUNCTION {} taken(x INT) RETURNS INT LANGUAGE python AS $$ {} $$"
    defined(spark, f.format("", "", "x"))
    assert "there is a function taken; write CREATE OR REPLACE FUNCTION taken(...)" in error(
        lambda: spark.sql(f.format("", "", "0"))
    )
    assert defined(spark, f.format("", "IF NOT EXISTS", "0")) == []
    assert value(spark, "SELECT taken(1)") == 1
    # The new definition's file has the same name as the old one, and executors use the right file.
    defined(spark, f.format("OR REPLACE TEMP", "", "x + 1"))
    assert value(spark, "SELECT sum(taken(id)) FROM range(4)") == 10
    assert "has the name of a function that Spark has itself" in error(
        lambda: spark.sql(f.format("OR REPLACE", "", "x").replace("taken", "lower"))
    )


def test_a_table_function(spark: SparkSession) -> None:
    defined(
        spark,
        "CREATE FUNCTION up_to(n BIGINT) RETURNS TABLE(i BIGINT) LANGUAGE python AS $$ yield from ((i,) for i in range(n)) $$",
    )
    assert rows(spark.sql("SELECT i FROM up_to(3) ORDER BY i")) == [(0,), (1,), (2,)]


def test_other_statements_are_sparks(spark: SparkSession) -> None:
    assert value(spark, "SELECT 'create a function in a language'") == "create a function in a language"
    said = error(lambda: spark.sql("CREATE FUNCTION f(x INT) RETURNS INT LANGUAGE cobol AS $$ x $$"))
    assert "function f: there is no language cobol" in said
    said = error(lambda: spark.sql("CREATE FUNCTION f(x INT)\nRETURNS INTT LANGUAGE python AS $$ x $$"))
    assert "line 2" in said
    spark.sql("CREATE FUNCTION of_a_class AS 'a.language.Function'")
    spark.sql("DROP FUNCTION of_a_class")
