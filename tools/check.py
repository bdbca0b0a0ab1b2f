"""The linters, and the tests of what a change touches: by crate, and by language.

    python tools/check.py [BASE]

The change is the difference from the commit BASE. The default is the commit at which this branch left its
upstream, or HEAD if it has no upstream. The program ends with a list of its steps, with their times and
failures. `make test` runs all tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
#: The tests in Python for each folder. The first folder that fits counts.
TESTS = {
    "conformance": ["languages/test_conformance.py"],
    "crates/crosslane-js": ["javascript/test_javascript.py", "javascript/test_isolates.py"],
    "crates/crosslane-node": ["javascript/test_javascript.py"],
    "crates/crosslane-lua": ["languages/test_lua.py"],
    "crates/crosslane-remote": ["server/test_client.py", "server/test_server.py"],
    "crates/crosslane-sched": ["server/test_server.py"],
    "crates/crosslane-server": [
        "server/test_client.py",
        "server/test_server.py",
        "server/test_server_http.py",
    ],
    "crates/crosslane-load": ["server/test_load.py"],
    "crates/crosslane-jni": [],
    "crates/crosslane-duckdb": [
        "functions/test_functions.py",
        "tables/test_tables.py",
        "libraries/test_registration.py",
        "workers/test_interrupts.py",
    ],
    "crates": [
        "functions/test_functions.py",
        "workers/test_failures.py",
        "tables/test_tables.py",
        "workers/test_waits.py",
    ],
    "docs": ["project/test_docs.py"],
    "python/guest": [
        "functions/test_functions.py",
        "types/test_types.py",
        "types/test_results.py",
        "aggregates/test_aggregates.py",
    ],
    "python/crosslane": [
        "functions/test_functions.py",
        "types/test_types.py",
        "commands/test_cli.py",
        "libraries/test_registration.py",
    ],
    "ruby": ["languages/test_ruby.py"],
    "tools": [
        "project/test_check.py",
        "project/test_setup.py",
        "project/test_structure.py",
        "project/test_tally.py",
    ],
    "README.md": ["project/test_docs.py::test_pages[README.md]"],
}
#: The commands that check the style of files with these endings.
STYLE = {
    (".rs",): ["cargo", "fmt", "--all", "--check"],
    (".py",): [str(PYTHON.parent / "ruff"), "check", "--quiet", "."],
    (".pyi", ".py"): [str(PYTHON.parent / "ruff"), "format", "--quiet", "--check", "."],
    (".js", ".json", ".ts"): [
        str(ROOT / "node_modules/.bin/biome"),
        "ci",
        "--colors=off",
        "--log-level=warn",
    ],
    (".rb",): ["rubocop", "--format", "quiet", "--no-color"],
    (".scala", ".java"): ["mvn", "-q", "-B", "-f", "spark/pom.xml", "spotless:check"],
}


def printed(*command: str) -> str:
    """The output of a command."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def changed(base: str | None) -> list[str]:
    """The files that the change touches or deletes."""
    if base is None:
        found = subprocess.run(
            ["git", "merge-base", "HEAD", "@{upstream}"], cwd=ROOT, capture_output=True, text=True
        )
        base = found.stdout.strip() or "HEAD"
    files = printed("git", "diff", "--name-only", base).splitlines()
    files += printed("git", "ls-files", "--others", "--exclude-standard").splitlines()
    return sorted(set(files))


def crates(files: Iterable[str]) -> list[str]:
    """The crates of the workspace that contain the files."""
    metadata = json.loads(printed("cargo", "metadata", "--no-deps", "--format-version", "1"))
    folders = {
        Path(package["manifest_path"]).parent.relative_to(ROOT).as_posix(): package["name"]
        for package in metadata["packages"]
    }
    return sorted(
        {name for folder, name in folders.items() if any(f.startswith(f"{folder}/") for f in files)}
    )


def tests(files: Iterable[str]) -> list[str]:
    """The modules of Python's tests for the files."""
    found: set[str] = set()
    for file in files:
        path = Path(file)
        if path.is_relative_to("python/tests"):
            is_test = path.name.startswith("test_") and (ROOT / path).exists()
            found |= {
                path.relative_to("python/tests").as_posix() if is_test else "functions/test_functions.py"
            }
        else:
            found |= set(next((tests for folder, tests in TESTS.items() if file.startswith(folder)), []))
    return [f"tests/{test}" for test in sorted(found)]


def steps(files: list[str]) -> Iterable[tuple[str, list[str], Path]]:
    """The steps for the files: a name, a command, and its folder."""
    endings = {Path(file).suffix for file in files}
    for suffixes, command in STYLE.items():
        if endings & set(suffixes):
            yield f"style of {', '.join(suffixes)}", command, ROOT
    if touched := crates(files):
        packages = [word for crate in touched for word in ("-p", crate)]
        yield "clippy and build of tests in Rust", ["cargo", "tests", "-q", "--no-run", *packages], ROOT
        yield "tests in Rust", ["cargo", "tests", "-q", *packages], ROOT
        build = [str(PYTHON), "setup.py", "-q", "build_ext", "--inplace"]
        yield "build", build, ROOT / "python"
    if modules := tests(files):
        yield "tests in Python", [str(PYTHON), "-m", "pytest", "-x", *modules], ROOT / "python"
    if any(file.startswith(("ruby/lib", "ruby/ext", "ruby/test")) for file in files):
        yield "tests in Ruby", ["rake", "--quiet", "test"], ROOT / "ruby"
    spark = ROOT / ".venv-spark-4.3" / "bin" / "python"
    if spark.exists() and any(file.startswith(("spark", "crates/crosslane-jni")) for file in files):
        yield "Spark's plugin", [str(ROOT / "tools" / "spark")], ROOT
        yield "tests in Spark", [str(spark), "-m", "pytest", "-x", "tests/test_functions.py"], ROOT / "spark"


def main() -> None:
    """The program."""
    files = changed(sys.argv[1] if len(sys.argv) > 1 else None)
    if not files:
        sys.exit("nothing has changed; name a commit to compare with: make check BASE=HEAD~1")
    python_library = printed(
        str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    ).strip()
    libraries = ":".join(filter(None, [python_library, os.environ.get("LD_LIBRARY_PATH", "")]))
    env = {**os.environ, "PYO3_PYTHON": str(PYTHON), "LD_LIBRARY_PATH": libraries}
    outcomes = []
    for name, command, folder in steps(files):
        print(f"\033[1m==> {name}\033[0m", flush=True)
        begun = time.monotonic()
        failed = subprocess.run(command, cwd=folder, env=env).returncode
        outcomes.append((name, time.monotonic() - begun, failed))
    print()
    for name, seconds, failed in outcomes:
        print(f"{seconds:6.1f} s  {'failed' if failed else 'passed'}  {name}")
    if any(failed for _, _, failed in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
