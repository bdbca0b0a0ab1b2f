"""Forks, and the threads that a fork of this process would lose."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings

#: Threads that a fork does not need: jemalloc starts its thread again, and the thread of polars
#: only cleans up.
_DISPENSABLE = {"jemalloc_bg_thd", "polars-ooc-clea"}
#: How often threads are counted until those that are about to end have ended, and the seconds
#: between two counts.
_ATTEMPTS, _PAUSE = 5, 0.01
#: The flag of a thread that is about to end (``PF_EXITING`` of Linux). The thread that has joined it
#: goes on before the kernel has removed it.
_EXITING = 0x4


def fork() -> int:
    """``os.fork`` without Python's warning about threads, which :func:`lost_threads` replaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def lost_threads() -> list[str]:
    """The names of the threads that a fork would lose.

    Some libraries (OpenBLAS) end their threads before a fork, and start them again when they need
    them. So this function forks once. The threads that are left belong to libraries that do not
    expect forks.
    """
    if not _threads():
        return []
    pid = fork()
    if pid == 0:
        os._exit(0)
    # If SIGCHLD is ignored, the kernel has reaped the fork.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    for _ in range(_ATTEMPTS):
        if not (lost := _threads()):
            break
        time.sleep(_PAUSE)
    return lost


def _threads() -> list[str]:
    """The names of all threads but the first and those that a fork does not need."""
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
    """The name that the kernel has for a thread, or None if the thread has ended or is about to."""
    try:
        with open(f"/proc/self/task/{task}/stat") as file:
            # A name may contain parentheses.
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:
        return None
    return None if int(rest.split()[6]) & _EXITING else name
