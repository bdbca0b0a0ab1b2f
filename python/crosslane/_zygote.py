"""The zygote: loads one library, then forks a lane whenever the engine asks for one.

The engine starts it with a control socket as descriptor 3. Messages are JSON behind their length
(``docs/protocol.md``). The zygote ends when the socket does, and takes its lanes with it.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib
import io
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

CONTROL = 3
_PR_SET_PDEATHSIG = 1
#: Names the process in which a library must load no library.
_ZYGOTE = "CROSSLANE_ZYGOTE"
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


@dataclass
class Source:
    """What to load: a file, or functions that were pickled into a file in memory."""

    name: str
    #: The descriptor of the file in memory.
    pickles: int | None = None
    #: What tells what was loaded from anything else.
    loaded: str = ""

    def load(self) -> tuple[list[Any], list[Any], str | None]:
        """The functions, what the engine is told of them, and what tells the text of their files from any other."""
        from crosslane import _guest, _library

        files: _library.Files = []
        streams = [os.dup(number) for number in range(3)]
        try:
            if self.pickles is None:
                functions = _library.load_file(self.name, files)
            else:
                functions = _library.load_pickles(self.pickles)
            declared = [function.message() for function in functions]
            _warm_up(functions)
        finally:
            _open_streams(streams)
        text = _guest.text(files) if files else None
        loaded = hashlib.sha256(json.dumps([declared, text]).encode()).hexdigest()
        if self.loaded not in ("", loaded):
            raise RuntimeError(f"{self.name} has changed since it was loaded; load it again")
        self.loaded = loaded
        return functions, declared, text


class Zygote:
    """Loads, forks, reaps."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.pid = os.getpid()
        self.functions: list[Any] = []
        #: What each lane loads itself, because a fork of what was loaded here would miss threads.
        self.reloaded: Source | None = None
        #: Process ids of the living lanes and their numbers.
        self.lanes: dict[int, int] = {}
        self.wakeup, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def load(self) -> bool:
        """Answers the first message: loads the library that it names."""
        from crosslane import _errors, _forks

        message, descriptors = self.control.receive()
        named = message["source"]
        source = Source(named.get("path") or named.get("name"), *descriptors)
        environment, folder = dict(os.environ), os.getcwd()
        try:
            self.functions, declared, text = source.load()
            lost = _forks.lost_threads()
        except BaseException as error:
            name, what, traceback = _errors.describe(error, named.get("path", ""))
            self.control.send(op="failed", failure={"class": name, "message": what, "traceback": traceback})
            return False
        version = ".".join(map(str, sys.version_info[:3]))
        self.control.send(
            op="loaded", functions=declared, runtime=f"Python {version}", text=text, reloads=bool(lost)
        )
        if lost:
            os.write(2, f"crosslane: {source.name}: {_forks.note(lost)}.\n".encode(errors="replace"))
            self.start_anew(source, environment, folder)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def start_anew(self, source: Source, environment: dict[str, str], folder: str) -> None:
        """Becomes a zygote that has loaded nothing, and has the lanes load it: all that was loaded here is gone."""
        _flush()
        os.chdir(folder)
        for descriptor in (CONTROL, source.pickles):
            if descriptor is not None:
                os.set_inheritable(descriptor, True)
        with contextlib.suppress(OSError):
            os.execve(sys.executable, [*sys.orig_argv, json.dumps(asdict(source))], environment)

    def serve(self) -> None:
        """Forks a lane per request until the engine closes the socket."""
        # Lanes share what was imported; a collection would touch, and so copy, all of it.
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: self.control.send(op="interrupted", at=time.monotonic_ns()))
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        try:
            while True:
                ready, _, _ = select.select([self.control.connection, self.wakeup], [], [])
                if self.wakeup in ready:
                    os.read(self.wakeup, 4096)
                    self.reap()
                if self.control.connection in ready:
                    message, descriptors = self.control.receive()
                    if message["op"] == "fork":
                        self.fork(message, descriptors)
                    else:
                        self.unfork(message["lane"])
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

    def unfork(self, lane: int) -> None:
        """Ends a lane whose process the engine never came to know; it is reported as any other."""
        for pid, number in self.lanes.items():
            if number == lane:
                _kill_group(pid)

    def fork(self, message: dict[str, Any], descriptors: list[int]) -> None:
        from crosslane import _forks

        lane = message["lane"]
        _flush()
        try:
            pid = _forks.fork()
        except OSError as error:
            self.control.send(op="unforked", lane=lane, message=f"fork: {error.strerror}")
            return
        finally:
            if os.getpid() == self.pid:
                for descriptor in descriptors:
                    os.close(descriptor)
        if pid:
            if not _is_child(pid):
                self.control.send(
                    op="unforked", lane=lane, message=f"os.fork made no child, but answered {pid}"
                )
                return
            self.lanes[pid] = lane
            self.control.send(op="forked", lane=lane)
            return
        _lane(self, descriptors, message["spin_microseconds"])


