"""The rules of ``crosslane check --strict``."""
