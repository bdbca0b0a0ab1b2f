"""Exceptions as the user of SQL should read them."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parent)


def describe(error: BaseException, file: str) -> tuple[str, str, str]:
    """The class, the message and the traceback of an exception, from the user's file on.

    Frames of this package are left out; those of libraries below the user's code are kept, because
    they tell what went wrong.
    """
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    if isinstance(error, SyntaxError):
        shown = "".join(traceback.format_exception_only(error)[:-1])
        return name, error.msg or "", shown
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its message cannot be shown: {type(broken).__name__})"
    lines = _frames(error.__traceback__)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and cause is not error:
        lines.append(f"  caused by {type(cause).__qualname__}: {cause}")
        lines += _frames(cause.__traceback__)
    notes = [f"  {note}" for note in getattr(error, "__notes__", [])]
    return name, message, "\n".join(notes + lines)


def _frames(tb: TracebackType | None) -> list[str]:
    lines = []
    for frame in traceback.extract_tb(tb):
        if frame.filename.startswith(_OURS) or frame.filename.startswith("<frozen importlib"):
            continue
        lines.append(f"  at {frame.filename}:{frame.lineno} in {frame.name}")
        source = linecache.getline(frame.filename, frame.lineno or 0).strip()
        if source:
            lines.append(f"    {source}")
    return lines
