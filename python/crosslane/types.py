"""Python types for the SQL types that the standard library has no type for."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """A SQL INTERVAL: three numbers that cannot be added up, because months and days vary."""

    months: int = 0
    days: int = 0
    microseconds: int = 0


class Tagged(NamedTuple):
    """A value of a SQL UNION: the name of the member, and its value."""

    tag: str
    value: Any


class _Nanoseconds:
    """The common part of :class:`TimeNs` and :class:`TimestampNs`."""

    nanosecond: int
    #: The class without nanoseconds. Objects of both classes can be compared.
    _plain: type
    #: The length of the ISO text up to the microseconds.
    _length: int

    def __new__(cls, *parts: Any, nanosecond: int = 0, **named: Any) -> Any:
        """Raises ValueError if an argument is out of its range."""
        if not 0 <= nanosecond <= 999:
            raise ValueError(f"nanosecond must be in 0..999, not {nanosecond}")
        self = super().__new__(cls, *parts, **named)
        self.nanosecond = nanosecond
        return self

    def _iso(self, timespec: str, text: Callable[[str], str]) -> str:
        if timespec != "nanoseconds" and not (timespec == "auto" and self.nanosecond):
            return text(timespec)
        whole = text("microseconds")
        return f"{whole[: self._length]}{self.nanosecond:03d}{whole[self._length :]}"

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        return same if same is not True else self.nanosecond == _nanosecond(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return self._order(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        return self._order(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        return self._order(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        return self._order(other, operator.ge)

    def _order(self, other: Any, order: Any) -> bool:
        if not isinstance(other, self._plain):
            return NotImplemented
        if super().__eq__(other):
            return order(self.nanosecond, _nanosecond(other))
        return getattr(super(), f"__{order.__name__}__")(other)

    def __hash__(self) -> int:
        # Without nanoseconds, it equals an object of the plain class, and must have its hash.
        return hash((super().__hash__(), self.nanosecond)) if self.nanosecond else super().__hash__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return *super().__reduce_ex__(protocol)[:2], {"nanosecond": self.nanosecond}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.isoformat(timespec='nanoseconds')})"  # type: ignore[attr-defined]


class TimeNs(_Nanoseconds, time):
    """A TIME_NS: a ``datetime.time`` with a ``nanosecond`` of 0 to 999.

    It takes the arguments of ``time``, and ``nanosecond``.
    """

    _plain = time
    _length = len("00:00:00.000000")

    def replace(self, *parts: Any, nanosecond: int | None = None, **named: Any) -> TimeNs:
        """As ``time.replace``, also for nanoseconds."""
        given = self.nanosecond if nanosecond is None else nanosecond
        own = super().replace(*parts, **named)
        return type(self)(
            own.hour, own.minute, own.second, own.microsecond, own.tzinfo, fold=own.fold, nanosecond=given
        )

    def isoformat(self, timespec: str = "auto") -> str:
        """As ``time.isoformat``; "auto" means ``"nanoseconds"`` if there are any."""
        return self._iso(timespec, super().isoformat)


class TimestampNs(_Nanoseconds, datetime):
    """A TIMESTAMP_NS: a datetime with a ``nanosecond`` of 0 to 999, as pandas.Timestamp has it.

    It takes the arguments of ``datetime``, and ``nanosecond``. Arithmetic with a ``timedelta``
    keeps the nanoseconds. The difference of two timestamps is a ``timedelta``, rounded down to
    microseconds.
    """

    _plain = datetime
    _length = len("0001-01-01T00:00:00.000000")

    def _keep(self, result: Any) -> Any:
        if isinstance(result, TimestampNs):
            result.nanosecond = self.nanosecond
        return result

    def replace(self, *parts: Any, nanosecond: int | None = None, **named: Any) -> TimestampNs:
        """As ``datetime.replace``, also for nanoseconds."""
        given = self.nanosecond if nanosecond is None else nanosecond
        own = super().replace(*parts, **named)
        return type(self)(*own.timetuple()[:6], own.microsecond, own.tzinfo, fold=own.fold, nanosecond=given)

    def astimezone(self, tz: Any = None) -> TimestampNs:
        """As ``datetime.astimezone``."""
        return self._keep(super().astimezone(tz))

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        """As ``datetime.isoformat``; "auto" means ``"nanoseconds"`` if there are any."""
        plain = super().isoformat
        return self._iso(timespec, lambda timespec: plain(sep, timespec))

    def __add__(self, other: Any) -> Any:
        return self._keep(super().__add__(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        result = super().__sub__(other)
        if not isinstance(other, datetime):
            return self._keep(result)
        return result - timedelta(microseconds=self.nanosecond < _nanosecond(other))

    def __rsub__(self, other: Any) -> Any:
        if not isinstance(other, datetime):
            return NotImplemented
        return datetime.__sub__(other, self) - timedelta(microseconds=_nanosecond(other) < self.nanosecond)


def _nanosecond(value: Any) -> int:
    return getattr(value, "nanosecond", 0)


def json_text(value: Any) -> str:
    """A value as JSON text. Raises ValueError for NaN and infinities, which JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def decimal_of(value: Any) -> Decimal:
    """A number as a Decimal. A float, also of numpy, becomes the number that its shortest text
    shows.

    Raises:
        TypeError: if the value is no number.
    """
    if isinstance(value, Decimal):
        return value
    if isinstance(value, float):
        return Decimal(float.__repr__(value))
    if type(value).__name__ in ("float16", "float32"):
        return Decimal(str(value))
    return Decimal(operator.index(value))


def instant_of(value: Any) -> tuple[int, int]:
    """The seconds and nanoseconds of a ``datetime64`` or ``timedelta64``, of either sign."""
    whole = value.astype(f"{value.dtype.kind}8[s]")
    rest = (value - whole).astype("m8[ns]")
    return int(whole.astype("i8")), int(rest.astype("i8"))
