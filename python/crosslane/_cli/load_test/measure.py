"""A load test of a server: the latencies of calls at planned times."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from crosslane._runtime.languages import SERVER

#: The figures of a step, as the server's program prints them (`load.rs`).
Step = dict[str, Any]
_CALL = re.compile(r"\s*([^\s(]+)\s*(?:\((.*)\)\s*)?", re.DOTALL)


class Failed(Exception):
    """The load test has failed; the message says why."""


@dataclass(frozen=True)
class Call:
    """A call that the user has written: a function and its arguments."""

    text: str
    function: str
    arguments: list[Any]

    @classmethod
    def parse(cls, text: str) -> Call:
        """Reads ``name`` or ``name(JSON, ...)``.

        >>> Call.parse('add(1, [2, null])').arguments
        [1, [2, None]]
        >>> Call.parse('nothing').arguments
        []
        """
        found = _CALL.fullmatch(text)
        if not found:
            raise ValueError(f"{text!r} is not NAME or NAME(ARGUMENT, ...)")
        try:
            arguments = json.loads(f"[{found[2] or ''}]")
        except json.JSONDecodeError as error:
            raise ValueError(f"the arguments of {text!r} are not JSON: {error}") from None
        return cls(text, found[1], arguments)

    def message(self) -> dict[str, Any]:
        """The call as the server's program takes it."""
        return {"function": self.function, "arguments": self.arguments}


def measure(plan: dict[str, Any], progress: Callable[[int, float], None]) -> Iterator[Step]:
    """The steps of a load test, as they end. Calls ``progress`` with the index of a step and the
    part of it that is done.

    Ctrl-C ends the load test: the step that was begun is the last one, and KeyboardInterrupt is
    raised after it.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [SERVER, "bench"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        interrupts = 0

        def interrupt(_signal: int, _frame: object) -> None:
            # The program may have received the signal itself. A second Ctrl-C ends it at once.
            nonlocal interrupts
            interrupts += 1
            process.send_signal(signal.SIGINT if interrupts == 1 else signal.SIGKILL)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin:
                process.stdin.write(json.dumps(plan))
            for line in process.stdout:
                event = json.loads(line)
                if "step" in event:
                    yield event["step"]
                else:
                    progress(*event["progress"])
            code = process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
            process.kill()
            process.wait()
        if interrupts:
            raise KeyboardInterrupt
        if code:
            errors.seek(0)
            raise Failed(
                errors.read().decode(errors="replace").strip() or f"the load generator ended with {code}"
            )
