"""The command ``crosslane lock``."""

from __future__ import annotations

import sys

import click
from rich.markup import escape

from crosslane._cli.output import EXIT_CODES, complain, out
from crosslane._runtime.languages import is_python


@click.command(epilog=EXIT_CODES)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False)
)
@click.option("--upgrade", is_flag=True, help="Take newer versions than an existing lock has.")
@click.option("--offline", is_flag=True, help="Use only packages that uv has in its cache.")
def lock(files: tuple[str, ...], upgrade: bool, offline: bool) -> None:
    """Writes beside each Python FILE which packages it gets, and makes its environment.

    A FILE says what it needs in inline script metadata (`# /// script`). `FILE.lock` then pins all
    versions, on each machine that loads FILE.
    """
    from crosslane._runtime import environments

    failed = False
    for file in files:
        if not is_python(file):
            failed = True
            complain(f"{file} is no file in Python, and only these have environments of their own")
            continue
        try:
            written = environments.lock(file, upgrade=upgrade, offline=offline)
            environment = environments.of(file)
        except environments.EnvironmentFailed as error:
            failed = True
            complain(str(error))
            continue
        packages = environment.packages() if environment else []
        out.print(f"{escape(written)}: {len(packages)} packages", highlight=False, soft_wrap=True)
        for package in packages:
            out.print(f"  {escape(package)}", highlight=False)
    if failed:
        sys.exit(1)
