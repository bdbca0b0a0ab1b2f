"""Runs the command line, for ``python -m crosslane._cli``."""

from crosslane._cli import main

main()
