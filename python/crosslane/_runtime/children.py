"""What ends the processes that ``multiprocessing`` forks of an engine, if the engine is killed.

Such a process has copies of what its parent has: the memory and the sockets of lanes, the database's memory.
``multiprocessing`` ends or awaits its processes when a program ends, but a program that is killed does nothing any more.
So each of them reads a pipe of which only the engine has the other end. The kernel sends SIGKILL to who reads a pipe,
and has asked for that signal, when its other end closes. That needs no thread in a process that is not ours, and holds
whoever becomes its parent then. It does not matter which thread has forked it, which it would for ``PR_SET_PDEATHSIG``.

Other forks (``os.fork``) are the program's own: it may want them to live on.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys


class _Life:
    """The pipe of a process, which ends with it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.end, self._life = os.pipe2(os.O_CLOEXEC)
        self._is_known = False

    def before_fork(self) -> None:
        """Has `multiprocessing` call `follow` in its children, once it is there."""
        if not self._is_known and (util := sys.modules.get("multiprocessing.util")):
            util.register_after_fork(self, _Life.follow)
            self._is_known = True

    def leave(self) -> None:
        """Closes a fork's copy of what its parent alone is to have."""
        if self.process != os.getpid() and self._life >= 0:
            os.close(self._life)
            self._life = -1

    def follow(self) -> None:
        """Ends this process when the other one does."""
        # As a file of its own: others that read the pipe have signals of their own.
        end = os.open(f"/proc/self/fd/{self.end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        # It may have ended before.
        poll = select.poll()
        poll.register(end, 0)
        if poll.poll(0):
            os.kill(os.getpid(), signal.SIGKILL)


_life: _Life | None = None


def end_with_this_process() -> None:
    """Has the processes that `multiprocessing` forks of this one from now on end when it is killed."""
    global _life
    if _life is None or _life.process != os.getpid():
        _life = _Life()


os.register_at_fork(
    before=lambda: _life and _life.before_fork(), after_in_child=lambda: _life and _life.leave()
)
