"""Names and signatures as SQL's text."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def with_name(text: str, name: str) -> str:
    """A signature with this name, if it begins with its parameters."""
    return quoted(name) + text.lstrip() if text.lstrip().startswith("(") else text


def takes_table(signature: str | None) -> bool:
    """Whether a function takes a table by its signature. False if the signature is wrong, which
    ``resolve`` reports.

    >>> takes_table("late(flights TABLE(id BIGINT)) -> TABLE(id BIGINT)")
    True
    """
    # Programs that only use decorators do not need the native half.
    from crosslane import _guest

    try:
        _, parameters, _, _ = _guest.parse_signature(with_name(signature or "", "f"))
    except ValueError:
        return False
    return any(sql.startswith("TABLE") for _, sql in parameters)
