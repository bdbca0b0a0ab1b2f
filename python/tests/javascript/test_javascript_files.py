"""Files of JavaScript and TypeScript functions: modules, imports, and files that cannot be loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import crosslane
from crosslane._cli import main

from ..conftest import Load, error, printed, value

pytestmark = pytest.mark.any_duckdb


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


def test_objects_that_a_file_may_make_at_its_top_level(script: Load) -> None:
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
    "import _ from 'lodash';": ["there is no such package in node_modules", "npm install lodash"],
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
