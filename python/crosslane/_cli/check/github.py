"""Annotations of GitHub's workflows, which GitHub shows beside the lines of a pull request."""

from __future__ import annotations

import re
from pathlib import Path

from crosslane._runtime.languages import is_python


def annotation(file: str, line: int | None, title: str, message: str) -> str:
    """The command of a workflow that shows an error in a file.

    >>> annotation("a,b.py", 3, "KeyError", "50% of\\nit")
    '::error file=a%2Cb.py,line=3,title=KeyError::50%25 of%0Ait'
    """
    place = f"file={_property(file)}" + (f",line={line}" if line else "")
    return f"::error {place},title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def line_of(file: str, message: str, traceback: str) -> int | None:
    """The line of a file that an error names; None if it names none.

    The message of a declaration begins with its place. Of a traceback, the innermost frame in the
    file counts: Python's is the last, and that of other languages is the first.
    """
    path = re.escape(str(Path(file).resolve()))
    place = rf'{path}(?:"?, line |:)(\d+)'
    if found := re.match(place, message):
        return int(found[1])
    lines = re.findall(place, traceback)
    return int(lines[-1 if is_python(file) else 0]) if lines else None
