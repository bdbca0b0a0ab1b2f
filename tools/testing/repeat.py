"""Runs tests many times under a load that keeps all cores busy, and counts how often each test failed.

    tools/test --repeat N TEST...

A test has the form of its runner:

- pytest, on the newest DuckDB and Spark: `python/tests/workers/test_waits.py::test_x`, `spark/tests/test_kinds.py`
- Ruby: `ruby/test/v8/test_values.rb`, `ruby/test/v8/test_values.rb:test_x`
- cargo: `crosslane-ring`, `crosslane-ring:part_of_a_name`
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1_000_000))"


def command(test: str) -> tuple[list[str], Path]:
    """The command that runs a test, and its folder."""
    file, _, name = test.partition(":")
    top, _, rest = test.partition("/")
    if top in ("python", "spark"):
        environment = ".venv" if top == "python" else ".venv-spark-4.3"
        return [str(ROOT / environment / "bin" / "python"), "-m", "pytest", "-q", rest], ROOT / top
    if top == "ruby":
        options = [f"TESTOPTS=--name=/{name}/"] if name else []
        return ["rake", "--quiet", "test", f"TEST={file.removeprefix('ruby/')}", *options], ROOT / top
    return ["cargo", "tests", "-q", "-p", file, *([name] if name else [])], ROOT


@contextmanager
def load() -> Iterator[None]:
    """Runs one computing process for each core. They end when this program ends, even if it is killed."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def repeat(times: int, tests: list[str]) -> Counter[str]:
    """Returns how often each of the tests failed."""
    failed: Counter[str] = Counter()
    with load():
        for test in tests:
            words, folder = command(test)
            for time in range(1, times + 1):
                run = subprocess.run(
                    words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
                if run.returncode:
                    failed[test] += 1
                    print(run.stdout)
                print(f"{test}: {time} of {times}, {failed[test]} failed", flush=True)
    return failed


def main() -> None:
    """The program."""
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.exit("usage: tools/test --repeat N TEST...")
    times, tests = int(sys.argv[1]), sys.argv[2:]
    failed = repeat(times, tests)
    print("\nfailed  of", times)
    for test in tests:
        print(f"{failed[test]:6}  {test}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
