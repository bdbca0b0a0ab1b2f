"""The page that shows a trace: one file that loads nothing.

A server makes the same page of these parts (``tracing/page.rs`` in the crate crosslane-server).
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections import defaultdict
from importlib.resources import files
from typing import Any

from crosslane._engines.tracing.recording import Recording

#: The scripts of the page, in the order in which they are run.
_SCRIPTS = ("model.js", "timeline.js", "gestures.js", "page.js", "profile.js")
_MARK = re.compile("@(policy|style|data|script)@")


def to_page(recording: Recording) -> str:
    """A recording as a page of HTML, with its data, its style and its scripts inside."""
    style = _read("page.css")
    script = "".join(map(_read, _SCRIPTS))
    parts = {
        # The browser runs these scripts only, whatever the names of functions are.
        "policy": f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        "style": style,
        "data": _data(recording),
        "script": script,
    }
    return _MARK.sub(lambda mark: parts[mark[1]], _read("page.html"))


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _numbers() -> defaultdict[Any, int]:
    """Numbers for values, in the order in which they come."""
    return defaultdict(itertools.count().__next__)


def _data(recording: Recording) -> str:
    """The events as JSON, column by column. Times are whole nanoseconds, and starts are distances."""
    kinds, functions, libraries, places = (_numbers() for _ in range(4))
    starts = [round(event.start * 1e3) for event in recording.events]
    events = {
        "place": [
            places[libraries[event.library], event.lane or 0, event.pid or 0, event.thread]
            for event in recording.events
        ],
        "kind": [kinds[event.kind] for event in recording.events],
        "function": [
            -1 if event.function is None else functions[event.function] for event in recording.events
        ],
        "start": [start - before for start, before in zip(starts, [0, *starts])],
        "duration": [round(event.duration * 1e3) for event in recording.events],
        "rows": [event.rows for event in recording.events],
    }
    details = [
        (number, event.detail) for number, event in enumerate(recording.events) if event.detail is not None
    ]
    data = {
        "title": recording.title,
        "host": "database",
        "process": recording.process,
        "ended": round(recording.ended.timestamp() * 1e3),
        "dropped": recording.dropped,
        "kinds": list(kinds),
        "functions": list(functions),
        "libraries": list(libraries),
        "places": list(places),
        "events": events,
        "details": details,
        "profile": recording.profile,
    }
    # No text may end the element that holds the data.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
