"""Ends the processes that ``multiprocessing`` has forked from an engine, if the engine is killed.

Such a process has copies of its parent's memory and sockets, also those of lanes and of the
database. ``multiprocessing`` ends its processes when a program ends, but a killed program runs
nothing any more. So each of these processes opens a pipe of which only the engine has the other
end, and asks the kernel for SIGKILL when that end closes. This takes no thread in a process that is
not ours. Unlike ``PR_SET_PDEATHSIG``, it depends neither on the thread that has forked the process,
nor on the process that becomes its parent later.

Other forks (``os.fork``) belong to the program: it may want them to live on.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys


class _LifetimePipe:
    """The pipe of a process, which the kernel closes when the process ends."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self._is_known = False

    def before_fork(self) -> None:
        """Has `multiprocessing` call `end_with_parent` in its children, if the program has imported it."""
        if not self._is_known and (util := sys.modules.get("multiprocessing.util")):
            util.register_after_fork(self, _LifetimePipe.end_with_parent)
            self._is_known = True

    def after_fork(self) -> None:
        """Closes the copy of the pipe's writing end in a fork: only the parent may have it."""
        if self.process != os.getpid() and self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def end_with_parent(self) -> None:
        """Has the kernel end this process when the process of the pipe ends."""
        # Opened anew, because signals belong to an open file, and a fork shares those of its
        # parent.
        end = os.open(f"/proc/self/fd/{self._reader}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        # The other process may have ended already.
        poll = select.poll()
        poll.register(end, 0)
        if poll.poll(0):
            os.kill(os.getpid(), signal.SIGKILL)


_pipe: _LifetimePipe | None = None


def end_with_this_process() -> None:
    """Has processes that `multiprocessing` forks from now on end when this process is killed."""
    global _pipe
    if _pipe is None or _pipe.process != os.getpid():
        _pipe = _LifetimePipe()


os.register_at_fork(
    before=lambda: _pipe and _pipe.before_fork(), after_in_child=lambda: _pipe and _pipe.after_fork()
)
