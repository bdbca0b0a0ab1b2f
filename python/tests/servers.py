"""Servers for tests."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType


class Server:
    """``crosslane serve``, which ends with the ``with`` block.

    By default, the functions have no sandbox, because functions of tests write files to show what they did.
    """

    def __init__(
        self,
        *files: Path,
        listen: str = "crosslane://127.0.0.1:0",
        options: tuple[str, ...] = (),
        free: bool = True,
        **environment: str,
    ) -> None:
        command = [
            sys.executable,
            "-P",
            "-m",
            "crosslane._cli",
            "serve",
            *map(str, files),
            "--listen",
            listen,
        ]
        if free:
            command += ["--set", "sandbox=off"]
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.printed: list[str] = []
        self._said: queue.Queue[str] = queue.Queue()
        threads = [threading.Thread(target=self._listen), threading.Thread(target=self._keep)]
        for thread in threads:
            thread.start()
        self._threads = threads
        first = self._said.get(timeout=60)
        if " at " not in first:
            self.process.wait(30)
            self.end()
            raise RuntimeError("".join(self.printed))
        self.said = first.strip()
        self.address = self.said.rpartition(" ")[2]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put("")

    def _keep(self) -> None:
        assert self.process.stderr is not None
        self.printed.extend(self.process.stderr)

    def next(self) -> str:
        """The next line that the server prints."""
        return self._said.get(timeout=60).strip()

    @property
    def log(self) -> str:
        """The text that the server and the functions have printed so far."""
        return "".join(self.printed)

    def end(self, how: int = signal.SIGTERM, seconds: float = 60) -> int:
        """Ends the server, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(10)
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self.end()


def unix(folder: Path) -> str:
    """An address in a folder."""
    return f"crosslane+unix://{folder}/crosslane.sock"
