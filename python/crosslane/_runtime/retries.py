"""When a failed call may be tried again, as its exception says."""

from __future__ import annotations

import math
from functools import partial

from crosslane._runtime.errors import LaneEnded


class Retry(Exception):
    """Asks for another try of a call, after a time; ``retries`` says how often there is one.

    Args:
        message: what the error says if there is no other try.
        after: the seconds until the next try. It begins no earlier, and at most a tenth later. An hour
            is the most: a call that names a longer time fails at once.

    Example:
        >>> import crosslane
        >>> raise crosslane.Retry("the service is busy", after=2.5)
        Traceback (most recent call last):
        ...
        crosslane.Retry: the service is busy
    """

    def __init__(self, message: str = "", *, after: float) -> None:
        if isinstance(after, bool) or not isinstance(after, int | float) or not after >= 0:
            raise ValueError(f"after is a number of seconds from 0, not {after!r}")
        super().__init__(message or f"try again after {after:g} s")
        #: The seconds until the next try.
        self.retry_after = float(after)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Retry, after=self.retry_after), self.args


Retry.__module__ = "crosslane"


def retry_after(error: BaseException) -> float | None:
    """The seconds after which a failed call may be tried again, if its exception says so.

    It says so by an attribute ``retry_after``, as :class:`Retry` does. Otherwise it is the header
    ``Retry-After`` of the answer that the exception has, as ``headers`` (urllib) or
    ``response.headers`` (requests, httpx, and clients made with them). RFC 9110, section 10.2.3: the
    header has seconds or a date.
    """
    try:
        named = getattr(error, "retry_after", None)
        if named is None:
            named = _header(error)
        return None if named is None or isinstance(named, bool) else _seconds(named)
    except LaneEnded:
        raise
    except BaseException:
        # The exception is an object of the user, whose attributes may do anything.
        return None


def _header(error: BaseException) -> object:
    for answer in (getattr(error, "response", None), error):
        headers = getattr(answer, "headers", None)
        # Headers of all these libraries find names in any case. A plain dict does not.
        if headers is not None and not isinstance(headers, dict):
            return headers.get("Retry-After")
    return None


def _seconds(named: object) -> float | None:
    if isinstance(named, int | float):
        return float(named)
    text = str(named).strip()
    try:
        seconds = float(text)
    except ValueError:
        # Each worker imports this module, and very few read a date.
        from datetime import UTC, datetime
        from email.utils import parsedate_to_datetime

        until = parsedate_to_datetime(text)
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        return max(0.0, seconds)
    return seconds if math.isfinite(seconds) else None
