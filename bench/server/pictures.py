"""The picture of the server's benchmark: `server.png`."""

from __future__ import annotations

from pathlib import Path

from ..drawing import INK, MISSED, OURS, SECOND, bare, latency_panels, pyplot, save_titled, target_bars
from ..scheduler.pictures import Figures

BARE = "bare echo server"
#: Colour, line and width of the servers in the picture, in the order of their legend.
LINES = {
    "Python": (OURS, "-", 2.2),
    "JavaScript": (SECOND, "-", 2.2),
    "Ruby": (MISSED, "-", 2.2),
    BARE: (INK, (0, (1, 1)), 1.6),
}


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Draws p50 and p99 over the requests per second, and the lines beside their targets below."""
    picture = folder / "server.png"
    bars = 0.45 * len(figures.lines) + 0.6
    figure = pyplot().figure(figsize=(11, 4.6 + bars), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(4.6, bars))
    if figures.points:
        latency_panels(above, figures.points, LINES)
    target_bars(bare(below.subplots()), figures.lines)
    title = "The server: a function that does nothing, latency from the planned time, lower is better"
    save_titled(figure, below, title, figures.where, picture)
    return [picture]
