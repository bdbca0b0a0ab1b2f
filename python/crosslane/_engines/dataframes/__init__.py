"""Functions of files, called with columns of Python's libraries: :class:`crosslane.Functions`.

A call is a query of DuckDB over Arrow data, in a database in memory. So the engine's rules for
types, NULLs, options and errors hold here, too, and are not written twice. Each call has a
connection of its own, so that threads do not wait for each other.
"""
