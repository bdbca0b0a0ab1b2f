"""What a fork of this process would miss: the threads of the library that it has loaded."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings

#: Threads that a fork can do without: jemalloc starts its own again there, and polars' only tidies up.
_DISPENSABLE = {"jemalloc_bg_thd", "polars-ooc-clea"}
#: So often, and so many seconds apart, threads are looked for that are about to end.
_LOOKS, _APART = 5, 0.01


def fork() -> int:
    """``os.fork``, without the warning about threads of Python 3.12 and later: :func:`lost_threads` looks after them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def lost_threads() -> list[str]:
    """The names of the threads that a fork would miss.

    Some libraries (OpenBLAS) end their threads before each fork and start them again when they need them. So one fork
    is made, and the threads that are left are those whose library does not expect it.
    """
    if not _threads():
        return []
    pid = fork()
    if pid == 0:
        os._exit(0)
    # Where SIGCHLD is ignored, the kernel has reaped it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    for _ in range(_LOOKS):
        if not (lost := _threads()):
            break
        time.sleep(_APART)
    return lost


def _threads() -> list[str]:
    """The names of all threads but the first, and those that are dispensable."""
    ours = {thread.native_id: thread.name for thread in threading.enumerate()}
    first = os.getpid()
    unnamed = _name(first)
    found = []
    for task in map(int, os.listdir("/proc/self/task")):
        name = None if task == first else ours.get(task) or _name(task)
        if name and name not in _DISPENSABLE:
            found.append("one without a name" if name == unnamed else name)
    return found


def _name(task: int) -> str | None:
    try:
        with open(f"/proc/self/task/{task}/comm") as file:
            return file.read().strip()
    except OSError:
        # It has just ended.
        return None
