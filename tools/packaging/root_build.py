"""Builds the package of ``python/`` when pip is pointed at the root of the repository or of a source archive."""

import os
from pathlib import Path

os.chdir(Path(__file__).resolve().parents[2] / "python")

from setuptools.build_meta import *  # noqa: E402, F403
