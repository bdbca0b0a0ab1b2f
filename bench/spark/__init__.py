"""Functions in Spark over lanes, beside Spark's own functions."""
