"""The command ``crosslane doctor``."""
