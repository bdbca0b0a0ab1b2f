"""Spark sessions that are measured: their time, the processors' time, and their memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ..figures import RESULTS, ROOT
from .works import FILES, MASTER, Run, Work

#: The interpreter of Spark's programs and workers.
INTERPRETER = ROOT / ".venv-spark-4.3" / "bin" / "python"
PROGRAM = Path(__file__).parent / "program.py"
#: Seconds between two looks at the memory.
PAUSE = 0.05
#: The result of each program with so many rows.
_RESULTS: dict[tuple[str, int], list[Any]] = {}


@dataclass
class Taken:
    """The seconds of a run, and the CPU seconds of the JVM and of the other processes."""

    seconds: float
    jvm: float
    workers: float


class Session:
    """A Spark that runs in its own process."""

    def __init__(self, name: str, folder: Path, files: tuple[str, ...] = tuple(FILES)) -> None:
        self.name = name
        self._log = RESULTS / f"spark-{name}.log"
        command = [INTERPRETER, PROGRAM, MASTER, name, folder, *(folder / file for file in files)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.version = self._answer()["version"]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            sys.exit(
                f"{self.name}: Spark has ended; the log is in {self._log}\n{self._log.read_text()[-3000:]}"
            )
        return json.loads(line)

    def taken(self, work: Work, run: Run, rows: int) -> Taken:
        """Measures a run. Checks its result, and that Crosslane ran its functions only if it should."""
        asked = run.question(rows)
        # Idle workers may have ended meanwhile. This query starts them again.
        self._asked(run, run.question(100))
        before = self._processors()
        answer = self._asked(run, asked)
        after = self._processors()
        if run.program:
            # All sessions must give the same result.
            expected = _RESULTS.setdefault((run.program, rows), answer["values"])
        else:
            expected = run.sums(rows)
        if answer["values"] != expected:
            sys.exit(f"{run.who}: {answer['values']} instead of {expected}")
        if work.shows and answer["lanes"] != run.ours:
            sys.exit(
                f"{run.who}: {asked}: Crosslane {'has' if answer['lanes'] else 'has not'} run the functions"
            )
        return Taken(answer["seconds"], *(then - now for then, now in zip(after, before)))

    def _asked(self, run: Run, question: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            sys.exit(f"{run.who}: {answer['error']}")
        return answer

    def _below(self) -> list[psutil.Process]:
        """The JVM, and all processes below it."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def _processors(self) -> tuple[float, float]:
        """The CPU seconds of the JVM and of the other processes so far."""
        jvm = others = 0.0
        for process in self._below():
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                if process.name() == "java":
                    jvm += used.user + used.system
                else:
                    # The time of processes that have ended counts for their parents.
                    others += sum(used[:4])
        return jvm, others

    def memory(self) -> tuple[float, float]:
        """The memory of the JVM with all processes below it, and of the JVM alone, in MiB.

        A page that several of them share is counted once. The program that asks Spark is not counted.
        """
        total = jvm = 0
        for process in self._below():
            with suppress(OSError, psutil.NoSuchProcess):
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
                size = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
                total += size
                jvm += size if process.name() == "java" else 0
        return total / 1024, jvm / 1024


class Look:
    """Measures a session's memory again and again, and keeps the maximum."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = (0.0, 0.0)

    def __enter__(self) -> Look:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(PAUSE):
            self.most = max(self.most, self._session.memory())
