"""JavaScript functions can reach only the language and imports from their folder."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Load, value

pytestmark = pytest.mark.any_duckdb


#: ECMA-262's globals, and what Crosslane adds.
GLOBALS = """
    Object Function Array Number parseFloat parseInt Infinity NaN undefined Boolean String Symbol Date Promise RegExp
    Error AggregateError EvalError RangeError ReferenceError SyntaxError TypeError URIError globalThis JSON Math Intl
    ArrayBuffer Uint8Array Int8Array Uint16Array Int16Array Uint32Array Int32Array Float32Array Float64Array
    Uint8ClampedArray BigUint64Array BigInt64Array DataView Map BigInt Set WeakMap WeakSet WeakRef Proxy Reflect
    FinalizationRegistry Iterator decodeURI decodeURIComponent encodeURI encodeURIComponent escape unescape eval isFinite isNaN
    console setTimeout clearTimeout setInterval clearInterval udf udtf udaf Timestamp
    DOMException TextDecoder TextEncoder URL URLSearchParams WebAssembly atob btoa structuredClone
"""


def test_nothing_but_the_language_is_there(script: Load) -> None:
    con = script("udf('names(x BIGINT) -> VARCHAR[]', (x) => Object.getOwnPropertyNames(globalThis));")
    names = set(value(con, "SELECT names(1)"))
    assert {"Object", "Promise", "console", "udf"} <= names
    assert names <= set(GLOBALS.split())


#: Code that tries to leave the sandbox, and its error if that is not a ReferenceError.
WAYS_OUT = {
    "process.exit(1)": "",
    "require('fs').readFileSync('/etc/passwd', 'utf8')": "",
    "Function('return this')().process.mainModule": "TypeError: Cannot read properties of undefined (reading 'mainModule')",
    "(function () {}).constructor('return process')().pid": "",
    "globalThis.constructor.constructor('return process')().env": "",
    "new Error().constructor.constructor('return require')()('fs')": "",
    "console.log.constructor('return process')().pid": "",
    "setTimeout.constructor('return process')().pid": "",
    "udf.constructor('return process')().pid": "",
    "fetch('http://127.0.0.1/')": "",
    "new XMLHttpRequest()": "",
    "new WebSocket('ws://127.0.0.1/')": "",
    "new Worker('x.js')": "",
    "Deno.readTextFileSync('/etc/passwd')": "",
    "load('/etc/passwd')": "",
    "read('/etc/passwd')": "",
    "os.system('true')": "",
    "quit()": "",
    "WebAssembly.compile(new Uint8Array(8))": "CompileError: WebAssembly.Module()",
    "new SharedArrayBuffer(8)": "",
    "Atomics.wait(new Int32Array(4), 0, 0)": "",
    "eval('process')": "",
    "Reflect.construct(Function, ['return process'])().pid": "",
    "%DebugPrint(1)": "SyntaxError: Unexpected token '%'",
    "(() => { try { null.x } catch (e) { return e.constructor.constructor('return process')().pid } })()": "",
    """(() => {
      Error.prepareStackTrace = (_, frames) => frames;
      const frames = new Error().stack;
      delete Error.prepareStackTrace;
      for (const frame of frames) {
        for (const reached of [frame.getThis(), frame.getFunction()]) {
          // Frames of the host's own code.
          if (!/functions.js$|^$/.test(frame.getFileName() ?? "") && reached !== undefined) return String(reached);
        }
      }
      return process.pid;
    })()""": "",
    "(async () => (await import('node:fs')).readFileSync('/etc/passwd', 'utf8'))()": "Error: Not supported",
    "(async () => (await import('/etc/passwd')).default)()": "Error: Not supported",
    "(async () => (await import('./functions.js')).default)()": "Error: Not supported",
}


@pytest.fixture
def explorer(script: Load) -> duckdb.DuckDBPyConnection:
    return script("udf('run(code VARCHAR) -> VARCHAR', async (code) => String(await (0, eval)(code)));")


def leads_nowhere(con: duckdb.DuckDBPyConnection, way: str, expected: str) -> bool:
    """Whether a way out ends with the expected error. If not, the test prints what the code reached."""
    try:
        reached = con.execute("SELECT run(?)", [way]).fetchall()
    except duckdb.Error as refused:
        reached = str(refused)
        if f"run: {expected or 'ReferenceError: '}" in reached:
            return True
    print(way, "->", reached)
    return False


def test_the_known_ways_out_lead_nowhere(explorer: duckdb.DuckDBPyConnection) -> None:
    con = explorer
    assert [way for way, expected in WAYS_OUT.items() if not leads_nowhere(con, way, expected)] == []
    assert value(con, "SELECT run('''still'' + '' here''')") == "still here"


@pytest.mark.parametrize("way", ["40 + 2", "'text'", "undefined", "Promise.resolve(1)", "null.x", "throw 1"])
def test_a_way_out_that_leads_somewhere_is_noticed(explorer: duckdb.DuckDBPyConnection, way: str) -> None:
    assert not leads_nowhere(explorer, way, "")


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A folder of functions, with files beside it that the functions must not read."""
    (tmp_path / "secret.js").write_text("export default 'hunter2';")
    (tmp_path / "secret.json").write_text('"hunter2"')
    (tmp_path / "broken.json").write_text('{"hunter2"')
    (tmp_path / "passwd").write_text("hunter2:x:0:0")
    folder = tmp_path / "functions"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "text.js").write_text("import two from '../two.js'; export default two + 1;")
    (folder / "two.js").write_text("export default 2;")
    (folder / "link.js").symlink_to(tmp_path / "secret.js")
    (folder / "folder").symlink_to(tmp_path)
    (folder / "inner.js").symlink_to(folder / "two.js")
    os.mkfifo(folder / "pipe.js")
    return folder


