"""The command ``crosslane sql``."""
