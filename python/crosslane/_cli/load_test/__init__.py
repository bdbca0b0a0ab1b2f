"""The command ``crosslane bench serve``."""
