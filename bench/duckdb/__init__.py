"""Functions in DuckDB over lanes, beside DuckDB's own functions and other peers."""
