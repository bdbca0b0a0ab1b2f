"""The language-neutral table of cases, for row and vectorized functions of each language on Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from .conformance import (
    CASES,
    KINDS,
    LANGUAGES,
    LEFT_OUT,
    NO_TYPE,
    NO_VALUES,
    SPARK,
    TABLE,
    Type,
    repeated,
    shortened,
)
from .conftest import error, rows

NULLS = {
    "none": "false",
    "all": "true",
    "first": "i = 0",
    "last": "i = size - 1",
    "third": "i % 3 = 0",
}

#: In place of the table's sizes around DuckDB's chunks. Spark's batches grow from 64 rows, four times each, to 8192: so this many rows
#: are five of them, a full one, and a rest.
LARGEST = 64 + 256 + 1024 + 4096 + 8192 + 8192 + 100
SIZES = sorted({min(size, LARGEST) for size in TABLE["sizes"]} | {63, 64, 65})

PARAMETERS = [pytest.param(index, id=shortened(case["type"])) for index, case in CASES.items()]


def values(case: dict[str, Any]) -> list[Any]:
    return [value for value in case["values"] if value not in NO_VALUES.get(Type(case["type"]).kind, [])]


def comes_back(type_: str, kind: str) -> bool:
    """Whether values keep their order. A Lua table has none: texts that are keys come back in that of texts."""
    return not (kind.startswith("lua") and "MAP(VARCHAR" in type_)


def data(
    spark: SparkSession, case: dict[str, Any], sql: list[str], groups: list[tuple[int, str]]
) -> DataFrame:
    """The values in turn: a partition for each size and pattern of NULLs."""
    most = max(size for size, _ in groups)
    sizes = ", ".join(str(size) for size, _ in groups)
    nulls = " ".join(f"WHEN g = {g} THEN {NULLS[pattern]}" for g, (_, pattern) in enumerate(groups))
    return spark.sql(
        f"SELECT g, i, IF(CASE {nulls} END, NULL, element_at(array({', '.join(sql)}), CAST(i % {len(sql)} AS INT) + 1)) AS x"
        f" FROM (SELECT *, element_at(array({sizes}), CAST(g AS INT) + 1) AS size"
        f" FROM (SELECT id DIV {most} AS g, id % {most} AS i FROM range(0, {len(groups) * most}, 1, {len(groups)})))"
        " WHERE i < size"
    )


@pytest.mark.any_spark
def test_cases_are_left_out_for_their_types_alone() -> None:
    left_out = [case["type"] for index, case in enumerate(TABLE["cases"]) if index not in CASES]
    assert [shortened(type_) for type_ in left_out] == LEFT_OUT
    for type_ in left_out:
        assert Type(type_).kinds() & NO_TYPE
    used = {kind for case in CASES.values() for kind in Type(case["type"]).kinds()}
    assert used == {*SPARK, "DECIMAL", "[]", "STRUCT", "MAP"}
    assert used.isdisjoint(NO_TYPE)


@pytest.mark.parametrize("index", PARAMETERS)
def test_values_come_back_unchanged(spark: SparkSession, index: int) -> None:
    case = CASES[index]
    type_ = Type(case["type"])
    sql = [repeated(type_, value) for value in values(case)]
    sizes = [size for size in SIZES if size <= 1 or not case.get("large")]
    # The largest size shows how batches follow each other, which no pattern changes.
    groups = [(size, pattern) for size in sizes if size < LARGEST for pattern in NULLS]
    groups += [(size, "third") for size in sizes if size == LARGEST]
    kinds = [kind for kind in KINDS if comes_back(case["type"], kind)]
    data(spark, case, sql, groups).createOrReplaceTempView("data")
    results = ", ".join(f"{KINDS[kind]}_{index}(x) AS `{kind}`" for kind in kinds)
    # As texts, zeros of either sign differ. A text has no quotes around the strings in it, so that NULLs count, too.
    texts = {name: f"concat_ws('|', CAST(`{name}` AS STRING), `{name}` IS NULL)" for name in ["x", *kinds]}
    differ = ", ".join(f"count_if({texts['x']} <> {texts[kind]}) AS `{kind}`" for kind in kinds)
    query = (
        f"SELECT g, count(*) AS size, {differ} FROM (SELECT g, x, {results} FROM data) GROUP BY g ORDER BY g"
    )
    answers = [row.asDict() for row in spark.sql(query).collect()]
    assert [(answer.pop("g"), answer.pop("size")) for answer in answers] == [
        (g, size) for g, (size, _) in enumerate(groups) if size
    ]
    assert [answer for answer in answers if set(answer.values()) != {0}] == []


@pytest.mark.any_spark
@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        (index, kind, text)
        for index, case in CASES.items()
        for kind, texts in case.get("beyond", {}).items()
        for text in texts
    ],
)
def test_values_that_a_language_lacks_are_refused(
    spark: SparkSession, index: int, kind: str, text: str
) -> None:
    case = CASES[index]
    data(spark, case, [repeated(Type(case["type"]), text)], [(1, "none")]).createOrReplaceTempView("data")
    failed = error(lambda: spark.sql(f"SELECT CAST({KINDS[kind]}_{index}(x) AS STRING) FROM data").collect())
    assert "OverflowError" in failed or "RangeError" in failed
    assert "outside" in failed or "no datetime" in failed
    assert "in row 1" in failed or kind.endswith("-vectorized")
    # The other languages have it.
    others = [kind for kind in KINDS if text not in case["beyond"].get(kind, [])]
    results = ", ".join(f"CAST({KINDS[kind]}_{index}(x) AS STRING)" for kind in others)
    ((x, *seen),) = rows(spark.sql(f"SELECT CAST(x AS STRING), {results} FROM data"))
    assert dict(zip(others, seen)) == dict.fromkeys(others, x)


@pytest.mark.any_spark
@pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, id=shortened(case["type"]))
        for index, case in CASES.items()
        if not case.get("large")
    ],
)
def test_what_functions_see(spark: SparkSession, index: int) -> None:
    case = CASES[index]
    kept = values(case)
    sql = [repeated(Type(case["type"]), value) for value in kept]
    data(spark, case, sql, [(len(sql), "none")]).createOrReplaceTempView("data")
    results = ", ".join(f"{language}_saw_{index}(x)" for language in LANGUAGES)
    seen = zip(*rows(spark.sql(f"SELECT {results} FROM data ORDER BY i")))
    places = [place for place, value in enumerate(case["values"]) if value in kept]
    expected = {language: [case["sees"][language][place] for place in places] for language in LANGUAGES}
    assert {language: list(texts) for language, texts in zip(LANGUAGES, seen)} == expected
