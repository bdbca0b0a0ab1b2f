"""The command line: ``crosslane init``, ``sql``, ``check``, ``lock``, ``dump``, ``trust``, ``cache``, ``doctor``, ``serve`` and ``bench``."""

from crosslane._cli.program import main

__all__ = ["main"]
