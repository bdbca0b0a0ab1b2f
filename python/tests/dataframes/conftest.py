from __future__ import annotations

from collections.abc import Iterator

import pytest

import crosslane

FUNCTIONS = '''
from typing import Any

from crosslane import udaf, udf, udtf


@udf
def slug(title: str) -> str:
    """The title in an address."""
    return "-".join(title.lower().split())


@udf
def plus_one(x: int) -> int:
    return x + 1


@udf
def plus(x: int, y: int) -> int:
    return x + y


@udf
def rounded(x: float, digits: int = 0) -> float:
    return round(x, digits)


@udf
def halved(x: float) -> float:
    return x / 2


@udf
def is_even(x: int) -> bool:
    return x % 2 == 0


@udf
def told(x: Any) -> str:
    return repr(x)


@udf
def total(*numbers: int) -> int:
    return sum(numbers)


@udf("twice(x BIGINT) -> BIGINT", overload=True)
def twice_a_number(x):
    return x * 2


@udf("twice(x VARCHAR) -> VARCHAR", overload=True)
def twice_a_text(x):
    return x * 2


@udf("length(x BIGINT[]) -> BIGINT")
def length(x):
    return len(x)


@udf("pair(x BIGINT) -> STRUCT(n BIGINT, more BIGINT[])")
def pair(x):
    return {"n": x, "more": [x, None]}


@udf("size(x BIGINT) -> ENUM('small', 'large')")
def size(x):
    return "small" if x < 10 else "large"


@udf
def reciprocal(x: int) -> float:
    return 1 / x


@udf('"my close"(x BIGINT) -> BIGINT')
def my_close(x):
    return x


@udf("close(x BIGINT) -> BIGINT")
def close(x):
    return x


@udtf("numbers(n BIGINT, step BIGINT) -> TABLE(i BIGINT)")
def numbers(n, step=1):
    for i in range(n):
        yield (i * step,)


@udtf("each(numbers BIGINT[]) -> TABLE(i BIGINT)")
def each(numbers):
    for i in numbers:
        yield (i,)


@udtf("late(flights TABLE(id BIGINT)) -> TABLE(id BIGINT)")
def late(flights):
    yield from flights


@udaf
class SumOf:
    def __init__(self) -> None:
        self.sum = 0

    def update(self, x: int) -> None:
        self.sum += x

    def merge(self, other) -> None:
        self.sum += other.sum

    def finish(self) -> int:
        return self.sum
'''


@pytest.fixture(scope="package")
def fns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[crosslane.Functions]:
    """Functions that all tests of this folder call."""
    path = tmp_path_factory.mktemp("functions") / "functions.py"
    path.write_text(FUNCTIONS)
    with crosslane.Functions(path, threads=2) as functions:
        yield functions
