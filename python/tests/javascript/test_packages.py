"""Packages that npm has installed beside a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pytest

import crosslane

from ..conftest import Load, value

pytestmark = pytest.mark.any_duckdb

LUXON = Path(__file__).parents[3] / "examples" / "flights" / "node_modules" / "luxon"


def install(folder: Path, name: str, package: dict[str, object], **files: str) -> None:
    """Makes a package; a file's name has `_` for `/` and no ending `.js`."""
    top = folder / "node_modules" / name
    top.mkdir(parents=True)
    for file, text in files.items():
        path = top / (file.replace("_", "/") + ".js")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (top / "package.json").write_text(json.dumps({"name": name, **package}))


def test_packages_are_imported_by_their_names(script: Load, tmp_path: Path) -> None:
    install(
        tmp_path,
        "@scope/words",
        {
            "type": "module",
            "exports": {".": {"node": "./no.js", "default": "./es/main.js"}, "./fp/*": "./fp/*.js"},
        },
        es_main='import { end } from "marks"; export const shout = (text) => text.toUpperCase() + end;',
        fp_twice="export default (text) => text + text;",
    )
    install(tmp_path, "marks", {"module": "es/marks.js", "main": "no.js"}, es_marks='export const end = "!";')
    con = script(
        """
        import { shout } from "@scope/words";
        import twice from "@scope/words/fp/twice";
        udf("loud(x VARCHAR) -> VARCHAR", (x) => shout(twice(x)));
        """
    )
    assert value(con, "SELECT loud('hé')") == "HÉHÉ!"


@pytest.mark.parametrize("name", ["functions.js", "functions.cjs"])
def test_packages_of_scripts_require_their_own_files_and_packages(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, name: str
) -> None:
    install(
        tmp_path,
        "pad",
        {"main": "lib"},
        lib_index='const { char } = require("./chars"), repeat = require("repeat");\n'
        "module.exports = (text, n) => repeat(char, n - text.length) + text;",
        lib_chars='exports.char = ".";',
    )
    install(tmp_path, "repeat", {}, index="module.exports = (text, n) => text.repeat(n);")
    imports = 'import pad from "pad";' if name.endswith(".js") else 'const pad = require("pad");'
    path = tmp_path / name
    path.write_text(f'{imports}\nudf("padded(x VARCHAR) -> VARCHAR", (x) => pad(x, 5));')
    crosslane.load(con, path)
    assert value(con, "SELECT padded('abc')") == "..abc"


def test_a_large_package_of_npm(script: Load, tmp_path: Path) -> None:
    """Its `exports` name files with `import * as`. So the test imports the package by the path of its
    bundle."""
    shutil.copytree(LUXON, tmp_path / "node_modules" / "luxon")
    text = """
        import {{ DateTime }} from "{}";
        udf("iso_week(day VARCHAR) -> BIGINT", (day) => DateTime.fromISO(day).weekNumber);
        """
    con = script(text.format("./node_modules/luxon/build/es6/luxon.js"))
    assert value(con, "SELECT iso_week('2026-11-29')") == 48
    with pytest.raises(
        duckdb.Error, match=r"`import \* as` makes an object .* bundled into one file"
    ) as caught:
        script(text.format("luxon"))
    assert "node_modules/luxon/src/" in str(caught.value)


def test_packages_that_are_not_there(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "package.json").write_text('{"dependencies": {"left-pad": "1"}}')
    install(tmp_path, "closed", {"exports": {"./open": "./open.js"}}, open="export default 1;")
    install(tmp_path, "broken", {"main": "lib/gone.js"})
    install(tmp_path, "leaving", {"exports": "./../../../secret.js"})
    (tmp_path.parent / "secret.js").write_text("export default 1;")
    install(tmp_path.parent, "linked", {"main": "x.js"}, x="export default 1;")
    (tmp_path / "node_modules" / "linked").symlink_to(tmp_path.parent / "node_modules" / "linked")
    path = tmp_path / "functions.js"
    for imported, parts in {
        "left-pad": ["package.json lists it", f"Run `npm install` in {tmp_path}", "functions.js:1:17"],
        "lodash": ["there is no such package", f"Run `npm install lodash` in {tmp_path}"],
        "closed": ["the package closed exports no such module"],
        "closed/hidden": ["the package closed exports no such module"],
        "broken": ["the package broken has no file lib/gone.js"],
        "leaving": ["the package leaving exports no such module"],
        "broken//etc/passwd": ["the package broken exports no such module"],
        "broken//no/such/file": ["the package broken exports no such module"],
        "linked": ["there is no such package"],
        "fs": ["functions have no files, sockets or processes"],
        "#inner": ["neither a path"],
        "https://x.y/z.js": ["neither a path"],
    }.items():
        with subtests.test(imported):
            path.write_text(f'import one from "{imported}";\nudf("f() -> BIGINT", () => 1);')
            with pytest.raises(duckdb.Error, match="cannot import") as caught:
                crosslane.load(con, path)
            for part in parts:
                assert part in str(caught.value)
