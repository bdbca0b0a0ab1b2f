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

#: What the server's program has measured of a step, as `load.rs` says it.
Step = dict[str, Any]
_CALL = re.compile(r"\s*([^\s(]+)\s*(?:\((.*)\)\s*)?", re.DOTALL)


class Failed(Exception):
    """What could not be measured, and why."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as the user has written them."""

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

    def told(self) -> dict[str, Any]:
        """The call, as the server's program wants it."""
        return {"function": self.function, "arguments": self.arguments}


def measure(plan: dict[str, Any], progress: Callable[[int, float], None]) -> Iterator[Step]:
    """The steps of a measurement, as they end. ``progress`` hears how far which step is.

    KeyboardInterrupt ends the measurement with the step that was begun; raised again behind it.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [SERVER, "bench"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        )
        interrupts = 0

        def interrupt(_signal: int, _frame: object) -> None:
            # It may have heard of it by itself. Who does not want to wait presses the keys again.
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
            said.seek(0)
            raise Failed(
                said.read().decode(errors="replace").strip() or f"the load generator ended with {code}"
            )
