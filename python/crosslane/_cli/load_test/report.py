"""What a load test has measured, as a table and as a picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rich.table import Table

from crosslane._cli.load_test.measure import Step

PERCENTILES = ("p50", "p90", "p99", "p99.9")
#: The colours of the percentiles in the picture, from the lowest percentile on.
_COLOURS = ("#2a9d8f", "#e9a03b", "#e76f51", "#264653")


def duration(us: float) -> str:
    """A time with three significant digits.

    >>> duration(7.25), duration(71.04), duration(123456.7), duration(2.5e6)
    ('7.25 us', '71.0 us', '123 ms', '2.50 s')
    """
    unit, size = next(((unit, size) for unit, size in (("s", 1e6), ("ms", 1e3)) if us >= size), ("us", 1.0))
    value = us / size
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def table(steps: list[Step]) -> Table:
    """A table with a line for each step, or two if there are heavy calls."""
    drawn = Table(header_style="bold")
    mixed = any(step["heavy"] for step in steps)
    drawn.add_column("calls/s", justify="right")
    if mixed:
        drawn.add_column("calls")
    for head in ("answers/s", *PERCENTILES, "max", "failed", "lost", "late p99"):
        drawn.add_column(head, justify="right")
    for step in steps:
        counts = [f"[red]{step[name]:,}[/]" if step[name] else "0" for name in ("failed", "lost")]
        late = duration(step["late"]["p99_us"]) if step["late"] else "-"
        for which in ("light", "heavy") if mixed else ("latency",):
            samples = step[which]
            first = which != "heavy"
            drawn.add_row(
                f"{step['rate']:,}" if first else "",
                *([which] if mixed else []),
                f"{step['qps']:,.0f}" if first else "",
                *(duration(samples[f"{name}_us"]) if samples else "-" for name in (*PERCENTILES, "max")),
                *(counts if first else ["", ""]),
                late if first else "",
            )
    return drawn


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(steps: list[Step], title: str, path: Path) -> None:
    """Draws the percentiles over the calls per second. Heavy calls have dashed lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    mixed = any(step["heavy"] for step in steps)
    for which, style in (("light", "-"), ("heavy", (0, (4, 2)))):
        for percentile, colour in zip(PERCENTILES, _COLOURS):
            points = sorted((step["rate"], step[which][f"{percentile}_us"]) for step in steps if step[which])
            if points:
                label = f"{percentile}, {which} calls" if mixed else percentile
                axes.plot(
                    *zip(*points), color=colour, linestyle=style, linewidth=1.8, marker="o", markersize=4,
                    label=label,
                )  # fmt: skip
    rates = sorted({step["rate"] for step in steps})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(rates, [f"{rate:,}" for rate in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: duration(us)))
    axes.grid(axis="y", which="both", color="#e8ecee", linewidth=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("calls per second")
    axes.set_title(title, loc="left", fontsize=11)
    if axes.get_lines():
        axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
