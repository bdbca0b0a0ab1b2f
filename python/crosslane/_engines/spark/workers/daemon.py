"""Starts workers, in place of ``pyspark.daemon``. Spark runs it as ``python -m``.

Spark's setting ``spark.python.daemon.module`` is for a whole process. So Spark also starts this
module for functions that Crosslane does not run. Their workers are Spark's own: the environment
variable tells which functions are Crosslane's.
"""

from __future__ import annotations

import gc
import importlib
import os

#: The name stands in Workers.scala, too.
IMPORTS = "CROSSLANE_WORKER_IMPORTS"

#: What to import, by the variable's value.
_MODULES = {
    "pandas": ("pyspark.worker", "pandas", "pyarrow.compute", "pyspark.sql.pandas.types"),
    "none": ("pyspark.worker",),
}


def main() -> None:
    """Serves Spark until it closes the standard input."""
    from pyspark import daemon

    imports = os.environ.pop(IMPORTS, None)
    if imports is not None:
        _prepare(imports)
    daemon.manager()


def _prepare(imports: str) -> None:
    """Imports what workers need, and replaces the parts of Spark's code that have a faster way."""
    try:
        for module in _MODULES[imports]:
            importlib.import_module(module)
    except ImportError:
        # A function that needs the module reports that it is missing.
        return
    from crosslane._engines.spark.workers import faster

    faster.install()
    # Workers share the memory of these objects, as long as no garbage collection writes to it.
    gc.freeze()


if __name__ == "__main__":
    main()
