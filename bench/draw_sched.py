"""The picture of the scheduler's benchmark, from the figures of a run.

make pictures                             docs/echo.png, from bench/sched.json, and the other pictures
python bench/draw_sched.py FILE FOLDER    from the figures in FILE, into FOLDER
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from draw import INK, OURS, ROOT, Line, command, titled

#: The figures of the run that the documentation shows.
PUBLISHED = ROOT / "bench" / "sched.json"
#: Colour, line and width of the servers in the picture, in the order of their legend.
LINES = {
    "Crosslane": (OURS, "-", 2.6),
    "Crosslane, priority off": (OURS, (0, (4, 2)), 1.6),
    "tokio": ("#e9a03b", "-", 1.6),
    "raw epoll": (INK, (0, (1, 1)), 1.6),
}
Measured = dict[str, float | None]


@dataclass
class Point:
    """A server under one load: the medians over the rounds; None is what the machine cannot tell."""

    load: str
    server: str
    #: Requests per second that were asked for at equal distances; None for other loads.
    rate: int | None
    qps: float
    lost: float
    #: Microseconds by ``avg``, ``p50``, ``p90``, ``p99``, ``p99.9``, ``p99.99`` and ``max``.
    latency: dict[str, float]
    #: The load generator's own lateness (p99, microseconds), which is in the latencies.
    late: float | None
    #: Of the server, for each request: ``cpu_us``, ``switches``, ``migrations``, ``cycles``; and ``ipc``.
    used: Measured


@dataclass
class Figures:
    """What a run has measured, and where."""

    machine: str
    date: str
    seconds: float
    rounds: int
    points: list[Point] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Writes the figures as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Reads the figures that a run has saved."""
        saved = json.loads(path.read_text())
        saved["points"] = [Point(**point) for point in saved["points"]]
        saved["lines"] = [Line(**line) for line in saved["lines"]]
        return cls(**saved)


def draw_percentile(axes, points: list[Point], percentile: str, lines: dict[str, tuple]) -> None:
    """Draws a percentile over the requests per second, with a line for each server."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    rates = sorted({point.rate for point in points if point.rate})
    for server, (colour, style, width) in lines.items():
        latencies = {
            point.rate: point.latency[percentile] for point in points if point.rate and point.server == server
        }
        axes.plot(
            sorted(latencies), [latencies[rate] for rate in sorted(latencies)],
            color=colour, linestyle=style, linewidth=width, marker="o", markersize=4, label=server,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(rates, [f"{rate // 1000}k" for rate in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:g} us"))
    axes.grid(axis="y", which="both", color="#e8ecee", linewidth=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelleft=True)
    axes.set_title(percentile, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("requests per second", fontsize=9.5, color=INK)


def draw(figures: Figures, path: Path) -> None:
    """Draws p50 and p99 over the requests per second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for axes, percentile in zip(panels, ("p50", "p99")):
        draw_percentile(axes, figures.points, percentile, LINES)
    panels[0].legend(frameon=False, fontsize=9.5, labelcolor=INK)
    where = f"{figures.machine}, {figures.date}, load generator on the same cores"
    titled(figure, figure, "Echo of 64 bytes: latency from the planned time, lower is better", where, path)


def draw_into(file: Path, folder: Path) -> list[Path]:
    """Draws the figures of a file, and returns the picture."""
    picture = folder / "echo.png"
    draw(Figures.load(file), picture)
    return [picture]


if __name__ == "__main__":
    command(__doc__, PUBLISHED, draw_into)
