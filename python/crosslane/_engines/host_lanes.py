"""Host lanes: threads of this process that run a function for the threads of DuckDB.

One thread serves a control socket as a zygote does (``docs/protocol.md``). It starts a thread for
each lane that the engine asks for, and ends the threads of dropped lanes. Lanes wait without the
interpreter's lock.
"""

from __future__ import annotations

import _weakrefset
import atexit
import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from crosslane import _guest
from crosslane._engines.control import Control, EndOfFile
from crosslane._runtime.errors import LaneEnded
from crosslane._runtime.frames import current_frames

if TYPE_CHECKING:
    from types import FrameType

    from crosslane._declare.signature.declared import Declared

#: Seconds after which a thread that goes on is told again to end.
_AGAIN = 1.0
#: Seconds after which a thread is told that runs no function, or deletes an object.
_LATER = 0.02
#: Files of Python whose functions are callbacks of weak references.
_WEAK = (weakref.__file__, _weakrefset.__file__)


class _Process:
    """What the hosts of this process share: Ctrl-C, and the end of the process.

    The main thread runs no signal handler during a query. But Python writes the number of each
    signal that it handles to a descriptor at once. The first host that sees Ctrl-C there tells the
    engines of all hosts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: set[Host] = set()
        self.ready, self._written = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def add(self, host: Host) -> None:
        with self._lock:
            if not self._hosts:
                # A signal from the time without hosts is over.
                self._take_interrupt()
            self._hosts.add(host)
        # Only the main thread may set the descriptor.
        if threading.current_thread() is threading.main_thread():
            self._listen(self._written)

    def discard(self, host: Host) -> None:
        with self._lock:
            self._hosts.discard(host)

    def tell(self) -> None:
        """Tells the engines of all hosts about a new Ctrl-C."""
        with self._lock:
            if self._take_interrupt():
                at = time.monotonic_ns()
                for host in self._hosts:
                    with contextlib.suppress(OSError):
                        host.send(op="interrupted", at=at)

    def end_calls(self) -> None:
        """Ends the calls of all lanes before the interpreter ends.

        The interpreter unwinds the stacks of threads at its end, which aborts the process if they
        have frames of Rust. This waits half a second at most: a call that sleeps in native code
        stays there.
        """
        with self._lock:
            lanes = [lane for host in self._hosts for lane in host.lanes()]
        for lane in lanes:
            if lane.is_busy():
                lane.end()
        latest = time.monotonic() + 0.5
        while any(lane.is_busy() for lane in lanes) and time.monotonic() < latest:
            time.sleep(0.001)

    def close(self) -> None:
        self._listen(-1)
        os.close(self.ready)
        os.close(self._written)

    def _take_interrupt(self) -> bool:
        """Whether there was a Ctrl-C since the last call."""
        try:
            return signal.SIGINT in os.read(self.ready, 4096)
        except BlockingIOError:
            return False

    def _listen(self, descriptor: int) -> None:
        """Sets where signal numbers go, unless the program needs them (an event loop)."""
        before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        if before not in (-1, self._written):
            signal.set_wakeup_fd(before)


_process: _Process | None = None


def _this_process() -> _Process:
    global _process
    if _process is None:
        _process = _Process()
    return _process


def _forget_process() -> None:
    """A fork does not share the signals of its parent."""
    global _process
    if _process:
        _process.close()
    _process = None


os.register_at_fork(after_in_child=_forget_process)
atexit.register(lambda: _process and _process.end_calls())


class Host:
    """Makes host lanes for one function, with all its signatures."""

    def __init__(self, functions: list[Declared]) -> None:
        self._functions = functions
        ours, self.engine = socket.socketpair()
        self._control = Control(ours)
        self._sending = threading.Lock()
        #: The living lanes, by the descriptor that tells when the engine drops them.
        self._lanes: dict[int, _Lane] = {}
        self._ended: list[_Lane] = []
        self._wakeup, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._process = _this_process()
        self._process.add(self)
        threading.Thread(target=self._serve, name="crosslane-host", daemon=True).start()

    def send(self, **message: Any) -> None:
        """Sends the engine a message. Any thread may call this."""
        with self._sending:
            self._control.send(**message)

    def lanes(self) -> list[_Lane]:
        return list(self._lanes.values())

    def _serve(self) -> None:
        try:
            while True:
                self._turn()
        except (EndOfFile, OSError):
            pass
        finally:
            self._control.connection.close()
            for lane in self._lanes.values():
                lane.end()
            for lane in self._lanes.values():
                lane.close()
            os.close(self._wakeup)
            os.close(self._waker)
            self._process.discard(self)

    def _turn(self) -> None:
        waiting = select.poll()
        waiting.register(self._control.connection, select.POLLIN)
        waiting.register(self._wakeup, select.POLLIN)
        waiting.register(self._process.ready, select.POLLIN)
        for watch, lane in self._lanes.items():
            # A lane that was told to end needs no watch: its thread says when it is done.
            if not lane.told:
                waiting.register(watch, select.POLLRDHUP)
        again = [lane.remind() for lane in self._lanes.values() if lane.told]
        for ready, _ in waiting.poll(1000 * min(again) if again else None):
            if ready == self._wakeup:
                self._sweep()
            elif ready == self._process.ready:
                self._process.tell()
            elif ready == self._control.connection.fileno():
                self._answer(*self._control.receive())
            elif ready in self._lanes:
                # The engine has dropped the lane, and does not wait for the call.
                self._lanes[ready].end()
        for lane in self._lanes.values():
            if lane.thread and not lane.thread.is_alive():
                # LaneEnded came when it was about to tell that.
                self._tell(lane)

    def _answer(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if message["op"] == "load":
            functions = [function.message() for function in self._functions]
            version = ".".join(map(str, sys.version_info[:3]))
            self.send(op="loaded", functions=functions, runtime=f"Python {version}")
            return
        if message["op"] == "unfork":
            # The engine has closed the socket of the lane, which ends its thread.
            return
        number, spin = message["lane"], message["spin_microseconds"]
        held = list(descriptors)
        try:
            if len(descriptors) < 3:
                raise OSError("the process has too few descriptors left")
            memory, connection, log = descriptors
            lane = _Lane(number, os.dup(connection), (memory, connection))
            held.append(lane.watch)
            lane.thread = threading.Thread(
                target=self._live,
                args=(lane, spin),
                name=f"crosslane-lane-{number}",
                daemon=True,
            )
            lane.thread.start()
        except (OSError, RuntimeError) as error:
            for descriptor in held:
                os.close(descriptor)
            self.send(op="unforked", lane=number, message=str(error))
            return
        os.close(log)
        self._lanes[lane.watch] = lane
        self.send(op="forked", lane=number)

    def _live(self, lane: _Lane, spin: int) -> None:
        """The life of a lane's thread."""
        try:
            # An exception here ends the lane. Its caller was told of it already.
            with contextlib.suppress(BaseException):
                lane.entered = True
                if not lane.told:
                    memory, connection = lane.descriptors
                    # The guest owns them from here on: Python raises nothing between this line and
                    # the next.
                    lane.descriptors = ()
                    _guest.serve(memory, connection, self._functions, spin)
            self._tell(lane)
        except LaneEnded:
            # LaneEnded came just when the lane had ended by itself.
            self._tell(lane)

    def _tell(self, lane: _Lane) -> None:
        """Tells the host's thread that the thread of a lane is done."""
        self._ended.append(lane)
        with contextlib.suppress(OSError):
            os.write(self._waker, b".")

    def _sweep(self) -> None:
        """Closes the lanes whose threads are done."""
        os.read(self._wakeup, 4096)
        while self._ended:
            lane = self._ended.pop()
            if self._lanes.get(lane.watch) is not lane:
                continue
            del self._lanes[lane.watch]
            lane.close()
            with contextlib.suppress(OSError):
                self.send(op="exited", lane=lane.number, code=0, signal=None)


