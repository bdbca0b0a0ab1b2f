"""Host lanes: threads of this very process that run a function for DuckDB's workers.

One thread serves a control socket as a zygote does (``docs/protocol.md``): it makes a thread for each lane that
is asked for, and ends those whose lane was dropped. Lanes wait without the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import sys
import threading
from typing import Any

from crosslane import _guest
from crosslane._zygote import Control, EndOfFile


class Host:
    """Makes host lanes for one function."""

    def __init__(self, function: Any) -> None:
        self._functions = [function]
        ours, self.engine = socket.socketpair()
        self._control = Control(ours)
        #: Living lanes by the descriptor that tells of their engine's end.
        self._lanes: dict[int, _Lane] = {}
        self._ended: list[_Lane] = []
        self._wakeup, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        threading.Thread(target=self._serve, name="crosslane-host", daemon=True).start()

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        except (EndOfFile, OSError):
            pass
        finally:
            self._control.connection.close()
            for lane in self._lanes.values():
                lane.end()

    def _turn(self) -> bool:
        waiting = select.poll()
        waiting.register(self._control.connection, select.POLLIN)
        waiting.register(self._wakeup, select.POLLIN)
        for watch in self._lanes:
            waiting.register(watch, select.POLLRDHUP)
        for ready, _ in waiting.poll():
            if ready == self._wakeup:
                os.read(self._wakeup, 4096)
                while self._ended:
                    self._bury(self._ended.pop())
            elif ready == self._control.connection.fileno():
                self._answer(*self._control.receive())
            elif ready in self._lanes:
                # Nobody waits for what this thread does.
                self._lanes[ready].end()
        return True

    def _answer(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if message["op"] == "load":
            functions = [function.message() for function in self._functions]
            version = ".".join(map(str, sys.version_info[:3]))
            self._control.send(op="loaded", functions=functions, runtime=f"Python {version}")
            return
        memory, connection, log = descriptors
        os.close(log)
        lane = _Lane(message["lane"], os.dup(connection))

        def live() -> None:
            # What ends a call ends the lane: there is nothing to be said that its caller was not told.
            with contextlib.suppress(BaseException):
                _guest.serve(memory, connection, self._functions, message["spin_microseconds"])
            self._ended.append(lane)
            with contextlib.suppress(OSError):
                os.write(self._bell, b".")

        lane.thread = threading.Thread(target=live, name=f"crosslane-lane-{lane.number}", daemon=True)
        try:
            lane.thread.start()
        except RuntimeError as error:
            os.close(memory)
            os.close(connection)
            os.close(lane.watch)
            self._control.send(op="unforked", lane=lane.number, message=str(error))
            return
        self._lanes[lane.watch] = lane
        self._control.send(op="forked", lane=lane.number, pid=os.getpid())

    def _bury(self, lane: _Lane) -> None:
        self._lanes.pop(lane.watch, None)
        with contextlib.suppress(OSError):
            connection = socket.socket(fileno=lane.watch)
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._control.send(op="exited", lane=lane.number, code=0, signal=None)


class _Lane:
    def __init__(self, number: int, watch: int) -> None:
        self.number = number
        self.watch = watch
        self.thread: threading.Thread | None = None
        self._told = False

    def end(self) -> None:
        """Raises SystemExit in the thread, at its next line of Python."""
        if self.thread and self.thread.ident and not self._told:
            self._told = True
            identity = ctypes.c_ulong(self.thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
