"""Functions that PySpark has pickled."""
