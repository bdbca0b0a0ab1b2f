"""Columns of vectorized functions in numpy, pandas, polars and pyarrow: arguments with NULLs, and results that fit or do not."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import duckdb
import pytest

import crosslane

from ..conftest import Library, Load, error, value

pytestmark = pytest.mark.any_duckdb

IMPORTS = """
        import datetime, decimal, uuid
        import numpy as np, numpy.typing as npt, pandas as pd, pyarrow as pa, pyarrow.compute as pc
        from typing import Annotated
        NA, NaT, masked = pd.NA, pd.NaT, np.ma.masked
"""
POLARS = """
        import polars as pl
"""


def test_a_null_changes_no_integer_beside_it(load: Load, subtests: pytest.Subtests) -> None:
    con = load(
        f"""{IMPORTS}{POLARS}
        for library, column in (
            ("np", npt.NDArray[np.int64]),
            ("pd", Annotated[pd.Series, "BIGINT"]),
            ("pl", Annotated[pl.Series, "BIGINT"]),
            ("pa", pa.Int64Array),
        ):
            for nulls in ("skip", "call"):
                def same(x: column) -> column: return x
                def odd(x: column) -> column:
                    return pc.bit_wise_and(x, 1) if isinstance(x, pa.Array) else x & 1
                for each in (same, odd):
                    named = f"{{each.__name__}}_{{library}}_{{nulls}}"
                    globals()[named] = udf(vectorized=True, nulls=nulls, name=named)(each)
        """
    )
    con.execute("CREATE TABLE t (x BIGINT)")
    con.execute("INSERT INTO t VALUES (9007199254740993), (NULL), (-9223372036854775808)")
    for library in ("np", "pd", "pl", "pa"):
        for nulls in ("skip", "call"):
            with subtests.test(f"{library} {nulls}"):
                query = f"SELECT {{}}_{library}_{nulls}(x) FROM t"
                assert con.execute(query.format("same")).fetchall() == [(2**53 + 1,), (None,), (-(2**63),)]
                assert con.execute(query.format("odd")).fetchall() == [(1,), (None,), (0,)]


#: (the SQL type, a value, the dtype of numpy, the dtype of pandas, the dtype of pandas for a function that
#: takes NULLs)
DTYPES = [
    ("BOOLEAN", "true", "bool", "bool", "boolean"),
    ("TINYINT", "1", "int8", "int8", "Int8"),
    ("UBIGINT", "18446744073709551615", "uint64", "uint64", "UInt64"),
    ("FLOAT", "1.5", "float32", "float32", "float32"),
    ("DOUBLE", "'nan'", "float64", "float64", "float64"),
    ("DATE", "'2020-02-29'", "datetime64[D]", "object", "object"),
    ("TIMESTAMP", "'2020-02-29'", "datetime64[us]", "datetime64[us]", "datetime64[us]"),
    ("DECIMAL(4,1)", "1.5", "object", "object", "object"),
]


def test_nulls_do_not_decide_the_dtype(load: Load, subtests: pytest.Subtests) -> None:
    con = load(
        f"""{IMPORTS}
        for n, sql in enumerate({[case[0] for case in DTYPES]!r}):
            for name, column in (("np", np.ndarray), ("pd", pd.Series)):
                for nulls in ("skip", "call"):
                    def kind(x: Annotated[column, sql]) -> pa.StringArray:
                        return [f"{{x.dtype}} {{isinstance(x, np.ma.MaskedArray)}}"] * len(x)
                    def same(x: Annotated[column, sql]) -> Annotated[column, sql]: return x
                    for each in (kind, same):
                        named = f"{{each.__name__}}_{{name}}_{{nulls}}_{{n}}"
                        globals()[named] = udf(vectorized=True, nulls=nulls, name=named)(each)
        """
    )
    for n, (kind, text, numpy, pandas, nullable) in enumerate(DTYPES):
        con.execute(f"CREATE OR REPLACE TABLE t AS SELECT {text}::{kind} AS x UNION ALL SELECT NULL")
        fixed = kind != "DECIMAL(4,1)"
        for name, dtype in (
            ("np_skip", f"{numpy} False"),
            ("np_call", f"{numpy} {fixed}"),
            ("pd_skip", f"{pandas} False"),
            ("pd_call", f"{nullable} False"),
        ):
            with subtests.test(f"{kind} {name}"):
                for rows in ("", "WHERE x IS NOT NULL"):
                    assert con.execute(f"SELECT kind_{name}_{n}(x) FROM t {rows}").fetchone() == (dtype,)
                if kind == "DOUBLE" and name.startswith("pd"):
                    continue  # NaN is the NULL of pandas.
                query = f"SELECT count(*) FROM t WHERE same_{name}_{n}(x) IS DISTINCT FROM x"
                assert value(con, query) == 0


def test_rows_with_null_are_left_out(load: Load) -> None:
    con = load(
        f"""{IMPORTS}
        @udf("rows(a BIGINT, b BIGINT, c VARCHAR) -> BIGINT", vectorized=True)
        def rows(a: pa.Int64Array, b: np.ndarray | None, c: pd.Series):
            assert a.null_count == 0 and not c.isna().any()
            assert len(a) == len(b) == len(c) > 0
            return [len(a)] * len(a)
        @udf("nested(x STRUCT(a INTERVAL)[2]) -> STRUCT(a INTERVAL)[2]", vectorized=True)
        def nested(x): return x
        """
    )
    con.execute("CREATE TABLE t (a BIGINT, b BIGINT, c VARCHAR)")
    con.execute("INSERT INTO t VALUES (1, 1, 'a'), (NULL, 1, 'a'), (1, NULL, 'a'), (1, 1, NULL)")
    nulls = con.execute("SELECT rows(a, b, c) IS NULL FROM t").fetchall()
    assert nulls == [(False,), (True,), (False,), (True,)]
    # All rows have a NULL, so the function is not called.
    assert con.execute("SELECT rows(a, b, c) FROM t WHERE c IS NULL").fetchall() == [(None,)]
    parts = "[{'a': INTERVAL 1 MONTH}, NULL]::STRUCT(a INTERVAL)[2]"
    con.execute(f"CREATE TABLE n AS SELECT {parts} AS x UNION ALL SELECT NULL UNION ALL SELECT {parts}")
    assert value(con, "SELECT count(*) FROM n WHERE nested(x)::VARCHAR IS DISTINCT FROM x::VARCHAR") == 0


#: (the type, a result of a vectorized function of one row, the text of the value)
FITTING = [
    ("BIGINT[]", "pa.array([[1, 2], [3]], pa.list_view(pa.int64()))[1:]", "[3]"),
    ("BIGINT[]", "pa.array([[3]], pa.large_list_view(pa.int32()))", "[3]"),
    ("BIGINT[][]", "pa.array([[[1]], [[3]]], pa.list_(pa.list_view(pa.int64())))[1:]", "[[3]]"),
    ("VARCHAR", "pa.array(['ä'], pa.string_view())", "ä"),
    ("VARCHAR", "pd.Series(['ä'], dtype='category')", "ä"),
    ("BIGINT", "pc.run_end_encode(pa.array([7]))", "7"),
    ("DECIMAL(4,1)", "np.array([1.25])", "1.3"),
    ("DECIMAL(4,1)", "np.array([7], np.int64)", "7.0"),
    ("DECIMAL(4,1)", "pd.Series([-1.25])", "-1.3"),
    ("DECIMAL(4,1)", "pd.Series([decimal.Decimal('1.25')])", "1.3"),
    ("DECIMAL(4,1)", "pa.array([decimal.Decimal('-1.25')])", "-1.3"),
    ("DECIMAL(4,1)", "[1.25]", "1.3"),
    ("DECIMAL(4,1)", "[7]", "7.0"),
    ("DECIMAL(38,10)", "np.array([0.1])", "0.1000000000"),
    ("HUGEINT", "np.array([7], np.uint64)", "7"),
    ("HUGEINT", "np.array([2**100], object)", str(2**100)),
    ("HUGEINT", "pd.Series([-7])", "-7"),
    ("HUGEINT", "[2**100]", str(2**100)),
    ("BIGINT", "np.ma.array([7], mask=[1])", "None"),
    ("BIGINT", "[NA]", "None"),
    ("BIGINT", "[masked]", "None"),
    ("BIGINT", "np.array([NA], object)", "None"),
    ("BIGINT", "pd.Series([NA], dtype='Int64')", "None"),
    ("DOUBLE", "pd.Series([NA], dtype=object)", "None"),
    ("VARCHAR", "pd.Series([np.nan], dtype=object)", "None"),
    ("BIGINT", "pl.Series([7], dtype=pl.Object)", "7"),
    ("HUGEINT", "[decimal.Decimal(2**100)]", str(2**100)),
    ("UUID", "[uuid.UUID(int=5)]", "00000000-0000-0000-0000-000000000005"),
    ("UUID", "[bytes(15) + b'5']", "00000000-0000-0000-0000-000000000035"),
    ("JSON", "['[1]']", "[1]"),
    ("TIMETZ", "[{'time': datetime.time(1), 'offset': -1800}]", "01:00:00-00:30"),
    ("UNION(a INT, b TEXT)", "[{'tag': 'b', 'a': None, 'b': 'x'}]", "x"),
    ("TIMESTAMPTZ[]", "[[np.datetime64('2020-02-29')]]", "['2020-02-29 00:00:00+00']"),
    ("DOUBLE", "np.array([np.nan])", "nan"),
    ("BIGINT[]", "[[1, NA]]", "[1, NULL]"),
    ("TIMESTAMP", "[NaT]", "None"),
    ("TIMESTAMP", "[np.datetime64('NaT')]", "None"),
    ("TIMESTAMP", "[np.datetime64('2020-02-29')]", "2020-02-29 00:00:00"),
    ("TIMESTAMP", "np.array(['2020-02'], 'M8[M]')", "2020-02-01 00:00:00"),
    ("TIMESTAMP", "np.array([3], 'M8[25s]')", "1970-01-01 00:01:15"),
    ("TIMESTAMP_S", "np.array(['2020-02-29'], 'M8[ns]')", "2020-02-29 00:00:00"),
    ("DATE", "np.array(['2020-02-29T00'], 'M8[h]')", "2020-02-29"),
    ("DATE", "pd.Series([pd.Timestamp('2020-02-29')])", "2020-02-29"),
    ("INTERVAL", "pa.array([-5], pa.duration('s'))", "-1 day 23:59:55"),
    ("INTERVAL", "np.array([25], 'm8[h]')", "1 day 01:00:00"),
    ("INTERVAL", "[np.timedelta64('NaT')]", "None"),
    ("INTERVAL", "[np.timedelta64(25, 'h')]", "1 day 01:00:00"),
    ("INTERVAL", "pd.Series([pd.Timedelta(hours=25)])", "1 day 01:00:00"),
    ("FLOAT", "[float('inf')]", "inf"),
    ("FLOAT", "np.array([3.4028235e38])", "3.4028235e+38"),
    ("DECIMAL(11,10)", "np.array([0.1], np.float32)", "0.1000000000"),
    ("DECIMAL(11,10)", "pa.array([0.1], pa.float32())", "0.1000000000"),
    ("BIGINT", "np.array([2.0, np.nan])[:len(x)]", "2"),
    ("BIGINT", "pd.Series([2.0, None])[:len(x)]", "2"),
    ("BIGINT", "pd.Series([None, 2.0])[:len(x)]", "None"),
    ("BOOLEAN", "np.array([1])", "true"),
    ("BIGINT", "np.array([np.int64(2)], object)", "2"),
    ("UBIGINT", "[2**64 - 1]", str(2**64 - 1)),
    ("MAP(BIGINT, DATE)", "[[(1, datetime.date(2020, 2, 29))]]", "{1=2020-02-29}"),
    ("STRUCT(a BIGINT, b DATE)", "[(1, datetime.date(2020, 2, 29))]", "{'a': 1, 'b': 2020-02-29}"),
    ("BIGINT[]", "pd.Series([np.array([1, 2])])", "[1, 2]"),
    ("DATE", "[float('-inf')]", "-infinity"),
    ("TIMESTAMP", "[float('inf')]", "infinity"),
    ("TIMESTAMP", "np.array([np.inf])", "infinity"),
    ("TIMESTAMP", "pd.Series([np.inf])", "infinity"),
]


def functions(cases: list[tuple[str, str, str]], options: str = "", before: str = "", name: str = "f") -> str:
    """The text of functions f_0, f_1, ...: one for each (type, result, ...)."""
    each = "{before}def {name}_{n}(x): return {result}"
    text = [textwrap.dedent(IMPORTS)]
    if any("pl." in result for _, result, _ in cases):
        text.append(textwrap.dedent(POLARS))
    for n, (returns, result, _) in enumerate(cases):
        text.append(f"@udf({f'{name}_{n}(x BIGINT) -> {returns}'!r}{options})")
        text.append(each.format(before=before, name=name, n=n, result=result))
    return "\n".join(text)


def test_columns_that_fit(load: Load, subtests: pytest.Subtests) -> None:
    con = load(functions(FITTING, ", vectorized=True"))
    for n, case in enumerate(FITTING):
        with subtests.test(f"{case[0]}: {case[1]}"):
            assert str(value(con, f"SELECT f_{n}(1)::VARCHAR")) == case[2]


#: (the type, a result of a vectorized function of one row, what the error says)
UNFIT = [
    ("BLOB", "pd.Series([258])", "Unsupported cast from int64 to binary"),
    ("BLOB", "np.array([258])", "Unsupported cast from int64 to binary"),
    ("UUID", "pd.Series([258])", "Unsupported cast"),
    ("BIGINT", "[2.0]", "TypeError: returned float 2.0 where BIGINT is due"),
    ("BIGINT", "[1.9]", "TypeError: returned float 1.9 where BIGINT is due"),
    ("BIGINT", "[float('inf')]", "TypeError: returned float inf where BIGINT is due"),
    ("BIGINT", "[decimal.Decimal('1.5')]", "TypeError: returned Decimal Decimal('1.5') where BIGINT is due"),
    ("BIGINT", "np.array([1.9], object)", "TypeError: returned float 1.9 where BIGINT is due"),
    ("BIGINT", "pd.Series([1.9], dtype=object)", "TypeError: returned float 1.9 where BIGINT is due"),
    ("BIGINT", "pl.Series([1.9], dtype=pl.Object)", "TypeError: returned float 1.9 where BIGINT is due"),
    ("TINYINT[]", "[[1, 1.9]]", "TypeError: returned float 1.9 where TINYINT is due"),
    ("MAP(BIGINT, BIGINT)", "[{1.9: 1}]", "TypeError: returned float 1.9 where BIGINT is due"),
    ("STRUCT(a BIGINT)", "[{'a': 1.9}]", "TypeError: returned float 1.9 where BIGINT is due"),
    ("STRUCT(a BIGINT)", "[(1.9,)]", "TypeError: returned float 1.9 where BIGINT is due"),
    ("DATE", "[datetime.datetime(2020, 2, 29)]", "2020, 2, 29, 0, 0) where DATE is due; return its .date()"),
    ("DATE", "[datetime.datetime(2020, 2, 29, 5)]", "2020, 2, 29, 5, 0) where DATE is due"),
    ("HUGEINT", "[decimal.Decimal('1.5')]", "returned Decimal Decimal('1.5') where HUGEINT is due"),
    ("HUGEINT", "[decimal.Decimal('inf')]", "returned Decimal Decimal('Infinity') where HUGEINT is due"),
    ("UUID", "[bytes(15)]", "where UUID is due"),
    ("TIMETZ", "[{'time': datetime.time(1), 'offset': 57600}]", "which does not fit TIMETZ"),
    ("TIMETZ", "[{'time': datetime.time(1), 'offset': None}]", "where TIMETZ is due"),
    (
        "UNION(a INT, b TEXT)",
        "[{'tag': 'c', 'a': 1, 'b': None}]",
        "returned the tag str 'c', which no member",
    ),
    ("UNION(a INT, b TEXT)", "[{'tag': 'b', 'a': 1, 'b': 'x'}]", "a UNION that has more than b := 'x'"),
    ("UNION(a INT, b TEXT)", "[{'tag': 'b', 'b': 'x'}]", "where UNION(a INTEGER, b VARCHAR) is due"),
    ("BOOLEAN", "np.array([7])", "TypeError: returned 7 where BOOLEAN is due"),
    ("BOOLEAN", "pa.array(['1'])", "TypeError: returned 1 where BOOLEAN is due"),
    ("BIGINT", "np.array(['2020-02-29'], 'M8[us]')", "TypeError: returned timestamp[us] where int64 is due"),
    ("TIME", "np.array(['2020-02-29T05'], 'M8[us]')", "TypeError: returned timestamp[us] where TIME is due"),
    ("TIMESTAMP", "pa.array([0], pa.timestamp('us', 'UTC'))", "where TIMESTAMP is due; declare TIMESTAMPTZ"),
    (
        "DATE",
        "np.array(['2020-02-29T05'], 'M8[h]')",
        "TypeError: returned 2020-02-29 05:00:00 where DATE is due",
    ),
    ("DATE", "[[1]]", "TypeError: returned list [1] where DATE is due"),
    ("DATE", "[7]", "TypeError: returned int 7 where DATE is due"),
    ("DATE", "np.array([7], np.int32)", "TypeError: returned int32 where DATE is due"),
    ("TIME", "[7]", "TypeError: returned int 7 where TIME is due"),
    ("TIMESTAMP", "[7]", "TypeError: returned int 7 where TIMESTAMP is due"),
    ("TIMESTAMP", "np.array([7])", "TypeError: returned int64 where TIMESTAMP is due"),
    ("TIMESTAMP", "np.array([7.5])", "TypeError: returned 7.5 where TIMESTAMP is due"),
    ("TIMESTAMP[]", "pa.array([[7]])", "TypeError: returned int64 where TIMESTAMP is due"),
    ("DECIMAL(4,1)", "np.array([1e10])", "returned 10000000000.0, which does not fit DECIMAL(4,1)"),
    ("DECIMAL(4,1)", "np.array([10000])", "does not fit in precision 4"),
    ("DECIMAL(4,1)", "['1.5']", "TypeError: returned str '1.5' where DECIMAL(4,1) is due"),
    ("DECIMAL(4,1)", "[float('nan')]", "returned float nan, which does not fit DECIMAL(4,1)"),
    ("HUGEINT", "np.array([1.5])", "returned 1.5, which does not fit HUGEINT"),
    ("HUGEINT", "[2**128]", "does not fit HUGEINT"),
    ("BIGINT", "np.array([1.5])", "truncated"),
    ("FLOAT", "np.array([1e300])", "OverflowError: returned 1e+300, which does not fit FLOAT"),
    ("FLOAT", "pd.Series([-1e300])", "OverflowError: returned -1e+300, which does not fit FLOAT"),
    ("FLOAT", "pa.array([1e300])", "OverflowError: returned 1e+300, which does not fit FLOAT"),
    ("FLOAT", "[1e300]", "OverflowError: returned float 1e+300, which does not fit FLOAT"),
    ("FLOAT[]", "[[1e300]]", "OverflowError: returned float 1e+300, which does not fit FLOAT"),
    ("FLOAT[2]", "[[1, 1e300]]", "OverflowError: returned float 1e+300, which does not fit FLOAT"),
    (
        "MAP(VARCHAR, FLOAT)",
        "[{'a': 1e300}]",
        "OverflowError: returned float 1e+300, which does not fit FLOAT",
    ),
    (
        "STRUCT(a INTEGER, b FLOAT)",
        "[(1, 1e300)]",
        "OverflowError: returned float 1e+300, which does not fit",
    ),
    ("STRUCT(b FLOAT)", "pa.array([{'b': 1e300}])", "OverflowError: returned 1e+300, which does not fit"),
    (
        "BIGINT[]",
        "pa.ListArray.from_buffers(pa.list_(pa.int64()), 1, [None, pa.py_buffer(np.array([0, 9], np.int32))], "
        "children=[pa.array([1])])",
        "ArrowInvalid",
    ),
]


def test_columns_that_do_not_fit(load: Load, subtests: pytest.Subtests) -> None:
    con = load(functions(UNFIT, ", vectorized=True"))
    for n, case in enumerate(UNFIT):
        with subtests.test(f"{case[0]}: {case[1]}"):
            assert case[2] in error(con, f"SELECT f_{n}(1)::VARCHAR")


#: (the type, a result of a row function, the text of the value)
ROWS = [
    ("BIGINT", "NA", "None"),
    ("DOUBLE", "NA", "None"),
    ("DOUBLE", "masked", "None"),
    ("BIGINT", "masked", "None"),
    ("VARCHAR", "NA", "None"),
    ("JSON", "NA", "None"),
    ("TIMESTAMP", "NaT", "None"),
    ("DATE", "NaT", "None"),
    ("INTERVAL", "NaT", "None"),
    ("TIMESTAMP", "np.datetime64('NaT')", "None"),
    ("INTERVAL", "np.timedelta64('NaT')", "None"),
    ("BIGINT[]", "[1, NA, masked]", "[1, NULL, NULL]"),
    ("BIGINT[]", "np.ma.array([1, 2], mask=[0, 1])", "[1, NULL]"),
    ("DATE", "np.datetime64('2020-02-29')", "2020-02-29"),
    ("DATE", "np.datetime64('1960-02-29T00:00', 'ns')", "1960-02-29"),
    ("TIMESTAMP", "np.datetime64('1960-02-29T01:02:03.999999999')", "1960-02-29 01:02:03.999999"),
    ("TIMESTAMP", "np.datetime64('2020-02')", "2020-02-01 00:00:00"),
    ("TIMESTAMP_S", "np.datetime64('2020-02-29T01:02:03.999')", "2020-02-29 01:02:03"),
    ("TIMESTAMP_MS", "np.datetime64('9999-12-31T23:59:59')", "9999-12-31 23:59:59"),
    ("TIMESTAMP_NS", "np.datetime64('2020-02-29T01:02:03.123456789')", "2020-02-29 01:02:03.123456789"),
    ("INTERVAL", "pa.MonthDayNano((1, 2, 3000))", "1 month 2 days 00:00:00.000003"),
    ("INTERVAL", "np.timedelta64(25, 'h')", "1 day 01:00:00"),
    ("INTERVAL", "np.timedelta64(-1, 'ms')", "-1 day 23:59:59.999"),
    ("DECIMAL(4,1)", "np.float64(1.25)", "1.3"),
    ("DECIMAL(4,2)", "np.float32(0.1)", "0.10"),
    ("DECIMAL(4,1)", "np.int64(7)", "7.0"),
]


def test_values_of_numpy_and_pandas_as_rows(load: Load, subtests: pytest.Subtests) -> None:
    con = load(functions(ROWS) + "\n" + functions(ROWS, before="async ", name="async"))
    for name in ("f", "async"):
        for n, case in enumerate(ROWS):
            with subtests.test(f"{name} {case[0]}: {case[1]}"):
                assert str(value(con, f"SELECT {name}_{n}(1)::VARCHAR")) == case[2]


#: (the type, a result of a row function, what the error says)
UNFIT_ROWS = [
    ("DATE", "np.datetime64('2020-02-29T01')", "where DATE is due"),
    ("TIMESTAMP", "np.datetime64(2**62, 's')", "does not fit TIMESTAMP"),
    # DuckDB takes these numbers for infinities.
    ("TIMESTAMP", "np.datetime64(2**63 - 1, 'us')", "does not fit TIMESTAMP"),
    ("TIMESTAMP_NS", "np.datetime64(1 - 2**63, 'ns')", "does not fit TIMESTAMP_NS"),
    ("DATE", "np.datetime64(2**31 - 1, 'D')", "does not fit DATE"),
    ("TIMESTAMPTZ", "np.datetime64('2020-02-29')", "where TIMESTAMPTZ is due"),
    ("INTERVAL", "np.datetime64('2020-02-29')", "where INTERVAL is due"),
    ("INTERVAL", "np.timedelta64(1, 'M')", "where INTERVAL is due"),
    ("BIGINT", "np.datetime64('2020-02-29')", "where BIGINT is due"),
    ("DECIMAL(4,1)", "'1.5'", "where DECIMAL(4,1) is due"),
    ("FLOAT", "1e300", "OverflowError: returned float 1e+300, which does not fit FLOAT"),
    ("FLOAT", "2**1000", "does not fit FLOAT"),
]


def test_values_that_do_not_fit_a_row(load: Load, subtests: pytest.Subtests) -> None:
    con = load(functions(UNFIT_ROWS))
    for n, case in enumerate(UNFIT_ROWS):
        with subtests.test(f"{case[0]}: {case[1]}"):
            assert case[2] in error(con, f"SELECT f_{n}(1)")


GENERATORS = f"""{IMPORTS}
        from collections.abc import Iterator
        @udf(vectorized=True, deterministic=False)
        def begun(batches: Iterator[pa.Int64Array]) -> Iterator[pa.Int64Array]:
            for number, batch in enumerate(batches):
                if pc.any(pc.equal(batch, -1)).as_py():
                    raise LookupError("minus one")
                yield pa.array([number] * len(batch))
        @udf("weighted(x DOUBLE, y BIGINT) -> DOUBLE", vectorized=True)
        def weighted(batches: Iterator[tuple[np.ndarray, pd.Series]]) -> Iterator[np.ndarray]:
            for x, y in batches:
                assert isinstance(x, np.ndarray) and isinstance(y, pd.Series)
                yield x * 2 + y.to_numpy()
        @udf("plain(x VARCHAR, y VARCHAR) -> VARCHAR", vectorized=True)
        def plain(batches):
            yield from (pc.binary_join_element_wise(x, y, "-") for x, y in batches)
        """
OUT_OF_STEP = """
        import pyarrow as pa
        @udf("greedy(x BIGINT) -> BIGINT", vectorized=True)
        def greedy(batches):
            for batch in batches:
                next(batches)
                yield batch
        @udf("eager(x BIGINT) -> BIGINT", vectorized=True)
        def eager(batches):
            yield pa.array([1])
        @udf("short(x BIGINT) -> BIGINT", vectorized=True)
        def short(batches):
            yield next(batches)
        """


@pytest.fixture
def one_worker() -> Iterator[duckdb.DuckDBPyConnection]:
    """An engine that sends all calls to the same worker."""
    with crosslane.connect(config={"threads": 1}) as con:
        con.execute("CALL crosslane_set('warm_lanes', 1)")
        yield con


def test_a_generator_of_columns_goes_on_from_batch_to_batch(
    one_worker: duckdb.DuckDBPyConnection, library: Library
) -> None:
    con = one_worker
    crosslane.load(con, library(GENERATORS))
    con.execute("CREATE TABLE t AS SELECT begun(i) AS n FROM range(10_000) r(i)")
    last = value(con, "SELECT max(n) FROM t")
    assert last > 2
    assert value(con, "SELECT count(DISTINCT n) FROM t") == last + 1
    assert value(con, "SELECT begun(i) FROM range(1, 2) r(i)") == last + 1
    assert "LookupError: minus one" in error(con, "SELECT begun(i) FROM range(-1, 0) r(i)")
    # The engine starts a new generator.
    assert value(con, "SELECT begun(i) FROM range(1, 2) r(i)") == 0
    assert value(con, "SELECT weighted(1.5, 4)") == 7
    assert value(con, "SELECT weighted(1.5, NULL)") is None
    assert value(con, "SELECT plain('a', 'b')") == "a-b"


def test_a_generator_that_does_not_yield_one_column_for_each_batch(
    one_worker: duckdb.DuckDBPyConnection, library: Library
) -> None:
    con = one_worker
    crosslane.load(con, library(OUT_OF_STEP))
    assert "asked for another batch before it yielded" in error(con, "SELECT greedy(i) FROM range(1, 2) r(i)")
    assert "yielded a column without a batch" in error(con, "SELECT eager(i) FROM range(1, 2) r(i)")
    assert value(con, "SELECT short(i) FROM range(1, 2) r(i)") == 1
    assert "ended, where it yields a column for each batch" in error(
        con, "SELECT short(i) FROM range(2, 3) r(i)"
    )
    assert value(con, "SELECT short(i) FROM range(3, 4) r(i)") == 3


def test_a_generator_that_cannot_be_called(
    con: duckdb.DuckDBPyConnection, library: Library, subtests: pytest.Subtests
) -> None:
    for function, words in (
        (
            "import pyarrow as pa\nfrom collections.abc import Iterator\n@udf(vectorized=True)\n"
            "def f(b: Iterator[tuple[pa.Int64Array, pa.Int64Array]]) -> Iterator[pa.Int64Array]: yield",
            "its columns have no names",
        ),
        (
            "@udf('f(x INT) -> INT', vectorized=True)\ndef f(x, y): yield",
            "has one parameter, the iterator of batches",
        ),
        ("@udf('f() -> INT', vectorized=True)\ndef f(b): yield", "takes at least one"),
        ("@udf('f(*x INT) -> INT', vectorized=True)\ndef f(b): yield", "takes at least one"),
        ("@udf(vectorized=True)\ndef f(b): yield", "has no type"),
    ):
        with subtests.test(function):
            with pytest.raises(duckdb.Error, match=words):
                crosslane.load(con, library(function))
