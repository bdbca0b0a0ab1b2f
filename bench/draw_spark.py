"""The picture of Spark's benchmark, from the figures of a run.

make pictures                             docs/spark.png, from bench/spark.json, and the other pictures
python bench/draw_spark.py FILE FOLDER    from the figures in FILE, into FOLDER
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from draw import INK, OURS, ROOT, THEIRS, Line, command, titled

#: The figures of the run that the documentation shows.
PUBLISHED = ROOT / "bench" / "spark.json"


@dataclass
class Point:
    """One configuration at one work: the median over the rounds, and what each of them took."""

    work: str
    who: str
    ours: bool
    rows: int
    #: Rows per second.
    rate: float
    #: The processors' time for a row, in nanoseconds: of the JVM, and of the processes below it.
    jvm: float
    workers: float
    seconds: list[float] = field(default_factory=list)


@dataclass
class Peak:
    """The most memory that a session's processes had at once, in MiB: the median over the rounds."""

    who: str
    ours: bool
    total: float
    #: Of that: the JVM's.
    jvm: float
    rounds: list[float] = field(default_factory=list)


@dataclass
class Figures:
    """What a run has measured, and where."""

    spark: str
    machine: str
    date: str
    rounds: int
    points: list[Point] = field(default_factory=list)
    peaks: list[Peak] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Writes the figures as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Reads the figures that a run has saved."""
        saved = json.loads(path.read_text())
        saved["points"] = [Point(**point) for point in saved["points"]]
        saved["peaks"] = [Peak(**peak) for peak in saved["peaks"]]
        saved["lines"] = [Line(**line) for line in saved["lines"]]
        return cls(**saved)


def draw(figures: Figures, path: Path) -> None:
    """Draws a bar for each configuration, as long as its rows per second; each work has a scale of its own."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    works = list(dict.fromkeys(point.work for point in figures.points))
    groups = [[point for point in figures.points if point.work == work] for work in works]
    figure, panels = plt.subplots(
        len(works), figsize=(11, 0.36 * len(figures.points) + 0.75 * len(works) + 0.8), layout="constrained",
        squeeze=False, height_ratios=[len(points) + 0.6 for points in groups],
    )  # fmt: skip
    for (axes,), work, points in zip(panels, works, groups):
        best = max(point.rate for point in points)
        for index, point in enumerate(points):
            axes.barh(-index, point.rate, color=OURS if point.ours else THEIRS, height=0.72)
            inside = point.rate > 0.8 * best
            axes.text(
                point.rate + (-0.008 if inside else 0.008) * best, -index, f"{point.rate / 1e6:.2f} M rows/s",
                va="center", ha="right" if inside else "left", fontsize=9, fontweight="bold",
                color="white" if inside and point.ours else INK,
            )  # fmt: skip
        axes.set_yticks([-index for index in range(len(points))], [point.who for point in points], fontsize=9)
        axes.set_xlim(0, best * 1.01)
        axes.set_title(work, loc="left", fontsize=10.5, color=INK)
        axes.xaxis.set_visible(False)
        for side in ("top", "right", "bottom", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(left=False, colors=INK)
    where = f"Spark {figures.spark}, local[2], {figures.machine}, {figures.date}"
    titled(figure, figure, "Functions in Spark: rows per second, longer is faster", where, path)


def draw_into(file: Path, folder: Path) -> list[Path]:
    """Draws the figures of a file, and returns the picture."""
    picture = folder / "spark.png"
    draw(Figures.load(file), picture)
    return [picture]


if __name__ == "__main__":
    command(__doc__, PUBLISHED, draw_into)
