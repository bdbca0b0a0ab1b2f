"""What runs in the program of an engine: DuckDB, host lanes, and the kinds of functions of PySpark."""