def _warm_up(functions: list[Any]) -> None:
    """Imports what lanes would import at their first call, and compiles what they all need."""
    from crosslane import _loop

    modules = {"row": ["_guest"], "async": ["_guest", "_async"], "vectorized": ["_guest", "_vectors"]}
    kinds = {function.kind for function in functions}
    for kind in kinds:
        for module in modules[kind]:
            importlib.import_module(f"crosslane.{module}")
    _loop.prepare(functions)
    if "vectorized" in kinds:
        for library in {column for function in functions for column in function.columns}:
            importlib.import_module(library)


def _lane(zygote: Zygote, descriptors: list[int], spin: int) -> NoReturn:
    """The life of a forked lane."""
    status = 1
    try:
        memory, connection, log = descriptors
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != zygote.pid:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        zygote.control.connection.close()
        os.close(zygote.wakeup)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        functions = zygote.functions
        if zygote.reloaded:
            # As in a zygote, the file must load no library: it could be itself.
            os.environ[_ZYGOTE] = str(os.getpid())
            functions, _, _ = zygote.reloaded.load()
            os.environ.pop(_ZYGOTE, None)
            if "random" in sys.modules:
                # A fork of a loaded library has it reseeded.
                sys.modules["random"].seed()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        faulthandler.enable(2)
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write(_OOM_SCORE)
        if "numpy" in sys.modules:
            # Python reseeds its own generator after a fork; numpy's would repeat itself in every lane.
            sys.modules["numpy"].random.seed()
        from crosslane import _guest

        _guest.serve(memory, connection, functions, spin)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _open_streams(saved: list[int]) -> None:
    """Opens the standard streams again that a file has closed. What it has put in their place stays."""
    for number, descriptor in enumerate(saved):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            encoding = {"encoding": "utf-8", "errors": "backslashreplace"}
            setattr(sys, name, open(number, "w", closefd=False, **encoding))  # noqa: SIM115


def _flush() -> None:
    """Flushes what the streams hold, whatever they are by now."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(Exception):
            getattr(sys, name).flush()


def _is_child(pid: int) -> bool:
    """Whether there is such a child: a library may have put its own function in the place of `os.fork`."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # It had no time to make its group.
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    from crosslane import _guest

    anew = sys.argv[1:]
    if not anew:
        # From here on this is a child of the process that the engine started, which sees to it that nothing is left.
        _guest.supervise(os.fork)
    zygote = Zygote(Control(socket.socket(fileno=CONTROL)))
    os.set_inheritable(CONTROL, False)
    if anew:
        zygote.reloaded = Source(**json.loads(anew[0]))
        if zygote.reloaded.pickles is not None:
            os.set_inheritable(zygote.reloaded.pickles, False)
        zygote.serve()
        return
    try:
        loaded = zygote.load()
    except (EndOfFile, ConnectionError, BrokenPipeError):
        return
    if loaded:
        zygote.serve()


if __name__ == "__main__":
    main()
