"""Values at the limits of their types have the same meaning in all languages."""

from __future__ import annotations

import copy
import datetime
import operator
import pickle

import pandas as pd
import pytest

from crosslane import TimestampNs

from ..conftest import Load, error, value

MOMENTS = ["DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ"]


def test_infinite_dates_are_the_infinite_numbers_of_each_language(
    load: Load, script: Load, ruby: Load
) -> None:
    lines: dict[str, list[str]] = {"py": ["import math"], "js": [], "rb": []}
    for kind in MOMENTS:
        for name, options in (("row", ""), ("all", ", vectorized=True")):
            sees = "x == math.inf" if name == "row" else "[v == math.inf for v in x.to_pylist()]"
            if name == "row":  # Arrow has no infinity of its own: vectorized functions see its number.
                lines["py"].append(
                    f"@udf('py_sees_{name}_{kind}(x {kind}) -> BOOLEAN')\ndef py_sees_{kind}(x): return {sees}"
                )
            signature = f"py_{name}_{kind}(up BOOLEAN) -> {kind}"
            gives = (
                "math.inf if up else -math.inf"
                if name == "row"
                else "[math.inf if v else -math.inf for v in up.to_pylist()]"
            )
            lines["py"].append(f"@udf({signature!r}{options})\ndef g(up): return {gives}")
            lines["py"].append(f"py_{name}_{kind} = g")
            option = "{ vectorized: true }" if options else "{}"
            sees = "x === Infinity" if name == "row" else "x.map((v) => v === Infinity)"
            lines["js"].append(f"udf('js_sees_{name}_{kind}(x {kind}) -> BOOLEAN', {option}, (x) => {sees});")
            gives = (
                "up ? Infinity : -Infinity" if name == "row" else "up.map((v) => v ? Infinity : -Infinity)"
            )
            lines["js"].append(f"udf('js_{name}_{kind}(up BOOLEAN) -> {kind}', {option}, (up) => {gives});")
            option = ", vectorized: true" if options else ""
            sees = "x == Float::INFINITY" if name == "row" else "x.map { |v| v == Float::INFINITY }"
            lines["rb"].append(f"udf('rb_sees_{name}_{kind}(x {kind}) -> BOOLEAN'{option}) {{ |x| {sees} }}")
            gives = "(up ? 1 : -1) * Float::INFINITY"
            gives = gives if name == "row" else f"up.map {{ |up| {gives} }}"
            lines["rb"].append(f"udf('rb_{name}_{kind}(up BOOLEAN) -> {kind}'{option}) {{ |up| {gives} }}")
    con = load("\n".join(lines["py"]))
    script("\n".join(lines["js"]))
    ruby("\n".join(lines["rb"]))
    for kind in MOMENTS:
        for language in ("py", "js", "rb"):
            for name in ("row", "all"):
                both = f"SELECT list({language}_{name}_{kind}(i = 0)::VARCHAR ORDER BY i) FROM range(2) r(i)"
                assert value(con, both) == ["infinity", "-infinity"], (language, name, kind)
                if (language, name) == ("py", "all"):
                    continue
                both = f"SELECT list({language}_sees_{name}_{kind}(x::{kind}) ORDER BY x) FROM VALUES ('infinity'), ('-infinity') t(x)"
                assert value(con, both) == [False, True], (language, name, kind)


