"""The pictures of the benchmark in DuckDB: `targets.png`, `peers.png` and `depths.png`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..drawing import INK, OURS, THEIRS, bare, pyplot, target_bars
from ..figures import Line, Saved


@dataclass
class Figures(Saved):
    """The figures of a run, and its machine."""

    duckdb: str
    machine: str
    date: str
    lines: list[Line] = field(default_factory=list)
    #: Rows per second of a stream, by how many batches a worker has at most.
    depths: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # JSON has texts as keys.
        self.depths = {int(depth): rate for depth, rate in self.depths.items()}

    @property
    def where(self) -> str:
        """The machine and the versions of the figures."""
        return f"DuckDB {self.duckdb}, {self.machine}, {self.date}"


def duration(seconds: float) -> str:
    """Seconds as text, rounded to two digits.

    >>> duration(0.1946), duration(10.772), duration(5.363e-4)
    ('190 ms', '11 s', '540 us')
    """
    unit, size = next(
        ((unit, size) for unit, size in (("s", 1), ("ms", 1e-3)) if seconds >= size), ("us", 1e-6)
    )
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def draw_peers(figures: Figures, path: Path) -> None:
    """Two bars for each task: the peer's time, and ours as a part of it. Shorter is faster."""
    stories = [(line, line.story) for line in figures.lines if line.story]
    axes, save = _picture(len(stories), 0.86)
    for index, (line, story) in enumerate(reversed(stories)):
        part = story.ours / story.theirs
        axes.barh(index + 0.17, part, color=OURS, height=0.3)
        axes.barh(index - 0.17, 1, color=THEIRS, height=0.3)
        axes.text(
            part + 0.01, index + 0.17, f"Crosslane {duration(story.ours)}   ({line.value:.2g} times as fast)",
            va="center", fontsize=9.5, color=INK, fontweight="bold",
        )  # fmt: skip
        axes.text(
            0.01, index - 0.17, f"{story.peer} {duration(story.theirs)}", va="center", fontsize=9, color=INK
        )
    axes.set_yticks(range(len(stories)), [story.task for _, story in reversed(stories)], fontsize=10)
    axes.set_xlim(0, 1.02)
    save("Time for the same work: shorter is faster", figures.where, path)


def draw_targets(figures: Figures, path: Path) -> None:
    """One bar for each line: past the mark is better."""
    axes, save = _picture(len(figures.lines), 0.55)
    target_bars(axes, figures.lines)
    save("Crosslane beside its targets", figures.where, path)


def draw_depths(figures: Figures, path: Path) -> None:
    """A bar for each depth: its length is the rows per second."""
    axes, save = _picture(len(figures.depths), 0.6)
    for index, (depth, rate) in enumerate(reversed(figures.depths.items())):
        axes.barh(index, rate, color=THEIRS if depth == 1 else OURS, height=0.6)
        label = f"{rate / 1e6:.0f} M rows/s   ({rate / figures.depths[1]:.2f} times depth 1)"
        axes.text(
            rate * 0.99, index, label, va="center", ha="right", fontsize=9.5, color=INK, fontweight="bold"
        )
    names = [f"depth {depth}" for depth in reversed(figures.depths)]
    axes.set_yticks(range(len(names)), names, fontsize=10)
    save(
        "crosslane.map, light function, one worker: rows per second by the batches that it has",
        figures.where,
        path,
    )


def _picture(rows: int, height: float) -> tuple[Any, Callable[[str, str, Path], None]]:
    """Bare axes for this number of rows, and a function that writes the picture with its titles."""
    figure, axes = pyplot().subplots(figsize=(11, height * rows + 1), layout="constrained")
    bare(axes)

    def save(title: str, where: str, path: Path) -> None:
        axes.set_title(title, loc="left", fontsize=12.5, fontweight="bold", color=INK, pad=14)
        figure.supxlabel(where, fontsize=8.5, color="#666666", x=0.99, ha="right")
        figure.savefig(path, dpi=130)
        pyplot().close(figure)

    return axes, save


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Draws all pictures for which there are figures, and returns their files."""
    pictures = [folder / "targets.png"]
    draw_targets(figures, pictures[0])
    if any(line.story for line in figures.lines):
        pictures.append(folder / "peers.png")
        draw_peers(figures, pictures[1])
    if figures.depths:
        pictures.append(folder / "depths.png")
        draw_depths(figures, pictures[-1])
    return pictures
