"""Ways out of JavaScript: each is refused in a sandbox, and works where it is allowed.

``crates/crosslane-js/tests/it/ways_out`` has the ways for code that has broken out of V8.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import crosslane

from ...conftest import value
from ...javascript.test_sandbox import WAYS_OUT

#: Ways that no setting can allow: a syntax of V8's own tests, and imports after the load.
NEVER = {
    way for way, expected in WAYS_OUT.items() if expected.startswith(("SyntaxError", "Error: Not supported"))
}
#: A library that defines harmless forms of everything that these ways look for.
PLANTED = """
    const reads = () => "planted";
    const host = { pid: 1, env: {}, exit: reads };
    class Thing {}
    Object.assign(globalThis, {
      process: host, require: () => ({ readFileSync: reads }), fetch: reads, XMLHttpRequest: Thing, WebSocket: Thing,
      Worker: Thing, Deno: { readTextFileSync: reads }, load: reads, read: reads, os: { system: reads }, quit: reads,
      WebAssembly: { compile: reads }, SharedArrayBuffer: Thing, Atomics: { wait: reads },
    });
"""
RUN = "udf('run(code VARCHAR) -> VARCHAR', { deterministic: false }, async (code) => String(await (0, eval)(code)));"

#: Imports that are refused, and imports of the same form that are allowed.
IMPORTS = {
    "a path": ("{outside}/secret.js", "{library}/inside.js"),
    "a path of data": ("{outside}/secret.json", "{library}/inside.json"),
    "a path upwards": ("../outside/secret.js", "../library/inside.js"),
    "a path down and up": ("./lib/../../outside/secret.js", "./lib/../inside.js"),
    "a path up from another file": ("./lib/up.js", "./lib/inside.js"),
    "a link": ("./link.js", "./inner.js"),
    "a link to data": ("./link.json", "./inner.json"),
    "a link to a folder": ("./folder/secret.js", "./lib/inside.js"),
    "a file without a suffix": ("../outside/database", "./inside.js"),
    "the users": ("/etc/passwd", "{library}/inside.js"),
    "the environment": ("/proc/self/environ", "{library}/inside.js"),
    "the environment of the engine": ("/proc/{engine}/environ", "{library}/inside.js"),
    "the own memory": ("/proc/self/mem", "{library}/inside.js"),
    "what never ends": ("/dev/zero", "{library}/inside.js"),
    "what waits": ("./pipe.js", "./inside.js"),
    "an address of a file": ("file://{outside}/secret.js", "{library}/inside.js"),
    "an address of data": ("data:text/javascript,export default 'secret'", "./inside.js"),
    "an address of a host": ("http://127.0.0.1:{tcp}/secret.js", "./inside.js"),
    "a module of Node": ("node:fs", "known"),
    "a module of Node by its short name": ("child_process", "known"),
    "a package of another folder": ("hidden", "known"),
    "a package's way up": ("known/../../../outside/secret.js", "known"),
    "a package whose start is elsewhere": ("liar", "known"),
    "a package that is a link": ("linked", "known"),
}

#: Code that uses memory that V8 counts, and memory that it does not count: at least 80 MB each.
MEMORY = {
    "objects": "const a = []; while (a.length < 8e5) a.push({ a: a.length, b: [a.length] }); return a.length",
    # V8 looks at its memory when an array grows. One that is made at once may exceed the limit for a moment.
    "an array": "const a = [1.5]; while (a.length < 1e7) a.push(a.length / 3); return a.length",
    "buffers": "const a = []; while (a.length < 100) a.push(new Uint8Array(1 << 20)); return a.length",
    "one buffer": "return new Float64Array(1e7).length",
    "strings": "const a = []; while (a.length < 5e5) a.push('text '.repeat(20) + a.length); return a.length",
    "one string": "return ('ä€' + 'x'.repeat(2e8)).charCodeAt(2e8)",
    "a map": "const m = new Map(); while (m.size < 1e6) m.set(m.size, {}); return m.size",
    "numbers of many digits": "const a = []; while (a.length < 100) a.push(1n << 8000000n); return a.length",
    "JSON": "return JSON.parse('[' + '1.5,'.repeat(1e7) + '1]').length",
    "parts of a text": "return 'a,'.repeat(1e7).split(',').length",
}

#: Code that takes time, if the size is large.
TIME = {
    "a loop": "for (let i = 0; i < size * size; i++);",
    "a regular expression": "/^(a+)+$/.test('a'.repeat(2 * Math.log2(size)) + 'b')",
    "promises": "return (async () => { for (let i = 0; i < size * size; i++) await null; })()",
    "texts of objects": "let i = 0; while (i++ < size * size) String({ toString: () => 'x' });",
    "a promise that nothing settles": "if (size > 100) return new Promise(() => {})",
    "a timer": "return new Promise((done) => setTimeout(done, size > 100 ? size : 0))",
}


def out_of(con: duckdb.DuckDBPyConnection, call: str, *arguments: Any) -> str:
    """``out`` and the result, or the error."""
    try:
        (result,) = con.execute(f"SELECT {call}", arguments).fetchone() or ("",)
    except duckdb.Error as error:
        return str(error)
    return f"out: {result}"


@pytest.fixture(params=["on", "strict"])
def settings(request: pytest.FixtureRequest, place: dict[str, Any]) -> dict[str, Any]:
    return {
        "sandbox": request.param,
        "allow_read": [place["folder"]],
        "allow_net": True,
        "allow_run": ["/bin/true"],
    }


def load(file: Path, text: str, settings: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    file.write_text(text)
    return crosslane.connect(functions=[file], settings=settings, config={"threads": 1})


def test_code_reaches_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    with load(tmp_path / "functions.js", RUN, settings) as con:
        outcomes = {way: out_of(con, "run(?)", way) for way in WAYS_OUT}
    assert len(outcomes) >= 28
    assert not {
        way: outcome
        for way, outcome in outcomes.items()
        if f"run: {WAYS_OUT[way] or 'ReferenceError: '}" not in outcome
    }


def test_code_reaches_what_is_there(tmp_path: Path, settings: dict[str, Any]) -> None:
    with load(tmp_path / "functions.js", PLANTED + RUN, settings) as con:
        outcomes = {way: out_of(con, "run(?)", way) for way in WAYS_OUT.keys() - NEVER}
    assert len(outcomes) >= 24
    assert not {way: outcome for way, outcome in outcomes.items() if not outcome.startswith("out: ")}


@pytest.fixture
def library(tmp_path: Path, place: dict[str, Any]) -> Iterator[Path]:
    outside, folder = Path(place["folder"]), tmp_path / "library"
    (folder / "lib").mkdir(parents=True)
    (outside / "secret.js").write_text("export default 'secret';")
    (outside / "secret.json").write_text('"secret"')
    for file in ("inside.js", "lib/inside.js"):
        (folder / file).write_text("export default 'inside';")
    (folder / "inside.json").write_text('"inside"')
    (folder / "lib" / "up.js").write_text("export { default } from '../../outside/secret.js';")
    for name, target in (
        ("link.js", outside / "secret.js"),
        ("link.json", outside / "secret.json"),
        ("folder", outside),
        ("inner.js", folder / "inside.js"),
        ("inner.json", folder / "inside.json"),
    ):
        (folder / name).symlink_to(target)
    (folder / "pipe.js").symlink_to("/dev/stdin")
    for package, start in (("known", "index.js"), ("liar", "../../../outside/secret.js")):
        (folder / "node_modules" / package).mkdir(parents=True)
        (folder / "node_modules" / package / "package.json").write_text(
            json.dumps({"type": "module", "main": start})
        )
        (folder / "node_modules" / package / "index.js").write_text("export default 'inside';")
    (tmp_path / "node_modules" / "hidden").mkdir(parents=True)
    (tmp_path / "node_modules" / "hidden" / "index.js").write_text("module.exports = 'secret';")
    (folder / "node_modules" / "linked").symlink_to(tmp_path / "node_modules" / "hidden")
    place["library"], place["outside"] = str(folder), str(outside)
    return folder


#: The syntax of an import in each kind of file.
FORMS = {"js": "import it from {};", "cjs": "const it = require({});"}


def imported(folder: Path, specifier: str, place: dict[str, Any], kind: str = "js") -> str:
    """``out`` and the import of a file, or the reason why it does not import anything."""
    use = "\nudf('f() -> VARCHAR', () => String(it));"
    text = FORMS[kind].format(json.dumps(specifier.format(**place))) + use
    settings = {"sandbox": "on", "allow_read": [place["folder"]], "allow_net": True}
    try:
        with load(folder / f"functions.{kind}", text, settings) as con:
            return f"out: {value(con, 'SELECT f()')}"
    except duckdb.Error as error:
        return str(error)


@pytest.mark.parametrize("kind", FORMS)
def test_files_import_nothing_from_elsewhere(library: Path, place: dict[str, Any], kind: str) -> None:
    outcomes = {way: imported(library, out, place, kind) for way, (out, _) in IMPORTS.items()}
    refused = ('Error: cannot import "', 'Error: cannot require "')
    assert not {
        way: outcome for way, outcome in outcomes.items() if not any(text in outcome for text in refused)
    }


def test_files_import_what_is_theirs(library: Path, place: dict[str, Any]) -> None:
    allowed = {allowed for _, allowed in IMPORTS.values()}
    outcomes = {specifier: imported(library, specifier, place) for specifier in allowed}
    assert set(outcomes.values()) == {"out: inside"}, outcomes
    assert imported(library, "./inside.json", place, "cjs") == "out: inside"


def declared(ways: dict[str, str], parameters: str) -> str:
    """The ways as functions of an object, ``WAYS``."""
    return f"const WAYS = {{{', '.join(f'{json.dumps(way)}: ({parameters}) => {{ {text} }}' for way, text in ways.items())}}};"


def test_calls_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    text = """
        for (const [name, limit] of [["little", "32 MB"], ["much", "4 GB"]]) {
          const options = { memory_limit: limit, deterministic: false };
          udf(`with_${name}(way VARCHAR) -> VARCHAR`, options, (way) => String(WAYS[way]()));
        }
    """
    with load(tmp_path / "functions.js", declared(MEMORY, "") + text, {"sandbox": "strict"}) as con:
        refused = {way: out_of(con, "with_little(?)", way) for way in MEMORY}
        allowed = {way: out_of(con, "with_much(?)", way) for way in MEMORY}
    assert not {way: outcome for way, outcome in refused.items() if "RangeError: " not in outcome}
    assert not {way: outcome for way, outcome in allowed.items() if not outcome.startswith("out: ")}


def test_calls_take_no_more_time_than_they_may(tmp_path: Path) -> None:
    text = """
        const call = async (way, size) => String(await WAYS[way](size));
        udf("limited(way VARCHAR, size BIGINT) -> VARCHAR", { timeout: 0.3, deterministic: false }, call);
        udf("unlimited(way VARCHAR, size BIGINT) -> VARCHAR", { deterministic: false }, call);
    """
    with load(tmp_path / "functions.js", declared(TIME, "size") + text, {"sandbox": "strict"}) as con:
        refused = {way: out_of(con, "limited(?, ?)", way, 2**30) for way in TIME}
        allowed = {way: out_of(con, "unlimited(?, ?)", way, 4) for way in TIME}
    refusals = ("TimeoutError: ", "a promise that nothing can settle")
    assert not {
        way: outcome for way, outcome in refused.items() if not any(text in outcome for text in refusals)
    }
    assert not {way: outcome for way, outcome in allowed.items() if not outcome.startswith("out: ")}
