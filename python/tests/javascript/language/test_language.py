"""The language of JavaScript functions: ECMAScript 2025, and some methods of 2026.

Each check is an expression. The top level of a file evaluates it, in an isolate that builds a snapshot, and a call
evaluates it again. The methods that Crosslane adds are compared with those of the same V8 in Node.js.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ...conftest import Load, value
from .test_web import Check, check

pytestmark = pytest.mark.any_duckdb

#: Node.js with the V8 that functions have.
NODE = Path(__file__).parents[4] / ".node" / "bin" / "node"

LANGUAGE: list[Check] = [
    # Arrays and objects.
    ("(() => { const a = [3, 1, 2]; return [a.toSorted(), a.toReversed(), a]; })()", [[1, 2, 3], [2, 1, 3], [3, 1, 2]]),
    ("[[1, 2, 3].toSpliced(1, 1, 8, 9), [1, 2].with(-1, 5), thrown(() => [1].with(1, 0))]", [[1, 8, 9, 3], [1, 5], "RangeError"]),
    ("[...new Uint8Array([3, 1]).toSorted(), ...new Uint8Array([1, 2]).with(0, 7)]", [1, 3, 7, 2]),
    ("[[1, 2].at(-1), 'ab'.at(-1), [1, 2, 3].findLast((x) => x < 3), Object.hasOwn({ a: 1 }, 'a')]", [2, "b", 2, True]),
    ("Object.groupBy([1, 2, 3], (x) => (x % 2 ? 'odd' : 'even'))", {"odd": [1, 3], "even": [2]}),
    ("Object.getPrototypeOf(Object.groupBy([], String))", None),
    ("[...Map.groupBy([1, 2, 3], (x) => x % 2)]", [[1, [1, 3]], [0, [2]]]),
    # Sets.
    ("[...new Set([1, 2]).union(new Set([2, 3]))]", [1, 2, 3]),
    ("[...new Set([1, 2]).intersection(new Map([[2, 'b']]))]", [2]),
    ("[[...new Set([1, 2]).difference(new Set([2]))], [...new Set([1, 2]).symmetricDifference(new Set([2, 3]))]]", [[1], [1, 3]]),
    ("[new Set([1]).isSubsetOf(new Set([1, 2])), new Set([1, 2]).isSupersetOf(new Set([1])), new Set([1]).isDisjointFrom(new Set([1]))]", [True, True, False]),
    ("thrown(() => new Set().union([1]))", "TypeError"),
    # Iterators.
    ("[1, 2, 3].values().map((x) => x * 2).filter((x) => x > 2).take(1).toArray()", [4]),
    ("Iterator.from({ next() { return { done: this.n > 2, value: this.n++ }; }, n: 0 }).drop(1).toArray()", [1, 2]),
    ("['ab', 'c'].values().flatMap((x) => [...x]).reduce((all, x) => all + x)", "abc"),
    ("[[1].values() instanceof Iterator, [1, 2].values().some((x) => x > 1), new Map([[1, 2]]).keys().every(isFinite)]", [True, True, True]),
    ("(() => { class Two extends Iterator { next() { return { done: true }; } } return new Two().toArray(); })()", []),
    # Regular expressions.
    (r"['aA1'.replace(/[\p{L}--[a-z]]/v, '_'), /^\p{RGI_Emoji}$/v.test('👨‍👩‍👧'), /[[a-z]&&[aeiou]]/v.test('b')]", ["a_1", True, False]),
    ("[/^(?i:a)b$/.test('Ab'), /^(?i:a)b$/.test('AB'), /(?-i:a)/i.test('A')]", [True, False, False]),
    (r"'2026-11'.match(/(?<y>\d{4})-(?<m>\d\d)|(?<m>\d\d)\/(?<y>\d{4})/).groups.m", "11"),
    (r"'11/2026'.match(/(?<y>\d{4})-(?<m>\d\d)|(?<m>\d\d)\/(?<y>\d{4})/).groups.y", "2026"),
    ("/b/d.exec('ab').indices[0]", [1, 2]),
    # Texts.
    (r"['a\ud800'.isWellFormed(), 'a\ud800'.toWellFormed(), '😀'.isWellFormed()]", [False, "a\ufffd", True]),
    ("'a-a'.replaceAll('a', 'b')", "b-b"),
    ("Array.from(new Intl.Segmenter('en').segment('e\\u0301👨‍👩‍👧'), ({ segment }) => segment)", ["e\u0301", "👨‍👩‍👧"]),
    ("new Intl.DurationFormat('en').format({ hours: 1, minutes: 2 })", "1 hr, 2 min"),
    # Buffers.
    ("(() => { const b = bytes('0102').buffer, c = b.transfer(4); return [b.detached, hex(c), c.transferToFixedLength().resizable]; })()", [True, "01020000", False]),
    # Classes, errors and the rest.
    ("(() => { class A { static #x = 1; static { this.y = this.#x; } static has(o) { return #x in o; } } return [A.y, A.has(A)]; })()", [1, True]),
    ("new Error('a', { cause: 5 }).cause", 5),
    ("new AggregateError([1], 'm').errors", [1]),
    ("(() => { let a = null; a ??= 1_000; a &&= 2; return a?.b ?? 2n ** 65n === 36893488147419103232n; })()", True),
    ("[[1, [2, [3]]].flat(Infinity), Object.fromEntries([['a', 1]])]", [[1, 2, 3], {"a": 1}]),
    ("structuredClone(new Map([[1, new Date(0)]])).get(1).toISOString()", "1970-01-01T00:00:00.000Z"),
    ("JSON.parse('[1.50]', (key, x, { source }) => source ?? x)", ["1.50"]),
    ("JSON.stringify({ x: JSON.rawJSON('1e1000') })", '{"x":1e1000}'),
    ("[new Date('2026-11-30T12:00Z').getTime(), Date.UTC(2026)]", [1796040000000, 1767225600000]),
    # What is added.
    ("[Error.isError(new RangeError()), Error.isError({ __proto__: Error.prototype }), Error.isError(new DOMException())]", [True, False, True]),
    (r"[RegExp.escape('(*.*)'), RegExp.escape('foo-bar'), RegExp.escape('1$'), RegExp.escape('\ud800 \u2028/')]", [r"\(\*\.\*\)", r"\x66oo\x2dbar", r"\x31\$", r"\ud800\x20\u2028\/"]),
    ("Uint8Array.fromBase64('PGI+ TUhFTU88L2I+').toHex()", "3c623e4d48454d4f3c2f623e"),
    ("[bytes('fbf0').toBase64(), bytes('fbf0').toBase64({ alphabet: 'base64url', omitPadding: true })]", ["+/A=", "-_A"]),
]  # fmt: skip


def test_the_language_of_today(script: Load) -> None:
    check(script, LANGUAGE)


#: Expressions of promises, and their values.
PROMISES: list[Check] = [
    ("Array.fromAsync((async function* () { yield 1; yield Promise.resolve(2); })(), (x) => x * 2)", [2, 4]),
    ("Array.fromAsync([Promise.resolve(1), 2])", [1, 2]),
    ("(() => { const { promise, resolve } = Promise.withResolvers(); resolve(3); return promise; })()", 3),
    ("Promise.try((a, b) => a + b, 1, 2)", 3),
    ("Promise.try(async () => 4)", 4),
    ("Promise.try(() => { throw 5; }).catch((error) => [error])", [5]),
    ("Promise.try(6).catch((error) => error.name)", "TypeError"),
    ("(() => { class Own extends Promise {} return Own.try(() => 1) instanceof Own; })()", True),
    ("(async () => thrown(() => Promise.try.call(undefined, () => 1)))()", "TypeError"),
    (
        "(() => { let order = ''; Promise.try(() => { order += 'a'; }).then(() => { order += 'c'; }); order += 'b';"
        "return Promise.resolve().then(() => {}).then(() => order); })()",
        "abc",
    ),
    ("Promise.any([Promise.reject(1), Promise.resolve(2)])", 2),
    ("Promise.allSettled([Promise.reject(1)])", [{"status": "rejected", "reason": 1}]),
]


def test_promises_of_today(script: Load) -> None:
    calls = ", ".join(f"async () => {expression}" for expression, _ in PROMISES)
    con = script(
        f"""
        const thrown = (f) => {{ try {{ f(); return "nothing"; }} catch (error) {{ return error.name; }} }};
        const calls = [{calls}];
        const loaded = [];
        calls.forEach((call, index) => call().then((answer) => {{ loaded[index] = answer; }}));
        udf("at_load(x BIGINT) -> JSON", () => loaded);
        udf("in_call(x BIGINT) -> JSON", () => Promise.all(calls.map((call) => call())));
        """
    )
    for name in ("at_load", "in_call"):
        answers = json.loads(str(value(con, f"SELECT {name}(1)")))
        assert answers == [expected for _, expected in PROMISES], name


#: https://tc39.es/ecma262/#sec-uint8array.prototype.setfrombase64
WRITES: list[Check] = [
    *(
        (f"(() => {{ const a = new Uint8Array(4).fill(255), r = a.subarray(0, {room}).setFromBase64('{text}'{options});"
         "return [r.read, r.written, hex(a)]; })()", expected)
        for room, text, options, expected in [
            (4, "Zm9v YmFy", "", [4, 3, "666f6fff"]),
            (3, "Zm9vYmFy", "", [4, 3, "666f6fff"]),
            (2, "Zm9vYmFy", "", [0, 0, "ffffffff"]),
            (2, "Zm8=", "", [4, 2, "666fffff"]),
            (2, "Zm8", "", [3, 2, "666fffff"]),
            (1, "Zm8=", "", [0, 0, "ffffffff"]),
            (1, " Z g==\\n", "", [7, 1, "66ffffff"]),
            (0, "!", "", [0, 0, "ffffffff"]),
            (4, "Zm9vZg", ", { lastChunkHandling: 'stop-before-partial' }", [4, 3, "666f6fff"]),
            (4, "-_-_", ", { alphabet: 'base64url' }", [4, 3, "fbffbfff"]),
        ]
    ),
    *(
        # What comes before the wrong part is written.
        (f"(() => {{ const a = new Uint8Array(5); return [thrown(() => a.{call}), hex(a)]; }})()", ["SyntaxError", written])
        for call, written in [
            ("setFromBase64('Zm9vYm!')", "666f6f0000"),
            ("setFromBase64('Zm9vYm', { lastChunkHandling: 'strict' })", "666f6f0000"),
            ("setFromHex('01020g')", "0102000000"),
            ("setFromHex('01020')", "0000000000"),
        ]
    ),
    ("(() => { const a = new Uint8Array(2), r = a.setFromHex('0aFf03'); return [r.read, r.written, hex(a)]; })()", [4, 2, "0aff"]),
    ("Object.keys(new Uint8Array(1).setFromHex('01'))", ["read", "written"]),
    *(
        (f"thrown(() => {call})", "TypeError")
        for call in [
            "new Uint8Array(1).setFromHex(1)",
            "new Uint8Array(1).setFromBase64(new String('Zg=='))",
            # Node's experimental methods take such options.
            *(
                call.format(options)
                for call in (
                    "Uint8Array.fromBase64('Zg==', {})",
                    "new Uint8Array(1).toBase64({})",
                    "new Uint8Array(1).setFromBase64('Zg==', {})",
                )
                for options in ("null", "1", "'x'", "true", "1n", "Symbol.iterator")
            ),
            "new Uint8Array(1).setFromBase64('Zg==', { alphabet: 'other' })",
            "Uint8Array.prototype.setFromHex.call(new Int8Array(1), '01')",
            "Uint8Array.prototype.setFromHex.call({ __proto__: Uint8Array.prototype }, '01')",
            # Of arrays whose memory is gone.
            "(() => { const a = new Uint8Array(1); a.buffer.transfer(); a.setFromHex(''); })()",
            "(() => { const a = new Uint8Array(1); a.setFromBase64('', { get alphabet() { a.buffer.transfer(); } }); })()",
        ]
    ),
    ("[a => a, Uint8Array.prototype.setFromBase64, Uint8Array.prototype.setFromHex].map((f) => f.length)", [1, 1, 1]),
]  # fmt: skip


def test_bytes_are_written_as_the_language_says(script: Load) -> None:
    check(script, WRITES)


def test_a_last_part_of_base64_can_be_left(script: Load) -> None:
    # Here Node's methods, which it has by a flag only, differ from the language.
    cases = [
        *((text, "657861") for text in ("ZXhh", "ZXhhZ", "ZXhhZg", "ZXhhZh", "ZXhhZg=", "ZXhh Z\\n")),
        *((text, "65786166") for text in ("ZXhhZg==", "ZXhhZh==", "ZXhhZg = = ")),
        *((text, "6578616668") for text in ("ZXhhZmg=", "ZXhhZmh=")),
        *((text, "") for text in ("", " ", "Z", "ZX")),
        *((text, "SyntaxError") for text in ("=", "ZXhh=", "ZXhhZ=", "ZXhhZg=x", "ZXhhZg===", "ZXhhZg==x", "ZXhhZmg==", "ZX!")),
    ]  # fmt: skip
    call = "Uint8Array.fromBase64('{}', {{ lastChunkHandling: 'stop-before-partial' }}).toHex()"
    outcome = "(() => {{ try {{ return {}; }} catch (error) {{ return error.name; }} }})()"
    check(script, [(outcome.format(call.format(text)), expected) for text, expected in cases])


def test_long_texts_of_bytes_take_little_memory(script: Load) -> None:
    con = script(
        """
        udf("back(x BIGINT) -> BOOLEAN", { memory_limit: "96 MiB" }, (x) => {
          const bytes = new Uint8Array(Number(x)).fill(7);
          const same = [Uint8Array.fromBase64(bytes.toBase64()), Uint8Array.fromHex(bytes.toHex())];
          return same.every((other) => other.length === bytes.length && other[other.length - 1] === 7);
        });
        udf("escaped(x BIGINT) -> BIGINT", { memory_limit: "96 MiB" }, (x) => RegExp.escape("a ".repeat(Number(x))).length);
        """
    )
    assert value(con, "SELECT back(1500001)") is True
    assert value(con, "SELECT escaped(1000000)") == 5_000_003


def of_node(program: str) -> str:
    """The text that is the value of a program in Node.js, in a context that has the language only."""
    run = f"require('vm').runInContext({json.dumps(program)}, require('vm').createContext())"
    command = [NODE, "--js-base-64", "--eval", f"process.stdout.write({run})"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def of_functions(script: Load, program: str) -> dict[str, Any]:
    """The values of a program that gives JSON, at the load of a file and in a call."""
    con = script(
        f"""
        const loaded = {program};
        udf("at_load(x BIGINT) -> VARCHAR", () => loaded);
        udf("in_call(x BIGINT) -> VARCHAR", () => {program});
        """
    )
    return {name: json.loads(str(value(con, f"SELECT {name}(1)"))) for name in ("at_load", "in_call")}


def compare(script: Load, function: str) -> None:
    """Checks that a function of JavaScript returns the same list in Node.js and in isolates."""
    program = f"JSON.stringify(({function})())"
    expected = json.loads(of_node(program))
    for name, answers in of_functions(script, program).items():
        wrong = [(name, *pair) for pair in zip(expected, answers, strict=True) if pair[0] != pair[1]]
        assert wrong[:5] == []


def texts(characters: str, count: int, longest: int) -> list[str]:
    """Random texts of these characters, the same in each run."""
    chosen = random.Random(count)
    return ["".join(chosen.choices(characters, k=chosen.randrange(longest))) for _ in range(count)]


def test_base64_and_hexadecimal_texts_are_those_of_node(script: Load) -> None:
    base64 = [
        *texts("AQgwZm9v+/", 300, 12),
        *texts("AQgw=", 1500, 10),
        *texts("AQgwZm9v+/-_== \t\n\f\r", 1500, 14),
        *texts("AQg+-=\v\u00a0\u00e9\ud83d!", 300, 8),
    ]
    hexadecimal = [*texts("0123456789abcdefABCDEF", 300, 9), *texts("0aF fgG\u212a\u0130x-+\ud83d", 300, 7)]
    compare(
        script,
        f"""() => {{
          const results = [];
          const attempt = (call) => {{
            try {{
              const result = call();
              results.push(typeof result === "string" ? result : [...result]);
            }} catch (error) {{
              results.push(error.name);
            }}
          }};
          const options = [undefined, {{}}, {{ lastChunkHandling: undefined, alphabet: "base64url" }}];
          for (const alphabet of ["base64", "base64url"]) {{
            for (const lastChunkHandling of ["loose", "strict"]) options.push({{ alphabet, lastChunkHandling }});
          }}
          for (const text of {json.dumps(base64)}) {{
            for (const one of options) attempt(() => Uint8Array.fromBase64(text, one));
          }}
          for (const text of {json.dumps(hexadecimal)}) attempt(() => Uint8Array.fromHex(text));
          for (let length = 0; length < 40; length++) {{
            const bytes = Uint8Array.from({{ length }}, (_, index) => 37 * length + 11 * index * index);
            for (const alphabet of ["base64", "base64url", undefined]) {{
              for (const omitPadding of [true, false, undefined, 0, "x"]) {{
                attempt(() => bytes.toBase64({{ alphabet, omitPadding }}));
              }}
            }}
            attempt(() => bytes.toBase64());
            attempt(() => bytes.toHex());
          }}
          const wrong = [{{ alphabet: null }}, {{ alphabet: "BASE64" }}, [], () => 1, {{ lastChunkHandling: "lax" }},
            {{ lastChunkHandling: new String("loose") }}, {{ alphabet: "toString" }}];
          for (const one of wrong) {{
            attempt(() => Uint8Array.fromBase64("AA==", one));
            attempt(() => new Uint8Array(1).toBase64(one));
          }}
          for (const one of [undefined, null, 5, {{}}, new String("AA=="), ["AA"]]) {{
            attempt(() => Uint8Array.fromBase64(one));
            attempt(() => Uint8Array.fromHex(one));
          }}
          const gone = new Uint8Array(4);
          gone.buffer.transfer();
          const receivers = [undefined, {{}}, [1], new Int8Array(1), new Uint8ClampedArray(1), new DataView(new ArrayBuffer(1)),
            {{ __proto__: Uint8Array.prototype }}, Object.setPrototypeOf(new Uint8Array(1), null),
            new (class Own extends Uint8Array {{}})(2), gone];
          for (const one of receivers) {{
            attempt(() => Uint8Array.prototype.toBase64.call(one));
            attempt(() => Uint8Array.prototype.toHex.call(one));
          }}
          return results;
        }}""",
    )


def test_regexp_escape_is_that_of_node(script: Load) -> None:
    # All characters of 16 bits: first, after another one, and beside halves of pairs.
    compare(
        script,
        f"""() => {{
          const results = [];
          for (let code = 0; code < 65536; code++) {{
            const one = String.fromCharCode(code);
            results.push(RegExp.escape(one + "_" + one));
          }}
          for (const text of {json.dumps(texts(chr(0xD83D) + chr(0xDE00) + "a0 é€-_/" + chr(0xFFFD), 500, 9))}) {{
            results.push(RegExp.escape(text), RegExp.escape(text) === text || new RegExp(RegExp.escape(text), "u").exec(text)?.[0] === text);
          }}
          for (const one of [undefined, null, 5, {{}}, new String("x"), Symbol.iterator]) {{
            try {{ results.push(RegExp.escape(one)); }} catch (error) {{ results.push(error.name); }}
          }}
          return results;
        }}""",
    )


def test_error_iserror_is_that_of_node(script: Load) -> None:
    compare(
        script,
        """() => {
          const thrown = (f) => { try { f(); } catch (error) { return error; } };
          const values = [
            undefined, null, 1, "Error", Symbol.iterator, {}, [], Error, () => 1, new Error(), RangeError("x"),
            new AggregateError([]), new (class Own extends TypeError {})(), Object.create(Error.prototype),
            { __proto__: Error.prototype, stack: "" }, Object.setPrototypeOf(new Error(), null),
            new Proxy(new Error(), {}), Object.freeze(new Error()), thrown(() => null.x), thrown(() => eval("(")),
          ];
          return [Error.isError(), ...values.map((one) => Error.isError(one))];
        }""",
    )


#: The parts of the language that V8 13.6 has, and isolates have not.
LEFT_OUT = {
    "AsyncDisposableStack", "Atomics", "DisposableStack", "Float16Array", "SharedArrayBuffer", "SuppressedError", "WebAssembly.compileStreaming",
    "WebAssembly.instantiateStreaming",
    "DataView.prototype.getFloat16", "DataView.prototype.setFloat16", "Iterator.prototype.Symbol(Symbol.dispose)",
    "Math.f16round",
}  # fmt: skip

#: Lists all built-in functions, with the number of their arguments.
WALK = """() => {
  const functions = {}, seen = new Set();
  const walk = (object, path) => {
    if (seen.has(object)) return;
    seen.add(object);
    for (const key of Reflect.ownKeys(object)) {
      // `Intl` in a file is not V8's: its objects stay when a snapshot is taken.
      if (path === "" && /^(Intl|globalThis|console|loaded|[a-z].*)$/.test(String(key))) continue;
      if (["constructor", "caller", "arguments"].includes(key)) continue;
      const property = Object.getOwnPropertyDescriptor(object, key);
      for (const value of [property.value, property.get, property.set]) {
        if (value === null || !["object", "function"].includes(typeof value)) continue;
        const name = path + String(key);
        if (typeof value === "function") functions[name] = [value.name, value.length];
        walk(value, `${name}.`);
      }
    }
  };
  walk(globalThis, "");
  return functions;
}"""


def test_nothing_else_of_the_language_is_left_out(script: Load) -> None:
    program = f"JSON.stringify(({WALK})())"
    expected = json.loads(of_node(program))
    for name, there in of_functions(script, program).items():
        other = {path for path in expected if there.get(path) != expected[path]}
        assert {path for path in other if not path.startswith(tuple(LEFT_OUT))} == set(), name
        assert {path for path in LEFT_OUT if path in there} == set(), name


def test_what_is_not_there(script: Load) -> None:
    names = """
        SharedArrayBuffer Atomics Float16Array Temporal DisposableStack require process global Buffer module
        exports __dirname setImmediate queueMicrotask fetch crypto performance navigator Worker MessageChannel
    """
    check(
        script,
        [
            *((f"typeof {name}", "undefined") for name in names.split()),
            ("thrown(() => Function('{ using x = null; }'))", "SyntaxError"),
            ("thrown(() => new ArrayBuffer(2, { maxByteLength: 8 }))", "RangeError"),
        ],
    )


@pytest.mark.parametrize(
    ("before", "expression", "expected"),
    [
        ("Promise.try = () => 'own';", "Promise.try(() => 1)", "own"),
        ("RegExp.escape = () => 'own';", "RegExp.escape('a')", "own"),
        ("Error.isError = () => 'own';", "Error.isError(1)", "own"),
        ("Uint8Array.prototype.toHex = () => 'own';", "new Uint8Array(1).toHex()", "own"),
        ("delete Uint8Array.fromHex;", "typeof Uint8Array.fromHex", "undefined"),
        (
            "globalThis.Float16Array = 'own'; Math.f16round = () => '!';",
            "Float16Array + Math.f16round()",
            "own!",
        ),
        ("globalThis.SharedArrayBuffer = 1; globalThis.Atomics = 2;", "[SharedArrayBuffer, Atomics]", [1, 2]),
        (
            "[RegExp, Promise, Uint8Array, Uint8Array.prototype, Math, Symbol, DataView.prototype, Iterator.prototype]"
            ".forEach(Object.freeze);",
            "[RegExp.escape('ab'), new Uint8Array(1).toHex()]",
            ["\\x61b", "00"],
        ),
        (
            "String.prototype.charCodeAt = RegExp.prototype.exec = Array.prototype.join = Object.keys = undefined;",
            "[RegExp.escape('a '), bytesOnly.toBase64(), Uint8Array.fromBase64('AAE=').length]",
            ["\\x61\\x20", "AAE=", 2],
        ),
    ],
)
def test_what_a_file_does_to_the_language_is_kept(
    script: Load, before: str, expression: str, expected: Any
) -> None:
    check(script, [(expression, expected)], f"const bytesOnly = new Uint8Array([0, 1]);{before}")
