"""The language-neutral table of cases, for row and vectorized functions of each language on Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from .conftest import IS_NEWEST, error, rows
from .support.conformance import (
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

NULLS = {
    "none": "false",
    "all": "true",
    "first": "i = 0",
    "last": "i = size - 1",
    "third": "i % 3 = 0",
}

#: These sizes replace the sizes of the table, which are near DuckDB's chunks. Spark's batches grow from 64
#: rows by a factor of four, up to 8192. So these rows are five growing batches, a full one, and a rest.
LARGEST = 64 + 256 + 1024 + 4096 + 8192 + 8192 + 100
SIZES = sorted({min(size, LARGEST) for size in TABLE["sizes"]} | {63, 64, 65})

#: The guest's handling of a value does not depend on Spark's version. On an older version, these kinds test
#: all types.
ADAPTER = ("python-row", "js-vectorized")

#: Types whose values are compared as texts. To Spark, zeros of both signs are equal. Spark compares no
#: intervals, and no maps inside other values.
TEXTS = {"FLOAT", "DOUBLE", "MAP", "INTERVAL"}

#: Groups with at most this many rows are also compared as texts for all other types. Texts cost more than
#: anything else.
FEW = 65

#: The number of types in a query. More types make a task cheaper for each type, but Spark could not compile
#: too many.
TOGETHER = 4


def together() -> list[list[int]]:
    """The indexes of the cases, by query. The cases with large values have fewer sizes, and a query of their
    own."""
    small = [index for index, case in CASES.items() if not case.get("large")]
    large = [index for index, case in CASES.items() if case.get("large")]
    return [small[first : first + TOGETHER] for first in range(0, len(small), TOGETHER)] + [large]


def type_names(indexes: list[int]) -> str:
    return " ".join(shortened(CASES[index]["type"]) for index in indexes)


def values(case: dict[str, Any]) -> list[Any]:
    return [value for value in case["values"] if value not in NO_VALUES.get(Type(case["type"]).kind, [])]


def comes_back(type_: str, kind: str) -> bool:
    """Whether values keep their order. A Lua table has no order: keys that are texts come back in
    alphabetical order."""
    return not (kind.startswith("lua") and "MAP(VARCHAR" in type_)


def data(spark: SparkSession, columns: dict[str, list[str]], groups: list[tuple[int, str]]) -> DataFrame:
    """Columns that repeat the values in turn. There is a partition for each size and pattern of NULLs."""
    most = max(size for size, _ in groups)
    sizes = ", ".join(str(size) for size, _ in groups)
    nulls = " ".join(f"WHEN g = {g} THEN {NULLS[pattern]}" for g, (_, pattern) in enumerate(groups))
    filled = ", ".join(
        f"IF(missing, NULL, element_at(array({', '.join(sql)}), CAST(i % {len(sql)} AS INT) + 1)) AS {name}"
        for name, sql in columns.items()
    )
    return spark.sql(
        f"SELECT g, i, {filled} FROM (SELECT *, CASE {nulls} END AS missing"
        f" FROM (SELECT *, element_at(array({sizes}), CAST(g AS INT) + 1) AS size"
        f" FROM (SELECT id DIV {most} AS g, id % {most} AS i FROM range(0, {len(groups) * most}, 1, {len(groups)})))"
        " WHERE i < size)"
    )


def groups_of(sizes: list[int]) -> list[tuple[int, str]]:
    """Each size with each pattern of NULLs that makes a difference. No rows have no NULL, and one row is NULL
    or not."""
    groups = []
    for size in sizes:
        match size:
            case 0:
                groups.append((0, "none"))
            case 1:
                groups += [(1, "none"), (1, "all")]
            case size if size == LARGEST:
                # The largest size shows how batches follow each other. A pattern does not change that.
                groups.append((size, "third"))
            case _:
                groups += [(size, pattern) for pattern in NULLS]
    return groups


@pytest.mark.any_spark
def test_cases_are_left_out_for_their_types_alone() -> None:
    left_out = [case["type"] for index, case in enumerate(TABLE["cases"]) if index not in CASES]
    assert [shortened(type_) for type_ in left_out] == LEFT_OUT
    for type_ in left_out:
        assert Type(type_).kinds() & NO_TYPE
    used = {kind for case in CASES.values() for kind in Type(case["type"]).kinds()}
    assert used == {*SPARK, "DECIMAL", "[]", "STRUCT", "MAP"}
    assert used.isdisjoint(NO_TYPE)


def differs(type_: Type, few: int, was: str, is_: str) -> str:
    """A condition that a value has changed. Small groups are compared as text. So are all groups if Spark has
    no exact comparison."""
    # The text has no quotes around strings in a value. So the condition also compares whether the values are
    # NULL.
    texts = " <> ".join(f"concat_ws('|', CAST({x} AS STRING), {x} IS NULL)" for x in (was, is_))
    if type_.kind == "MAP":
        entries, was, is_ = type_.children.values(), f"map_entries({was})", f"map_entries({is_})"
    else:
        entries = [type_]
    if any(part.kinds() & TEXTS for part in entries):
        return texts
    return f"IF(g < {few}, {texts}, NOT ({was} <=> {is_}))"


@pytest.mark.parametrize("indexes", together(), ids=type_names)
def test_values_come_back_unchanged(
    spark: SparkSession, subtests: pytest.Subtests, indexes: list[int]
) -> None:
    sizes = [size for size in SIZES if size <= 1 or not CASES[indexes[0]].get("large")]
    groups = groups_of(sizes)
    sql = {
        f"x_{index}": [repeated(Type(CASES[index]["type"]), value) for value in values(CASES[index])]
        for index in indexes
    }
    kinds = {
        index: [kind for kind in (KINDS if IS_NEWEST else ADAPTER) if comes_back(CASES[index]["type"], kind)]
        for index in indexes
    }
    data(spark, sql, groups).createOrReplaceTempView("data")
    few = sum(size <= FEW for size, _ in groups)
    results, differ = [], []
    for index in indexes:
        results += [f"{KINDS[kind]}_{index}(x_{index}) AS `{index} {kind}`" for kind in kinds[index]]
        differ += [
            f"count_if({differs(Type(CASES[index]['type']), few, f'x_{index}', f'`{index} {kind}`')}) AS `{index} {kind}`"
            for kind in kinds[index]
        ]
    query = (
        f"SELECT g, count(*) AS size, {', '.join(differ)} FROM (SELECT *, {', '.join(results)} FROM data)"
        " GROUP BY g ORDER BY g"
    )
    answers = [row.asDict() for row in spark.sql(query).collect()]
    assert [(answer["g"], answer["size"]) for answer in answers] == [
        (g, size) for g, (size, _) in enumerate(groups) if size
    ]
    for index in indexes:
        with subtests.test(shortened(CASES[index]["type"])):
            wrong = {
                (kind, groups[answer["g"]]): answer[f"{index} {kind}"]
                for answer in answers
                for kind in kinds[index]
                if answer[f"{index} {kind}"] != 0
            }
            assert wrong == {}


#: Values that some languages lack: the index of a case in the table, and the value.
BEYOND = sorted(
    {
        (index, text)
        for index, case in CASES.items()
        for texts in case.get("beyond", {}).values()
        for text in texts
    }
)


@pytest.mark.any_spark
def test_values_that_a_language_lacks_are_refused(spark: SparkSession, subtests: pytest.Subtests) -> None:
    sql = {
        f"x_{place}": [repeated(Type(CASES[index]["type"]), text)]
        for place, (index, text) in enumerate(BEYOND)
    }
    data(spark, sql, [(1, "none")]).createOrReplaceTempView("data")
    others = {}
    for place, (index, text) in enumerate(BEYOND):
        for kind, function in KINDS.items():
            call = f"CAST({function}_{index}(x_{place}) AS STRING)"
            if text not in CASES[index]["beyond"].get(kind, []):
                others[place, kind] = call
                continue
            with subtests.test(f"{CASES[index]['type']} {kind} {text}"):
                failed = error(lambda call=call: spark.sql(f"SELECT {call} FROM data").collect())
                assert "OverflowError" in failed or "RangeError" in failed
                assert "outside" in failed or "no datetime" in failed
                assert "in row 1" in failed or kind.endswith("-vectorized")
    # The other languages have the value.
    texts = ", ".join(f"CAST({name} AS STRING)" for name in sql)
    ((*seen,),) = rows(spark.sql(f"SELECT {', '.join(others.values())}, {texts} FROM data"))
    expected = seen[len(others) :]
    assert len(expected) == len(BEYOND)
    assert dict(zip(others, seen)) == {(place, kind): expected[place] for place, kind in others}


@pytest.mark.any_spark
def test_what_functions_see(spark: SparkSession, subtests: pytest.Subtests) -> None:
    indexes = [index for index, case in CASES.items() if not case.get("large")]
    kept = {index: values(CASES[index]) for index in indexes}
    sql = {
        f"x_{index}": [repeated(Type(CASES[index]["type"]), value) for value in kept[index]]
        for index in indexes
    }
    # Types with fewer values repeat them.
    data(spark, sql, [(max(map(len, sql.values())), "none")]).createOrReplaceTempView("data")
    calls = [(index, language) for index in indexes for language in LANGUAGES]
    results = ", ".join(f"{language}_saw_{index}(x_{index})" for index, language in calls)
    columns = zip(*rows(spark.sql(f"SELECT {results} FROM data ORDER BY i")))
    seen = dict(zip(calls, map(list, columns)))
    for index in indexes:
        with subtests.test(shortened(CASES[index]["type"])):
            places = [place for place, value in enumerate(CASES[index]["values"]) if value in kept[index]]
            for language in LANGUAGES:
                expected = [CASES[index]["sees"][language][place] for place in places]
                assert seen[index, language][: len(expected)] == expected, language
