"""A server for HTTPS, and a function that asks it."""
