"""Samples what the functions of a worker run, for ``crosslane trace --profile``."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import FrameType

from crosslane._runtime.errors import OURS
from crosslane._runtime.frames import current_frames
from crosslane._runtime.profiles import Folder, Frame, Stack

#: The seconds between two samples.
_EVERY = 0.005
#: The seconds after which the samples are written.
_WRITTEN = 1.0
#: The most frames of a stack. A function may call itself as often as it likes.
_DEEPEST = 100


def start(folder: str) -> None:
    """Samples this thread until the profile of the folder ends."""
    arguments = Folder(folder), threading.get_ident()
    # The program ends a worker without waiting for such a thread.
    threading.Thread(target=_sample, args=arguments, name="crosslane-sampler", daemon=True).start()


def _sample(folder: Folder, thread: int) -> None:
    counts: Counter[Stack] = Counter()
    try:
        if folder.has_ended():
            return
        folder.begin()
        written = time.monotonic()
        while not folder.has_ended():
            time.sleep(_EVERY)
            if stack := _stack(current_frames().get(thread)):
                counts[stack] += 1
            if time.monotonic() - written > _WRITTEN:
                folder.write(list(counts.items()))
                written = time.monotonic()
        folder.write(list(counts.items()))
        folder.leave()
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
    return tuple(reversed(frames[-_DEEPEST:]))
