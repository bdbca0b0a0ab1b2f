"""Options that several commands have."""

from __future__ import annotations

import os
from pathlib import Path

import click

READABLE = click.Path(exists=True, dir_okay=False)
WRITABLE = click.Path(dir_okay=False, writable=True)


def _settings(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        settings[name] = value
    return settings


SETTINGS = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="A setting, as crosslane_set in SQL; may be given often.",
)


def read_token(_context: click.Context, parameter: click.Parameter, file: str | None) -> str | None:
    """The token in the file that an option names; a callback of that option."""
    if file is None:
        return None
    token = Path(file).read_text(encoding="utf-8").strip()
    if not token:
        raise click.BadParameter("the file is empty", param_hint=parameter.opts[0])
    return token


def server_token(context: click.Context, parameter: click.Parameter, file: str | None) -> str | None:
    """As :func:`read_token`; without a file, the token of the environment."""
    return read_token(context, parameter, file) or os.environ.get("CROSSLANE_TOKEN") or None
