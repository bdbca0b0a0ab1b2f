"""What `crosslane.testing` consists of, and pytest's plugin."""
