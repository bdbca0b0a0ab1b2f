"""`tools/structure.py` finds circles of modules in small crates, folders with too many files, and files that
are too long."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import structure  # noqa: E402


def check(folder: Path, files: dict[str, str]) -> tuple[int, list[str]]:
    """The exit code and the lines of the program for a repository of these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    run = subprocess.run([sys.executable, structure.__file__, folder], capture_output=True, text=True)
    assert run.stderr == ""
    return run.returncode, run.stdout.splitlines()


def crate(**modules: str) -> dict[str, str]:
    """A crate `c`. Two underscores stand for a slash."""
    files = {f"c/src/{name.replace('__', '/')}.rs": text for name, text in modules.items()}
    return {"c/Cargo.toml": "[package]", **files}


def test_doctests() -> None:
    assert doctest.testmod(structure) == (0, 1)


def test_a_circle_of_three(tmp_path: Path) -> None:
    files = crate(
        lib="mod a;\nmod b;\nmod d;\n",
        a="use crate::b::B;\npub struct A(B);\n",
        b="pub struct B(Option<Box<crate::d::D>>);\n",
        d="use crate::{a::A as Other};\npub struct D(Other);\n",
    )
    code, [first, *modules] = check(tmp_path, files)
    assert code == 1
    assert first.startswith("a circle of 3 modules: move ")
    assert modules == [
        "  c/src/a.rs uses c/src/b.rs",
        "  c/src/b.rs uses c/src/d.rs",
        "  c/src/d.rs uses c/src/a.rs",
    ]


def test_a_re_export_is_no_circle(tmp_path: Path) -> None:
    files = crate(
        lib="mod words;\nmod lines;\npub use lines::Line;\npub use words::*;\n",
        words="pub struct Word;\n",
        # Both names lead to the module that defines them, and not to the root of the crate.
        lines="use crate::{Word, Line as Same};\npub struct Line(Vec<Word>);\n",
    )
    assert check(tmp_path, files) == (0, [])


def test_a_circle_through_a_re_export(tmp_path: Path) -> None:
    files = crate(
        lib="mod words;\nmod lines;\npub use lines::Line;\npub use words::*;\n",
        words="use crate::Line;\npub struct Word(Line);\n",
        lines="use crate::Word;\npub struct Line(Vec<Word>);\n",
    )
    code, lines = check(tmp_path, files)
    assert (code, len(lines)) == (1, 3)


def test_a_module_and_its_child_may_use_each_other(tmp_path: Path) -> None:
    files = crate(
        lib="mod pool;\n",
        pool="mod queue;\nuse queue::Queue;\npub struct Pool(Queue);\n",
        pool__queue="use super::Pool;\npub struct Queue(fn(Pool));\n",
    )
    assert check(tmp_path, files) == (0, [])


def test_tests_and_comments_do_not_count(tmp_path: Path) -> None:
    files = crate(
        lib="mod a;\nmod b;\n",
        a="use crate::b::B;\npub struct A(B);\n",
        b="// See crate::a::A.\npub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
    )
    assert check(tmp_path, files) == (0, [])


def test_folders_and_files(tmp_path: Path) -> None:
    files = {f"many/m{number}.py": "" for number in range(13)}
    files |= {f"few/m{number}.js": "" for number in range(12)}
    # Data files do not count.
    files |= {f"few/{number}.json": "{}\n" * 700 for number in range(13)}
    files |= {"long.rb": "x\n" * 601, "just.rs": "\n" * 600, "script": "#!/bin/sh\n" + "x\n" * 600}
    files |= {
        "docs/internals/long.md": "x\n" * 151,
        "docs/internals/just.md": "\n" * 150,
        "docs/a.md": "x\n" * 700,
    }
    assert check(tmp_path, files) == (
        1,
        [
            "many has 13 files of code: move those of a subject into a folder (at most 12)",
            "long.rb has 601 lines: split it by subject (at most 600)",
            "script has 601 lines: split it by subject (at most 600)",
            "docs/internals/long.md has 151 lines: split it by subject (at most 150)",
        ],
    )
