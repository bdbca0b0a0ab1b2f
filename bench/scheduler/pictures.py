"""The picture of the scheduler's benchmark: `echo.png`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..drawing import INK, OURS, SECOND, latency_panels, pyplot, save_titled
from ..figures import Line, Saved

#: Colour, line and width of the servers in the picture, in the order of their legend.
LINES = {
    "Crosslane": (OURS, "-", 2.6),
    "Crosslane, priority off": (OURS, (0, (4, 2)), 1.6),
    "tokio": (SECOND, "-", 1.6),
    "raw epoll": (INK, (0, (1, 1)), 1.6),
}
Measured = dict[str, float | None]


@dataclass
class Point:
    """A server under one load: the medians of the rounds. None stands for what the machine cannot measure."""

    load: str
    server: str
    #: Requests per second that were sent at equal distances. None for other loads.
    rate: int | None
    qps: float
    lost: float
    #: Microseconds by ``avg``, ``p50``, ``p90``, ``p99``, ``p99.9``, ``p99.99`` and ``max``.
    latency: dict[str, float]
    #: The load generator's own lateness (p99, microseconds). The latencies include it.
    late: float | None
    #: What the server used for each request: ``cpu_us``, ``switches``, ``migrations``, ``cycles``;
    #: and ``ipc``.
    used: Measured


@dataclass
class Figures(Saved):
    """The figures of a run, and its machine."""

    machine: str
    date: str
    seconds: float
    rounds: int
    points: list[Point] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    ROWS = Saved.ROWS | {"points": Point}

    @property
    def where(self) -> str:
        """The machine and the versions of the figures."""
        return f"{self.machine}, {self.date}, load generator on the same cores"


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Draws p50 and p99 over the requests per second, and returns the picture's file."""
    picture = folder / "echo.png"
    figure = pyplot().figure(figsize=(11, 4.6), layout="constrained")
    latency_panels(figure, figures.points, LINES)
    title = "Echo of 64 bytes: latency from the planned time, lower is better"
    save_titled(figure, figure, title, figures.where, picture)
    return [picture]
