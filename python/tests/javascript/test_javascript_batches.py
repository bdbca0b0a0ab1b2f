"""JavaScript that changes the language or its own arguments cannot reach the memory of a batch."""

from __future__ import annotations

import duckdb
import pytest

from ..conftest import Load, value

pytestmark = pytest.mark.any_duckdb

#: Changes every part of the language that Crosslane's own code could use, and notes what the changed parts
#: see.
TRAPS = """
const { apply, construct, ownKeys } = Reflect;
const { defineProperty, entries, getOwnPropertyNames, getOwnPropertyDescriptor } = Object;
const isView = ArrayBuffer.isView;
const Buffer = ArrayBuffer;
const isArray = Array.isArray;
const indices = (array) => { const all = []; for (let i = 0; i < array.length && i < 50; i++) all[i] = array[i]; return all; };
const taken = new Set();
const add = Set.prototype.add;
let armed = false;

// Whether something is of a batch: its memory, or an object that leads there.
function isOfBatch(what, depth = 0) {
  if (typeof what !== "object" || what === null) return false;
  if (what instanceof Buffer || isView(what)) return true;
  if (depth > 2) return false;
  for (const name of getOwnPropertyNames(what)) {
    if (isArray(what) && name > 50) break;
    const property = getOwnPropertyDescriptor(what, name);
    if (property !== undefined && isOfBatch(property.value, depth + 1)) return true;
  }
  return false;
}
function note(trap, ...things) {
  if (!armed) return;
  armed = false;
  for (let i = 0; i < things.length; i++) if (isOfBatch(things[i])) apply(add, taken, [trap]);
  armed = true;
}
function attempt(change) {
  try { change(); } catch {}
}

function arm() {
  const names = ["rows", "prepared", "buffers", "progress", "promise", "nulls", "valid", "out", "writing", "tried", "chosen",
    "pending", "next", "concurrency", "open", "again", "failed", "write", "vectors", "launches", "asynchronous", "0", "1", "2"];
  for (const name of names) {
    for (const [owner, prototype] of [["Object", Object.prototype], ["Array", Array.prototype]]) {
      attempt(() => defineProperty(prototype, name, {
        set(made) { note(`a setter of ${owner} for ${name}`, this); defineProperty(this, name, { value: made, writable: true, configurable: true, enumerable: true }); },
        get() { note(`a getter of ${owner} for ${name}`, this); },
        configurable: true,
      }));
    }
  }
  const classes = { Array, Map, Set, Promise, Function, Object, Uint8Array, TypedArray: Object.getPrototypeOf(Int8Array), ArrayBuffer };
  for (const [owner, Class] of entries(classes)) {
    for (const holder of [Class.prototype, Class]) {
      for (const name of ownKeys(holder)) {
        if (owner === "Function" && (name === "prototype" || name === "caller" || name === "arguments")) continue;
        if (owner === "Object" && name === "__proto__") continue;
        const property = getOwnPropertyDescriptor(holder, name);
        for (const kind of ["value", "get"]) {
          const real = property[kind];
          if (typeof real !== "function") continue;
          const place = `${owner} ${String(name)}`;
          attempt(() => defineProperty(holder, name, {
            ...property,
            [kind]: name === "constructor" ? real : function (...passed) {
              note(place, this, passed);
              return new.target ? construct(real, passed, new.target) : apply(real, this, passed);
            },
          }));
        }
      }
    }
  }
  for (const [owner, { prototype }] of entries(classes)) {
    const real = prototype.constructor;
    attempt(() => defineProperty(prototype, "constructor", { get() { note(`${owner} constructor`, this); return real; } }));
  }
  for (const name of ["Int8Array", "Int16Array", "Int32Array", "Uint8Array", "Uint16Array", "Uint32Array", "Float32Array",
      "Float64Array", "BigInt64Array", "BigUint64Array"]) {
    const real = globalThis[name];
    globalThis[name] = new Proxy(real, {
      construct(_, passed, target) { note(`new ${name}`, passed); return construct(real, passed, real); },
    });
  }
  armed = true;
}
"""