def importing(con: duckdb.DuckDBPyConnection, folder: Path, specifier: str) -> str:
    """The value, or the error, of a function that returns its import."""
    path = folder / "functions.js"
    path.write_text(f"import it from {specifier!r}; udf('f(x BIGINT) -> VARCHAR', () => JSON.stringify(it));")
    try:
        crosslane.load(con, path)
        return str(value(con, "SELECT f(1)"))
    except duckdb.Error as refused:
        return str(refused)


def test_imports_stay_in_the_folder_of_the_file(con: duckdb.DuckDBPyConnection, secrets: Path) -> None:
    assert importing(con, secrets, "./lib/text.js") == "3"
    assert importing(con, secrets, "./inner.js") == "2"
    assert importing(con, secrets, f"{secrets}/two.js") == "2"
    for specifier in (
        "../secret.js",
        "../secret.json",
        "../broken.json",
        "../passwd",
        "../nothing.js",
        "./lib/../../secret.js",
        "./link.js",
        "./folder/secret.js",
        "./folder/secret",
        f"{secrets.parent}/secret.js",
        "/etc/passwd",
        "/proc/self/environ",
    ):
        refused = importing(con, secrets, specifier)
        assert f'cannot import "{specifier}": it is not in the file\'s folder' in refused
        assert "hunter2" not in refused
    assert "it is not a file" in importing(con, secrets, "./pipe.js")


def test_imports_from_other_folders_can_be_allowed(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = secrets.parent / "shared"
    shared.mkdir()
    (shared / "one.js").write_text("export default 1;")
    monkeypatch.setenv("CROSSLANE_JS_IMPORTS", f"{shared}:relative")
    with crosslane.connect() as con:
        assert importing(con, secrets, "../shared/one.js") == "1"
        assert "not in the file's folder" in importing(con, secrets, "../secret.js")


def test_changes_of_the_language_harm_no_other_function(script: Load) -> None:
    con = script(
        """
        udf("tamper(x BIGINT) -> VARCHAR", (x) => {
          Array.prototype.join = Array.prototype.push = () => "gotcha";
          Number.isSafeInteger = () => true; Math.floor = () => 7; JSON.stringify = () => "gotcha";
          String.prototype.toString = Date.prototype.getTime = () => "gotcha";
          return "x".repeat(3);
        });
        udf("f(x BIGINT) -> BIGINT", (x) => x * 2);
        udf("s(x VARCHAR) -> VARCHAR", (x) => x + "!");
        udf("l(x BIGINT) -> BIGINT[]", (x) => [x]);
        """
    )
    con.execute("SET threads = 1")
    assert value(con, "SELECT tamper(1)") == "xxx"
    assert value(con, f"SELECT f({2**40})") == 2**41
    assert value(con, "SELECT s('ü')") == "ü!"
    assert value(con, "SELECT l(5)") == [5]
    assert value(con, "SELECT tamper(1)") == "xxx"
