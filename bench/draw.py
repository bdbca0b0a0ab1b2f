"""The pictures of the documentation, from the figures in the folders of the benchmarks.

make pictures                   into docs/pictures/
python -m bench.draw FOLDER     into FOLDER
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from .figures import ROOT


def main() -> None:
    """Draws all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for name in ("duckdb", "scheduler", "server", "spark"):
        pictures = import_module(f"bench.{name}.pictures")
        figures = pictures.Figures.load(ROOT / "bench" / name / "figures.json")
        for picture in pictures.draw(figures, folder):
            print(f"drawn in {picture}")


if __name__ == "__main__":
    main()
