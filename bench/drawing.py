"""The code that the pictures of all benchmarks share. matplotlib draws bars and lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import Line

OURS, THEIRS, MISSED, INK = "#2a9d8f", "#c9d3d6", "#e76f51", "#264653"
#: The colour of the second of several lines.
SECOND = "#e9a03b"


def pyplot() -> Any:
    """matplotlib, which draws into files. Only benchmarks have it installed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def bare(axes: Any) -> Any:
    """The same axes without lines around them."""
    axes.xaxis.set_visible(False)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    return axes


def target_bars(axes: Any, lines: Sequence[Line]) -> None:
    """One bar for each line: its length is the share of the target that was reached."""
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


def save_titled(figure: Any, below: Any, title: str, where: str, path: Path) -> None:
    """Writes a picture: its title above, and in the part `below` what the figures were measured on."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    below.supxlabel(where, fontsize=8.5, color="#666666", x=0.99, ha="right")
    figure.savefig(path, dpi=130)
    pyplot().close(figure)


def draw_percentile(axes: Any, points: Sequence[Any], percentile: str, lines: dict[str, tuple]) -> None:
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


def latency_panels(figure: Any, points: Sequence[Any], lines: dict[str, tuple]) -> None:
    """Draws p50 and p99 side by side. `lines` gives the colour, line and width of each server."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, percentile in zip(panels, ("p50", "p99")):
        draw_percentile(axes, points, percentile, lines)
    panels[0].legend(frameon=False, fontsize=9.5, labelcolor=INK)
