"""Functions give right results although a library of the same file changes the language's prototypes."""

from __future__ import annotations

import pytest

from ..conftest import Load, value

pytestmark = pytest.mark.any_duckdb

#: Setters that take, and lose, a value that code stores in an array without such an element of its own.
SETTERS = """
for (const prototype of [Array.prototype, Object.prototype]) {
  for (let index = 0; index < 40; index++) {
    Object.defineProperty(prototype, index, { set(value) { seen = value; }, get() { return "gotcha"; }, configurable: true });
  }
}
"""

#: Replaces the methods of the language. The code of the library does not need them any more.
METHODS = """
const { getOwnPropertyDescriptor: described, defineProperty: define, getPrototypeOf: above } = Object;
const { ownKeys, apply: call } = Reflect;
const classes = [Array, Map, Set, String, Number, BigInt, Date, RegExp, Promise, Uint8Array, above(Uint8Array), DataView, ArrayBuffer, WeakMap];
const holders = [Math, JSON, Reflect, Number, Array, Object, above([].values()), above(new Map().keys()), above(new Set().keys())];
for (let i = 0; i < classes.length; i++) holders[holders.length] = classes[i].prototype;
for (let i = 0; i < holders.length; i++) {
  const names = ownKeys(holders[i]);
  for (let k = 0; k < names.length; k++) {
    if (names[k] === "constructor" || names[k] === "prototype") continue;
    const { value, get, configurable } = described(holders[i], names[k]);
    if (!configurable) continue;
    const gotcha = () => { throw new Error("gotcha"); };
    if (get) define(holders[i], names[k], { get: gotcha });
    else if (typeof value === "function") define(holders[i], names[k], { value: gotcha });
  }
}
Object.prototype.extra = "enumerable";
const methods = ["call", "close", "start", "update", "merge", "finish"];
for (let i = 0; i < methods.length; i++) define(Object.prototype, methods[i], { value: () => 99 });
define(Object.prototype, "instance", { value: { call: () => 99 } });
define(Object.prototype, "stateful", { value: true });
define(Object.prototype, "get", { value: () => 1 });
"""

#: The parts of the language that the functions keep for themselves.
KEPT = """
let seen;
const { apply } = Reflect;
const { add } = Set.prototype;
const { get: bufferOf } = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), "buffer");
"""

FUNCTIONS = """
udf("my_number(x BIGINT) -> BIGINT", (x) => x + 1);
udf("my_text(x BIGINT) -> VARCHAR", (x) => `t${x}`);
udf("my_json(x JSON) -> JSON", (x) => ({ a: x.a, b: 12345678901234567890n }));
udf("my_list(x BIGINT[]) -> VARCHAR[]", (x) => {
  const own = [`${x.length}`];
  let text = "";
  for (let i = 0; i < x.length; i++) text += `${x[i]},`;
  return [own[0], text];
});
udf("my_counted(x BIGINT) -> BIGINT[]", (x) => {
  const both = new Set();
  apply(add, both, [x]);
  apply(add, both, [x + 1]);
  return both;
});
udf("my_pair(x BIGINT) -> BIGINT[2]", (x) => [x, x]);
udf("my_entries(x MAP(VARCHAR, BIGINT)) -> MAP(VARCHAR, BIGINT)", (x) => x);
udf("my_made(x BIGINT) -> MAP(VARCHAR, BIGINT)", (x) => [["a", x]]);
udf("my_parts(x STRUCT(a BIGINT, b VARCHAR)) -> STRUCT(a BIGINT, b VARCHAR)", (x) => ({ a: x.a + 1, b: x.b }));
udf("my_either(x UNION(n BIGINT, s VARCHAR)) -> UNION(n BIGINT, s VARCHAR)", (x) => ({ tag: x.tag, value: x.value }));
udf("my_kind(x ENUM('p', 'q')) -> ENUM('p', 'q')", (x) => x);
udf("my_amount(x DECIMAL(20, 3)) -> DECIMAL(20, 3)", (x) => x);
udf("my_large(x HUGEINT) -> HUGEINT", (x) => x);
udf("my_huge(x BIGNUM) -> BIGNUM", (x) => x);
udf("my_id(x UUID) -> UUID", (x) => x);
udf("my_bytes(x BLOB) -> BLOB", (x) => new DataView(apply(bufferOf, x, [])));
udf("my_day(x DATE) -> DATE", (x) => x);
udf("my_moment(x TIMESTAMP) -> TIMESTAMP", (x) => x);
udf("my_clock(x TIME) -> TIME", (x) => x);
udf("my_zoned(x TIMETZ) -> TIMETZ", (x) => x);
udf("my_span(x INTERVAL) -> INTERVAL", (x) => x);
udf("my_any_number(first BIGINT, *rest BIGINT) -> BIGINT", function (first) {
  for (let i = 1; i < arguments.length; i++) first += arguments[i];
  return first;
});
udf("my_waits(x BIGINT) -> BIGINT", { concurrency: 2 }, async (x) => x + 1);
udf("my_sleeps(x BIGINT) -> BIGINT", { concurrency: 2 }, async (x) => {
  await new Promise((done) => setTimeout(done, 1, x));
  return x;
});
udf("my_late(x BIGINT) -> BIGINT", { concurrency: 2, timeout: 0.2, on_error: "null" }, async (x) => {
  if (x === 2) await new Promise((done) => setTimeout(done, 1e6));
  return x;
});
udf("my_promises(x BIGINT) -> BIGINT", (x) => new Promise((done) => done(x)));
udf("my_tries(x BIGINT) -> BIGINT", { retries: 2, on_error: "null", concurrency: 2 }, async (x) => { if (x === 2) throw new Error("two"); return x; });
udf("my_vector(x BIGINT, y VARCHAR) -> VARCHAR", { vectorized: true, nulls: "call" }, (x, y) => {
  for (let i = 0; i < y.length; i++) y[i] = `${x[i]}${y[i]}`;
  return y;
});
udf("my_columns(*x VARCHAR) -> VARCHAR", { vectorized: true }, (x, y) => {
  for (let i = 0; i < y.length; i++) y[i] = x[i] + y[i];
  return y;
});
udf("my_vector_later(x BIGINT) -> BIGINT", { vectorized: true }, async (x) => x);
class Adds {
  constructor() { this.added = 1; }
  call(x, y = 0, z = 0) { return x + y + z + this.added; }
  close() {}
}
udf("my_stateful(x BIGINT) -> BIGINT", Adds);
udf("my_stateful_rest(x BIGINT, *rest BIGINT) -> BIGINT", Adds);
udf("my_fails(x BIGINT) -> BIGINT", (x) => { throw new TypeError("of its own", { cause: new RangeError("the cause") }); });
"""

