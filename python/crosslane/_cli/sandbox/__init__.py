"""The command ``crosslane sandbox``."""