class _Lane:
    def __init__(self, number: int, watch: int, descriptors: tuple[int, ...]) -> None:
        self.number = number
        self.watch = watch
        #: The lane's memory and connection, until the guest owns them.
        self.descriptors = descriptors
        self.thread: threading.Thread | None = None
        #: Whether the thread can catch LaneEnded. Before that, it looks at `told`.
        self.entered = False
        #: Whether the thread was told to end.
        self.told = False
        #: When the thread was told, and when it may be told again, as `time.monotonic` counts.
        self._since = self._next = 0.0

    def is_busy(self) -> bool:
        """Whether the thread runs a function, or is about to end."""
        frame = self._frame()
        # Between calls, the thread waits in native code that this function has called.
        return frame is not None and frame.f_code is not Host._live.__code__

    def end(self) -> None:
        """Tells the thread to end."""
        if not self.told:
            self.told, self._since = True, time.monotonic()
        self.remind()

    def remind(self) -> float:
        """Raises LaneEnded in the thread, at its next line of Python, if it runs a function.

        Python loses what is raised while it deletes an object, and a function may catch it. So this
        is called until the thread has ended.

        Returns:
            The seconds until this should be called again.
        """
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        seconds = _LATER
        # A deletion that takes long is ended, too.
        may_tell = now > self._since + _AGAIN or not self._deletes()
        # The number of a thread that has ended may belong to another thread by now.
        if self.entered and self.is_busy() and may_tell and self.thread:
            identity = ctypes.c_ulong(self.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(LaneEnded))
            seconds = _AGAIN
        self._next = time.monotonic() + seconds
        return seconds

    def _deletes(self) -> bool:
        """Whether the thread runs a method `__del__`, or a callback of a weak reference."""
        frame = self._frame()
        while frame:
            if frame.f_code.co_name == "__del__" or frame.f_code.co_filename in _WEAK:
                return True
            frame = frame.f_back
        return False

    def _frame(self) -> FrameType | None:
        """What the thread runs."""
        if not self.thread or not self.thread.is_alive():
            return None
        return current_frames().get(self.thread.ident or 0)

    def close(self) -> None:
        """Waits for the end of the thread, and closes the descriptors of the lane."""
        # A thread that has ended does not write to the pipe any more.
        while self.thread and self.thread.is_alive():
            self.thread.join(self.remind() if self.told else None)
        for descriptor in self.descriptors:
            os.close(descriptor)
        with contextlib.suppress(OSError), socket.socket(fileno=self.watch) as connection:
            connection.shutdown(socket.SHUT_RDWR)
