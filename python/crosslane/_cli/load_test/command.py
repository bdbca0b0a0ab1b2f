"""The command ``crosslane bench serve``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from crosslane import __version__
from crosslane._cli.load_test import report
from crosslane._cli.load_test.measure import Call, Failed, Step, measure
from crosslane._cli.options import READABLE, WRITABLE, server_token
from crosslane._cli.output import EXIT_CODES, complain, err, print_table, progress


@click.group()
def bench() -> None:
    """Measures what runs."""


def _call(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:
    try:
        return Call.parse(given) if isinstance(given, str) else tuple(map(Call.parse, given))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _rates(_context: click.Context, _parameter: click.Parameter, given: str) -> list[int]:
    rates = [int(text) if text.strip().isdecimal() else 0 for text in given.split(",")]
    if not all(0 < rate < 1 << 32 for rate in rates):
        raise click.BadParameter(f"{given!r} is not calls per second, or several with commas between them")
    return rates


@bench.command("serve", epilog=EXIT_CODES)
@click.argument("address")
@click.option(
    "--function",
    "light",
    required=True,
    metavar="CALL",
    callback=_call,
    help="What is called: NAME, or NAME(ARGUMENT, ...) with arguments in JSON.",
)
@click.option(
    "--heavy",
    multiple=True,
    metavar="CALL",
    callback=_call,
    help="What some calls call instead; may be given often.",
)
@click.option(
    "--heavy-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    help="The share of all heavy calls together.",
)
@click.option(
    "--qps",
    "rates",
    default="1000",
    metavar="N[,N...]",
    callback=_rates,
    help="Calls per second; several are measured one after the other.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=10.0,
    help="The measured time for each of --qps.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0),
    default=1.0,
    help="Seconds before it, with the same load.",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=4,
    help="Connections, over which the calls are spread.",
)
@click.option("--poisson", is_flag=True, help="Calls come at random, and not at equal distances.")
@click.option(
    "--token-file",
    "token",
    type=READABLE,
    callback=server_token,
    help="A file with the server's token; by default that of the variable CROSSLANE_TOKEN, if it is set.",
)
@click.option("--json", "json_file", type=WRITABLE, metavar="FILE", help="Write all figures.")
@click.option(
    "--picture",
    type=WRITABLE,
    metavar="FILE",
    help="Draw latency over calls per second, as .svg or .png.",
)
def bench_serve(
    address: str,
    light: Call,
    heavy: tuple[Call, ...],
    rates: list[int],
    token: str | None,
    json_file: str | None,
    picture: str | None,
    **options: Any,
) -> None:
    """Measures how long calls of the server at ADDRESS take. Several servers have commas between
    them.

    Calls have one row each. Their times are planned before the first one, and latencies count from
    these times, so that a slow answer hides nothing of what would have waited for it. Calls that
    failed have no part in the latencies. Ctrl-C shows what was measured until then.
    """
    if picture is not None:
        if Path(picture).suffix not in (".svg", ".png"):
            raise click.BadParameter("the name ends with .svg or .png", param_hint="--picture")
        if not report.can_draw():
            complain("--picture needs matplotlib: pip install matplotlib")
            sys.exit(1)
    # The server's program knows the other options by their names.
    plan = {
        "address": address,
        "light": light.message(),
        "heavy": [call.message() for call in heavy],
        "rates": rates,
        **options,
        "patience": 5.0,
    }
    steps: list[Step] = []
    ended: Exception | KeyboardInterrupt | None = None
    try:
        with progress() as bar:
            task = bar.add_task("", total=len(rates))

            def advance(step: int, part: float) -> None:
                bar.update(task, description=f"{rates[step]:,} calls/s", completed=step + part)

            # The steps that have ended are shown, even if a later one fails.
            for step in measure({**plan, "token": token}, advance):
                steps.append(step)
    except (Failed, KeyboardInterrupt) as error:
        ended = error
    if steps:
        print_table(report.table(steps))
        failure = next((step["first_failure"] for step in steps if step["first_failure"]), None)
        if failure:
            err.print(f"[red]the first failure[/]: {escape(failure)}", highlight=False, soft_wrap=True)
        if json_file is not None:
            figures = {"version": __version__, **plan, "steps": steps}
            Path(json_file).write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
        if picture is not None:
            report.draw(steps, f"{light.text} at {address}: latency from the planned time", Path(picture))
    if isinstance(ended, Failed):
        complain(str(ended))
        sys.exit(1)
    if ended is not None:
        raise ended
