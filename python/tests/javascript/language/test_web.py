"""The parts of the web that JavaScript functions have: texts and bytes, URLs, copies. Also methods that V8
leaves out.

Each check is an expression. The top level of a file evaluates it before the snapshot, and a call evaluates it
again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ...conftest import Load, value

pytestmark = pytest.mark.any_duckdb

HELPERS = """
    const thrown = (f) => { try { f(); return "nothing"; } catch (error) { return error.name; } };
    const hex = (bytes) => Array.from(new Uint8Array(bytes.buffer ?? bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
    const bytes = (text) => new Uint8Array(text.match(/../g)?.map((two) => parseInt(two, 16)) ?? []);
"""

Check = tuple[str, Any]


def check(script: Load, checks: list[Check], before: str = "") -> None:
    """Evaluates the expressions while the file is loaded, and in a call."""
    calls = ", ".join(f"() => {expression}" for expression, _ in checks)
    con = script(
        f"""{HELPERS}{before}
        const calls = [{calls}];
        const answer = (call) => {{ try {{ return call() ?? null; }} catch (error) {{ return String(error); }} }};
        const loaded = calls.map(answer);
        udf("at_load(x BIGINT) -> JSON", () => loaded);
        udf("in_call(x BIGINT) -> JSON", () => calls.map(answer));
        """
    )
    for name in ("at_load", "in_call"):
        answers = json.loads(value(con, f"SELECT {name}(1)"))
        wrong = [
            (name, *pair, answer) for pair, answer in zip(checks, answers, strict=True) if pair[1] != answer
        ]
        assert wrong == []


ENCODING: list[Check] = [
    ("hex(new TextEncoder().encode('aü€😀'))", "61c3bce282acf09f9880"),
    ("hex(new TextEncoder().encode('\\ud800x\\udc00'))", "efbfbd78efbfbd"),
    ("hex(new TextEncoder().encode())", ""),
    ("new TextEncoder().encoding", "utf-8"),
    ("new TextEncoder().encodeInto('a€b', new Uint8Array(3))", {"read": 1, "written": 1}),
    ("new TextEncoder().encodeInto('😀b', new Uint8Array(5))", {"read": 3, "written": 5}),
    ("new TextDecoder().decode(bytes('61c3bce282acf09f9880'))", "aü€😀"),
    ("new TextDecoder().decode(bytes('efbbbf61efbbbf'))", "a\ufeff"),
    ("new TextDecoder('utf8', { ignoreBOM: true }).decode(bytes('efbbbf61'))", "\ufeffa"),
    (
        "new TextDecoder().decode(bytes('61f09f98ff62c0afe28262eda080f4908080'))",
        "a��b��" + "�b" + "���" + "����",
    ),
    ("thrown(() => new TextDecoder('utf-8', { fatal: true }).decode(bytes('61ff')))", "TypeError"),
    ("thrown(() => new TextDecoder('utf-8', { fatal: true }).decode(bytes('e282')))", "TypeError"),
    ("new TextDecoder(' UTF-16 ').decode(bytes('fffe6100ac203dd800de3dd8'))", "a€😀�"),
    ("new TextDecoder('utf-16le').decode(bytes('00de610062'))", "�a�"),
    ("new TextDecoder('latin1').decode(bytes('41e48081'))", "Aä€\x81"),
    ("new TextDecoder('iso-8859-1').encoding", "windows-1252"),
    ("thrown(() => new TextDecoder('klingon'))", "RangeError"),
    ("new TextDecoder().decode(bytes('006162ff').buffer)", "\x00ab�"),
    ("new TextDecoder().decode(new DataView(bytes('00616200').buffer, 1, 2))", "ab"),
    ("new TextDecoder().decode(new Uint16Array([0x6261]).subarray(0, 1))", "ab"),
    ("new TextDecoder().decode()", ""),
    ("thrown(() => new TextDecoder().decode('text'))", "TypeError"),
    ("new TextDecoder().decode(new TextEncoder().encode('x€'.repeat(20000))) === 'x€'.repeat(20000)", True),
    (
        "(() => { const d = new TextDecoder(); return ['ef', 'bb', 'bf61e2', '82', 'acf0', '9f'].map((part) => "
        "d.decode(bytes(part), { stream: true })).concat(d.decode(), d.decode(bytes('efbbbf62'))); })()",
        ["", "", "a", "", "€", "", "�", "b"],
    ),
    (
        "(() => { const d = new TextDecoder('utf-16le'); return ['3d', 'd800', 'de', '3dd8'].map((part) => "
        "d.decode(bytes(part), { stream: true })).concat(d.decode()); })()",
        ["", "", "😀", "", "�"],
    ),
    ("btoa('') + btoa('a') + btoa('ab') + btoa('abc\\xff')", "YQ==YWI=YWJj/w=="),
    ("atob(' Y W\\tI=\\n')", "ab"),
    ("atob('YWJj/w')", "abc\xff"),
    ("atob('')", ""),
    *(
        (f"thrown(() => atob('{text}'))", "InvalidCharacterError")
        for text in ("Y", "YQ=", "YQ===", "=", "Y=Q=", "YQ==YQ==", "YQ-_", "ü", "YWJj=")
    ),
    ("thrown(() => btoa('€'))", "InvalidCharacterError"),
    ("thrown(() => atob())", "TypeError"),
    ("atob(btoa('\\0\\x80\\xff'.repeat(9999))) === '\\0\\x80\\xff'.repeat(9999)", True),
]


def test_texts_and_bytes(script: Load) -> None:
    check(script, ENCODING)


URLS: list[Check] = [
    (
        "new URL('HTTP://Me:P%20w@EXAMPLE.com:80/a/./b/../c?q=1#h').href",
        "http://Me:P%20w@example.com/a/c?q=1#h",
    ),
    (
        "(({ origin, protocol, username, password, host, hostname, port, pathname, search, hash }) => [origin, protocol, username, "
        "password, host, hostname, port, pathname, search, hash])(new URL('https://me:pw@a.b:444/c?d#e'))",
        ["https://a.b:444", "https:", "me", "pw", "a.b:444", "a.b", "444", "/c", "?d", "#e"],
    ),
    ("new URL('https://bücher.example/ü?ü#ü').href", "https://xn--bcher-kva.example/%C3%BC?%C3%BC#%C3%BC"),
    ("new URL('https://faß.example').host", "xn--fa-hia.example"),
    ("new URL('http://0x7f.1/').host", "127.0.0.1"),
    ("new URL('http://[::1:0:0]/').host", "[::1:0:0]"),
    ("new URL('../d?x', 'https://a/b/c/e').href", "https://a/b/d?x"),
    ("new URL('//h/p', 'https://a/b').href", "https://h/p"),
    ("new URL('#f', 'https://a/b?q').href", "https://a/b?q#f"),
    ("new URL('  https://a/\\tb\\n c ').href", "https://a/b%20c"),
    ("new URL('https:\\\\\\\\a\\\\b').href", "https://a/b"),
    ("new URL('file:///a/../../b').href", "file:///b"),
    ("new URL('mailto:a@b').origin", "null"),
    ("new URL('data:text/plain,a b').pathname", "text/plain,a b"),
    ("new URL('https://a/\\ud800').pathname", "/%EF%BF%BD"),
    ("new URL('wss://a:443/').port", ""),
    *(
        (f"thrown(() => new URL({arguments}))", "TypeError")
        for arguments in (
            "",
            "''",
            "'/a'",
            "'http://'",
            "'http://a b/'",
            "'http://a:99999'",
            "'a', 'b'",
            "'http://[1'",
        )
    ),
    ("URL.canParse('/a', 'http://b') && !URL.canParse('/a')", True),
    ("JSON.stringify({ u: new URL('http://a') }) + `${new URL('http://a')}`", '{"u":"http://a/"}http://a/'),
    (
        "(() => { const u = new URL('http://a/b'); u.protocol = 'https'; u.host = 'X:444'; u.port = 'no'; u.pathname = 'a b?'; "
        "u.search = 'q=ü'; u.hash = 'h'; u.username = 'm e'; u.password = ':'; return u.href; })()",
        "https://m%20e:%3A@x:444/a%20b%3F?q=%C3%BC#h",
    ),
    (
        "(() => { const u = new URL('http://a/b#c'); u.hash = ''; u.protocol = 'mailto'; u.hostname = ''; return u.href; })()",
        "http://a/b",
    ),
    (
        "(() => { const u = new URL('http://a/?x=1'); u.href = 'http://b/?y=2'; return u.searchParams.get('y') + u.host; })()",
        "2b",
    ),
    ("thrown(() => { new URL('http://a').href = 'b'; })", "TypeError"),
    (
        "(() => { const u = new URL('http://a/?x=1'), p = u.searchParams; p.append('y', 'a b&'); const one = u.href; u.search = '?z=3'; "
        "const two = [...p].join(); p.delete('z'); return [one, two, u.href, p === u.searchParams]; })()",
        ["http://a/?x=1&y=a+b%26", "z,3", "http://a/", True],
    ),
    ("thrown(() => new URL('http://a/' + 'x'.repeat(2 ** 22)))", "TypeError"),
    ("thrown(() => new URL('http://' + 'ü'.repeat(2 ** 20)))", "TypeError"),
    (
        "Object.prototype.toString.call(new URL('http://a')) + Object.keys(globalThis).includes('URL')",
        "[object URL]false",
    ),
]


def test_urls(script: Load) -> None:
    check(script, URLS)


PARAMS: list[Check] = [
    ("String(new URLSearchParams('?a=1&b=%20+%FF&&c&=d&a=2%'))", "a=1&b=++%EF%BF%BD&c=&=d&a=2%25"),
    ("String(new URLSearchParams([['a', 1], ['ü', '😀*-._~']]))", "a=1&%C3%BC=%F0%9F%98%80*-._%7E"),
    ("String(new URLSearchParams({ b: 2, a: [1, 2] }))", "b=2&a=1%2C2"),
    ("String(new URLSearchParams(new Map([['x', 'y']])))", "x=y"),
    ("String(new URLSearchParams(new URLSearchParams('x=y&x=z')))", "x=y&x=z"),
    ("thrown(() => new URLSearchParams([['a']]))", "TypeError"),
    ("new URLSearchParams('a=1&b=2&a=3').getAll('a')", ["1", "3"]),
    (
        "[...new URLSearchParams('a=1&b=2').keys()].join() + [...new URLSearchParams('a=1&b=2').values()].join()",
        "a,b1,2",
    ),
    ("new URLSearchParams('a=1').get('b')", None),
    (
        "(() => { const p = new URLSearchParams('a=1&b=2&a=3'); p.set('a', 9); p.set('c', 'é'); return p + ' ' + p.size; })()",
        "a=9&b=2&c=%C3%A9 3",
    ),
    (
        "(() => { const p = new URLSearchParams('b=1&a=2&b=0&é=1'); p.sort(); return p.toString(); })()",
        "a=2&b=1&b=0&%C3%A9=1",
    ),
    (
        "(() => { const p = new URLSearchParams('b=1&b=2'), seen = []; p.delete('b', '1'); p.forEach((v, k) => seen.push(k + v)); return seen; })()",
        ["b2"],
    ),
    ("new URLSearchParams('a=1').has('a') && !new URLSearchParams('a=1').has('a', '2')", True),
    ("Object.fromEntries(new URLSearchParams('a=%zz&b=%4'))", {"a": "%zz", "b": "%4"}),
]


def test_search_parameters(script: Load) -> None:
    check(script, PARAMS)


CLONES: list[Check] = [
    ("structuredClone({ a: [1, , 'x', null], b: undefined })", {"a": [1, None, "x", None]}),
    ("1 in structuredClone([1, , 2])", False),
    (
        "structuredClone([10n, undefined, NaN, -0]).map((x) => typeof x + Object.is(x, -0)).join()",
        "bigintfalse,undefinedfalse,numberfalse,numbertrue",
    ),
    (
        "(() => { const a = { list: [] }; a.self = a; a.list.push(a); const b = structuredClone(a); return b !== a && b.self === b && b.list[0] === b; })()",
        True,
    ),
    (
        "(() => { const key = { k: 1 }, m = structuredClone(new Map([[key, new Set([key])]])); const [[k, s]] = m; return [m instanceof Map, s.has(k), k !== key]; })()",
        [True, True, True],
    ),
    ("structuredClone(new Date(5)).getTime() + structuredClone(new Date(NaN)).getTime()", None),
    (
        "(() => { const t = structuredClone(new Timestamp(5, 7)); return [t instanceof Timestamp, +t, t.nanoseconds]; })()",
        [True, 5, 7],
    ),
    (
        "(() => { const r = /a\\/b/giu; r.lastIndex = 3; const c = structuredClone(r); return `${c}${c.lastIndex}`; })()",
        "/a\\/b/giu0",
    ),
    (
        "(() => { const e = structuredClone(new RangeError('m', { cause: { c: 1 } })); return [e instanceof RangeError, e.message, e.cause.c, Object.keys(e)]; })()",
        [True, "m", 1, []],
    ),
    (
        "(() => { class A extends Error { name = 'A'; } const e = structuredClone(new A('m')); return [e.constructor === Error, e.message]; })()",
        [True, "m"],
    ),
    (
        "(() => { const buffer = bytes('01020304').buffer; const c = structuredClone({ a: new Uint16Array(buffer, 2), b: new DataView(buffer, 1, 2), buffer });"
        "return [hex(c.a.buffer), c.a.length, c.b.getUint8(0), c.b.byteLength, c.a.buffer === c.buffer, c.b.buffer === c.buffer, c.buffer !== buffer]; })()",
        ["01020304", 1, 2, 2, True, True, True],
    ),
    (
        "structuredClone(new BigInt64Array([5n]))[0] === 5n && structuredClone(new Uint8ClampedArray([300]))[0] === 255",
        True,
    ),
    (
        "(() => { const s = structuredClone(Object('s')), n = structuredClone(Object(1)); return [typeof s, `${s}`, typeof n, n + 1]; })()",
        ["object", "s", "object", 2],
    ),
    (
        "(() => { class A { x = 1; get y() { return 2; } } const c = structuredClone(new A()); return [c.constructor === Object, c]; })()",
        [True, {"x": 1}],
    ),
    ("structuredClone({ get x() { return 3; }, ['__proto__']: 4 }).__proto__", 4),
    ("structuredClone(Object.create({ inherited: 1 }, { hidden: { value: 2 } }))", {}),
    *(
        (f"thrown(() => structuredClone({refused}))", "DataCloneError")
        for refused in (
            "() => 1",
            "{ a: [Symbol('s')] }",
            "Promise.resolve()",
            "new WeakMap()",
            "new URL('http://a')",
            "new Intl.Collator()",
            "1, { transfer: [new ArrayBuffer(1)] }",
        )
    ),
    ("new DOMException('m', 'DataCloneError').code + new DOMException().name", "25Error"),
    ("thrown(() => structuredClone())", "TypeError"),
    (
        "thrown(() => { let deep = []; for (let i = 0; i < 1e6; i++) deep = [deep]; structuredClone(deep); })",
        "RangeError",
    ),
]


def test_structured_clones(script: Load) -> None:
    check(script, CLONES)


MISSING: list[Check] = [
    ("[[1, 2].at(-1), [1].at(1), [1].at(-2), [1, 2].at(0.9), [1].at()]", [2, None, None, 1, 1]),
    ("['ab'.at(-1), 'ab'.at(2), ''.at(0)]", ["b", None, None]),
    (
        "[new Int8Array([1, 2]).at(-1), new Float64Array([0.5]).at(0), new BigInt64Array([5n]).at(0) === 5n]",
        [2, 0.5, True],
    ),
    ("[Object.hasOwn({ a: 1 }, 'a'), Object.hasOwn({}, 'toString')]", [True, False]),
    (
        "[[1, 2, 3].findLast((x) => x < 3), [1, 2].findLastIndex((x) => x > 2), [1].findLast(() => false)]",
        [2, -1, None],
    ),
    (
        "[new Int8Array([1, 2]).findLast((x) => x > 0), new Int8Array([1, 2]).findLastIndex((x) => x === 1)]",
        [2, 0],
    ),
    ("Array.prototype.at.call({ length: 2, 1: 'b' }, -1)", "b"),
    (
        "[thrown(() => Array.prototype.at.call(null, 0)), thrown(() => Object.hasOwn(null)), thrown(() => [].findLast(1))]",
        ["TypeError"] * 3,
    ),
    (
        "(() => { const seen = []; for (const key in []) seen.push(key); return seen.concat(Object.keys(Array.prototype)); })()",
        [],
    ),
    ("[[].at.name, [].at.length, 'prototype' in [].at, Object.hasOwn.length]", ["at", 1, False, 2]),
]


def test_methods_that_v8_leaves_out(script: Load) -> None:
    check(script, MISSING)


@pytest.mark.parametrize(
    ("before", "expression", "expected"),
    [
        ("Object.hasOwn = () => 'own';", "Object.hasOwn({}, 'a')", "own"),
        ("Array.prototype.at = () => 'own';", "[1].at(0)", "own"),
        ("String.prototype.at = () => 'own';", "'a'.at(0)", "own"),
        ("Array.prototype.findLast = () => 'own';", "[1].findLast(() => true)", "own"),
        ("Uint8Array.__proto__.prototype.findLastIndex = () => 'own';", "new Uint8Array(1).findLastIndex()", "own"),
        ("delete Array.prototype.findLastIndex;", "typeof [].findLastIndex", "undefined"),
        (
            "Object.defineProperty(Object, 'hasOwn', { value: () => 'own', configurable: false });",
            "Object.hasOwn({}, 'a')",
            "own",
        ),
        ("Object.freeze(Array.prototype);", "[1].at(-1)", 1),
        ("Object.freeze(Object); Object.freeze(String.prototype);", "[Object.hasOwn({}, 'a'), 'a'.at(0)]", [False, "a"]),
    ],
)  # fmt: skip
def test_what_a_file_does_to_such_methods_is_kept(
    script: Load, before: str, expression: str, expected: Any
) -> None:
    check(script, [(expression, expected)], before)


PATCHES = """
    const nothing = () => { throw new Error("patched"); };
    const patch = (target, name, property) => Object.defineProperty(target, name, { __proto__: null, configurable: true, ...property });
    const names = "decode encode charCodeAt slice subarray set has get forEach push split replace indexOf bind call apply"
      + " valueOf toString length buffer size";
    const classes = [Map, Set, Array, String, RegExp, Date, Uint8Array, Uint8Array.__proto__, TextDecoder, TextEncoder, Function];
    const patchAll = () => {
      for (const Class of classes) {
        for (const name of names.split(" ")) if (Object.hasOwn(Class.prototype, name)) patched.push([Class.prototype, name]);
      }
      for (const [prototype, name] of patched) {
        const property = Object.getOwnPropertyDescriptor(prototype, name);
        if (property.configurable && property.get) patch(prototype, name, { get: nothing });
        else if (property.configurable) patch(prototype, name, { value: nothing });
      }
      patch(Object.prototype, "get", { get: nothing, set: nothing });
      for (const index of [0, 1, 2]) patch(Array.prototype, index, { get: nothing, set: nothing });
      patch(Array.prototype, Symbol.iterator, { value: nothing });
      globalThis.Uint16Array = globalThis.Uint8Array = globalThis.Map = nothing;
    };
    const patched = [];
"""


def test_what_the_language_is_changed_to_does_not_matter(script: Load) -> None:
    con = script(
        PATCHES
        + """
        const text = new TextDecoder(), binary = new TextEncoder(), decode = text.decode, encode = binary.encode;
        const date = { list: ["x", new Date(0)], map: new Map([["a", binary.encode("abc")]]), params: null };
        const sizeOf = Object.getOwnPropertyDescriptor(Map.prototype, "size").get, { apply } = Reflect;
        udf("same(x VARCHAR) -> BOOLEAN", (x) => {
          if (x === "") return false;
          patchAll();
          const url = new URL(x);
          url.searchParams.append("k", "\u00fc ");
          const copy = structuredClone(date);
          const back = apply(decode, text, [apply(encode, binary, ["\u00e9"])]);
          const all = url.href + btoa(atob("YQ==")) + back + copy.list[0] + apply(sizeOf, copy.map, []);
          return all === "http://a/?k=%C3%BC+YQ==\u00e9x1";
        });
        """
    )
    assert value(con, "SELECT same('')") is False
    assert value(con, "SELECT same('http://a')") is True


def test_json_files_have_exact_integers(script: Load, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(
        '{"a": [12345678901234567890, 1, 0.5], "__proto__": "n1234567890123456789"}'
    )
    con = script(
        """
        import data from "./data.json";
        udf("kinds(x BIGINT) -> VARCHAR", () => data.a.map((x) => `${typeof x} ${x}`).join() + Object.keys(data));
        """
    )
    assert value(con, "SELECT kinds(1)") == "bigint 12345678901234567890,number 1,number 0.5a,__proto__"


def test_memory_for_texts_counts(script: Load) -> None:
    con = script(
        """
        udf("size(x BIGINT) -> BIGINT", { memory_limit: "32 MiB" }, (x) => new TextEncoder().encode("x".repeat(Number(x))).length);
        """
    )
    assert value(con, "SELECT size(1000000)") == 1_000_000
    with pytest.raises(duckdb.Error, match=r"memory|RangeError"):
        con.execute("SELECT size(100000000)").fetchall()
