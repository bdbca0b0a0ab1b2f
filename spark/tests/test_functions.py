"""Functions of files and of programs, called in every way that Spark has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pandas
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import call_function, col, expr, lit, pandas_udf, udf

import crosslane.spark

from .conftest import CONF, FILES, Driver, Failed, error, rows, value

SHOP = FILES[0].with_name("shop.py")


@pytest.fixture(scope="module")
def ours(spark: SparkSession) -> SparkSession:
    """The session with functions of Spark's own: `times_ten` is a function of columns, `times_hundred` a
    function of rows."""

    @pandas_udf("long")
    def times_ten(x: pandas.Series) -> pandas.Series:
        return x * 10

    @udf("long")
    def times_hundred(x):
        return x * 100

    spark.udf.register("times_ten", times_ten)
    spark.udf.register("times_hundred", times_hundred)
    return spark


CALLS = {
    "slug('Hello Wide World')": "hello-wide-world",
    "initials('Ada Lovelace')": "AL",
    "shout('hello')": "HELLO!",
    "lua_title('hello wide world')": "Hello Wide World",
    "add(40, 2)": 42,
    "ruby_add(40, 2)": 42,
    "js_add(40, 2)": 42,
    "halved(3)": 1.5,
    "constant()": 42,
    "taxed(19.99, 2)": 39.98,
    "describe(named_struct('name', 'Ada', 'tags', array('x', 'y')))": {"x": 3, "y": 3},
    # Names follow the rules of SQL.
    "SLUG('A B')": "a-b",
}


def test_calls(spark: SparkSession, subtests: pytest.Subtests) -> None:
    (constants,) = rows(spark.sql(f"SELECT {', '.join(CALLS)}"))
    columns = zip(*rows(spark.range(3).select(list(map(expr, CALLS)))))
    for call, constant, column in zip(CALLS, constants, columns, strict=True):
        with subtests.test(call):
            assert constant == CALLS[call]
            assert column == (CALLS[call],) * 3


def test_data_frames(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("Ada Lovelace", 1), ("Alan Turing", 2)], "name STRING, x BIGINT")
    assert rows(frame.select(call_function("slug", "name"), call_function("add", "x", lit(10)))) == [
        ("ada-lovelace", 11),
        ("alan-turing", 12),
    ]
    assert rows(frame.withColumn("y", expr("ruby_add(x, x)")).filter("js_add(y, 1) = 5")) == [
        ("Alan Turing", 2, 4)
    ]
    assert rows(frame.orderBy(call_function("initials", col("name")).desc()).select("x")) == [(2,), (1,)]


def test_several_languages_in_one_query(spark: SparkSession) -> None:
    query = "SELECT slug(t), initials(t), shout(t), lua_title(t) FROM (SELECT concat('x y', id) AS t FROM range(3))"
    assert rows(spark.sql(query)) == [(f"x-y{i}", "xy", f"X Y{i}!", f"X Y{i}") for i in range(3)]


def test_chained(spark: SparkSession) -> None:
    query = "SELECT js_add(ruby_add(add(id, 1), plus_one(id)), plus_one(plus_one(id))) FROM range(1000)"
    assert rows(spark.sql(query)) == [(3 * i + 4,) for i in range(1000)]
    query = "SELECT shout(slug(initials(concat('A B', id)))), slug(initials(concat('A B', id))) FROM range(2)"
    assert rows(spark.sql(query)) == [("AB!", "ab")] * 2


def test_the_same_argument_twice(spark: SparkSession) -> None:
    assert rows(spark.sql("SELECT add(id, id), add(id + 1, id + 1), add(id, id + 1) FROM range(3)")) == [
        (2 * i, 2 * i + 2, 2 * i + 1) for i in range(3)
    ]


QUERIES = {
    "SELECT plus_one(id) FROM range(10) WHERE plus_one(id) % 5 = 0": [(5,), (10,)],
    "SELECT id FROM range(3) ORDER BY -plus_one(id)": [(2,), (1,), (0,)],
    "SELECT plus_one(sum(id)), sum(plus_one(id)) FROM range(10)": [(46, 55)],
    "SELECT plus_one(id % 2) AS g, count(*) FROM range(10) GROUP BY plus_one(id % 2) ORDER BY g": [
        (1, 5),
        (2, 5),
    ],
    "SELECT id % 2 AS g FROM range(10) GROUP BY g HAVING plus_one(sum(id)) > 21": [(1,)],
    "SELECT a.id, b.id FROM range(4) a JOIN range(9) b ON add(a.id, 5) = plus_one(b.id) ORDER BY a.id": [
        (0, 4),
        (1, 5),
        (2, 6),
        (3, 7),
    ],
    "SELECT a.id, b.id FROM range(3) a JOIN range(3) b ON add(a.id, b.id) = 4": [(2, 2)],
    "SELECT a.id, plus_one(b.id) FROM range(2) a LEFT JOIN range(1) b ON a.id = b.id ORDER BY a.id": [
        (0, 1),
        (1, None),
    ],
    "SELECT plus_one(id) FROM range(2) UNION ALL SELECT js_add(id, 10) FROM range(2)": [
        (1,),
        (2,),
        (10,),
        (11,),
    ],
    "SELECT max(plus_one(id)) OVER () FROM range(2)": [(2,), (2,)],
    "SELECT plus_one(row_number() OVER (ORDER BY id)) FROM range(2)": [(2,), (3,)],
    "SELECT IF(id > 0, plus_one(id), NULL) FROM range(2)": [(None,), (2,)],
    "SELECT plus_one((SELECT max(id) FROM range(5)))": [(5,)],
    "SELECT id FROM range(3) WHERE plus_one(id) IN (SELECT id FROM range(3)) ORDER BY id": [(0,), (1,)],
    "SELECT a.id FROM range(3) a WHERE EXISTS (SELECT 1 FROM range(2) b WHERE plus_one(a.id) = plus_one(b.id)) ORDER BY a.id": [
        (0,),
        (1,),
    ],
    "SELECT plus_one(x) FROM VALUES (1), (2) AS t(x)": [(2,), (3,)],
    "SELECT DISTINCT add(id, -id) FROM range(100)": [(0,)],
    "SELECT plus_one(x) FROM (SELECT explode(array(id, 7)) AS x FROM range(1))": [(1,), (8,)],
}


@pytest.mark.parametrize("query", QUERIES)
def test_calls_in_all_places_for_expressions(spark: SparkSession, query: str) -> None:
    assert rows(spark.sql(query)) == QUERIES[query]


@pytest.mark.parametrize("ten", ["times_ten", "times_hundred"])
def test_with_functions_of_sparks_own(ours: SparkSession, ten: str) -> None:
    by = 10 if ten == "times_ten" else 100
    made = {
        f"{ten}(id)": lambda i: by * i,
        "plus_one(id)": lambda i: i + 1,
        f"{ten}(plus_one(id))": lambda i: by * (i + 1),
        f"plus_one({ten}(id))": lambda i: by * i + 1,
        f"plus_one({ten}(plus_one(id)))": lambda i: by * (i + 1) + 1,
        f"{ten}(plus_one({ten}(id)))": lambda i: by * (by * i + 1),
        f"add({ten}(id), plus_one(id))": lambda i: by * i + i + 1,
        f"{ten}(add({ten}(id), plus_one(id)))": lambda i: by * (by * i + i + 1),
        f"js_add(ruby_add(id, {ten}(id)), {ten}(plus_one(id)))": lambda i: i + by * i + by * (i + 1),
    }
    expected = [tuple(function(i) for function in made.values()) for i in range(100)]
    assert rows(ours.range(100).selectExpr(*made)) == expected
    backwards = list(made)[::-1]
    assert rows(ours.range(0, 100, 1, 1).selectExpr(*backwards)) == [row[::-1] for row in expected]
    for call in backwards[-5:-3]:
        assert rows(ours.range(0, 3, 1, 1).selectExpr(call)) == [(made[call](i),) for i in range(3)], call


def test_with_both_kinds_of_sparks_own(ours: SparkSession) -> None:
    query = "SELECT times_hundred(plus_one(times_ten(id))), plus_one(times_hundred(times_ten(plus_one(id)))) FROM range(3)"
    assert rows(ours.sql(query)) == [(100 * (10 * i + 1), 1000 * (i + 1) + 1) for i in range(3)]


def test_functions_that_are_not_deterministic(spark: SparkSession) -> None:
    # Spark makes the same call for each row, and for each place in the query.
    query = "SELECT counted(id) AS a, counted(id) AS b, counted(1) AS c FROM range(0, 500, 1, 1)"
    seen = [number for row in rows(spark.sql(query)) for number in row]
    assert len(set(seen)) == 1500
    # A name of a result stands for one value.
    assert value(spark, "SELECT count_if(x <> x + 0) FROM (SELECT counted(id) AS x FROM range(100))") == 0


def test_functions_that_are_deterministic_are_called_once_for_equal_calls(spark: SparkSession) -> None:
    plan = spark.sql("SELECT plus_one(id), plus_one(id) + 1 FROM range(3)")._jdf.queryExecution().toString()
    physical = plan.split("== Physical Plan ==")[1]
    assert (
        physical.count("plus_one(id") - physical.count("AS plus_one(id") - physical.count("AS (plus_one(id")
        == 1
    )


def test_nulls(spark: SparkSession) -> None:
    query = (
        "SELECT plus_one(x), add(x, 1), ruby_add(x, 1), js_add(1, x), halved(x), or_zero(x), sees_null(x, NULL),"
        " or_default(CAST(x AS STRING)) FROM (SELECT IF(id % 2 = 0, NULL, id) AS x FROM range(0, 200, 1, 1))"
    )
    expected = [
        (i + 1, i + 1, i + 1, i + 1, i / 2, i, True, str(i))
        if i % 2
        else (None, None, None, None, None, 0, True, "default")
        for i in range(200)
    ]
    assert rows(spark.sql(query)) == expected
    assert value(spark, "SELECT sees_null(1, 'x')") is False
    assert value(spark, "SELECT plus_one(NULL)") is None


def test_named_arguments(spark: SparkSession) -> None:
    assert value(spark, "SELECT fails_at(bad => 5, x => 3)") == 3
    assert "no 5" in error(lambda: spark.sql("SELECT fails_at(bad => 5, x => 5)").collect())
    assert "INTERNAL_ERROR" not in error(lambda: spark.sql("SELECT fails_at(x => 5, worse => 3)").collect())


def test_without_code_that_spark_generates(spark: SparkSession) -> None:
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for name, setting in settings.items():
        spark.conf.set(name, setting)
    try:
        query = "SELECT plus_one(id + 1), slug(concat('A ', id)), id FROM range(0, 1000, 1, 1)"
        assert rows(spark.sql(query)) == [(i + 2, f"a-{i}", i) for i in range(1000)]
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_results_that_are_kept(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("counted(id) AS x").cache()
    assert rows(frame) == rows(frame)
    frame.unpersist()
    local = spark.range(0, 20_000, 1, 4).selectExpr("plus_one(id)").toLocalIterator()
    assert [x for (x,) in local] == list(range(1, 20_001))


def test_a_vectorized_function_sees_no_rows_with_nulls(spark: SparkSession) -> None:
    query = "SELECT rows_at_once(IF(id < 10, id, NULL)) FROM range(0, 30, 1, 1)"
    assert rows(spark.sql(query)) == [(10,)] * 10 + [(None,)] * 20


def test_empty_partitions(spark: SparkSession) -> None:
    frame = spark.range(0, 1000, 1, 50)
    assert rows(frame.filter("id = 777").selectExpr("plus_one(id)", "shout(id)")) == [(778, "777!")]
    assert rows(frame.filter("id < 0").selectExpr("plus_one(id)")) == []
    assert rows(spark.createDataFrame([], "x BIGINT").selectExpr("plus_one(x)")) == []
    assert value(spark, "SELECT count(plus_one(id)) FROM range(0)") == 0


def test_many_partitions(spark: SparkSession) -> None:
    frame = spark.range(0, 20_000, 1, 100).selectExpr("sum(js_add(ruby_add(id, 1), plus_one(id)))")
    assert rows(frame) == [(sum(2 * i + 2 for i in range(20_000)),)]


def test_rows_keep_their_other_columns_and_their_order(spark: SparkSession) -> None:
    frame = spark.range(0, 30_000, 1, 1).selectExpr(
        "id", "repeat('x', CAST(id % 50 AS INT)) AS text", "array(id, NULL) AS list", "plus_one(id) AS y"
    )
    assert rows(frame) == [(i, "x" * (i % 50), [i, None], i + 1) for i in range(30_000)]


def test_more_columns_than_a_word_has_bits(spark: SparkSession) -> None:
    names = [f"c{i}" for i in range(150)]
    frame = spark.range(5).selectExpr(
        "id", *(f"IF({i} % 3 = 0, NULL, id + {i}) AS {name}" for i, name in enumerate(names))
    )
    results = frame.selectExpr(*names, *(f"plus_one({name})" for name in names))
    for row, got in enumerate(rows(results.orderBy("c1"))):
        given = [None if i % 3 == 0 else row + i for i in range(150)]
        assert got == (*given, *(None if x is None else x + 1 for x in given))


def test_arguments_are_cast_as_to_a_column(spark: SparkSession) -> None:
    assert value(spark, "SELECT plus_one(CAST(1 AS TINYINT))") == 2
    assert value(spark, "SELECT halved(CAST(3 AS DECIMAL(5, 1)))") == 1.5
    frame = spark.createDataFrame([(Decimal("1.50"),)], "price DECIMAL(5, 2)")
    assert rows(frame.selectExpr("taxed(price, 2)")) == [(3.0,)]
    # In ANSI mode, a value that does not fit is an error.
    assert "CAST_OVERFLOW" in error(lambda: spark.sql("SELECT plus_one(1e30)").collect())


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("SELECT slug('a', 'b')", ["WRONG_NUM_ARGS", "`slug` requires 1 parameter"]),
        ("SELECT add(1)", ["WRONG_NUM_ARGS", "`add` requires 2 parameter"]),
        ("SELECT constant(1)", ["WRONG_NUM_ARGS", "`constant` requires 0 parameter"]),
        ("SELECT plus_one('a')", ["x of plus_one(x BIGINT) -> BIGINT", '"BIGINT"', '"STRING"']),
        ("SELECT add(1, array(1))", ["y of add(x BIGINT, y BIGINT) -> BIGINT", '"ARRAY<INT>"']),
        ("SELECT describe('a')", ["person of describe(", '"STRING"']),
        ("SELECT far(1)", ["far(x HUGEINT) -> HUGEINT", "Spark has no type HUGEINT", "shop.py:"]),
        ("SELECT far_result(1)", ["far_result(x BIGINT) -> UUID", "Spark has no type UUID"]),
        ("SELECT any_of(1)", ["any_of(x ANY) -> VARCHAR", "cannot be called from Spark", "ANY"]),
        ("SELECT sum_of(1, 2)", ["sum_of(*x BIGINT) -> BIGINT", "any number"]),
        ("SELECT plus_two(1)", ["UNRESOLVED_ROUTINE", "plus_two"]),
    ],
)
def test_calls_that_are_wrong(spark: SparkSession, query: str, parts: list[str]) -> None:
    text = error(lambda: spark.sql(query).collect())
    for part in parts:
        assert part in text


def test_errors_of_functions(spark: SparkSession) -> None:
    text = error(lambda: spark.sql("SELECT fails_at(id, 150) FROM range(0, 200, 1, 1)").collect())
    assert "dev.crosslane.spark.CrosslaneException: fails_at: ValueError: no 150" in text
    assert "shop.py:" in text
    assert "with x = 150, bad = 150" in text
    assert "partition 0, task" in text
    assert "ArgumentError: no 7" in error(lambda: spark.sql("SELECT ruby_fails(id) FROM range(9)").collect())
    assert "RangeError: no 7" in error(lambda: spark.sql("SELECT js_fails(id) FROM range(9)").collect())
    query = "SELECT null_at(id, 3) FROM range(0, 5, 1, 1)"
    assert rows(spark.sql(query)) == [(0,), (1,), (2,), (None,), (4,)]
    # The error of the outer call shows the result of the inner one.
    text = error(lambda: spark.sql("SELECT fails_at(js_add(id, 1), 5) FROM range(9)").collect())
    assert "with x = 5, bad = 5" in text


class Counter:
    """The state of a registered function."""

    def __init__(self, step: int) -> None:
        self.step = step

    def advanced(self, x: int) -> int:
        return x + self.step


def test_registered_functions(spark: SparkSession) -> None:
    factor = 3

    def tripled(x: int) -> int:
        return x * factor

    assert crosslane.spark.register(spark, tripled) == "tripled(x BIGINT) -> BIGINT"
    assert rows(spark.range(3).selectExpr("tripled(id)")) == [(0,), (3,), (6,)]
    signature = "squared(x DOUBLE) -> DOUBLE"
    assert crosslane.spark.register(spark, lambda x: x * x, signature) == signature
    assert value(spark, "SELECT squared(1.5)") == 2.25
    crosslane.spark.register(spark, Counter(7).advanced)
    assert value(spark, "SELECT advanced(1)") == 8
    crosslane.spark.register(spark, lambda x: x, "as_is(x VARCHAR) -> VARCHAR", nulls="call")
    # Registered functions work with functions of files, and as arguments of each other.
    query = "SELECT plus_one(tripled(add(id, 1))), as_is(slug(as_is('A B'))) FROM range(2)"
    assert rows(spark.sql(query)) == [(4, "a-b"), (7, "a-b")]


def test_tasks_of_a_query_share_its_budget(spark: SparkSession) -> None:
    crosslane.spark.register(spark, lambda x: x, "paid(x BIGINT) -> BIGINT", budget=1000)
    # Two stages of one query, and a query after it.
    for _ in range(2):
        first = spark.range(0, 500, 1, 4).selectExpr("paid(id) AS x").repartition(3)
        assert rows(first.selectExpr("sum(paid(x))")) == [(sum(range(500)),)]
    for frame in (
        first.selectExpr("sum(paid(x))", "paid(1)"),
        spark.range(0, 100_000, 1, 4).selectExpr("paid(id)"),
    ):
        assert "paid: the query has used up its budget of 1000 calls" in error(
            lambda frame=frame: rows(frame)
        )


def test_a_registered_class_has_state_in_each_worker(spark: SparkSession) -> None:
    class Running:
        def __init__(self) -> None:
            self.sum = 0

        def __call__(self, x: int) -> int:
            self.sum += x
            return self.sum

    crosslane.spark.register(spark, Running, "running(x BIGINT) -> BIGINT", deterministic=False)
    assert rows(spark.range(0, 100, 1, 1).selectExpr("running(id)"))[-1] == (sum(range(100)),)


def test_a_registered_vectorized_function(spark: SparkSession) -> None:
    signature = "as_many(x BIGINT) -> BIGINT"
    crosslane.spark.register(spark, lambda x: [len(x)] * len(x), signature, vectorized=True)
    assert rows(spark.range(0, 5, 1, 1).selectExpr("as_many(id)")) == [(5,)] * 5


def test_a_registered_function_is_replaced(spark: SparkSession) -> None:
    def edition(n: int) -> Callable[[int], int]:
        return lambda x: n * 1000 + x

    crosslane.spark.register(spark, edition(1), "edition(x BIGINT) -> BIGINT")
    first = spark.range(2).selectExpr("edition(id)")
    assert rows(first) == [(1000,), (1001,)]
    second = edition(2)
    crosslane.spark.register(spark, lambda x: str(second(x)), "edition(x BIGINT) -> VARCHAR")
    assert rows(spark.range(2).selectExpr("edition(id)")) == [("2000",), ("2001",)]
    # An existing query keeps the function with which it was made.
    assert rows(first) == [(1000,), (1001,)]
    assert rows(first.unionAll(spark.range(1).selectExpr("CAST(edition(id) AS BIGINT)"))) == [
        (1000,),
        (1001,),
        (2000,),
    ]


def test_what_cannot_be_registered(spark: SparkSession) -> None:
    with pytest.raises(crosslane.spark.DeclarationError):
        crosslane.spark.register(spark, lambda x: x)
    lock = threading.Lock()
    with pytest.raises(crosslane.spark.DeclarationError, match="lock"):
        crosslane.spark.register(spark, lambda x: lock.locked(), "locked(x BIGINT) -> BOOLEAN")
    text = error(lambda: crosslane.spark.register(spark, lambda x: x, "upper(x VARCHAR) -> VARCHAR"))
    assert "has the name of a function that Spark has itself" in text
    assert value(spark, "SELECT upper('a')") == "A"
    crosslane.spark.register(spark, lambda x: x, "bits(x BIT) -> BIT")
    assert "Spark has no type BIT" in error(lambda: spark.sql("SELECT bits(1)"))


def test_another_session_of_the_same_program(spark: SparkSession) -> None:
    crosslane.spark.register(spark, lambda x: -x, "negated(x BIGINT) -> BIGINT")
    other = spark.newSession()
    assert value(other, "SELECT slug('A B')") == "a-b"
    assert "UNRESOLVED_ROUTINE" in error(lambda: other.sql("SELECT negated(1)"))


def test_explain(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    spark.sql(
        "SELECT slug(t), shout(initials(t)) FROM (SELECT concat('a ', id) AS t FROM range(3))"
    ).explain()
    text = capsys.readouterr().out
    assert "CrosslaneEval" in text
    assert "slug(t#" in text
    assert ") [python]" in text
    assert "[javascript, ruby]" in text or "[ruby, javascript]" in text
    assert "ArrowEvalPython" not in text
    assert "BatchEvalPython" not in text


def test_describe_function(spark: SparkSession) -> None:
    text = str(spark.sql("DESCRIBE FUNCTION EXTENDED slug").collect())
    assert "slug(title VARCHAR) -> VARCHAR" in text
    assert "A title as part of a web address." in text
    assert "shop.py:" in text
    names = {row[0] for row in spark.sql("SHOW USER FUNCTIONS").collect()}
    assert {"slug", "initials", "shout", "lua_title", "far"} <= names


def metrics(plan: object) -> dict[str, int]:
    """The metrics of the calls in a plan that was executed."""
    if plan.nodeName() == "AdaptiveSparkPlan":
        return metrics(plan.executedPlan())
    if plan.nodeName() == "CrosslaneEval":
        names = plan.metrics().keys().toList()
        return {name: plan.metrics().apply(name).value() for name in map(names.apply, range(names.size()))}
    children = plan.children()
    for place in range(children.size()):
        if found := metrics(children.apply(place)):
            return found
    return {}


def test_a_program_s_function_with_the_name_of_a_file_s(spark: SparkSession) -> None:
    function = crosslane.udf("counted(x BIGINT) -> BIGINT")(lambda x: x)
    text = error(lambda: crosslane.spark.register(spark, function))
    assert "the function counted is declared in a file of spark.crosslane.functions" in text
    assert "shop.py:" in text


def test_metrics(spark: SparkSession, tmp_path: Path) -> None:
    def of(query: str) -> dict[str, int]:
        frame = spark.sql(query)
        frame.collect()
        return metrics(frame._jdf.queryExecution().executedPlan())

    seen = of("SELECT patient(id, 0.001) FROM range(0, 400, 1, 2)")
    assert seen["numOutputRows"] == 400
    # Each of the two tasks has batches of 64 and 136 rows.
    assert seen["batches"] == 4
    assert seen["sentBytes"] >= 400 * 8
    # The time is in nanoseconds. No sleep is shorter than the time that was asked for.
    assert seen["functionTime"] >= 400_000_000
    assert seen["callTime"] >= seen["functionTime"]
    assert seen["waitTime"] > 0
    assert (seen["errors"], seen["retries"], seen["workersLost"]) == (0, 0, 0)
    assert of("SELECT null_at(id, 3) FROM range(5)")["errors"] == 1
    seen = of(f"SELECT dies_once(id, '{tmp_path}') FROM range(0, 101, 1, 1)")
    assert seen["retries"] >= 2
    assert seen["workersLost"] == 2
    # This function is a separate library, whose workers start for this query.
    crosslane.spark.register(spark, crosslane.udf("fresh_one(x BIGINT) -> BIGINT")(lambda x: x))
    assert of("SELECT fresh_one(id) FROM range(0, 10, 1, 1)")["workersStarted"] >= 1


def refusal(driver: Driver, *files: Path, **settings: object) -> str:
    """The reason why a session does not begin."""
    with pytest.raises(Failed) as caught:
        driver.begin("local[2]", *files, **settings)
    driver.run(
        "from pyspark import SparkContext\nSparkContext._active_spark_context and SparkContext._active_spark_context.stop()"
    )
    return str(caught.value)


def test_files_that_a_session_does_not_begin_with(driver: Driver, tmp_path: Path) -> None:
    def file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    # Spark gives the settings of the JVM's first session to all later sessions.
    driver.begin("local[2]")
    driver.run("spark.stop()")
    assert "there is no file" in refusal(driver, tmp_path / "nowhere.py")
    text = refusal(driver, SHOP, python="/no/such/python")
    assert "the package crosslane is not installed for /no/such/python" in text
    assert "spark.crosslane.python=" in text
    text = refusal(driver, file("broken.py", "from crosslane import udf\n\n1 / 0\n"))
    assert "cannot load" in text
    assert "broken.py" in text
    assert "ZeroDivisionError" in text
    text = refusal(driver, file("broken.js", "udf('f(x BIGINT) -> BIGINT', (x) => x);\nnothing();\n"))
    assert "ReferenceError: nothing is not defined" in text
    text = refusal(driver, file("types.py", "from crosslane import udf\n@udf\ndef f(x): return x\n"))
    assert "types.py:" in text
    assert "function f" in text
    text = refusal(driver, file("builtin.js", "udf('upper(x VARCHAR) -> VARCHAR', (x) => x);\n"))
    assert "upper (" in text
    assert "builtin.js:1" in text
    assert "has the name of a function that Spark has itself" in text
    text = refusal(driver, SHOP, file("again.rb", "udf('slug(x VARCHAR) -> VARCHAR') { |x| x }\n"))
    assert "the function slug is declared twice" in text
    assert "shop.py:" in text
    assert "again.rb:1" in text
    assert "batchRows is at least 1, not 0" in refusal_of_a_query(driver, SHOP, batchRows=0)


def refusal_of_a_query(driver: Driver, *files: Path, **settings: object) -> str:
    driver.begin("local[2]", *files, **settings)
    with pytest.raises(Failed) as caught:
        driver.run("spark.sql('SELECT plus_one(id) FROM range(3)').collect()")
    driver.run("spark.stop()")
    return str(caught.value)


def test_functions_in_a_sandbox(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "reads.py"
    text = "from crosslane import udf\n@udf\ndef content(path: str) -> str: return open(path).read()\n"
    text += "@udf(sandbox='strict')\ndef less(path: str) -> str: return open(path).read()\n"
    file.write_text(text)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "allowed").write_text("allowed")
    # Spark gives the settings of the JVM's first session to all later sessions.
    driver.begin("local[2]")
    driver.run("spark.stop()")
    driver.begin("local[2]", file, pyspark=True, sandbox="on", allow_read=str(tmp_path / "allowed"))
    program = "return spark.sql(query).first()[0]"
    assert driver.run(program, query=f"SELECT content('{tmp_path}/allowed')") == "allowed"
    with pytest.raises(Failed, match=r"PermissionError.*allow_read"):
        driver.run(program, query=f"SELECT content('{tmp_path}/secret')")
    with pytest.raises(Failed, match=r"PermissionError.*a strict sandbox"):
        driver.run(program, query=f"SELECT less('{tmp_path}/allowed')")
    # PySpark's own functions are restricted, too.
    program = """
    from pyspark.sql.functions import lit, udf
    return spark.range(1).select(udf(lambda path: open(path).read())(lit(path))).first()[0]
    """
    with pytest.raises(Failed, match=r"PermissionError"):
        driver.run(program, path=f"{tmp_path}/secret")
    driver.run("spark.stop()")


def test_a_program_has_one_session_after_the_other(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "changes.py"
    for version in (1, 2):
        file.write_text(
            f"from crosslane import udf\n@udf\ndef edition(x: int) -> int: return {version} * x\n"
        )
        driver.begin("local[2]", file)
        assert driver.run("return spark.sql('SELECT edition(id) FROM range(3)').toJSON().collect()") == [
            f'{{"edition(id)":{version * i}}}' for i in range(3)
        ]
        # The session exists already, and cannot be enabled again.
        with pytest.raises(Failed, match="Spark runs already in this program"):
            driver.begin("local[2]", file)
        driver.run("spark.stop()")


def test_a_session_without_the_plugin(drivers: Callable[..., Driver]) -> None:
    # Spark gives the settings of the JVM's first session to all later sessions.
    driver = drivers()
    program = """
    import crosslane.spark
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
    try:
        crosslane.spark.register(spark, lambda x: x, "f(x BIGINT) -> BIGINT")
        return spark.sql("SELECT f(1)").first()[0]
    finally:
        spark.stop()
    """
    with pytest.raises(Failed, match=r"crosslane\.spark\.enable"):
        driver.run(program, conf=CONF)
