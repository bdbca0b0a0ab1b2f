"""The functions that are measured in DuckDB."""
