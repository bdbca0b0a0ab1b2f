"""Exceptions as the user of SQL should read them."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Callable
from types import TracebackType

#: The paths of all files of this package begin with this.
OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
#: How many bytes of the beginning and of the end of a long text are shown. The engine has the same
#: limits.
_FIRST, _LAST = 64 << 10, 16 << 10


class LaneEnded(SystemExit):
    """Ends the thread of a lane that was dropped. Any other exception is a failed call."""


def describe(error: BaseException) -> tuple[str, str, str]:
    """The class, the message and the traceback of an exception, from the user's file on.

    Frames of this package are left out. Frames of libraries that the user's code calls stay,
    because they tell what went wrong. Each text can be encoded, and is cut if it is long. An
    exception is an object of the user, and its methods may do
    anything: a part that cannot be shown is left out.
    """
    name, message, shown = _describe(error)
    return _cut(name), _cut(message), _cut(shown)


def _cut(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= _FIRST + _LAST:
        return encoded.decode()
    first, last = (part.decode(errors="ignore") for part in (encoded[:_FIRST], encoded[-_LAST:]))
    return f"{first} ... {len(encoded) - _FIRST - _LAST} bytes are left out ... {last}"


def _describe(error: BaseException) -> tuple[str, str, str]:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    if isinstance(error, SyntaxError):
        shown = _text_of(lambda: "".join(traceback.format_exception_only(error)[:-1]))
        return name, _text_of(lambda: error.msg or ""), shown
    lines = _frames(error.__traceback__)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and cause is not error:
        lines.append(f"  caused by {type(cause).__qualname__}: {_text_of(lambda: str(cause))}")
        lines += _frames(cause.__traceback__)
    notes = _text_of(lambda: "\n".join(f"  {note}" for note in getattr(error, "__notes__", [])))
    return name, _text_of(lambda: str(error)), "\n".join(filter(None, [notes, *lines]))


def _text_of(show: Callable[[], str]) -> str:
    """The text that an object of the user gives."""
    try:
        # It may be of a subclass of str, whose methods may do anything, too.
        return str.__str__(show())
    except LaneEnded:
        raise
    except BaseException as broken:
        return f"(its message cannot be shown: {type(broken).__name__})"


def _frames(tb: TracebackType | None) -> list[str]:
    lines = []
    for frame in traceback.extract_tb(tb):
        if frame.filename.startswith(OURS) or frame.filename.startswith("<frozen importlib"):
            continue
        lines.append(f"  at {frame.filename}:{frame.lineno} in {frame.name}")
        source = linecache.getline(frame.filename, frame.lineno or 0).strip()
        if source:
            lines.append(f"    {source}")
    return lines
