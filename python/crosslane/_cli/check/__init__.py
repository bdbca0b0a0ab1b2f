"""The command ``crosslane check``."""
