"""The command ``crosslane serve``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from crosslane._cli.options import READABLE, SETTINGS, read_token, server_token
from crosslane._cli.output import EXIT_CODES
from crosslane._runtime.languages import SERVER


@click.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    default=("crosslane://127.0.0.1",),
    show_default=False,
    help="crosslane://host:port, crosslane+tls://host:port or crosslane+unix:///path; may be given often. By default"
    " crosslane://127.0.0.1:7411.",
)
@click.option(
    "--flight",
    metavar="HOST:PORT",
    help="Speak Arrow Flight there, too, for Databend, RisingWave and others that call external functions so.",
)
@click.option(
    "--token-file",
    "token",
    type=READABLE,
    callback=server_token,
    help="A file with the token that clients must have; by default that of the variable CROSSLANE_TOKEN, if it is set.",
)
@click.option(
    "--tls-cert", type=READABLE, help="The server's certificate, and those that vouch for it, in PEM."
)
@click.option("--tls-key", type=READABLE, help="The certificate's key, in PEM.")
@click.option(
    "--watch",
    is_flag=True,
    help="Load a FILE again when it changes, or a module that it imports from its folder. Running calls end as they began.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default=False,
    help="Worker processes of each file at most; by default one per core.",
)
@click.option("--connections", type=click.IntRange(min=1), default=1024, help="Connections at most.")
@click.option(
    "--largest-batch",
    type=click.IntRange(1 << 16, 1 << 31),
    default=256 << 20,
    help="The most bytes of a batch, either way.",
)
@click.option(
    "--waiting-bytes",
    type=click.IntRange(min=1),
    help="The most bytes of messages that wait in the server, of all clients together; by default 1 GiB, or four times"
    " --largest-batch.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    help="Seconds that calls have to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Show health, metrics and a live page there, over HTTP; port 7412 is ours. Without it, nothing is shown.",
)
@click.option(
    "--http-token-file",
    "http_token",
    type=READABLE,
    callback=read_token,
    help="A file with the token that who looks at metrics and the page must have.",
)
@click.option(
    "--http-public",
    is_flag=True,
    help="Let everybody who reaches HOST:PORT look, without a token and from other machines.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How to write the lines of the log, which goes to stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["error", "warn", "info", "debug"]),
    default="info",
    help="What to log; debug also logs each connection.",
)
@SETTINGS
def serve(
    tls_cert: str | None,
    tls_key: str | None,
    http: str | None,
    http_token: str | None,
    http_public: bool,
    settings: dict[str, str],
    **options: Any,
) -> None:
    """Offers the functions of FILEs to engines on this machine and others: CALL
    crosslane_attach('ADDRESS').
    """
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if http is None and (http_public or http_token is not None):
        raise click.UsageError("--http-token-file and --http-public belong to --http")
    if http_public and http_token is not None:
        raise click.UsageError("--http-token-file and --http-public exclude each other")
    settings.setdefault("python", sys.executable)
    settings.setdefault("largest_batch", str(options["largest_batch"]))
    # The server's program knows the other options by their names.
    told = {
        **options,
        "settings": settings,
        "tls": [tls_cert, tls_key] if tls_cert else None,
        "http": http and {"address": http, "token": http_token, "public": http_public},
    }
    # The options go in a file without a name, because other users of this machine see a program's
    # arguments.
    descriptor = os.memfd_create("crosslane-serve")
    os.write(descriptor, json.dumps(told).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, 0)
    os.execv(SERVER, [str(SERVER)])
