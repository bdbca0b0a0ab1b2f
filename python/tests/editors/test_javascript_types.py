"""The types of JavaScript functions, as TypeScript's compiler and editors see them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from crosslane._cli import main
from crosslane._runtime.languages import PACKAGE

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).parents[3]
TSC = ROOT / "node_modules" / ".bin" / "tsc"

RIGHT = """
import { Timestamp as Stamp, udaf as aggregate, udf as f, udtf as table } from "crosslane";
import u from "crosslane";

export const area = udf("area(w DOUBLE, h DOUBLE) -> DOUBLE", { vectorized: true, timeout: 5, memory_limit: "1 GB" },
  (w, h) => w.map((value, row) => value * h[row]));
area([1], [2]).length;
f("x() -> BIGINT", { concurrency: 8, rate: "50/s", memoize: 1e6 }, async () => 1);
u("y(x BIGINT) -> BIGINT", null, function (x) { return x; });
udf("c(x VARCHAR) -> VARCHAR", class {
  constructor() { this.numbers = new Map([["a", 1]]); }
  call(x) { return this.numbers.get(x) ?? 1; }
  close() { this.numbers.clear(); }
});

table("numbers(n BIGINT, step BIGINT) -> TABLE(i BIGINT)", function* (n, step = 1) {
  for (let i = 0; i < n; i++) yield [i * step];
});
const partitions = (n) => Array.from({ length: n }, (_, page) => page);
udtf("pages(n BIGINT) -> TABLE(page BIGINT)", { partitions, projection: true, cardinality: 9 },
  async function* (page, n, { wanted }) { yield { page: wanted.length }; });
udtf("delays(flights TABLE(delay INTEGER)) -> TABLE(flights BIGINT)", { vectorized: true },
  ({ delay }) => ({ flights: [delay.length] }));
udtf("late(flights TABLE(id BIGINT)) -> TABLE(id BIGINT)", class { call(rows) { return rows.length ? rows : null; } });

class Spread {
  least = Infinity;
  update(x) { this.least = Math.min(this.least, x); }
  merge(other) { this.update(other.least); }
  finish() { return this.least; }
}
aggregate("spread(x DOUBLE) -> DOUBLE", { classes: [Spread] }, Spread);
udaf("longest(text VARCHAR) -> VARCHAR", {
  start: () => "",
  update: (state, text) => (text.length > state.length ? text : state),
  merge: (state, other) => (other.length > state.length ? other : state),
  finish: (state) => state,
});
udaf("summed(x DOUBLE) -> DOUBLE", { vectorized: true }, {
  start: () => ({ sum: 0 }),
  update: (state, x) => { state.sum += x.length; },
  merge: (state, other) => { state.sum += other.sum; },
  finish: (state) => state.sum,
});

udf("t(x TIMESTAMP) -> TIMESTAMP", (x) => new Timestamp(x.getTime(), new Stamp(0).nanoseconds));
console.log(new URL("?a=1", "https://example.org").searchParams.get("a"), structuredClone({ a: 1 }).a);
for (const [name, value] of new URLSearchParams("a=1")) console.log(name, value.length, atob(btoa("x")));
setTimeout((text) => console.log(text, new TextDecoder().decode(new TextEncoder().encode("ä"))), 5, "x");
[1, 2].findLast((x) => x > 1);
"""

#: The comment of each line names the error that the compiler reports.
WRONG = """
udf("a() -> BIGINT", { vectorised: true }, () => 1);  // TS2561
udf("a() -> BIGINT", { nulls: "never" }, () => 1);  // TS2322
udf("a() -> BIGINT", { partitions: null }, () => 1);  // TS2353
udf("a() -> BIGINT");  // TS2554
udf("a() -> BIGINT", class { run() {} });  // TS2345
udtf("a() -> TABLE(i BIGINT)", () => 5);  // TS2345
udaf("a(x BIGINT) -> BIGINT", class { update(x: number) {} finish() {} });  // TS2769
udaf("a(x BIGINT) -> BIGINT", { start: () => 0, update: (a: number, x: number) => a + x, finish: (a: number) => a });  // TS2769
const twice = udf("twice(x DOUBLE) -> DOUBLE", (x: number): number => 2 * x);
twice("2");  // TS2345
const interval: Crosslane.Interval = { months: 1 };  // TS2739
fetch("https://example.org");  // TS2304
document.title;  // TS2584
process.exit();  // TS2591
"""


def test_the_compiler_accepts_right_use_only(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["init", str(tmp_path)]).exit_code == 0
    # The example in the documentation has no errors either.
    examples = re.findall(
        r"^```js\n(// (?:delays|totals)\.js\n.*?)^```$",
        (ROOT / "docs/javascript.md").read_text(),
        re.M | re.S,
    )
    assert len(examples) == 2
    for number, text in enumerate([RIGHT, *examples]):
        (tmp_path / f"right_{number}.js").write_text(text)
    (tmp_path / "script.cjs").write_text(
        'const { udf } = require("crosslane");\nmodule.exports = udf("g(x DOUBLE) -> DOUBLE", (x) => x);\n'
    )
    (tmp_path / "wrong.ts").write_text(WRONG)
    run = subprocess.run(
        # The compiler checks the types themselves, too.
        [TSC, "-p", tmp_path / "jsconfig.json", "--skipLibCheck", "false", "--pretty", "false"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    expected = [
        ("wrong.ts", str(line), code)
        for line, text in enumerate(WRONG.splitlines(), 1)
        for code in re.findall(r"// (TS\d+)", text)
    ]
    found = re.findall(r"^(\S+)\((\d+),\d+\): error (TS\d+)", run.stdout, re.MULTILINE)
    assert found == expected, run.stdout + run.stderr


def test_the_types_have_all_options() -> None:
    """The types have every option of a declaration, and no other."""
    source = (ROOT / "crates/crosslane-js/src/js/library/declare.js").read_text()
    types = (PACKAGE / "crosslane.d.ts").read_text()

    def declared(start: str) -> set[str]:
        (block,) = re.findall(rf"{start}(.*?)\}}", source, re.DOTALL)
        return set(re.findall(r"(\w+):", block)) - {"__proto__"}

    def typed(interface: str) -> set[str]:
        (block,) = re.findall(
            rf"interface {interface} (?:extends Options )?\{{\n(.*?)\n  \}}", types, re.DOTALL
        )
        return set(re.findall(r"^    (\w+)\?:", block, re.MULTILINE))

    assert typed("Options") == declared("const ANY_KIND = {")
    for interface, function in (
        ("FunctionOptions", "udf"),
        ("TableOptions", "udtf"),
        ("AggregateOptions", "udaf"),
    ):
        assert typed(interface) == declared(rf'declares: "{function}",\s*options: \{{') != set()
