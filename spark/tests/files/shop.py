"""Functions in Python for the tests' session."""

import itertools
import os
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from crosslane import udf

counter = itertools.count(1)


@udf
def slug(title: str) -> str:
    """A title as part of a web address."""
    return "-".join(title.lower().split())


@udf
def plus_one(x: int) -> int:
    return x + 1


@udf
def add(x: int, y: int) -> int:
    return x + y


@udf("halved(x DOUBLE) -> DOUBLE", vectorized=True)
def halved(x):
    import pyarrow.compute

    return pyarrow.compute.divide(x, 2)


@udf("rows_at_once(x BIGINT) -> BIGINT", vectorized=True)
def rows_at_once(x):
    return [len(x)] * len(x)


@udf(nulls="call")
def or_zero(x: int | None) -> int:
    return 0 if x is None else x


@udf(nulls="call")
def sees_null(x: int | None, y: str | None) -> bool:
    return x is None or y is None


@udf(deterministic=False)
def counted(x: int) -> int:
    return next(counter)


@udf
def taxed(price: Annotated[Decimal, "DECIMAL(9,2)"], rate: float) -> float:
    return float(price) * rate


@udf("describe(person STRUCT(name VARCHAR, tags VARCHAR[])) -> MAP(VARCHAR, BIGINT)")
def describe(person):
    return {tag: len(person["name"]) for tag in person["tags"]}


@udf("constant() -> BIGINT")
def constant():
    return 42


@udf("far(x HUGEINT) -> HUGEINT")
def far(x):
    return x


@udf("far_result(x BIGINT) -> UUID")
def far_result(x):
    return None


@udf("any_of(x ANY) -> VARCHAR")
def any_of(x):
    return str(x)


@udf
def sum_of(*x: int) -> int:
    return sum(x)


@udf
def fails_at(x: int, bad: int) -> int:
    if x == bad:
        raise ValueError(f"no {x}")
    return x


@udf(on_error="null")
def null_at(x: int, bad: int) -> int:
    return fails_at(x, bad)


@udf(deterministic=False)
def pid(x: int) -> int:
    return os.getpid()


@udf(deterministic=False)
def environment(x: int) -> str:
    return repr(sorted(os.environ.items()))


@udf(deterministic=False, timeout=0.5)
def impatient(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@udf(deterministic=False)
def patient(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@udf(deterministic=False)
def dies_at(x: int, bad: int) -> int:
    if x == bad:
        os._exit(3)
    return x


@udf(deterministic=False, retries=2)
def dies_once(x: int, folder: str) -> int:
    mark = Path(folder) / str(x)
    if x % 100 == 0 and not mark.exists():
        mark.touch()
        os._exit(3)
    return x


@udf(deterministic=False)
def beats(x: int, file: str) -> int:
    """Writes the number of its process to a file, for each row."""
    with open(file, "a") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(0.005)
    return x


@udf(deterministic=False)
def waits_at(x: int, bad: int, file: str) -> int:
    """Writes the number of its process to a file, and never returns."""
    if x == bad:
        with open(file, "a") as log:
            log.write(f"{os.getpid()}\n")
        while True:
            time.sleep(0.1)
    return x


@udf(deterministic=False)
def meets(x: int, folder: str, count: int) -> bool:
    """Whether this number of calls run at the same time. Each call waits for the others, for a minute at
    most."""
    place = Path(folder)
    (place / str(x)).touch()
    end = time.monotonic() + 60
    while len(list(place.iterdir())) < count and time.monotonic() < end:
        time.sleep(0.01)
    return len(list(place.iterdir())) >= count


@udf(deterministic=False)
def prints(x: int) -> int:
    print("a line from", x)
    print("an error line from", x, file=sys.stderr)
    os.write(1, b"\x00\xff garbage " * 100 + b"\n")
    return x


@udf
def text_length(text: str) -> int:
    return len(text)


@udf
def doubled_text(text: str) -> str:
    return text + text
