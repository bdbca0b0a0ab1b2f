"""Tests of executors of a cluster: their files and their work."""
