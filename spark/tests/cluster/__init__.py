"""Executors of a cluster: what they need, and what they do."""