#: The function is not deterministic. So the lane of the later calls runs it, and not the lane of the planner.
HOSTILE = "udf('my_hostile(x BIGINT) -> BIGINT', { deterministic: false }, (x) => { change(); return x; });"

#: Calls, and their results for the rows 0, NULL and 2.
CALLS = {
    "my_number(x)": [1, None, 3],
    "my_text(x)": ["t0", None, "t2"],
    "my_json(json_object('a', x))": [f'{{"a":{x},"b":12345678901234567890}}' for x in ("0", "null", "2")],
    "my_list([x, NULL, 7])": [["3", "0,null,7,"], ["3", "null,null,7,"], ["3", "2,null,7,"]],
    "my_list(range(20))": [["20", "".join(f"{i}," for i in range(20))]] * 3,
    "my_counted(x)": [[0, 1], None, [2, 3]],
    "my_pair(x)": [(0, 0), None, (2, 2)],
    "my_entries(MAP {'k': x})": [{"k": 0}, {"k": None}, {"k": 2}],
    "my_made(x)": [{"a": 0}, None, {"a": 2}],
    "my_parts({a: coalesce(x, 5), b: 'b'})": [{"a": 1, "b": "b"}, {"a": 6, "b": "b"}, {"a": 3, "b": "b"}],
    "my_either(union_value(s := 's')::UNION(n BIGINT, s VARCHAR))": ["s", "s", "s"],
    "my_kind('q')::VARCHAR": ["q"] * 3,
    "my_amount(-1.25)::VARCHAR": ["-1.250"] * 3,
    "my_large(x)": [0, None, 2],
    "my_huge(123456789012345678901234567890::BIGNUM)::VARCHAR": ["123456789012345678901234567890"] * 3,
    "my_id('123e4567-e89b-12d3-a456-426614174000')::VARCHAR": ["123e4567-e89b-12d3-a456-426614174000"] * 3,
    "my_bytes('abc'::BLOB)": [b"abc"] * 3,
    "my_day(DATE '2020-02-03')::VARCHAR": ["2020-02-03"] * 3,
    "my_moment(TIMESTAMP '2020-02-03 04:05:06.000007')::VARCHAR": ["2020-02-03 04:05:06.000007"] * 3,
    "my_clock(TIME '01:02:03.0405')::VARCHAR": ["01:02:03.0405"] * 3,
    "my_zoned(TIMETZ '01:02:03+04:30:15')::VARCHAR": ["01:02:03+04:30:15"] * 3,
    "my_span(INTERVAL '3 days')::VARCHAR": ["3 days"] * 3,
    "my_any_number(x, 1, 2)": [3, None, 5],
    "my_any_number(x)": [0, None, 2],
    "my_waits(x)": [1, None, 3],
    "my_sleeps(x)": [0, None, 2],
    "my_late(x)": [0, None, None],
    "my_promises(x)": [0, None, 2],
    "my_tries(x)": [0, None, None],
    "my_vector(x, 'y')": ["0y", "nully", "2y"],
    "my_columns(x::VARCHAR, 'y')": ["0y", None, "2y"],
    "my_vector_later(x)": [0, None, 2],
    "my_stateful(x)": [1, None, 3],
    "my_stateful_rest(x, 2, 3)": [6, None, 8],
    "my_stateful_rest(x)": [1, None, 3],
}


