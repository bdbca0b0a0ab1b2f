"""The functions of the README's first lines."""

from crosslane import udf


@udf
def slug(title: str) -> str:
    """A title as part of a web address."""
    return "-".join(title.lower().split())


@udf
def plus_one(x: int) -> int:
    """One more."""
    return x + 1
