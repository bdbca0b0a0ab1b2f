"""What the threads of this program run."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

# Held while the collector is off, so that no other thread turns it on. A handler of a signal may come
# in between.
_listing = threading.RLock()


def current_frames() -> dict[int, FrameType]:
    """What each thread runs, by the thread's number.

    Python lists the threads under a lock. If it collected garbage meanwhile, another thread might
    run, end, and wait for that lock with the interpreter's own in its hands. No thread could go on.
    """
    with _listing:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()
