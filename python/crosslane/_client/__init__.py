"""Programs without an engine: clients of a server, and streams through functions."""
