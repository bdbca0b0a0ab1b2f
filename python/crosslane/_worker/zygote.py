"""The zygote: what Python does of it. All else (the control socket, lanes, their ends) is native (``crosslane-guest``)."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import signal
import sys
from typing import Any

from crosslane import _guest

# What only the zygote needs is imported by its methods: its parent, the reaper, keeps what is imported here.


class Guest:
    """What the native half calls, in this order, but for ``flush`` and ``explain``."""

    def __init__(self) -> None:
        self.functions: list[Any] = []
        #: The process that has loaded them: the zygote, or the lane itself.
        self.loader = 0

    def command(self) -> list[str]:
        """What starts this program."""
        return [sys.executable, *sys.orig_argv[1:]]

    def load(self, name: str, pickles: int | None) -> tuple[str, str | None]:
        """Loads a file, or functions that were pickled into the file of a descriptor.

        What the engine is told of them, and what tells the text of their files from any other.
        """
        from crosslane._declare import library

        self.loader = os.getpid()
        files: library.Files = []
        if pickles is None:
            self.functions = library.load_file(name, files)
        else:
            self.functions = library.load_pickles(pickles)
        declared = json.dumps([function.message() for function in self.functions])
        _warm_up(self.functions)
        return declared, _guest.text(files) if files else None

    def open_streams(self) -> None:
        """Opens the streams again that a file has closed. What it has put in their place stays."""
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name, None)
            if stream is None or getattr(stream, "closed", False):
                encoding = {"encoding": "utf-8", "errors": "backslashreplace"}
                setattr(sys, name, open(number, "w", closefd=False, **encoding))  # noqa: SIM115

    def lost_threads(self) -> list[str]:
        from crosslane._runtime import forks

        return forks.lost_threads()

    def settle(self, bell: int) -> None:
        """Lanes share what was imported; a collection would touch, and so copy, all of it."""
        gc.collect()
        gc.freeze()
        # The zygote runs the file's own handlers of signals at once.
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)

    def fork(self) -> int:
        from crosslane._runtime import forks

        pid = forks.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
        return pid

    def begin(self) -> bool:
        """Makes a fork a lane of its own. Whether it writes its stack when it gets SIGQUIT."""
        if self.loader == os.getpid() and "random" in sys.modules:
            # A fork of a loaded library has it reseeded.
            sys.modules["random"].seed()
        if "numpy" in sys.modules:
            # Python reseeds its own generator after a fork; numpy's would repeat itself in every lane.
            sys.modules["numpy"].random.seed()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        faulthandler.enable(2)
        # The engine asks so what a call does that makes no progress. A handler of the file's own stays.
        is_free = not _is_caught(signal.SIGQUIT)
        if is_free:
            faulthandler.register(signal.SIGQUIT, 2, all_threads=False)
        return is_free

    def explain(self, error: BaseException) -> int:
        """Says why a lane ends, and which exit code it ends with."""
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        import traceback

        traceback.print_exception(error)
        return 1

    def flush(self) -> None:
        """Flushes what the streams hold, whatever they are by now."""
        for name in ("stdout", "stderr"):
            with contextlib.suppress(Exception):
                getattr(sys, name).flush()


def _is_caught(number: int) -> bool:
    """Whether this process has a handler of a signal, in whatever language."""
    with open("/proc/self/status") as status:
        caught = next((line.split()[1] for line in status if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _warm_up(functions: list[Any]) -> None:
    """Imports what lanes would import at their first call, and compiles what they all need."""
    from crosslane._worker import loops

    modules = {
        "row": ["_guest"],
        "async": ["_guest", "_worker.coroutines"],
        "vectorized": ["_guest", "_worker.vectors"],
        "stream": ["_arrow.encode"],
    }
    if any(function.table for function in functions):
        importlib.import_module("crosslane._worker.tables")
    kinds = {function.kind for function in functions}
    for kind in kinds:
        for module in modules[kind]:
            importlib.import_module(f"crosslane.{module}")
    loops.prepare(functions)
    if kinds & {"vectorized", "stream"}:
        for library in {column for function in functions for column in function.columns}:
            importlib.import_module(library)


def main() -> None:
    # Files see the same words in each process that loads them.
    arguments = sys.argv[1:]
    del sys.argv[1:]
    _guest.zygote(Guest(), arguments)


if __name__ == "__main__":
    main()