@pytest.mark.parametrize("when", ["at load", "in a call"])
@pytest.mark.parametrize("change", [SETTERS, METHODS])
def test_libraries_that_change_the_language_change_no_results(script: Load, change: str, when: str) -> None:
    hostile = f"{KEPT}function change() {{ {change} }}\n"
    at_load = "change();\n" if when == "at load" else ""
    con = script(f"{hostile}{at_load}{FUNCTIONS}{HOSTILE}")
    con.execute("SET threads = 1")
    if when == "in a call":
        assert value(con, "SELECT my_hostile(1)") == 1
    for call, expected in CALLS.items():
        rows = con.execute(f"SELECT {call} FROM (VALUES (0), (NULL), (2)) r(x)").fetchall()
        assert rows == [(one,) for one in expected], call
    with pytest.raises(Exception, match="TypeError: of its own") as failure:
        con.execute("SELECT my_fails(1)")
    assert "caused by RangeError: the cause" in str(failure.value)
    assert "functions.js:" in str(failure.value)
    # The engine would call a batch with a wrong answer again, in another lane where nothing is changed yet.
    assert value(con, "SELECT sum(lanes_lost) FROM crosslane_stats()") == 0


ADDED_BY_V8 = "V8 adds properties to globalThis and Error when a worker starts"


@pytest.mark.parametrize("method", ["freeze", "seal", "preventExtensions"])
@pytest.mark.parametrize("target", ["globalThis", "Error"])
def test_a_file_cannot_close_what_v8_adds_to(script: Load, target: str, method: str) -> None:
    with pytest.raises(Exception, match=ADDED_BY_V8):
        script(f'udf("f(x BIGINT) -> BIGINT", (x) => x);\nObject.{method}({target});')


@pytest.mark.parametrize(
    "change",
    [
        "Object.defineProperty(Error, 'stackTraceLimit', { value: 7 })",
        "Object.defineProperty(globalThis, 'WebAssembly', { value: 7, configurable: false })",
    ],
)
def test_a_file_cannot_make_what_v8_adds_read_only(script: Load, change: str) -> None:
    with pytest.raises(Exception, match=ADDED_BY_V8):
        script(f'udf("f(x BIGINT) -> BIGINT", (x) => x);\n{change};')


@pytest.mark.parametrize("target", ["Error", "Function.prototype", "Object.prototype"])
def test_no_getter_of_a_file_runs_when_its_snapshot_is_made(script: Load, target: str) -> None:
    """An endless one would hang the load."""
    con = script(
        f"""
        udf("f(x BIGINT) -> BIGINT", (x) => x + Error.stackTraceLimit);
        Object.defineProperty({target}, "stackTraceLimit", {{ get() {{ for (;;); }}, configurable: true }});
        """
    )
    assert value(con, "SELECT f(1)") == 21


def test_what_a_file_sets_is_there_in_calls(script: Load) -> None:
    con = script(
        """
        Error.stackTraceLimit = 3;
        globalThis.WebAssembly = { Memory: "mine" };
        const deep = (n) => (n === 0 ? new Error("deep").stack : deep(n - 1));
        udf("frames() -> BIGINT", () => deep(10).split("\\n").length - 1);
        udf("wasm() -> VARCHAR", () => WebAssembly.Memory);
        """
    )
    assert value(con, "SELECT frames()") == 3
    assert value(con, "SELECT wasm()") == "mine"


#: Ways to make a buffer whose size can change.
RESIZABLE = [
    "new ArrayBuffer(1, { maxByteLength: 8 })",
    "new (ArrayBuffer.prototype.constructor)(1, { maxByteLength: 8 })",
    "new (new Uint8Array(1).buffer.constructor)(1, { maxByteLength: 8 })",
    "new (class extends ArrayBuffer {})(1, { maxByteLength: 8 })",
    "new (ArrayBuffer[Symbol.species])(1, { maxByteLength: 8 })",
    "Reflect.construct(Object.getPrototypeOf(class extends ArrayBuffer {}), [1, { maxByteLength: 8 }])",
    "Reflect.construct(ArrayBuffer, [1, { maxByteLength: 8 }], Object)",
]


def test_no_buffer_can_be_resized(script: Load) -> None:
    """No limit would count its memory."""
    con = script(
        """
        udf("tries(code VARCHAR) -> VARCHAR", (code) => {
          try { return `made: ${(0, eval)(code).byteLength}`; } catch (error) { return `${error}`; }
        });
        """
    )

    def tried(code: str) -> str:
        return con.execute("SELECT tries(?)", [code]).fetchall()[0][0]

    for way in RESIZABLE:
        assert tried(way).startswith("RangeError: an ArrayBuffer cannot be resizable here"), way
    for honest in ("new ArrayBuffer(1)", "new ArrayBuffer(1, {})", "new (class extends ArrayBuffer {})(1)"):
        assert tried(honest) == "made: 1"
    same = "({ byteLength: new ArrayBuffer(9).slice(1, 3) instanceof ArrayBuffer && ArrayBuffer.isView(new Uint8Array(1)) })"
    assert tried(same) == "made: true"
