"""Samples what the functions of a worker run, for ``crosslane trace --profile``."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from crosslane._runtime.errors import OURS
from crosslane._runtime.frames import current_frames
from crosslane._runtime.profiles import ENDED, VARIABLE, Frame, Samples, Stack

#: The seconds between two samples.
_EVERY = 0.005
#: The seconds after which the samples are written.
_WRITTEN = 1.0


def start_if_wanted() -> None:
    """Samples this thread until the profile ends, if there is one."""
    if folder := os.environ.get(VARIABLE):
        thread = threading.get_ident()
        # The program ends a worker without waiting for such a thread.
        threading.Thread(
            target=_sample, args=(Path(folder), thread), name="crosslane-sampler", daemon=True
        ).start()


def _sample(folder: Path, thread: int) -> None:
    counts: Counter[Stack] = Counter()
    process = os.getpid()
    ended = folder / ENDED
    try:
        if ended.exists():
            return
        Samples(process, [], False).write(folder)
        written = time.monotonic()
        while not ended.exists():
            time.sleep(_EVERY)
            if stack := _stack(current_frames().get(thread)):
                counts[stack] += 1
            if time.monotonic() - written > _WRITTEN:
                Samples(process, list(counts.items()), False).write(folder)
                written = time.monotonic()
        Samples(process, list(counts.items()), True).write(folder)
    except OSError:
        # The program has ended, and its folder is gone.
        return


def _stack(frame: FrameType | None) -> Stack:
    """The frames that the user's functions have made. Empty if the worker waits for a call."""
    frames = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((OURS, "<frozen ")):
            frames.append(Frame(code.co_qualname, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(reversed(frames))
