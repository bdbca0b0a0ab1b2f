"""The picture of Spark's benchmark: `spark.png`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..drawing import INK, OURS, THEIRS, bare, pyplot, save_titled
from ..figures import Line, Saved


@dataclass
class Point:
    """One configuration at one work: the median of the rounds, and what each round took."""

    work: str
    who: str
    ours: bool
    rows: int
    #: Rows per second.
    rate: float
    #: CPU time of a row in nanoseconds: of the JVM, and of the processes below it.
    jvm: float
    workers: float
    seconds: list[float] = field(default_factory=list)


@dataclass
class Peak:
    """The most memory that a session's processes had at once at a work, in MiB: the median of the rounds."""

    who: str
    ours: bool
    total: float
    #: The JVM's part of it.
    jvm: float
    rounds: list[float] = field(default_factory=list)
    work: str = ""


@dataclass
class Figures(Saved):
    """What a run has measured, and on which machine."""

    spark: str
    machine: str
    date: str
    rounds: int
    points: list[Point] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    ROWS = Saved.ROWS | {"points": Point, "peaks": Peak}


def told(rate: float) -> str:
    """Rows per second as a text."""
    return f"{rate / 1e6:.2f} M rows/s" if rate >= 1e6 else f"{rate / 1e3:,.0f} thousand rows/s"


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Draws a bar for each configuration: its length is the rows per second. Each work has its own scale."""
    picture = folder / "spark.png"
    works = list(dict.fromkeys(point.work for point in figures.points))
    groups = [[point for point in figures.points if point.work == work] for work in works]
    figure, panels = pyplot().subplots(
        len(works), figsize=(11, 0.36 * len(figures.points) + 0.75 * len(works) + 0.8), layout="constrained",
        squeeze=False, height_ratios=[len(points) + 0.6 for points in groups],
    )  # fmt: skip
    for (axes,), work, points in zip(panels, works, groups):
        best = max(point.rate for point in points)
        for index, point in enumerate(points):
            axes.barh(-index, point.rate, color=OURS if point.ours else THEIRS, height=0.72)
            inside = point.rate > 0.8 * best
            axes.text(
                point.rate + (-0.008 if inside else 0.008) * best, -index, told(point.rate),
                va="center", ha="right" if inside else "left", fontsize=9, fontweight="bold",
                color="white" if inside and point.ours else INK,
            )  # fmt: skip
        axes.set_yticks([-index for index in range(len(points))], [point.who for point in points], fontsize=9)
        axes.set_xlim(0, best * 1.01)
        axes.set_title(work, loc="left", fontsize=10.5, color=INK)
        bare(axes).tick_params(colors=INK)
    where = f"Spark {figures.spark}, local[2], {figures.machine}, {figures.date}"
    save_titled(figure, figure, "Functions in Spark: rows per second, longer is faster", where, picture)
    return [picture]
