"""Names and signatures as SQL's text."""

from __future__ import annotations


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def with_name(text: str, name: str) -> str:
    return quoted(name) + text.lstrip() if text.lstrip().startswith("(") else text


def takes_table(signature: str | None) -> bool:
    """Whether a signature says that the function takes a table. What is wrong with it is said where it is resolved.

    >>> takes_table("late(flights TABLE(id BIGINT)) -> TABLE(id BIGINT)")
    True
    """
    # The native half, which no decorator needs.
    from crosslane import _guest

    try:
        _, parameters, _, _ = _guest.parse_signature(with_name(signature or "", "f"))
    except ValueError:
        return False
    return any(sql.startswith("TABLE") for _, sql in parameters)