def test_numbers_that_are_too_large_for_floats(load: Load, script: Load, ruby: Load) -> None:
    con = load(
        """
        @udf("py(x DOUBLE) -> FLOAT")
        def py(x): return x
        @udf("py_all(x DOUBLE) -> FLOAT", vectorized=True)
        def py_all(x): return x
        @udf("py_whole(x BIGINT) -> DOUBLE")
        def py_whole(x): return 10**400
        """
    )
    script(
        """
        udf('js(x DOUBLE) -> FLOAT', (x) => x);
        udf('js_all(x DOUBLE) -> FLOAT', { vectorized: true }, (x) => x);
        udf('js_whole(x BIGINT) -> DOUBLE', (x) => 10n ** 400n);
        udf('js_large(x BIGINT) -> FLOAT', (x) => 2n ** 200n);
        udf('js_all_whole(x BIGINT) -> DOUBLE', { vectorized: true }, (x) => [10n ** 400n]);
        """
    )
    ruby(
        """
        require "bigdecimal"
        udf("rb(x DOUBLE) -> FLOAT") { |x| x }
        udf("rb_all(x DOUBLE) -> FLOAT", vectorized: true) { |x| x }
        udf("rb_whole(x BIGINT) -> DOUBLE") { |x| x > 0 ? 10**400 : BigDecimal("-Infinity") }
        """
    )
    for language in ("py", "js", "rb"):
        for name in (language, f"{language}_all"):
            for number in ("1e300", "-3.5e38"):
                assert "does not fit FLOAT" in error(con, f"SELECT {name}({number})"), name
            assert value(con, f"SELECT {name}('-infinity')") == float("-inf")
            assert value(con, f"SELECT {name}(3.4028235e38) = 3.4028235e38::FLOAT") is True
            assert value(con, f"SELECT isnan({name}('nan'))") is True
    # The database itself reports this error for a cast.
    assert "out of range" in error(con, "SELECT (x::DOUBLE)::FLOAT FROM VALUES (1e300) t(x)")
    assert "does not fit DOUBLE" in error(con, "SELECT js_whole(1)")
    assert "does not fit DOUBLE" in error(con, "SELECT js_all_whole(1)")
    assert "does not fit FLOAT" in error(con, "SELECT js_large(1)")
    assert "does not fit DOUBLE" in error(con, "SELECT rb_whole(1)")
    assert value(con, "SELECT rb_whole(-1)") == float("-inf")
    assert "where DOUBLE is due" in error(con, "SELECT py_whole(1)")


def test_nanoseconds_survive() -> None:
    day, micro = datetime.timedelta(days=1), datetime.timedelta(microseconds=1)
    moment = TimestampNs(2020, 2, 29, 12, nanosecond=5)
    plain = datetime.datetime(2020, 2, 29, 12)
    for later in (moment + day, day + moment, moment - -day):
        assert (type(later), later.nanosecond, later.day) == (TimestampNs, 5, 1)
    assert moment.replace(hour=1).nanosecond == 5
    assert moment.replace(nanosecond=7) == TimestampNs(2020, 2, 29, 12, nanosecond=7)
    assert moment.replace(2021, 3, 1) == TimestampNs(2021, 3, 1, 12, nanosecond=5)
    zoned = moment.replace(tzinfo=datetime.UTC).astimezone(datetime.timezone(datetime.timedelta(hours=1)))
    assert (zoned.hour, zoned.nanosecond) == (13, 5)
    assert str(zoned) == "2020-02-29 12:00:00.000000005+00:00".replace("12", "13").replace("+00", "+01")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(moment, protocol))
        assert (type(again), again.nanosecond, again) == (TimestampNs, 5, moment)
    assert copy.deepcopy(moment).nanosecond == 5
    # Comparisons also work with moments without nanoseconds, and with the moments of pandas.
    steps = [plain - micro, plain, moment, moment.replace(nanosecond=6), plain + micro]
    for left, one in enumerate(steps):
        for right, other in enumerate(steps):
            for order in (operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt):
                assert order(one, other) is order(left, right), (one, order, other)
    assert sorted(reversed(steps)) == steps
    assert moment == pd.Timestamp("2020-02-29 12:00:00.000000005")
    assert TimestampNs(2020, 2, 29, 12) == plain
    assert hash(TimestampNs(2020, 2, 29, 12)) == hash(plain)
    assert moment != "text"
    with pytest.raises(TypeError):
        assert moment < 1
    assert moment - plain == datetime.timedelta(0)
    assert plain - moment == -micro
    assert moment - moment.replace(nanosecond=6) == -micro
    assert repr(moment) == "TimestampNs(2020-02-29T12:00:00.000000005)"
    with pytest.raises(ValueError, match="nanosecond must be in"):
        TimestampNs(2020, 1, 1, nanosecond=1000)


def test_nanoseconds_survive_a_function(load: Load) -> None:
    con = load(
        """
        import datetime
        from crosslane import TimestampNs
        @udf
        def later(x: TimestampNs) -> TimestampNs: return x + datetime.timedelta(days=1)
        """
    )
    query = "SELECT later('2020-02-29 12:00:00.123456789'::TIMESTAMP_NS)::VARCHAR"
    assert value(con, query) == "2020-03-01 12:00:00.123456789"


def test_a_file_may_replace_the_class_of_moments(load: Load) -> None:
    con = load(
        """
        import datetime
        real = datetime.datetime
        class Frozen(real): pass
        datetime.datetime = Frozen
        @udf("f(x TIMESTAMP) -> TIMESTAMP")
        def f(x): return real(2020, 1, 1) if type(x) is real else None
        """
    )
    assert value(con, "SELECT f(TIMESTAMP '2020-02-29')") == datetime.datetime(2020, 1, 1)
