"""The command line: ``crosslane sql``, ``check``, ``doctor``, ``serve`` and ``bench``."""

from crosslane._cli.program import main

__all__ = ["main"]
