"""The page that shows a trace: one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from crosslane._engines.tracing.recording import Event, Recording, short

#: The scripts of the page, in the order in which they are run.
_SCRIPTS = ("model.js", "timeline.js", "gestures.js", "page.js", "profile.js")
#: The most workers and threads that have a row of their own. Browsers limit the height of a canvas.
_MOST_ROWS = 250
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


def _data(recording: Recording) -> str:
    """The events as JSON, column by column. Times are whole nanoseconds, and starts are distances."""
    # Numbers for values, in the order in which they come.
    kinds, functions = defaultdict(itertools.count().__next__), defaultdict(itertools.count().__next__)
    places = [_place(event) for event in recording.events]
    order = sorted(set(places), key=_order)
    numbers = {place: min(number, _MOST_ROWS) for number, place in enumerate(order)}
    starts = [round(event.start * 1e3) for event in recording.events]
    events = {
        "row": [numbers[place] for place in places],
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
        "about": f"{recording.ended:%Y-%m-%d %H:%M:%S}, process {recording.process}",
        "duration": round(recording.duration * 1e3),
        "dropped": recording.dropped,
        "workers": sum(not isinstance(place, int) for place in order),
        "kinds": list(kinds),
        "functions": list(functions),
        "rows": [*map(_row, order[:_MOST_ROWS]), *_rest(len(order) - _MOST_ROWS)],
        "events": events,
        "details": details,
        "profile": recording.profile,
    }
    # No text may end the element that holds the data.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


#: A worker by its library, its number and its process, or a thread by its number.
_Place = tuple[str, int, int] | int


def _place(event: Event) -> _Place:
    """The row of the time line that has an event."""
    if not event.is_of_worker:
        return event.thread
    return event.library, event.lane or 0, event.pid or 0


def _order(place: _Place) -> tuple[Any, ...]:
    return (1, place) if isinstance(place, int) else (0, *place)


def _rest(count: int) -> Iterator[dict[str, Any]]:
    """The row for all that have no row of their own, if there are any."""
    if count > 0:
        group = "Workers and threads without a row of their own"
        yield {"group": group, "name": f"{count:,} more", "short": f"{count:,} more"}


def _row(place: _Place) -> dict[str, Any]:
    if isinstance(place, int):
        name = f"thread {place}"
        return {"group": "Threads of the database", "name": name, "short": str(place)}
    library, lane, process = place
    name = f"worker {lane}" + (f", process {process}" if process else "")
    return {
        "group": f"Workers of {short(library)}",
        "name": name,
        "short": f"worker {lane}",
        "isWorker": True,
    }
