"""The figures of a benchmark: its lines, and the file in which it saves them."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

ROOT = Path(__file__).resolve().parent.parent
#: Where runs put their figures and pictures.
RESULTS = ROOT / "bench" / "results"


@dataclass
class Story:
    """A comparison that users notice: a task, the peer that also does it, and the seconds of both."""

    task: str
    peer: str
    ours: float
    theirs: float


@dataclass
class Line:
    """One comparison: how much better Crosslane is than the other, or a time against a limit."""

    name: str
    against: str
    ours: str
    theirs: str
    value: float
    target: float
    #: ``x``: a ratio, and more is better. All other units: less is better.
    unit: str = "x"
    story: Story | None = None

    def __post_init__(self) -> None:
        if isinstance(self.story, dict):
            self.story = Story(**self.story)

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value >= self.target if self.unit == "x" else self.value <= self.target

    @property
    def shown(self) -> str:
        """The figure that is compared with the target."""
        return f"{self.value:.2f} x" if self.unit == "x" else f"{self.value:.1f} {self.unit}"


class Saved:
    """Figures that are saved as JSON. A subclass is a dataclass."""

    #: The class of the rows of each field that is a list.
    ROWS: ClassVar[dict[str, type]] = {"lines": Line}

    def save(self, path: Path) -> None:
        """Writes the figures."""
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads figures that were saved."""
        saved: dict[str, Any] = json.loads(path.read_text())
        for name, kind in cls.ROWS.items():
            saved[name] = [kind(**row) for row in saved[name]]
        return cls(**saved)


def machine() -> str:
    """The machine of this measurement."""
    with open("/proc/cpuinfo") as info:
        model = next((line.split(": ", 1)[1].strip() for line in info if line.startswith("model name")), None)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model or platform.machine()}, {memory:.0f} GiB, Linux {platform.release()}"
