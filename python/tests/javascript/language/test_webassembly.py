"""WebAssembly in JavaScript functions: what is there, and code that runs out of control.

`Wasm` writes the bytes of small modules.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import crosslane

from ...conftest import Load, error, eventually, once_at_work, ready, value

pytestmark = pytest.mark.any_duckdb

I32, I64, FUNCREF = 0x7F, 0x7E, 0x70
NOTHING: tuple[list[int], list[int]] = ([], [])
ONE = ([I32], [I32])


def number(n: int) -> bytes:
    """An unsigned number in LEB128."""
    low, rest = n & 0x7F, n >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def const(n: int) -> bytes:
    """Code that gives a constant, of at least 0."""
    text = number(n)
    return b"\x41" + (text if not text[-1] & 0x40 else text[:-1] + bytes([text[-1] | 0x80, 0]))


def items(all_items: Sequence[bytes]) -> bytes:
    return number(len(all_items)) + b"".join(all_items)


def name(text: str) -> bytes:
    return number(len(text)) + text.encode()


def section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + number(len(content)) + content


def module(
    functions: dict[str, tuple[tuple[list[int], list[int]], bytes]],
    *,
    imported: Sequence[bytes] = (),
    table: bytes | None = None,
    memory: bytes | None = None,
    noise: bytes = b"",
) -> bytes:
    """A module with exported functions of a type and a body; they have one more local, an i32. `imported` are functions
    of the first type."""
    types = [
        items([bytes([one]) for one in p]) + items([bytes([one]) for one in r])
        for (p, r), _ in functions.values()
    ]
    exports = [name(key) + b"\x00" + number(len(imported) + at) for at, key in enumerate(functions)]
    if memory is not None:
        exports.append(name("memory") + b"\x02\x00")
    bodies = [b"\x01\x01\x7f" + body + b"\x0b" for _, body in functions.values()]
    return b"".join(
        [
            b"\0asm\1\0\0\0",
            section(1, items([b"\x60" + one for one in types])),
            section(2, items(imported)) if imported else b"",
            section(3, items([number(at) for at in range(len(functions))])),
            section(4, items([table])) if table else b"",
            section(5, items([memory])) if memory is not None else b"",
            section(7, items(exports)),
            section(10, items([number(len(body)) + body for body in bodies])),
            section(0, name("noise") + noise) if noise else b"",
        ]
    )


LOCAL = b"\x20\x00"
#: x + y, and n! as an i64 by recursion.
ADD = module({"add": (([I32, I32], [I32]), b"\x20\x00\x20\x01\x6a")})
FACTORIAL = module(
    {
        "factorial": (
            ([I64], [I64]),
            b"\x20\x00\x50\x04\x7e\x42\x01\x05\x20\x00\x20\x00\x42\x01\x7d\x10\x00\x7e\x0b",
        )
    }
)
#: A function that makes the memory larger by so many pages, and one that needs this.
GROW = module(
    {
        "grow": (ONE, LOCAL + b"\x40\x00"),
        "need": (ONE, LOCAL + b"\x40\x00\x41\x7f\x46\x04\x40\x00\x0b\x3f\x00"),
    },
    memory=b"\x00\x01",
)


def source(wasm: bytes) -> str:
    """An expression of JavaScript for the bytes."""
    return f"Uint8Array.fromBase64({base64.b64encode(wasm).decode()!r})"


def loaded(script: Load, functions: str, **modules: bytes) -> duckdb.DuckDBPyConnection:
    """Loads functions that use the bytes of modules by their names."""
    return script("".join(f"const {key} = {source(wasm)};\n" for key, wasm in modules.items()) + functions)


def test_a_call_compiles_and_runs_it(script: Load) -> None:
    con = loaded(
        script,
        """
        udf("valid(x BIGINT) -> BOOLEAN[]", () => [WebAssembly.validate(ADD), WebAssembly.validate(ADD.slice(1))]);
        udf("plus(x INTEGER, y INTEGER) -> INTEGER", (x, y) =>
          new WebAssembly.Instance(new WebAssembly.Module(ADD)).exports.add(x, y));
        udf("later(x INTEGER, y INTEGER) -> INTEGER", async (x, y) => {
          const { module, instance } = await WebAssembly.instantiate(ADD.buffer);
          const other = await WebAssembly.instantiate(module);
          const third = await WebAssembly.instantiate(await WebAssembly.compile(ADD));
          return instance.exports.add(x, y) + other.exports.add(x, y) + third.exports.add(x, y);
        });
        udf("fac(n UBIGINT) -> UBIGINT", { bigint: true }, (n) =>
          new WebAssembly.Instance(new WebAssembly.Module(FACTORIAL)).exports.factorial(n));
        udf("parts(x BIGINT) -> VARCHAR", () => {
          const made = new WebAssembly.Module(ADD);
          return JSON.stringify([WebAssembly.Module.exports(made), WebAssembly.Module.imports(made)]);
        });
        """,
        ADD=ADD,
        FACTORIAL=FACTORIAL,
    )
    assert value(con, "SELECT valid(1)") == [True, False]
    assert value(con, "SELECT sum(plus(i::INTEGER, 2)) FROM range(1000) t(i)") == 501_500
    assert value(con, "SELECT later(3, 4)") == 21
    assert value(con, "SELECT fac(20)") == 2_432_902_008_176_640_000
    assert json.loads(str(value(con, "SELECT parts(1)"))) == [[{"name": "add", "kind": "function"}], []]
    assert "CompileError: WebAssembly.Module(): " in error(
        loaded(
            script, 'udf("bad(x BIGINT) -> BIGINT", () => { new WebAssembly.Module(ADD); });', ADD=ADD[:-3]
        ),
        "SELECT bad(1)",
    )


CALLS_BACK = module(
    {"call": (ONE, LOCAL + b"\x10\x00")}, imported=[name("env") + name("twice") + b"\x00\x00"]
)


def test_objects_of_the_top_level_are_made_in_calls(script: Load) -> None:
    con = loaded(
        script,
        """
        const made = new WebAssembly.Module(ADD);
        ADD.fill(0);
        const instance = new WebAssembly.Instance(made);
        const { instance: awaited } = await WebAssembly.instantiate(CALLS, { env: { twice: (x) => 2 * x } });
        const memory = new WebAssembly.Memory({ initial: 1 });
        const limit = new WebAssembly.Global({ value: "i32", mutable: true }, 7);
        const table = new WebAssembly.Table({ initial: 2, element: "anyfunc" });
        let wasm;
        const begun = WebAssembly.compile(CALLS)
          .then((module) => WebAssembly.instantiate(module, { env: { twice: (x) => -x } }))
          .then(({ exports }) => (wasm = exports));
        udf("plus(x INTEGER) -> INTEGER", (x) => instance.exports.add(x, 1));
        udf("fresh(x INTEGER) -> INTEGER", (x) => new WebAssembly.Instance(made, {}).exports.add(x, 2));
        udf("called(x INTEGER) -> INTEGER", (x) => awaited.exports.call(x));
        udf("begun(x INTEGER) -> INTEGER", async (x) => (await begun, wasm.call(x)));
        udf("others(x BIGINT) -> VARCHAR", () => {
          memory.grow(2);
          limit.value += 1;
          table.set(1, instance.exports.add);
          return JSON.stringify([memory.buffer.byteLength, limit.value, table.length, table.get(1)(3, 4)]);
        });
        udf("kinds(x BIGINT) -> BOOLEAN[]", () => [
          made instanceof WebAssembly.Module, new WebAssembly.Module(CALLS) instanceof WebAssembly.Module,
          memory instanceof WebAssembly.Memory, memory.buffer instanceof ArrayBuffer,
          new WebAssembly.Memory({ initial: 0 }).constructor === WebAssembly.Memory,
          Object.keys(instance.exports).join() === "add", "add" in instance.exports,
          String(made) === "[object WebAssembly.Module]",
        ]);
        """,
        ADD=ADD,
        CALLS=CALLS_BACK,
    )
    assert value(con, "SELECT plus(41)") == 42
    assert value(con, "SELECT fresh(40)") == 42
    assert value(con, "SELECT called(21)") == 42
    assert value(con, "SELECT begun(21)") == -21
    assert json.loads(str(value(con, "SELECT others(1)"))) == [3 * 65536, 8, 2, 7]
    assert value(con, "SELECT kinds(1)") == [True] * 8


@pytest.mark.parametrize(
    ("use", "what"),
    [
        ("WebAssembly.validate(ADD);", "WebAssembly.validate"),
        (
            "new WebAssembly.Instance(new WebAssembly.Module(ADD)).exports.add(1, 2);",
            "an export of WebAssembly",
        ),
        ("new WebAssembly.Memory({ initial: 1 }).buffer;", "WebAssembly.Memory"),
        ("WebAssembly.Module.exports(new WebAssembly.Module(ADD));", "Module.exports"),
    ],
)
def test_nothing_runs_while_a_file_is_loaded(script: Load, use: str, what: str) -> None:
    with pytest.raises(
        Exception, match=f"{what} works when a function is called, and not while its file is loaded"
    ):
        loaded(script, f'udf("f(x BIGINT) -> BIGINT", (x) => x);\n{use}', ADD=ADD)


def test_a_package_that_brings_its_own(script: Load, tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "adder"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "adder", "version": "1.0.0", "main": "index.js"}')
    text = base64.b64encode(ADD).decode()
    (package / "index.js").write_text(f"""
        "use strict";
        var wasm = null;
        try {{
          var bytes = Uint8Array.from(atob("{text}"), function (one) {{ return one.charCodeAt(0); }});
          wasm = new WebAssembly.Instance(new WebAssembly.Module(bytes), {{}}).exports;
        }} catch (_) {{}}
        exports.add = function (x, y) {{ return wasm.add(x, y); }};
    """)
    con = script("""
        import adder from "adder";
        udf("plus(x INTEGER, y INTEGER) -> INTEGER", (x, y) => adder.add(x, y));
    """)
    assert value(con, "SELECT sum(plus(i::INTEGER, 1)) FROM range(10000) t(i)") == 50_005_000


def test_results_may_lie_in_its_memory(script: Load) -> None:
    con = script("""
        const memory = new WebAssembly.Memory({ initial: 1 });
        udf("filled(x INTEGER) -> BLOB", (x) => {
          const bytes = new Uint8Array(memory.buffer, 0, 3);
          bytes.fill(x);
          return bytes;
        });
        udf("halves(x DOUBLE) -> DOUBLE", { vectorized: true }, (x) => {
          const column = new Float64Array(memory.buffer, 0, x.length);
          column.set(x.map((one) => one / 2));
          return column;
        });
        udf("gone(x INTEGER) -> BLOB", (x) => {
          const bytes = new Uint8Array(memory.buffer);
          memory.grow(1);
          return bytes;
        });
    """)
    assert con.execute("SELECT filled(i::INTEGER) FROM range(1, 4) t(i)").fetchall() == [
        (bytes([x] * 3),) for x in (1, 2, 3)
    ]
    assert value(con, "SELECT sum(halves(i)) FROM range(5000) t(i)") == 6_248_750
    assert "detached ArrayBuffer" in error(con, "SELECT gone(1)")


def test_stateful_functions_keep_an_instance(script: Load) -> None:
    con = loaded(
        script,
        """
        udf("pages(x INTEGER) -> INTEGER", class {
          constructor() { this.exports = new WebAssembly.Instance(new WebAssembly.Module(GROW)).exports; }
          call(x) { return this.exports.grow(x); }
        });
        """,
        GROW=GROW,
    )
    assert value(con, "SELECT max(pages(i::INTEGER % 2 + 1)) > 2 FROM range(100) t(i)") is True


def test_a_sandbox_allows_it(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text(
        f"const ADD = {source(ADD)};\n"
        'udf("plus(x INTEGER, y INTEGER) -> INTEGER", (x, y) => '
        "new WebAssembly.Instance(new WebAssembly.Module(ADD)).exports.add(x, y));"
    )
    crosslane.load(con, path, sandbox="strict")
    assert value(con, "SELECT plus(40, 2)") == 42


def test_it_can_be_turned_off(con: duckdb.DuckDBPyConnection, script: Load) -> None:
    con.execute("CALL crosslane_set('wasm', 'false')")
    con = script("""
        const before = typeof WebAssembly;
        udf("there(x BIGINT) -> VARCHAR", () => before + typeof WebAssembly + typeof globalThis.WebAssembly);
    """)
    assert value(con, "SELECT there(1)") == "undefined" * 3


def test_a_map_can_do_without_it(tmp_path: Path) -> None:
    path = tmp_path / "functions.js"
    path.write_text(
        """
        udtf("kinds(rows TABLE(x BIGINT)) -> TABLE(kind VARCHAR)", (rows) => rows.map(() => [typeof WebAssembly]));
        """
    )
    for settings, kind in [({}, "object"), ({"wasm": False}, "undefined")]:
        mapped = crosslane.map(pa.table({"x": [1]}), f"{path}:kinds", settings=settings)
        assert pa.table(mapped)["kind"].to_pylist() == [kind]


#: Endless loops: an empty one, one that counts, writes into memory, calls, or catches all exceptions.
LOOPS = {
    "empty": b"\x03\x40\x0c\x00\x0b",
    "counts": b"\x03\x40\x20\x00" + const(1) + b"\x6a\x21\x00\x0c\x00\x0b",
    "writes": b"\x03\x40\x20\x00"
    + const(65532)
    + b"\x71\x20\x00\x36\x02\x00\x20\x00"
    + const(4)
    + b"\x6a\x21\x00\x0c\x00\x0b",
    "calls": b"\x03\x40\x10\x05\x0c\x00\x0b",
    "catches": b"\x03\x40\x06\x40\x03\x40\x0c\x00\x0b\x19\x0b\x0c\x00\x0b",
}
LOOP = module(
    {key: (NOTHING, body) for key, body in LOOPS.items()} | {"nothing": (NOTHING, b"")}, memory=b"\x00\x01"
)


@pytest.mark.parametrize("loop", LOOPS)
def test_endless_loops_end_in_time(script: Load, loop: str) -> None:
    con = loaded(
        script,
        f"""
        const instance = new WebAssembly.Instance(new WebAssembly.Module(LOOP));
        udf("run(x BIGINT) -> BIGINT", {{ timeout: 0.3 }}, (x) => {{ instance.exports.{loop}(); return x; }});
        udf("same(x BIGINT) -> BIGINT", (x) => (instance.exports.nothing(), x));
        """,
        LOOP=LOOP,
    )
    assert "TimeoutError: timed out after 0.3 s" in error(con, "SELECT run(1)")
    assert value(con, "SELECT same(1)") == 1


def test_loops_of_optimized_code_end_in_time(script: Load) -> None:
    """V8 compiles the function once more when it has run for long."""
    count = b"\x03\x40\x20\x01" + const(1) + b"\x6a\x22\x01\x20\x00\x49\x0d\x00\x0b\x20\x01"
    con = loaded(
        script,
        """
        const instance = new WebAssembly.Instance(new WebAssembly.Module(COUNT));
        udf("until(x INTEGER) -> INTEGER", { timeout: 0.3 }, (x) => instance.exports.count(x));
        udf("warm(x INTEGER) -> INTEGER", (x) => {
          for (let i = 0; i < 20_000; i++) instance.exports.count(2000);
          return instance.exports.count(x);
        });
        """,
        COUNT=module({"count": (ONE, count)}),
    )
    assert value(con, "SELECT warm(5)") == 5
    # As a number without a sign, this is the largest.
    assert "TimeoutError: timed out after 0.3 s" in error(con, "SELECT until(-1)")
    assert value(con, "SELECT until(7)") == 7


def test_endless_loops_end_when_their_query_is_cancelled(script: Load) -> None:
    con = loaded(
        script,
        """
        const instance = new WebAssembly.Instance(new WebAssembly.Module(LOOP));
        udf("run(x BIGINT) -> BIGINT", (x) => { if (x > 0) instance.exports.counts(); return x; });
        """,
        LOOP=LOOP,
    )
    ready(con, "run")
    with contextlib.suppress(duckdb.InterruptException), once_at_work(con, con.interrupt):
        con.execute("SELECT run(1)").fetchall()
    assert value(con, "SELECT run(0)") == 0


TRAPS = {
    "unreachable": (ONE, b"\x00", "unreachable"),
    "division": (ONE, LOCAL + const(0) + b"\x6d", "divide by zero"),
    "outside": (ONE, const(1 << 20) + b"\x28\x02\x00", "memory access out of bounds"),
    "no_function": (ONE, LOCAL + const(0) + b"\x11\x00\x00", "null function or function signature mismatch"),
    "deep": (ONE, LOCAL + const(1) + b"\x6a\x10\x04", "Maximum call stack size exceeded"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_traps_are_errors_of_the_function(script: Load, trap: str) -> None:
    wasm = module(
        {key: (kind, body) for key, (kind, body, _) in TRAPS.items()},
        table=b"\x70\x00\x01",
        memory=b"\x00\x01",
    )
    con = loaded(
        script,
        f"""
        const instance = new WebAssembly.Instance(new WebAssembly.Module(WASM));
        udf("run(x INTEGER) -> INTEGER", function mine(x) {{ return instance.exports.{trap}(x); }});
        udf("caught(x INTEGER) -> VARCHAR", (x) => {{
          try {{ instance.exports.{trap}(x); }} catch (e) {{
            return `${{e instanceof WebAssembly.RuntimeError}} ${{e instanceof RangeError}}`;
          }}
        }});
        """,
        WASM=wasm,
    )
    message = error(con, "SELECT run(1)")
    assert TRAPS[trap][2] in message
    # A stack that is too deep shows its last frames only.
    assert ("functions.js:4" if trap != "deep" else "wasm-function[4]") in message
    assert value(con, "SELECT caught(1)") == ("false true" if trap == "deep" else "true false")


#: Code of a function that needs more than 50 MB, and a part of its error.
FLOODS = {
    "new WebAssembly.Memory({ initial: 2000 });": "more than 50 MB were used, the function's memory_limit",
    "for (;;) all.push(new WebAssembly.Memory({ initial: 10 }));": "more than 50 MB were used",
    "for (;;) all.push(new WebAssembly.Memory({ initial: 0 }));": "more than 50 MB were used",
    "const m = new WebAssembly.Memory({ initial: 1 }); for (;;) m.grow(16);": "more than 50 MB were used",
    "for (;;) grow.exports.need(16);": "more than 50 MB were used",
    "grow.exports.need(2000);": "unreachable, after memory_limit has refused memory to WebAssembly",
    "throw [grow.exports.grow(2000), grow.exports.need(1) > 0];": "-1,true",
    "all.push(new WebAssembly.Table({ initial: 1e7, element: 'externref' })); for (;;) all.push({});": "more than 50 MB were used",
    "for (let n = 0; ; n++) all.push(new WebAssembly.Module(numbered(NOISE, n)));": "more than 50 MB were used",
    "for (let n = 0; ; n++) all.push(new WebAssembly.Module(numbered(MANY, n)));": "more than 50 MB were used",
}


def test_memory_is_counted(script: Load) -> None:
    con = loaded(
        script,
        """
        const grow = new WebAssembly.Instance(new WebAssembly.Module(GROW));
        const numbered = (bytes, n) => (new DataView(bytes.buffer).setUint32(bytes.length - 4, n), bytes);
        """
        + "".join(
            f"udf('flood{at}(x BIGINT) -> BIGINT', {{ memory_limit: '50 MB', timeout: 60 }}, () => {{ const all = []; {code} }});"
            for at, code in enumerate(FLOODS)
        ),
        GROW=GROW,
        NOISE=module({"f": (ONE, LOCAL)}, noise=bytes(100_000)),
        MANY=module({f"f{at}": (ONE, LOCAL) for at in range(10_000)}, noise=bytes(8)),
    )
    pids = "SELECT DISTINCT pid FROM crosslane_lanes()"
    # The first lanes boot after the load.
    assert eventually(lambda: con.execute(pids).fetchall())
    before = con.execute(pids).fetchall()
    for at, expected in enumerate(FLOODS.values()):
        assert expected in error(con, f"SELECT flood{at}(1)"), list(FLOODS)[at]
    assert eventually(lambda: con.execute(pids).fetchall() == before)


def test_memory_within_the_limit_is_given(script: Load) -> None:
    con = loaded(
        script,
        """
        const options = { memory_limit: "50 MB" };
        udf("one(x INTEGER) -> INTEGER", options, (x) => new WebAssembly.Memory({ initial: x }).buffer.byteLength);
        udf("grown(x INTEGER) -> INTEGER", options, (x) => {
          const { exports } = new WebAssembly.Instance(new WebAssembly.Module(GROW));
          for (let i = 0; i < x; i++) if (exports.grow(1) === -1) return -i;
          return exports.memory.buffer.byteLength;
        });
        """,
        GROW=GROW,
    )
    assert value(con, "SELECT one(600)") == 600 * 65536
    assert value(con, "SELECT grown(600)") == 601 * 65536


def test_memory_that_is_not_used_any_more_is_freed(script: Load) -> None:
    con = loaded(
        script,
        """
        udf("fresh(x INTEGER) -> INTEGER", { memory_limit: "50 MB" }, (x) =>
          new WebAssembly.Instance(new WebAssembly.Module(GROW)).exports.need(x % 100));
        """,
        GROW=GROW,
    )
    assert value(con, "SELECT max(fresh(i::INTEGER)) FROM range(1000) t(i)") == 100


def test_memory_is_not_shared(script: Load) -> None:
    con = loaded(
        script,
        """
        udf("made(x BIGINT) -> BIGINT", () => {
          new WebAssembly.Memory({ initial: 1, maximum: 2, shared: true });
        });
        udf("exported(x BIGINT) -> BIGINT", () => {
          new WebAssembly.Instance(new WebAssembly.Module(SHARED));
        });
        udf("cloned(x BIGINT) -> BIGINT", () => { structuredClone(new WebAssembly.Module(SHARED)); });
        udf("no_prototype(x BIGINT) -> BIGINT", () => {
          Object.setPrototypeOf(Object.getPrototypeOf(new WebAssembly.Memory({ initial: 0 })), null);
          new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true });
        });
        udf("exported_without(x BIGINT) -> BIGINT", () => {
          const instance = new WebAssembly.Instance(new WebAssembly.Module(ADD));
          const prototype = Object.getPrototypeOf(instance);
          Object.defineProperty(prototype, "exports", { get: () => ({}) });
          Reflect.setPrototypeOf(prototype, null);
          Reflect.setPrototypeOf(Object.getPrototypeOf(new WebAssembly.Memory({ initial: 0 })), null);
          WebAssembly.Module.exports = () => [];
          new WebAssembly.Instance(new WebAssembly.Module(SHARED));
        });
        udf("imported(x BIGINT) -> BIGINT", () => {
          const memory = new WebAssembly.Memory({ initial: 1, maximum: 2 });
          new WebAssembly.Instance(new WebAssembly.Module(IMPORTS), { env: { memory } });
        });
        """,
        ADD=ADD,
        SHARED=module({"f": (ONE, LOCAL)}, memory=b"\x03\x01\x02"),
        IMPORTS=module({}, imported=[name("env") + name("memory") + b"\x02\x03\x01\x02"]),
    )
    for function in ["made", "exported", "no_prototype", "exported_without"]:
        assert "TypeError: memory of WebAssembly cannot be shared" in error(con, f"SELECT {function}(1)")
    assert "cannot be cloned" in error(con, "SELECT cloned(1)")
    assert "LinkError" in error(con, "SELECT imported(1)")


def test_types_that_v8_keeps_are_bounded(script: Load) -> None:
    """V8 frees no type, and ends the process when it has a million."""
    con = script("""
        const head = [0, 97, 115, 109, 1, 0, 0, 0];
        function number(n, text) {
          for (; n > 127; n = Math.floor(n / 128)) text.push(n % 128 | 128);
          text.push(n);
        }
        // A module with new types of twelve parameters.
        function typesOf(seed, count) {
          const types = [];
          number(count, types);
          for (let i = 0; i < count; i++) {
            types.push(0x60, 12);
            let rest = seed * count + i;
            for (let p = 0; p < 12; p++, rest = Math.floor(rest / 4)) types.push(0x7c + rest % 4);
            types.push(0);
          }
          const text = [...head, 1];
          number(types.length, text);
          return Uint8Array.from(text.concat(types));
        }
        const TYPE = ["i32", "i64", "f32", "f64"];
        udf("modules(x BIGINT) -> BIGINT", () => { for (let i = 0; ; i++) new WebAssembly.Module(typesOf(i, 5000)); });
        udf("valid(x BIGINT) -> BIGINT", () => { for (let i = 999; ; i++) WebAssembly.validate(typesOf(i, 5000)); });
        udf("tags(x BIGINT) -> BIGINT", () => {
          for (let i = 0; ; i++) {
            const parameters = Array.from({ length: 500 }, (_, at) => TYPE[Math.floor(i / 4 ** at) % 4]);
            new WebAssembly.Tag({ parameters });
          }
        });
        udf("again(x BIGINT) -> BIGINT", (x) => {
          for (let i = 0; i < 50; i++) new WebAssembly.Module(typesOf(1e6, 5000));
          new WebAssembly.Tag({ parameters: ["i32"] });
          return x;
        });
    """)
    assert value(con, "SELECT again(7)") == 7
    for function in ["modules", "valid", "tags"]:
        assert "RangeError: the modules of this process have more types" in error(
            con, f"SELECT {function}(1)"
        )
    assert value(con, "SELECT again(7)") == 7


def test_functions_beyond_a_size_are_refused(script: Load) -> None:
    con = loaded(
        script,
        """
        udf("run(x BIGINT) -> BIGINT", () => { new WebAssembly.Module(LARGE); });
        udf("small(x INTEGER) -> INTEGER", (x) => new WebAssembly.Instance(new WebAssembly.Module(FITS)).exports.f(x));
        """,
        LARGE=module({"f": (ONE, b"\x01" * (256 << 10) + LOCAL)}),
        FITS=module({"f": (ONE, b"\x01" * (255 << 10) + LOCAL)}),
    )
    assert "RangeError: a function of WebAssembly has more than 256 KiB" in error(con, "SELECT run(1)")
    assert value(con, "SELECT small(7)") == 7


def test_methods_of_the_classes_take_objects_of_v8(script: Load) -> None:
    con = script("""
        const later = new WebAssembly.Memory({ initial: 2 });
        udf("read(x BIGINT) -> BIGINT[]", () => {
          const { get } = Object.getOwnPropertyDescriptor(WebAssembly.Memory.prototype, "buffer");
          const table = new WebAssembly.Table({ initial: 3, element: "anyfunc" });
          const found = WebAssembly.Table.prototype.get.call(table, 0) === null ? 1 : 0;
          return [get.call(new WebAssembly.Memory({ initial: 1 })).byteLength, get.call(later).byteLength, found];
        });
        udf("wrong(x BIGINT) -> BIGINT", () => WebAssembly.Table.prototype.get.call({}, 0));
    """)
    assert value(con, "SELECT read(1)") == [65536, 2 * 65536, 1]
    assert "TypeError: WebAssembly.Table.get(): Receiver is not a WebAssembly.Table" in error(
        con, "SELECT wrong(1)"
    )
