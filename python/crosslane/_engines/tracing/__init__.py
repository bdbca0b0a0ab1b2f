"""Traces of what happens in a database, as a page or as a trace file."""