FUNCTIONS = """
udf("arm(x BIGINT) -> VARCHAR", { deterministic: false }, (x) => { arm(); return "armed"; });
udf("taken(x BIGINT) -> VARCHAR", { deterministic: false }, (x) => { armed = false; return indices([...taken]).join(", "); });
udf("number(x BIGINT) -> BIGINT", (x) => x + 1);
udf("text(x VARCHAR) -> VARCHAR", (x) => x + "!");
udf("bytes(x BLOB) -> BLOB", (x) => x);
udf("listed(x BIGINT[]) -> BIGINT[]", (x) => x);
udf("waits(x BIGINT) -> BIGINT", { concurrency: 4 }, async (x) => x + 1);
udf("fails(x BIGINT) -> BIGINT", { on_error: "null" }, (x) => { if (x === 2) throw new Error("two"); return x; });
udf("badly(x BIGINT) -> VARCHAR", { on_error: "null" }, (x) => (x === 2 ? 2 : "fine"));
udf("whole(x INTEGER) -> INTEGER", { vectorized: true }, function (x) { note("this", this); return x; });
udf("part(x INTEGER) -> VARCHAR", { vectorized: true }, (x) => ["a", "b"]);
udf("later(x INTEGER) -> INTEGER", { vectorized: true }, async (x) => x);
"""


def test_nothing_of_a_batch_can_be_reached_through_prototypes(script: Load) -> None:
    con = script(TRAPS + FUNCTIONS)
    con.execute("SET threads = 1")
    rows = "(VALUES (1), (NULL), (2)) r(x)"
    assert value(con, "SELECT arm(1)") == "armed"
    for call in (
        "number(x)",
        "text(x::VARCHAR)",
        "bytes(x::VARCHAR::BLOB)",
        "listed([x, x])",
        "waits(x)",
        "fails(x)",
        "badly(x)",
        "whole(x)",
        "part(x)",
        "later(x)",
    ):
        con.execute(f"SELECT {call} FROM {rows}").fetchall()
    assert value(con, "SELECT taken(1)") == ""


def test_a_function_may_write_into_its_arguments(script: Load) -> None:
    con = script(
        """
        udf("zeroed(x INTEGER, s VARCHAR) -> INTEGER", { vectorized: true }, (x, s) => x.fill(7));
        udf("twice(x INTEGER, s VARCHAR) -> INTEGER", { vectorized: true, retries: 1 }, (x, s) => {
          if (globalThis.failed ^= 1) { x.fill(0); throw new Error("once"); }
          return x;
        });
        """
    )
    for length in (1_000_000, 1):
        rows = "FROM range(20) r(i)"
        query = f"SELECT list({{}}(i::INTEGER, repeat('x', {length}) || i) ORDER BY i) {rows}"
        assert value(con, query.format("zeroed")) == [7] * 20
        # The next try does not see what a failed try has written.
        assert value(con, query.format("twice")) == list(range(20))
    assert value(con, "SELECT count(*) FROM crosslane_stats() WHERE lanes_lost > 0") == 0


def test_a_result_may_lie_in_an_argument(script: Load) -> None:
    con = script(
        """
        udf("same(x INTEGER, s VARCHAR) -> INTEGER", { vectorized: true }, (x, s) => {
          const view = new Int32Array(x.buffer);
          Object.defineProperty(view, "buffer", { value: new ArrayBuffer(8) });
          return view;
        });
        udf("short(x INTEGER, s VARCHAR) -> INTEGER", { vectorized: true }, (x, s) => {
          const view = new Int32Array(0);
          Object.defineProperty(view, "length", { value: x.length });
          return view;
        });
        """
    )
    for length in (1_000_000, 1):
        query = f"SELECT list({{}}(i::INTEGER, repeat('x', {length}) || i) ORDER BY i) FROM range(20) r(i)"
        assert value(con, query.format("same")) == list(range(20))
        try:
            con.execute(query.format("short")).fetchall()
        except duckdb.Error as error:
            assert "returned 0 values for" in str(error)
        else:
            raise AssertionError("no value is not enough")
    assert value(con, "SELECT count(*) FROM crosslane_stats() WHERE lanes_lost > 0") == 0


def test_arguments_are_taken_away_after_every_call(script: Load) -> None:
    con = script(
        """
        const kept = [];
        udf("keep(x INTEGER) -> INTEGER", { vectorized: true }, (x) => { kept.push(x); return x; });
        udf("fail(x INTEGER) -> INTEGER", { vectorized: true, on_error: "null" }, (x) => { kept.push(x); throw new Error("no"); });
        udf("late(x INTEGER) -> INTEGER", { vectorized: true, timeout: 0.2, on_error: "null" }, async (x) => {
          kept.push(x);
          await new Promise((done) => setTimeout(done, 1e6));
        });
        udf("lengths(x INTEGER) -> VARCHAR", { deterministic: false }, (x) => kept.map((x) => x.length).join());
        """
    )
    con.execute("SET threads = 1")
    for name in ("keep", "fail", "late"):
        con.execute(f"SELECT {name}(i::INTEGER) FROM range(3) r(i)").fetchall()
    assert value(con, "SELECT lengths(1)") == "0,0,0"
