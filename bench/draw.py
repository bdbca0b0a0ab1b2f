"""The pictures of the benchmark, from the figures of a run.

make pictures                       docs/peers.png, docs/targets.png and docs/depths.png, from bench/figures.json
python bench/draw.py FILE FOLDER    from the figures in FILE, into FOLDER
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The figures of the run that the documentation shows.
PUBLISHED = ROOT / "bench" / "figures.json"
OURS, THEIRS, MISSED, INK = "#2a9d8f", "#c9d3d6", "#e76f51", "#264653"


@dataclass
class Story:
    """What a user notices of a comparison: a task, who else does it, and the seconds of both."""

    task: str
    peer: str
    ours: float
    theirs: float


@dataclass
class Line:
    """One comparison: how much better the measured thing is than the other, or a time against a limit."""

    name: str
    against: str
    ours: str
    theirs: str
    value: float
    target: float
    #: ``x``: a ratio, the more the better; else a unit, the less the better.
    unit: str = "x"
    story: Story | None = None

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value >= self.target if self.unit == "x" else self.value <= self.target

    @property
    def shown(self) -> str:
        """The figure that is compared with the target."""
        return f"{self.value:.2f} x" if self.unit == "x" else f"{self.value:.1f} {self.unit}"


@dataclass
class Figures:
    """What a run has measured, and where."""

    duckdb: str
    machine: str
    date: str
    lines: list[Line] = field(default_factory=list)
    #: Rows per second of a stream, by how many batches a worker has at most.
    depths: dict[int, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes the figures as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Reads the figures that a run has saved."""
        saved = json.loads(path.read_text())
        for line in saved["lines"]:
            line["story"] = line["story"] and Story(**line["story"])
        saved["lines"] = [Line(**line) for line in saved["lines"]]
        saved["depths"] = {int(depth): rate for depth, rate in saved.get("depths", {}).items()}
        return cls(**saved)

    @property
    def where(self) -> str:
        """On what the figures were measured."""
        return f"DuckDB {self.duckdb}, {self.machine}, {self.date}"


def machine() -> str:
    """What this is measured on."""
    with open("/proc/cpuinfo") as info:
        model = next((line.split(": ", 1)[1].strip() for line in info if line.startswith("model name")), None)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model or platform.machine()}, {memory:.0f} GiB, Linux {platform.release()}"


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
    """Two bars for each task: the peer's time, and within it ours. Shorter is faster."""
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
    """One bar per line, as long as the target was met by: past the mark is better."""
    axes, save = _picture(len(figures.lines), 0.55)
    target_bars(axes, figures.lines)
    save("Crosslane beside its targets", figures.where, path)


def target_bars(axes, lines: list[Line]) -> None:
    """One bar per line, as long as the target was met by."""
    for index, line in enumerate(reversed(lines)):
        score = line.value / line.target if line.unit == "x" else line.target / max(line.value, 1e-9)
        width = min(max(score, 0.02), 3)
        axes.barh(index, width, color=OURS if line.met else MISSED, height=0.62, zorder=2)
        sign = ">=" if line.unit == "x" else "<="
        label = f"{line.shown}   ({line.ours} / {line.theirs}; target {sign} {line.target:g})"
        inside = width > 1.9
        axes.text(
            width - 0.03 if inside else width + 0.03, index, label, va="center", fontsize=8.5,
            ha="right" if inside else "left", color="white" if inside else "#333333", zorder=4,
        )  # fmt: skip
    axes.axvline(1, color=INK, linewidth=1.5, linestyle=(0, (4, 3)), zorder=3)
    axes.text(1, len(lines) - 0.4, "target", ha="center", va="bottom", color=INK, fontsize=9)
    axes.set_yticks(range(len(lines)), [line.name for line in reversed(lines)], fontsize=9.5)
    axes.set_xlim(0, 3.3)
    axes.set_ylim(-0.6, len(lines) + 0.1)


def draw_depths(figures: Figures, path: Path) -> None:
    """A bar for each depth, as long as the rows per second."""
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


def titled(figure, below, title: str, where: str, path: Path) -> None:
    """Writes a picture with its title above, and below, in this part of it, where the figures were measured."""
    import matplotlib.pyplot as plt

    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    below.supxlabel(where, fontsize=8.5, color="#666666", x=0.99, ha="right")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def command(documentation: str | None, published: Path, draw: Callable[[Path, Path], list[Path]]) -> None:
    """Draws from the figures in a file into a folder, as the program's arguments or the documentation want it."""
    arguments = [Path(argument) for argument in sys.argv[1:]] or [published, ROOT / "docs"]
    if len(arguments) != 2:
        sys.exit(documentation)
    arguments[1].mkdir(exist_ok=True)
    for picture in draw(*arguments):
        print(f"drawn in {picture}")


def _picture(rows: int, height: float):
    """Bare axes for so many rows, and what writes the picture with its titles."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, height * rows + 1), layout="constrained")
    axes.xaxis.set_visible(False)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)

    def save(title: str, where: str, path: Path) -> None:
        axes.set_title(title, loc="left", fontsize=12.5, fontweight="bold", color=INK, pad=14)
        figure.supxlabel(where, fontsize=8.5, color="#666666", x=0.99, ha="right")
        figure.savefig(path, dpi=130)
        plt.close(figure)

    return axes, save


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Draws what the figures allow, and returns the pictures."""
    pictures = [folder / "targets.png"]
    draw_targets(figures, pictures[0])
    if any(line.story for line in figures.lines):
        pictures.append(folder / "peers.png")
        draw_peers(figures, pictures[1])
    if figures.depths:
        pictures.append(folder / "depths.png")
        draw_depths(figures, pictures[-1])
    return pictures


if __name__ == "__main__":
    command(__doc__, PUBLISHED, lambda file, folder: draw(Figures.load(file), folder))
