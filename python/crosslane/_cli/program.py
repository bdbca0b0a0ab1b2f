"""The program ``crosslane``: its commands, and what ends it."""

from __future__ import annotations

import sys
from typing import Any

import click

from crosslane import __version__
from crosslane._cli.cache import cache
from crosslane._cli.check.command import check
from crosslane._cli.definitions import dump, trust
from crosslane._cli.doctor.command import doctor
from crosslane._cli.init import init
from crosslane._cli.load_test.command import bench
from crosslane._cli.lock import lock
from crosslane._cli.output import EXIT_CODES, INTERRUPTED, complain, discard_output, err
from crosslane._cli.sandbox.command import sandbox
from crosslane._cli.serve import serve
from crosslane._cli.sql.command import sql
from crosslane._cli.trace import trace


class _Group(click.Group):
    """Ends quietly when the reader of the output has gone, and reports other errors of the output."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except (KeyboardInterrupt, RuntimeError) as error:
            # DuckDB raises RuntimeError for a KeyboardInterrupt.
            if isinstance(error, RuntimeError) and str(error) != "Query interrupted":
                raise
            err.print("interrupted")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            discard_output()
            sys.exit(0)
        except OSError as error:
            discard_output()
            complain(str(error))
            sys.exit(1)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="crosslane")
def main() -> None:
    """Functions written in Python, JavaScript, Ruby and Lua, called from SQL, on every core."""


for _command in (init, sql, trace, check, sandbox, lock, dump, trust, cache, doctor, serve, bench):
    main.add_command(_command)
