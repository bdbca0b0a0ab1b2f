"""Traces in the format of Chrome, which Perfetto and other viewers read too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from crosslane._engines.tracing.recording import Event, Recording, short

#: More than the number of any process of Linux. The workers of servers get numbers from here on.
_NO_PROCESS = 1 << 22


def to_chrome(recording: Recording) -> str:
    """A recording as JSON; times are in microseconds.

    Each worker is a thread of its process, and each thread of the database one of its own process.
    """
    lines = [json.dumps(one, ensure_ascii=False) for one in _all(recording)]
    return '{"displayTimeUnit": "ns", "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"


def _all(recording: Recording) -> Iterator[dict[str, Any]]:
    names = {("process_name", recording.process, 0): "database"}
    servers: dict[str, int] = {}
    for event in recording.events:
        if event.is_of_worker:
            process = event.pid or servers.setdefault(event.library, _NO_PROCESS + len(servers))
            thread = event.lane or 0
            names.setdefault(("process_name", process, 0), f"workers of {short(event.library)}")
            names.setdefault(("thread_name", process, thread), f"worker {thread}")
        else:
            process, thread = recording.process, event.thread
            names.setdefault(("thread_name", process, thread), f"thread {thread}")
        yield _one(event, process, thread)
    for (kind, process, thread), name in names.items():
        yield {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _one(event: Event, process: int, thread: int) -> dict[str, Any]:
    details = {
        "function": event.function,
        "library": event.library,
        "worker": event.lane,
        "rows": event.rows,
        "detail": event.detail,
    }
    one = {
        "name": event.function if event.kind == "function" else event.kind,
        "cat": event.kind,
        "pid": process,
        "tid": thread,
        "ts": event.start,
        "args": {key: value for key, value in details.items() if value is not None},
    }
    if event.kind in ("fan_out", "retry", "exception", "lane_lost"):
        return one | {"ph": "i", "s": "t"}
    return one | {"ph": "X", "dur": event.duration}
