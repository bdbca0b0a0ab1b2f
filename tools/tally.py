"""Adds up what the test runners printed: how many tests passed, failed and were skipped.

    python tools/tally.py FILE...

In CI a skipped test is a failure: what cannot run there has to be named, and not passed over.
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
PYTEST = re.compile(r"(?P<count>\d+) (?P<what>passed|failed|errors?|skipped|deselected|xfailed|xpassed)\b")
#: A part that says itself that it was left out.
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


def main() -> None:
    """The program."""
    counts = tally("\n".join(Path(path).read_text(errors="replace") for path in sys.argv[1:]))
    print(f"\n{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    if counts["failed"] or not counts["passed"] or (counts["skipped"] and os.environ.get("CI")):
        sys.exit(1)


if __name__ == "__main__":
    main()
