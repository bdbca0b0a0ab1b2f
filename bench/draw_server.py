"""The picture of the server's benchmark, from the figures of a run.

make pictures                              docs/server.png, from bench/server.json, and the other pictures
python bench/draw_server.py FILE FOLDER    from the figures in FILE, into FOLDER
"""

from __future__ import annotations

from pathlib import Path

from draw import INK, OURS, ROOT, command, target_bars, titled
from draw_sched import Figures, draw_percentile

#: The figures of the run that the documentation shows.
PUBLISHED = ROOT / "bench" / "server.json"
RAW = "bare echo server"
#: Colour, line and width of the servers in the picture, in the order of their legend.
LINES = {
    "Python": (OURS, "-", 2.2),
    "JavaScript": ("#e9a03b", "-", 2.2),
    "Ruby": ("#e76f51", "-", 2.2),
    RAW: (INK, (0, (1, 1)), 1.6),
}


def draw(figures: Figures, path: Path) -> None:
    """Draws p50 and p99 over the requests per second, and below them what was reached beside the targets."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = 0.45 * len(figures.lines) + 0.6
    figure = plt.figure(figsize=(11, 4.6 + bars), layout="constrained")
    above, under = figure.subfigures(2, 1, height_ratios=(4.6, bars))
    if figures.points:
        panels = above.subplots(1, 2, sharey=True)
        for axes, percentile in zip(panels, ("p50", "p99")):
            draw_percentile(axes, figures.points, percentile, LINES)
        panels[0].legend(frameon=False, fontsize=9.5, labelcolor=INK)
    below = under.subplots()
    below.xaxis.set_visible(False)
    below.tick_params(left=False)
    for side in ("top", "right", "bottom", "left"):
        below.spines[side].set_visible(False)
    target_bars(below, figures.lines)
    where = f"{figures.machine}, {figures.date}, load generator on the same cores"
    titled(
        figure,
        under,
        "The server: a function that does nothing, latency from the planned time, lower is better",
        where,
        path,
    )


def draw_into(file: Path, folder: Path) -> list[Path]:
    """Draws the figures of a file, and returns the picture."""
    picture = folder / "server.png"
    draw(Figures.load(file), picture)
    return [picture]


if __name__ == "__main__":
    command(__doc__, PUBLISHED, draw_into)
