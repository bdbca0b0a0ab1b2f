"""Adds up the output of test runners: how many tests passed, failed and were skipped, and which ones failed.

    python tools/testing/tally.py FILE...

In CI a skipped test is a failure: a test that cannot run there must not go unnoticed.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

CARGO = re.compile(
    r"^test result: \S+ (?P<passed>\d+) passed; (?P<failed>\d+) failed; (?P<skipped>\d+) ignored;"
)
MINITEST = re.compile(
    r"^(?P<runs>\d+) runs, \d+ assertions, (?P<failures>\d+) failures, (?P<errors>\d+) errors, (?P<skipped>\d+) skips"
)
PYTEST = re.compile(
    r"(?P<count>\d+) (?:subtests )?(?P<what>passed|failed|errors?|skipped|deselected|xfailed|xpassed)\b"
)
#: The lines in which each runner names a failed test. Minitest and cargo give the reason on the next line.
PYTEST_FAILED = re.compile(r"^(?P<test>(?:FAILED |ERROR |SUBFAILED).+)$")
MINITEST_FAILED = re.compile(r"^(?P<test>\w+#test_\w+(?: \[[^\]]+\])?):$")
CARGO_FAILED = re.compile(r"^thread '(?P<test>[^']+)'.* panicked at .+:$")
#: The lines in which `tools/test` and pytest print times.
STEP = re.compile(r"^(?P<outcome>took|failed after) (?P<seconds>\d+) s: (?P<step>.+)$", re.MULTILINE)
DURATION = re.compile(r"^(?P<seconds>\d+\.\d+)s (?:call|setup|teardown) +(?P<test>\S+::.+)$", re.MULTILINE)
#: The number of slowest tests that are shown.
SLOWEST = 25
#: The number of characters of a failure that are shown at the end.
SHOWN = 300
#: The mark of a part that was left out.
SKIPPED = re.compile(r"^skipped: ")


def tally(text: str) -> Counter[str]:
    """The counts in the output of cargo, minitest and pytest, and of this project's scripts."""
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        if match := CARGO.match(line):
            counts.update({what: int(count) for what, count in match.groupdict().items()})
        elif match := MINITEST.match(line):
            runs, failures, errors, skipped = (int(count) for count in match.groups())
            counts.update(
                passed=runs - failures - errors - skipped, failed=failures + errors, skipped=skipped
            )
        elif SKIPPED.match(line):
            counts["skipped"] += 1
        elif re.search(r" in \d+\.\d+s", line):
            for count, what in PYTEST.findall(line):
                kind = {"passed": "passed", "failed": "failed", "error": "failed", "errors": "failed"}
                counts[kind.get(what, "skipped")] += int(count)
    return counts


def failures(text: str) -> list[str]:
    """A line for each test that failed: its name, and the beginning of the reason."""
    found = []
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""]):
        if match := PYTEST_FAILED.match(line):
            found.append(match["test"][:SHOWN])
        elif match := MINITEST_FAILED.match(line) or CARGO_FAILED.match(line):
            found.append(f"FAILED {match['test']} - {following}"[:SHOWN])
    return found


def times(text: str) -> list[str]:
    """A line for each step, and a line for each of the slowest tests."""
    steps = [
        f"{int(step['seconds']) // 60:3}:{int(step['seconds']) % 60:02}  {step['step']}"
        for step in STEP.finditer(text)
    ]
    slowest = sorted(DURATION.finditer(text), key=lambda test: -float(test["seconds"]))[:SLOWEST]
    tests = [f"{float(test['seconds']):6.1f}  {test['test']}" for test in slowest]
    return [
        *(["", "minutes  step"] if steps else []),
        *steps,
        *(["", "seconds  slowest tests"] if tests else []),
        *tests,
    ]


def main() -> None:
    """The program."""
    text = "\n".join(Path(path).read_text(errors="replace") for path in sys.argv[1:])
    counts = tally(text)
    for line in times(text):
        print(line)
    if counts["failed"]:
        # Tests that expect a panic print one, too. So only the count says whether a test has
        # failed.
        print("", *failures(text), sep="\n")
    # A step may fail without a test: a linter, or a soak.
    failed = [step["step"] for step in STEP.finditer(text) if step["outcome"] != "took"]
    if failed:
        print("", *(f"failed: {step}" for step in failed), sep="\n")
    print(f"\n{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    if failed or counts["failed"] or not counts["passed"] or (counts["skipped"] and os.environ.get("CI")):
        sys.exit(1)


if __name__ == "__main__":
    main()
