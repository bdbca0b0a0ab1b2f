"""The zygote: loads one library, then forks a lane whenever the engine asks for one.

The engine starts it with a control socket as descriptor 3. Messages are JSON behind their length
(``docs/protocol.md``). The zygote ends when the socket does, and takes its lanes with it.
"""

from __future__ import annotations

import array
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

CONTROL = 3
_PR_SET_PDEATHSIG = 1
#: Lanes give way before the database does when the system runs out of memory.
_OOM_SCORE = "800"


class EndOfFile(Exception):
    """The engine has closed the control socket."""


class Control:
    """The control socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = bytearray()
        self._descriptors: list[int] = []

    def send(self, **message: Any) -> None:
        text = json.dumps(message).encode()
        self.connection.sendall(struct.pack("<I", len(text)) + text)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and the descriptors that came with it."""
        self._fill(4)
        (length,) = struct.unpack_from("<I", self._received)
        self._fill(4 + length)
        message = json.loads(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        descriptors, self._descriptors = self._descriptors, []
        return message, descriptors

    def _fill(self, length: int) -> None:
        while len(self._received) < length:
            space = socket.CMSG_LEN(3 * array.array("i").itemsize)
            data, ancillary, _, _ = self.connection.recvmsg(length - len(self._received), space)
            if not data:
                raise EndOfFile
            self._received += data
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                    self._descriptors.extend(numbers)


class Zygote:
    """Loads, forks, reaps."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.functions: list[Any] = []
        #: Process ids of the living lanes and their numbers.
        self.lanes: dict[int, int] = {}
        self.wakeup, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def load(self) -> bool:
        """Answers the first message: loads the library that it names."""
        from crosslane import _errors, _library

        message, _ = self.control.receive()
        source = message["source"]
        file = source.get("path", "")
        try:
            if source["kind"] == "file":
                self.functions = _library.load_file(file)
            else:
                self.functions = _library.load_pickle(bytes.fromhex(source["bytes"]))
            declared = [function.message() for function in self.functions]
            self.warm_up()
        except BaseException as error:
            name, text, traceback = _errors.describe(error, file)
            self.control.send(op="failed", failure={"class": name, "message": text, "traceback": traceback})
            return False
        version = ".".join(map(str, sys.version_info[:3]))
        self.control.send(op="loaded", functions=declared, runtime=f"Python {version}")
        return True

    def warm_up(self) -> None:
        """Imports what lanes would import at their first call."""
        modules = {"row": ["_guest"], "async": ["_guest", "_async"], "vectorized": ["_guest", "_vectors"]}
        for kind in {function.kind for function in self.functions}:
            for module in modules[kind]:
                importlib.import_module(f"crosslane.{module}")
        columns = {column for function in self.functions for column in function.columns}
        if "vectorized" in {function.kind for function in self.functions}:
            for library in columns:
                importlib.import_module(library)

    def serve(self) -> None:
        """Forks a lane per request until the engine closes the socket."""
        # Lanes share what was imported; a collection would touch, and so copy, all of it.
        gc.collect()
        gc.freeze()
        # From here on the end of the engine is noticed by the socket, so that the lanes' own children
        # are ended before the zygote is.
        _die_with_parent(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: self.control.send(op="interrupted"))
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        try:
            while True:
                ready, _, _ = select.select([self.control.connection, self.wakeup], [], [])
                if self.wakeup in ready:
                    signals = os.read(self.wakeup, 4096)
                    if signal.SIGTERM in signals and os.getppid() == 1:
                        return
                    self.reap()
                if self.control.connection in ready:
                    self.fork(*self.control.receive())
        except (EndOfFile, ConnectionError, BrokenPipeError):
            return
        finally:
            self.end_lanes()

    def reap(self) -> None:
        """Reports every lane that ended."""
        while self.lanes:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            lane = self.lanes.pop(pid, None)
            if lane is not None:
                # While it is not reaped its group is still its own.
                _kill_group(pid)
            os.waitpid(pid, 0)
            if lane is None:
                continue
            killed = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            code, number = (None, ended.si_status) if killed else (ended.si_status, None)
            self.control.send(op="exited", lane=lane, code=code, signal=number)

    def end_lanes(self) -> None:
        for pid in self.lanes:
            _kill_group(pid)
        for pid in self.lanes:
            os.waitpid(pid, 0)

    def fork(self, message: dict[str, Any], descriptors: list[int]) -> None:
        lane = message["lane"]
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self.control.send(op="unforked", lane=lane, message=f"fork: {error.strerror}")
            return
        finally:
            if os.getpid() == self_pid:
                for descriptor in descriptors:
                    os.close(descriptor)
        if pid:
            self.lanes[pid] = lane
            self.control.send(op="forked", lane=lane, pid=pid)
            return
        _lane(self, descriptors, message["spin_microseconds"])


def _lane(zygote: Zygote, descriptors: list[int], spin: int) -> NoReturn:
    """The life of a forked lane."""
    status = 1
    try:
        memory, connection, log = descriptors
        os.setpgid(0, 0)
        _die_with_parent(signal.SIGKILL)
        if os.getppid() != self_pid:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        zygote.control.connection.close()
        os.close(zygote.wakeup)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        faulthandler.enable()
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write(_OOM_SCORE)
        if "numpy" in sys.modules:
            # Python reseeds its own generator after a fork; numpy's would repeat itself in every lane.
            sys.modules["numpy"].random.seed()
        from crosslane import _guest

        _guest.serve(memory, connection, zygote.functions, spin)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _die_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It had no time to make its group.
        os.kill(pid, signal.SIGKILL)


self_pid = os.getpid()


def main() -> None:
    zygote = Zygote(Control(socket.socket(fileno=CONTROL)))
    os.set_inheritable(CONTROL, False)
    try:
        loaded = zygote.load()
    except (EndOfFile, ConnectionError, BrokenPipeError):
        return
    if loaded:
        zygote.serve()


if __name__ == "__main__":
    main()
