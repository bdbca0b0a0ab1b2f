"""The zygote: the part that is written in Python.

The native part (``crosslane-guest``) has the control socket, and starts and ends lanes.
"""

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
from crosslane._runtime.profiles import VARIABLE

# Modules that only the zygote needs are imported by its methods, because its parent, the reaper,
# keeps what is imported here.


class Guest:
    """The methods that the native half calls, in this order; the last two at any time."""

    def __init__(self, arguments: list[str], in_environment: bool) -> None:
        self._arguments = arguments
        self._in_environment = in_environment
        self.functions: list[Any] = []
        #: The files that were read for them.
        self.sources: Any = {}
        #: The process that has loaded the functions: the zygote, or the lane itself.
        self.loader = 0

    def command(self) -> list[str]:
        """The command that starts this program."""
        return [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(self._arguments)]]

    def elsewhere(self, name: str) -> list[str] | None:
        """The command of a zygote in the file's own environment, if it has one."""
        if self._in_environment:
            return None
        from crosslane._runtime import environments

        environment = environments.of(name, sys.orig_argv[0])
        return environment and environment.command()

    def reads(self, pickles: int | None) -> tuple[list[str], list[str]]:
        """The files and folders of Python and its packages, and other folders with modules."""
        import crosslane
        from crosslane._declare import library

        prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
        packages = [os.path.dirname(crosslane.__file__)]
        for prefix in prefixes:
            packages += [
                os.path.join(prefix, name) for name in ("lib", "lib64", "ssl", "share", "pyvenv.cfg")
            ]
        modules: list[str] = []
        folders = [*sys.path, *_editable()]
        if pickles is not None:
            folders += library.folders_of_pickles(pickles)
        for folder in folders:
            is_package = folder.endswith("-packages") or os.path.isfile(folder)
            is_below = folder.startswith(tuple(f"{package}/" for package in packages))
            (packages if is_package or is_below else modules).append(folder)
        return packages, modules

    def note_variables(self) -> None:
        """Tells the recorder of variables that are read from now on."""
        from crosslane._worker import variables

        variables.note()

    def import_modules(self, names: list[str]) -> None:
        """Imports modules, in a fork server."""
        for name in names:
            # A function that needs the module reports what is wrong with it.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        # A collection in a fork would write to all objects, which would then no longer be shared.
        gc.collect()
        gc.freeze()

    def load(self, name: str, pickles: int | None) -> tuple[str, dict[str, str] | None]:
        """Loads a file, or functions that were pickled into the file of a descriptor.

        Returns what the engine is told of the functions, and a hash of the content of each of their files.
        """
        from crosslane._declare import library

        self.loader = os.getpid()
        files: library.Files = []
        if pickles is None:
            self.functions = library.load_file(name, files)
        else:
            self.functions = library.load_pickles(pickles)
        if self._in_environment:
            # After a restart, the file must have the packages that it had.
            files.append((b"environment", os.fsencode(sys.prefix)))
        messages = [function.message() for function in self.functions]
        if self._arguments[:1] == ["check"]:
            from crosslane._worker import translation

            for message, function in zip(messages, self.functions):
                message["evaluated"] = translation.way(function)
        declared = json.dumps(messages)
        self.sources = _warm_up(self.functions)
        return declared, _guest.hashes(files) if files else None

    def open_streams(self) -> None:
        """Opens standard streams that a file has closed. A replaced stream stays."""
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name, None)
            if stream is None or getattr(stream, "closed", False):
                encoding = {"encoding": "utf-8", "errors": "backslashreplace"}
                setattr(sys, name, open(number, "w", closefd=False, **encoding))  # noqa: SIM115

    def lost_threads(self) -> list[str]:
        """The threads that a fork would lose."""
        from crosslane._runtime import forks

        return forks.lost_threads()

    def settle(self, wakeup: int) -> None:
        """Prepares for forks: a collection in a lane would write to all shared objects."""
        from crosslane._worker import loops

        # The engine does not wait for this, unlike for the load.
        loops.translate(self.functions, self.sources)
        self.sources = {}
        gc.collect()
        gc.freeze()
        # Wakes the zygote, so that it runs handlers of signals that the file has set.
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def fork(self) -> int:
        from crosslane._runtime import forks

        pid = forks.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
        return pid

    def begin(self) -> bool:
        """Prepares a fork to be a lane. Returns whether it writes its stack when it gets SIGQUIT."""
        if self.loader == os.getpid() and "random" in sys.modules:
            # Without a fork, Python has not seeded it anew after the file was loaded.
            sys.modules["random"].seed()
        if "numpy.random" in sys.modules:
            # Python seeds its own generator anew after a fork. That of numpy would give the same
            # numbers in every lane. numpy imports it when it is first used.
            sys.modules["numpy.random"].seed()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        if folder := os.environ.get(VARIABLE):
            from crosslane._worker import sampler

            sampler.start(folder)
        faulthandler.enable(2)
        # The engine sends SIGQUIT to see where a call hangs. A handler that the file has set stays.
        is_free = not _guest.is_caught(signal.SIGQUIT)
        if is_free:
            faulthandler.register(signal.SIGQUIT, 2, all_threads=False)
        return is_free

    def explain(self, error: BaseException) -> int:
        """Prints why a lane ends, and returns its exit code."""
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        import traceback

        traceback.print_exception(error)
        return 1

    def flush(self) -> None:
        """Flushes the standard streams, whatever objects they are by now."""
        for name in ("stdout", "stderr"):
            with contextlib.suppress(Exception):
                getattr(sys, name).flush()


def _editable() -> list[str]:
    """The folders of packages that are installed where they are written, and found by setuptools."""
    names = {getattr(finder, "__module__", "") for finder in sys.meta_path}
    finders = [sys.modules[name] for name in names if name.startswith("__editable__")]
    return [folder for finder in finders for folder in finder.MAPPING.values()]


def _warm_up(functions: list[Any]) -> Any:
    """Imports modules for the first calls of lanes, and compiles what lanes need. Returns the files
    that were read for that."""
    from crosslane._declare.classes import Aggregate, Stateful
    from crosslane._worker import loops

    modules = {
        "row": ["_guest"],
        "async": ["_guest", "_worker.coroutines"],
        "vectorized": ["_guest", "_worker.vectors"],
        "stream": ["_arrow.encode"],
    }
    needed: set[str] = set()
    for function in functions:
        needed.update(modules[function.kind])
        if function.table:
            needed.add("_worker.tables")
        if isinstance(function.callable, Stateful):
            needed.add("_worker.states")
        if isinstance(function.callable, Aggregate):
            needed.add("_worker.aggregates")
            if function.kind == "vectorized":
                needed.add("_worker.groups")
    for module in needed:
        importlib.import_module(f"crosslane.{module}")
    sources = loops.prepare(functions)
    if any(function.kind in ("vectorized", "stream") for function in functions):
        libraries = {column for function in functions for column in function.columns}
        # pyarrow imports this module with the first array of numpy.
        further = {"numpy.ma"} if libraries & {"numpy", "pandas"} else set()
        for library in libraries | further:
            importlib.import_module(library)
    return sources


def main(in_environment: bool = False) -> None:
    # A file sees the same `sys.argv` in each process that loads it.
    arguments = sys.argv[1:]
    del sys.argv[1:]
    _guest.zygote(Guest(arguments, in_environment), arguments)


if __name__ == "__main__":
    main()
