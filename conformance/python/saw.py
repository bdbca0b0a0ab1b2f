"""What a Python function sees, as text."""


def saw(x):
    """The type of a value, and the value."""
    return f"{type(x).__name__} {x!r}"
