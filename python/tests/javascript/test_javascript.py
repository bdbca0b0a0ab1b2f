"""JavaScript functions: files and modules, values, kinds, errors. `test_isolates.py` has limits and lives."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import crosslane
from crosslane._cli import main

from ..conftest import Load, error, printed, value

pytestmark = pytest.mark.any_duckdb

# ---- files


def test_modules_helpers_and_data(script: Load, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "text.mjs").write_text(
        'import words from "../words.json";\n'
        "export const shout = (text) => text.toUpperCase() + words.end;\n"
        "export default class Counter { #count = 0; next() { return ++this.#count; } }\n"
    )
    (tmp_path / "words.json").write_text('{"end": "!", "ünïcödé": [1, 2]}')
    con = script(
        """
        import { udf } from "crosslane";
        import Counter, { shout } from "./lib/text.mjs";
        const counter = new Counter();
        const seen = new Map([["a", 1]]);
        export const loud = udf("loud(x VARCHAR) -> VARCHAR", (x) => shout(x));
        udf("twice(x VARCHAR) -> VARCHAR", (x) => loud(x) + loud(x));
        udf("counted(x BIGINT) -> BIGINT", { deterministic: false }, (x) => counter.next());
        udf("size(x BIGINT) -> BIGINT", (x) => seen.size);
        """
    )
    assert value(con, "SELECT loud('hé')") == "HÉ!"
    assert value(con, "SELECT twice('a')") == "A!A!"
    assert value(con, "SELECT size(1)") == 1


def test_what_warming_up_does_is_not_seen(script: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = script(
        """
        let calls = 0;
        udf("calls(x VARCHAR) -> BIGINT", { deterministic: false }, (x) => { console.log("called with", x); return ++calls; });
        """
    )
    assert value(con, "SELECT calls('one')") == 1
    assert printed(capfd, "one") == "called with one\n"


def test_what_a_file_may_make_at_its_top_level(script: Load) -> None:
    con = script(
        """
        const number = new Intl.NumberFormat("en"), used = number.format(1234.5);
        const { format } = Intl.NumberFormat("de-DE", { style: "currency", currency: "EUR" });
        const date = new Intl.DateTimeFormat("de", { timeZone: "UTC" }), { compare } = new Intl.Collator("de");
        const region = new Intl.DisplayNames(["en"], { type: "region" }), plural = new Intl.PluralRules("en");
        const words = new Intl.Segmenter("en", { granularity: "word" }), locale = new Intl.Locale("de-AT");
        const list = new Intl.ListFormat("en"), relative = new Intl.RelativeTimeFormat("en");
        class Twice extends Intl.NumberFormat { twice(x) { return this.format(2 * x); } }
        const twice = new Twice("en");
        const key = {}, weak = new WeakMap([[key, "weak"]]), proxy = new Proxy({}, { get: () => "proxy" });
        const steps = (function* () { yield 1; yield "step"; })(); steps.next();
        const doubles = new Float64Array(1e5).fill(2), view = new DataView(new ArrayBuffer(8));
        const again = /a(b+)/gi; again.exec("abb");
        class Private { static #one = 1; #two = 2; sum() { return Private.#one + this.#two; } }
        const hidden = new Private(), symbol = Symbol.for("s"), keyed = { [symbol]: "keyed" }, kept = new Error("kept");
        udf("f(x BIGINT) -> VARCHAR[]", (x) => [
          number.format(x * 1000.5), used, format(x), date.format(new Date(0)), ["z", "ä", "a"].sort(compare).join(""),
          region.of("US"), plural.select(1), [...words.segment("a b")].length, locale.language, list.format(["a", "b"]),
          relative.format(1, "day"), twice.twice(4000), number instanceof Intl.NumberFormat, twice instanceof Twice,
          number.resolvedOptions().locale, new Intl.NumberFormat(locale).format(1), Intl.NumberFormat.name,
          weak.get(key), proxy.any, steps.next().value, doubles[99999], view.getInt8(0), "xabb".replace(again, "$1"),
          hidden.sum(), keyed[symbol], kept.message,
        ].map(String));
        udf("bad(x BIGINT) -> VARCHAR", (x) => new Intl.NumberFormat("no locale").format(x));
        """
    )
    assert value(con, "SELECT f(3)") == [
        "3,001.5", "1,234.5", "3,00\u00a0€", "1.1.1970", "aäz", "United States", "one", "3", "de", "a and b",
        "in 1 day", "8,000", "true", "true", "en", "1", "NumberFormat", "weak", "proxy", "step", "2", "0", "xbb",
        "3", "keyed", "kept",
    ]  # fmt: skip
    assert "RangeError: Incorrect locale information" in error(con, "SELECT bad(1)")


BAD_FILES = {
    "const a = 1;\nconst b = a +;": [
        "SyntaxError: Unexpected token ';'",
        "functions.js:2:14",
        "const b = a +;",
    ],
    "function f() {\n  null.x;\n}\nf();": [
        "TypeError: Cannot read properties of null",
        "at f (",
        "functions.js:2:8",
    ],
    "throw 'text';": ['thrown string: "text"', "functions.js"],
    "missing();": ["ReferenceError: missing is not defined", "functions.js:1:1"],
    "1;\nimport './nope.js';": ['cannot import "./nope.js"', "functions.js:2:8"],
    "import './words';": ['did you mean "./words.json"?'],
    "import _ from 'lodash';": ["only paths such as", "esbuild lodash --bundle"],
    "import fs from 'node:fs';": ["functions have no files, sockets or processes"],
    "await new Promise(() => {});": ["a top-level await waits for something that nothing can settle"],
    "udf('f(x BIGNT) -> BIGINT', (x) => x);": ["SignatureError", "f(x BIGNT)", "functions.js:1"],
    "\nudf('f(x BIGINT) -> BIGINT', { timout: 1 }, (x) => x);": ['no option "timout"', "timeout", ":2:1"],
    "udf('f(x BIGINT) -> BIGINT', { timeout: -1 }, (x) => x);": [
        "timeout is a positive number of seconds, at most 1000000000, not -1"
    ],
    "udf('f(x BIGINT) -> BIGINT', { nulls: 'both' }, (x) => x);": ['nulls is "skip" or "call", not "both"'],
    "udf('f(x BIGINT) -> BIGINT', { memory_limit: 'lots' }, (x) => x);": [
        "memory_limit is a size such as '500 MB'"
    ],
    "udf('f(x BIGINT) -> BIGINT', { retries: 1.5 }, (x) => x);": [
        "retries is a whole number from 0 to 1000000, not 1.5"
    ],
    "const parts = new Intl.Segmenter('en').segment('a b');\nudf('f() -> BIGINT', () => [...parts].length);": [
        "cannot be put into a snapshot",
        "needs it first",
    ],
    "udf('f(x BIGINT) -> BIGINT');": ['use udf("name(parameter TYPE) -> TYPE"'],
}


def test_a_file_that_cannot_be_loaded(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    path = tmp_path / "functions.js"
    (tmp_path / "words.json").write_text("{}")
    for text, parts in BAD_FILES.items():
        with subtests.test(text):
            path.write_text(text)
            with pytest.raises(duckdb.Error) as caught:
                crosslane.load(con, path)
            assert "cannot load" in str(caught.value)
            for part in parts:
                assert part in str(caught.value)


def test_a_file_that_loops_or_eats_memory(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    con.execute("CALL crosslane_set('load_timeout', '1')")
    for name, text, message in [
        ("loops.js", "let i = 0;\nfor (;;) i++;", "was not loaded within 1 s"),
        ("eats.js", "const all = [];\nfor (;;) all.push(new Uint8Array(1 << 20));", "used more than 512 MB"),
    ]:
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(duckdb.Error, match=message) as caught:
            crosslane.load(con, path)
        assert f"{name}:2:" in str(caught.value)
        con.execute("CALL crosslane_set('load_timeout', '20')")


def test_reloading_replaces_the_functions(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    for version in (1, 2):
        path.write_text(f"udf('f(x BIGINT) -> BIGINT', (x) => {version});")
        crosslane.load(con, path)
        assert value(con, "SELECT f(1)") == version


def test_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text(
        "udf('f(x INT) -> INT', (x) => x + 1);\nudf('g() -> DOUBLE', { vectorized: true }, () => []);"
    )
    crosslane_ = [sys.executable, "-m", "crosslane._cli"]
    run = subprocess.run(
        [*crosslane_, "sql", "-f", str(path), "SELECT f(41) AS answer", "--format", "jsonl"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(run.stdout) == {"answer": 42}, run.stderr
    run = subprocess.run([*crosslane_, "check", str(path)], capture_output=True, text=True, timeout=60)
    assert "f(x INTEGER) -> INTEGER" in run.stdout
    assert "vectorized" in run.stdout
    path.write_text("nothing(1);")
    run = subprocess.run([*crosslane_, "check", str(path)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "ReferenceError: nothing is not defined" in run.stderr


# ---- values


def test_integers_beyond_what_a_number_holds(script: Load) -> None:
    con = script(
        """
        udf("f(x BIGINT) -> BIGINT", (x) => x);
        udf("u(x UBIGINT) -> UBIGINT", (x) => x);
        udf("big(x BIGINT) -> BIGINT", { bigint: true }, (x) => x + 1n);
        udf("kind(x HUGEINT) -> VARCHAR", (x) => typeof x);
        """
    )
    most = 2**53 - 1
    for x in (0, 1, -1, 2**31, -(2**31) - 1, 2**32, most, -most):
        assert value(con, f"SELECT f({x})") == x
    for x in (0, 1, 2**31, 2**32, most):
        assert value(con, f"SELECT u({x})") == x
    for call in (f"f({most + 2})", f"f(-{most + 2})", f"u({2**64 - 1})"):
        text = error(con, f"SELECT {call}")
        assert "beyond 2^53" in text
        assert "{ bigint: true }" in text
    assert value(con, f"SELECT big({2**62})") == 2**62 + 1
    assert "does not fit BIGINT" in error(con, f"SELECT big({2**63 - 1})")
    assert value(con, "SELECT kind(1)") == "bigint"


def test_decimals_are_exact(script: Load) -> None:
    con = script(
        """
        udf("text(x DECIMAL(38,10)) -> VARCHAR", (x) => `${typeof x} ${x}`);
        udf("unscaled(x DECIMAL(38,10)) -> DECIMAL(38,10)", { decimal: "bigint" }, (x) => x + 1n);
        udf("parse(x VARCHAR) -> DECIMAL(6,2)", (x) => x);
        udf("number(x DOUBLE) -> DECIMAL(6,2)", (x) => x);
        """
    )
    assert value(con, "SELECT text(-0.0000000001)") == "string -0.0000000001"
    assert str(value(con, "SELECT unscaled(9999999999999999999999999999.9999999998)")).endswith(
        "9999.9999999999"
    )
    for text, expected in {
        "1": "1.00", "-1.5": "-1.50", "1.005": "1.01", "-1.005": "-1.01", "1.004999": "1.00",
        "1e3": "1000.00", "12.5e-1": "1.25", ".5": "0.50", "9999.994": "9999.99",
    }.items():  # fmt: skip
        assert str(value(con, f"SELECT parse('{text}')")) == expected
    assert str(value(con, "SELECT number(1.25)")) == "1.25"
    for text in ("9999.995", "1e300", "x", "", "1.2.3"):
        assert "does not fit DECIMAL(6,2)" in error(con, f"SELECT parse('{text}')")


def test_dates_are_dates_and_keep_their_fractions(script: Load) -> None:
    con = script(
        """
        udf("iso(x TIMESTAMP) -> VARCHAR", (x) => `${x instanceof Date} ${x.toISOString()} ${x.nanoseconds}`);
        udf("later(x TIMESTAMP) -> TIMESTAMP", (x) => new Date(x.getTime() + 1));
        udf("fine(x TIMESTAMP_NS) -> TIMESTAMP_NS", (x) => new Timestamp(x.getTime(), x.nanoseconds + 1));
        udf("next_day(x DATE) -> DATE", (x) => new Date(Date.UTC(x.getUTCFullYear(), x.getUTCMonth(), x.getUTCDate() + 1, 5)));
        udf("invalid(x DATE) -> DATE", (x) => new Date(NaN));
        udf("clock(x TIME) -> VARCHAR", (x) => x);
        """
    )
    assert (
        value(con, "SELECT iso('2013-01-02 03:04:05.678901'::TIMESTAMP)")
        == "true 2013-01-02T03:04:05.678Z 901000"
    )
    assert (
        value(con, "SELECT later('2013-01-02 03:04:05.678'::TIMESTAMP)::VARCHAR") == "2013-01-02 03:04:05.679"
    )
    assert value(con, "SELECT fine('1969-12-31 23:59:59.999999998'::TIMESTAMP_NS)::VARCHAR").endswith(
        "999999999"
    )
    assert value(con, "SELECT next_day('1969-12-31'::DATE)::VARCHAR") == "1970-01-01"
    assert "invalid Date" in error(con, "SELECT invalid('1969-12-31'::DATE)")
    assert value(con, "SELECT clock('12:34:56.000007'::TIME)") == "12:34:56.000007"


WRONG_RESULTS = [
    ("INTEGER", "1.5", "RangeError: returned 1.5, which does not fit INTEGER"),
    ("INTEGER", "2 ** 31", "which does not fit INTEGER"),
    ("TINYINT", "-129", "which does not fit TINYINT"),
    ("INTEGER", "NaN", "returned NaN, which does not fit INTEGER"),
    ("INTEGER", "'7'", 'TypeError: returned "7" where INTEGER is due'),
    ("BIGINT", "2 ** 63", "which does not fit BIGINT"),
    ("BIGINT", "0.5", "which does not fit BIGINT"),
    ("BIGINT", "true", "returned true where BIGINT is due"),
    ("UBIGINT", "-1", "which does not fit UBIGINT"),
    ("DOUBLE", "'x'", 'returned "x" where DOUBLE is due'),
    ("FLOAT", "1e300", "does not fit FLOAT"),
    ("BOOLEAN", "1", "returned 1 where BOOLEAN is due"),
    ("VARCHAR", "1", "returned 1 where VARCHAR is due"),
    ("VARCHAR", "({ a: 1 })", 'returned {"a":1} where VARCHAR is due'),
    ("DATE", "'2013-01-01'", "where DATE is due"),
    ("UUID", "'xyz'", "does not fit UUID"),
    ("ENUM('a', 'b')", "'c'", "does not fit ENUM('a', 'b')"),
    ("INTEGER[]", "7", "returned 7 where INTEGER[] is due"),
    ("INTEGER[]", "[1, 'x']", 'returned "x" where INTEGER is due'),
    ("INTEGER[2]", "[1]", "returned 1 elements where INTEGER[2] has 2"),
    ("STRUCT(a INTEGER)", "({ a: 1, b: 2 })", "is no field of STRUCT(a INTEGER)"),
    ("STRUCT(a INTEGER)", "[1]", "where STRUCT(a INTEGER) is due"),
    ("MAP(VARCHAR, INTEGER)", "new Map([[null, 1]])", "keys cannot be NULL"),
    ("BLOB", "'bytes'", "where BLOB is due"),
]


def test_results_of_another_type(script: Load) -> None:
    lines = [
        f"udf({json.dumps(f'f{index}(x BIGINT) -> {kind}')}, (x) => {result});"
        for index, (kind, result, _) in enumerate(WRONG_RESULTS)
    ]
    con = script("\n".join(lines))
    for index, (_, _, message) in enumerate(WRONG_RESULTS):
        text = error(con, f"SELECT f{index}(7)")
        assert message in text
        assert "in row 1 of the batch, with x = 7" in text


def test_results_of_all_kinds_that_fit(script: Load) -> None:
    con = script(
        """
        udf("to_list(x BIGINT) -> DOUBLE[]", (x) => [new Set([1, 2]), new Float32Array([1, 2]), [1, undefined], []][x]);
        udf("to_map(x BIGINT) -> MAP(VARCHAR, BIGINT)", (x) => [new Map([["a", 1]]), { a: 1 }, [["a", 1n]]][x]);
        udf("bytes(x BIGINT) -> BLOB", (x) => [new Uint8Array([1, 2]), new Uint8Array([1, 2]).buffer, new Uint16Array([513])][x]);
        udf("struct(x BIGINT) -> STRUCT(a BIGINT, \\"b c\\" VARCHAR)", (x) => [{ a: 1, "b c": "x" }, {}, { a: null }][x]);
        udf("half(x BIGINT) -> VARCHAR", (x) => "a\\ud800b");
        udf("to_json_(x BIGINT) -> JSON", (x) => ({ x, list: [1, "ü"], big: 5n }));
        udf("nothing(x BIGINT) -> BIGINT", (x) => undefined);
        """
    )
    rows = con.execute("SELECT to_list(x) FROM range(4) r(x)").fetchall()
    assert rows == [([1.0, 2.0],), ([1.0, 2.0],), ([1.0, None],), ([],)]
    assert con.execute("SELECT DISTINCT to_map(x)::VARCHAR FROM range(3) r(x)").fetchall() == [("{a=1}",)]
    assert con.execute("SELECT DISTINCT bytes(x) FROM range(3) r(x)").fetchall() == [(b"\x01\x02",)]
    assert con.execute("SELECT struct(x) FROM range(3) r(x)").fetchall() == [
        ({"a": 1, "b c": "x"},),
        ({"a": None, "b c": None},),
        ({"a": None, "b c": None},),
    ]
    assert value(con, "SELECT half(1)") == "a\ufffdb"
    assert json.loads(value(con, "SELECT to_json_(1)")) == {"x": 1, "list": [1, "ü"], "big": 5}
    assert value(con, "SELECT nothing(1)") is None


def test_nulls(script: Load) -> None:
    con = script(
        """
        udf("skip(a BIGINT, b VARCHAR) -> VARCHAR", (a, b) => `${a}${b}`);
        udf("call(a BIGINT, b VARCHAR) -> VARCHAR", { nulls: "call" }, (a, b) => `${a}${b}`);
        udf("nested(x STRUCT(a BIGINT, b BIGINT[])) -> VARCHAR", (x) => JSON.stringify(x));
        """
    )
    con.execute(
        "CREATE TABLE t AS SELECT * FROM (VALUES (1, 'x'), (NULL, 'y'), (3, NULL), (NULL, NULL)) r(a, b)"
    )
    assert con.execute("SELECT skip(a, b) FROM t").fetchall() == [("1x",), (None,), (None,), (None,)]
    assert con.execute("SELECT call(a, b) FROM t").fetchall() == [
        ("1x",),
        ("nully",),
        ("3null",),
        ("nullnull",),
    ]
    assert value(con, "SELECT nested({'a': NULL, 'b': [1, NULL]})") == '{"a":null,"b":[1,null]}'


# ---- kinds


def test_vectorized_functions_get_typed_arrays(script: Load) -> None:
    con = script(
        """
        const name = (x) => x.constructor.name;
        const kinds = ["TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER", "FLOAT", "DOUBLE", "BIGINT", "VARCHAR", "BOOLEAN"];
        for (const kind of kinds) {
          udf(`of_${kind}(x ${kind}) -> VARCHAR`, { vectorized: true }, (x) => Array.from({ length: x.length }, () => name(x)));
        }
        udf("of_big(x BIGINT) -> VARCHAR", { vectorized: true, bigint: true }, (x) => Array.from(x, () => name(x)));
        udf("of_nulls(x DOUBLE) -> VARCHAR", { vectorized: true, nulls: "call" }, (x) => Array.from(x, (v) => `${name(x)} ${v}`));
        """
    )
    expected = dict.fromkeys(["VARCHAR", "BOOLEAN"], "Array") | {
        "TINYINT": "Int8Array", "SMALLINT": "Int16Array", "INTEGER": "Int32Array", "UTINYINT": "Uint8Array",
        "USMALLINT": "Uint16Array", "UINTEGER": "Uint32Array", "FLOAT": "Float32Array", "DOUBLE": "Float64Array",
        "BIGINT": "Float64Array",
    }  # fmt: skip
    for kind, name in expected.items():
        assert value(con, f"SELECT of_{kind}(1::{kind})") == name
    assert value(con, "SELECT of_big(1)") == "BigInt64Array"
    rows = con.execute("SELECT of_nulls(x) FROM (VALUES (1::DOUBLE), (NULL)) r(x)").fetchall()
    assert rows == [("Array 1",), ("Array null",)]


def test_vectorized_functions_do_not_see_rows_with_nulls(script: Load) -> None:
    con = script(
        """
        udf("sizes(x DOUBLE, y VARCHAR) -> BIGINT", { vectorized: true }, (x, y) => x.map((v, i) => v * 10 + y[i].length));
        udf("never(x DOUBLE) -> DOUBLE", { vectorized: true }, (x) => { throw new Error("called"); });
        """
    )
    con.execute(
        "CREATE TABLE t AS SELECT * FROM (VALUES (1.0, 'a'), (NULL, 'b'), (3.0, NULL), (4.0, 'dd')) r(x, y)"
    )
    assert con.execute("SELECT sizes(x, y) FROM t").fetchall() == [(11,), (None,), (None,), (42,)]
    assert con.execute("SELECT never(x) FROM t WHERE x IS NULL").fetchall() == [(None,)]


def test_a_vectorized_function_that_keeps_its_arguments(script: Load) -> None:
    con = script(
        """
        let kept;
        udf("keep(x DOUBLE) -> DOUBLE", { vectorized: true }, (x) => { kept = x; return x; });
        udf("kept(x DOUBLE) -> BIGINT", { deterministic: false }, (x) => kept.length);
        """
    )
    con.execute("SET threads = 1")
    assert con.execute("SELECT keep(x) FROM range(3) r(x)").fetchall() == [(0.0,), (1.0,), (2.0,)]
    assert value(con, "SELECT kept(1)") == 0


def test_a_vectorized_result_that_does_not_fit(script: Load, subtests: pytest.Subtests) -> None:
    results = {
        "x.subarray(1)": "returned 0 values for 1 row",
        "7": "returned 7 where an array of 1 DOUBLE is due",
        "['x']": 'returned "x" where DOUBLE is due',
    }
    con = script(
        "\n".join(
            f"udf('f{at}(x DOUBLE) -> DOUBLE', {{ vectorized: true }}, (x) => {result});"
            for at, result in enumerate(results)
        )
    )
    for at, (result, message) in enumerate(results.items()):
        with subtests.test(result):
            assert message in error(con, f"SELECT f{at}(x) FROM range(3) r(x)")


def test_promises(script: Load) -> None:
    con = script(
        """
        const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
        udf("awaits(x BIGINT) -> BIGINT", async (x) => (await null, x + 1));
        udf("returns(x BIGINT) -> VARCHAR", (x) => Promise.resolve("v" + x));
        udf("part(x BIGINT) -> BIGINT", (x) => (x % 3 === 0 ? Promise.resolve(x) : x));
        udf("whole(x DOUBLE) -> DOUBLE", { vectorized: true }, async (x) => { await sleep(1); return x.map((v) => v * 2); });
        udf("rejects(x BIGINT) -> BIGINT", async (x) => { if (x === 7) throw new TypeError("seven"); return x; });
        udf("forgives(x BIGINT) -> BIGINT", { on_error: "null", concurrency: 4 }, async (x) => { await sleep(x % 3); if (x % 5 === 2) throw new TypeError("no"); return x; });
        udf("never(x BIGINT) -> BIGINT", (x) => new Promise(() => {}));
        let running = 0, most = 0;
        udf("together(x BIGINT) -> BIGINT", { concurrency: 8, deterministic: false }, async (x) => {
          most = Math.max(most, ++running); await sleep(2); running--; return most;
        });
        """
    )
    query = "SELECT sum({}(x)) FROM range(5000) r(x)"
    for name, expected in (("awaits", 12502500), ("part", 12497500), ("whole", 24995000)):
        assert value(con, query.format(name)) == expected
    assert value(con, "SELECT count(DISTINCT returns(x)) FROM range(5000) r(x)") == 5000
    text = error(con, "SELECT rejects(x) FROM range(10) r(x)")
    assert "TypeError: seven" in text
    assert "functions.js:6:" in text
    assert "in row 8 of the batch, with x = 7" in text
    rows = con.execute("SELECT x, forgives(x) FROM range(20) r(x)").fetchall()
    assert rows == [(x, None if x % 5 == 2 else x) for x in range(20)]
    assert "a promise that nothing can settle" in error(con, "SELECT never(1)")
    assert value(con, "SELECT max(together(x)) FROM range(100) r(x)") == 8


FILES = {
    "functions.mjs": """
        import { shout } from "./text.ts";
        import more from "./more.cjs";
        import data from "./data.json";
        udf("f_mjs(x VARCHAR) -> VARCHAR", (x) => shout(x) + more.mark + data["__proto__"]);
    """,
    "functions.cjs": """
        const shout = (x) => x.toUpperCase();
        const more = require("./more.cjs"), data = require('./data.json');
        const { udf: declare } = require("crosslane");
        module.exports = declare("f_cjs(x VARCHAR) -> VARCHAR", (x) => shout(x) + more.mark + data["__proto__"]);
    """,
    "functions.ts": """
        import { udf } from "crosslane";
        import { shout, type Loud } from "./text.ts";
        import more from "./more.cjs";
        import data from "./data.json";
        interface Marked<T extends string> { mark: T }
        const marked: Marked<string> = more as Marked<string>;
        udf("f_ts(x VARCHAR) -> VARCHAR", (x: Loud): Loud => shout(x) + marked.mark + data["__proto__"]!);
    """,
}


def test_files_of_every_kind_load_and_import_each_other(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "text.ts").write_text(
        "export type Loud = string;\nexport const shout = (x: Loud): Loud => x.toUpperCase();"
    )
    (tmp_path / "more.cjs").write_text("const deep = require('./deep.cjs');\nexports.mark = deep();")
    (tmp_path / "deep.cjs").write_text("module.exports = () => '!';")
    (tmp_path / "data.json").write_text('{"__proto__": "?"}')
    for name, text in FILES.items():
        with subtests.test(name):
            path = tmp_path / name
            path.write_text(textwrap.dedent(text))
            crosslane.load(con, path)
            function = f"f_{path.suffix.removeprefix('.')}"
            assert value(con, f"SELECT {function}('loud')") == "LOUD!?"
            checked = CliRunner().invoke(main, ["check", str(path)])
            assert f"{function}(x VARCHAR) -> VARCHAR" in checked.stdout, checked.output


def test_errors_in_typescript_have_their_lines(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "functions.ts"
    path.write_text(
        "interface A {\n  a: number;\n}\n"
        "udf('f(x BIGINT) -> BIGINT', (x: number): number => {\n  const y: number = x;\n  throw new Error(`${y}`);\n});\n"
    )
    crosslane.load(con, path)
    assert "functions.ts:6:9" in error(con, "SELECT f(1)")
    path.write_text("const a = 1;\nenum B { C }\n")
    text = error(con, f"FROM crosslane_load('{path}')")
    assert "TypeScript enum is not supported" in text
    assert "functions.ts:2:1" in text
    path.write_text("\nimport { x } from './other.ts';\n")
    (tmp_path / "other.ts").write_text("export const x: = 1;\n")
    text = error(con, f"FROM crosslane_load('{path}')")
    assert "other.ts:1:" in text
    assert "functions.ts:2:" in text


def test_a_file_without_functions_is_an_error(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for ending in ("js", "mjs", "cjs", "ts"):
        with subtests.test(ending):
            path = tmp_path / f"functions.{ending}"
            path.write_text("const x = 1;")
            assert f"functions.{ending}: declares no function" in error(con, f"FROM crosslane_load('{path}')")


WIDE_JSON = (
    "9007199254740991",
    "9007199254740993",
    "-9007199254740993",
    "[12345678901234567890, -12345678901234567890, 1.5, 1]",
    '{"n123": 9223372036854775807, "s": ["n12345678901234567890", "s", ""], "12345678901234567890": -9223372036854775808}',
    '{"deep": [[{"a\\"b\\\\": 340282366920938463463374607431768211455, "t": "\\"1234567890123456789"}]]}',
    '"12345678901234567890"',
    "[1e30, 1.5e300, 0.1]",
    '{ "__proto__" : 12345678901234567890 }',
)


def test_integers_in_json_are_exact(script: Load) -> None:
    con = script("""
        udf("same(x JSON) -> JSON", (x) => x);
        udf("total(x JSON) -> JSON", (x) => ({ sum: x.reduce((a, b) => BigInt(a) + BigInt(b)), as: new String("n1") }));
        udf("kind(x JSON) -> VARCHAR", (x) => typeof x);
    """)
    for text in WIDE_JSON:
        ((back,),) = con.execute("SELECT same(?)", [text]).fetchall()
        assert json.loads(back) == json.loads(text)
    query = "SELECT total('[9007199254740993, 9007199254740993]')"
    assert value(con, query) == '{"sum":18014398509481986,"as":"n1"}'
    assert value(con, "SELECT kind('9007199254740991') || kind('9007199254740992')") == "numberbigint"


PROMISES = """
    const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    const counts = new Map();
    const count = (x) => counts.set(x, (counts.get(x) ?? 0) + 1).get(x);
    udf("calls(x BIGINT) -> BIGINT", { deterministic: false }, (x) => counts.get(x) ?? 0);
"""


@pytest.fixture
def promises(tmp_path: Path) -> Iterator[Load]:
    """Loads functions that note how often they were called: `calls(x)` tells it, on the only lane."""
    con = crosslane.connect(config={"threads": 1})

    def load(text: str) -> duckdb.DuckDBPyConnection:
        path = tmp_path / "promises.js"
        path.write_text(PROMISES + text)
        crosslane.load(con, path)
        return con

    yield load
    con.close()


def calls(con: duckdb.DuckDBPyConnection, rows: int, start: int = 0) -> list[object]:
    query = f"SELECT calls(x) FROM range({start}, {start + rows}) r(x)"
    return [count for (count,) in con.execute(query).fetchall()]


#: What a row waits for before it rejects.
WAITS = ["null", "sleep(0)", "sleep(x % 3)", "sleep((x * 7) % 5)"]


def test_a_row_that_rejects_concerns_no_other_row(promises: Load, subtests: pytest.Subtests) -> None:
    cases = list(enumerate(itertools.product(WAITS, ["async (x)", "(x)"])))
    con = promises(
        "\n".join(
            f"""
        const body{at} = async (x) => {{ await {wait}; if (x % 5 === 2) throw new TypeError("no"); return x; }};
        udf("f{at}(x BIGINT) -> BIGINT", {{ on_error: "null", concurrency: 4, deterministic: false }},
          {declared} => {{ count(x); return body{at}(x); }});
    """
            for at, (wait, declared) in cases
        )
    )
    for at, (wait, declared) in cases:
        with subtests.test(f"{declared}: {wait}"):
            # Rows of its own.
            start = 20 * at
            query = f"SELECT x, f{at}(x) FROM range({start}, {start + 20}) r(x)"
            rows = [(x, None if x % 5 == 2 else x) for x in range(start, start + 20)]
            assert con.execute(query).fetchall() == rows
            assert calls(con, 20, start) == [1] * 20
            errors = f"SELECT errors FROM crosslane_stats() WHERE function = 'f{at}'"
            assert value(con, errors) == 4


def test_rows_that_reject_are_retried_each_on_its_own(promises: Load) -> None:
    con = promises("""
        udf("f(x BIGINT) -> BIGINT", { on_error: "null", concurrency: 4, retries: 2, deterministic: false }, async (x) => {
          const n = count(x);
          await sleep(x % 3);
          if (x % 5 === 2 || (x % 7 === 3 && n < 3)) throw new TypeError("no");
          return x;
        });
    """)
    rows = con.execute("SELECT x, f(x) FROM range(20) r(x)").fetchall()
    assert rows == [(x, None if x % 5 == 2 else x) for x in range(20)]
    assert calls(con, 20) == [3 if x % 5 == 2 or x % 7 == 3 else 1 for x in range(20)]
    query = "SELECT errors, retries FROM crosslane_stats() WHERE function = 'f'"
    assert con.execute(query).fetchall() == [(4, 12)]


def test_each_promise_has_the_timeout_of_its_own_row(promises: Load) -> None:
    # All rows together take longer than one may.
    con = promises("""
        udf("f(x BIGINT) -> BIGINT", { timeout: 1, on_error: "null", concurrency: 4, deterministic: false }, async (x) => {
          count(x);
          await sleep(x === 2 ? 1e6 : 100);
          return x;
        });
    """)
    rows = con.execute("SELECT x, f(x) FROM range(60) r(x)").fetchall()
    assert rows == [(x, None if x == 2 else x) for x in range(60)]
    assert calls(con, 60) == [1] * 60


def test_promises_that_nothing_can_settle_fail_alone(promises: Load) -> None:
    con = promises("""
        udf("f(x BIGINT) -> BIGINT", { on_error: "null", concurrency: 4, deterministic: false }, async (x) => {
          count(x);
          await (x % 3 === 0 ? new Promise(() => {}) : null);
          return x;
        });
    """)
    rows = con.execute("SELECT x, f(x) FROM range(20) r(x)").fetchall()
    assert rows == [(x, None if x % 3 == 0 else x) for x in range(20)]
    assert calls(con, 20) == [1] * 20


def test_rows_that_were_ended_together_show_who_was_to_blame(promises: Load) -> None:
    con = promises("""
        const options = { on_error: "null", concurrency: 4, deterministic: false };
        udf("loops(x BIGINT) -> BIGINT", { ...options, timeout: 0.3 }, async (x) => {
          await sleep(1);
          while (x === 5) await null;
          return x;
        });
        udf("throws(x BIGINT) -> BIGINT", options, async (x) => {
          await sleep(1);
          if (x === 5) setTimeout(() => { throw new TypeError("no"); });
          await sleep(1);
          return x;
        });
    """)
    for name in ("loops", "throws"):
        rows = con.execute(f"SELECT x, {name}(x) FROM range(20) r(x)").fetchall()
        assert rows == [(x, None if x == 5 else x) for x in range(20)]
        ((errors,),) = con.execute(
            f"SELECT errors FROM crosslane_stats() WHERE function = '{name}'"
        ).fetchall()
        assert errors == 1


# ---- errors and output


def test_errors_carry_the_place_the_row_and_the_cause(script: Load) -> None:
    con = script(
        """
        class ShapeError extends Error {}
        function inner(x) {
          try { null.x; } catch (cause) { throw new ShapeError(`not ${x}`, { cause }); }
        }
        udf("f(x BIGINT, name VARCHAR) -> BIGINT", (x, name) => (x === 2000 ? inner(x) : x));
        udf("text(x BIGINT) -> BIGINT", (x) => { throw `just ${x}`; });
        """
    )
    text = error(con, "SELECT f(x, 'n' || x) FROM range(3000) r(x)")
    assert "f: ShapeError: not 2000" in text
    assert "at inner (" in text
    assert "functions.js:3:" in text
    assert "functions.js:5:" in text
    assert "caused by TypeError: Cannot read properties of null" in text
    assert "in row 2001 of the batch, with x = 2000, name = 'n2000'" in text
    assert "crosslane:" not in text
    text = error(con, "SELECT text(3)")
    assert 'thrown string: "just 3"' in text
    assert "functions.js:6:" in text


HOSTILE = {
    "throw null": "thrown object: null",
    "throw undefined": "thrown undefined: undefined",
    "throw Symbol('s')": "thrown symbol: Symbol(s)",
    "throw { a: 1 }": 'Object: {"a":1}',
    "throw new Proxy({}, { get() { throw 1; } })": "cannot be shown",
    "throw Object.assign(new Error('x'), { stack: 7 })": "Error: x",
    "throw Object.defineProperty(new Error('x'), 'message', { get() { throw 1; } })": "cannot be shown",
    "throw new Error('long '.repeat(1e6))": "(5000000 characters)",
    "const e = new Error('ring'); e.cause = e; throw e": "caused by Error: ring",
    "throw Object.assign(Object.create(Error.prototype), { name: 'Fake' })": "Fake: ",
    "return new Proxy({}, { get() { throw new Error('trap'); } })": "where BIGINT is due",
    "return { toString() { throw new Error('no text'); } }": "where BIGINT is due",
    "return { toJSON() { throw new Error('no json'); } }": "where BIGINT is due",
}


def test_hostile_exceptions_and_results_are_errors_too(script: Load) -> None:
    con = script(
        "\n".join(
            f"udf('f{index}(x BIGINT) -> BIGINT', (x) => {{ {way} }});" for index, way in enumerate(HOSTILE)
        )
    )
    for index, message in enumerate(HOSTILE.values()):
        text = error(con, f"SELECT f{index}(7)")
        assert message in text
        assert "in row 1 of the batch, with x = 7" in text
        assert len(text) < 20_000
    con = script(
        "udf('f(x BIGINT) -> STRUCT(a BIGINT)', (x) => new Proxy({}, { ownKeys() { throw new Error('trap'); } }));"
    )
    assert "Error: trap" in error(con, "SELECT f(7)")


def test_on_error_and_retries(script: Load) -> None:
    con = script(
        """
        let tries = 0;
        udf("bad(x BIGINT) -> BIGINT", { on_error: "null" }, (x) => { if (x % 2) throw new Error("odd"); return x; });
        udf("late(x BIGINT) -> VARCHAR", { on_error: "null" }, (x) => (x % 2 ? 7 : "even"));
        udf("flaky(x BIGINT) -> BIGINT", { retries: 2, deterministic: false }, (x) => { if (++tries % 3) throw new Error("again"); return tries; });
        udf("whole(x DOUBLE) -> DOUBLE", { vectorized: true, on_error: "null" }, (x) => { throw new Error("no"); });
        """
    )
    assert con.execute("SELECT bad(x) FROM range(4) r(x)").fetchall() == [(0,), (None,), (2,), (None,)]
    assert con.execute("SELECT late(x) FROM range(4) r(x)").fetchall() == [
        ("even",),
        (None,),
        ("even",),
        (None,),
    ]
    assert value(con, "SELECT flaky(1)") == 3
    assert con.execute("SELECT whole(x) FROM range(2) r(x)").fetchall() == [(None,), (None,)]
    stats = con.execute("SELECT function, errors, retries FROM crosslane_stats()").fetchall()
    assert stats == [("bad", 2, 0), ("late", 2, 0), ("flaky", 0, 2), ("whole", 2, 0)]


def test_the_console_goes_to_the_log(script: Load, capfd: pytest.CaptureFixture[str]) -> None:
    con = script(
        """
        console.log("loading");
        udf("f(x BIGINT) -> BIGINT", { nulls: "call" }, (x) => {
          console.log("a %s of %d, %o%%", "row", 3, { x }, [1, "s"], new Map([["k", null]]));
          console.group("group"); console.warn("inside\\nit"); console.groupEnd();
          console.error(new Set([1n]), undefined, -0, Symbol("s"), /r/g, [[[[[1]]]]], new Float64Array(2));
          const ring = { name: "ring" }; ring.self = ring; console.info(ring);
          console.assert(x === 1, "not one"); console.count(); console.count();
          return x;
        });
        """
    )
    assert value(con, "SELECT f(1)") == 1
    assert printed(capfd, "default: 2") == textwrap.dedent(
        """\
        loading
        a row of 3, {x: 1}% [1, 's'] Map {'k' => null}
        group
          inside
          it
        Set {1n} undefined -0 Symbol(s) /r/g [[[[[...]]]]] Float64Array [0, 0]
        {name: 'ring', self: [circular]}
        default: 1
        default: 2
        """
    )


def test_a_bigint_becomes_the_nearest_double(script: Load) -> None:
    con = script("""
        udf("sync(x BIGINT) -> DOUBLE", { bigint: true }, (x) => x);
        udf("later(x BIGINT) -> DOUBLE", { bigint: true }, async (x) => x);
        udf("inside(x BIGINT) -> DOUBLE[]", { bigint: true }, (x) => [x]);
        udf("small(x BIGINT) -> INTEGER", { bigint: true }, (x) => x);
    """)
    query = "SELECT [sync(x), later(x), inside(x)[1]] FROM (SELECT 9007199254740993 AS x)"
    assert value(con, query) == [2.0**53] * 3
    assert "does not fit INTEGER" in error(con, "SELECT small(9007199254740993)")
