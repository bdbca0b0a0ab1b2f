"""The stream functions of the section `streams` of cases.json."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udtf


@udtf("late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, told VARCHAR)")
def late(flights: list) -> Iterator[tuple]:
    """Rows of those that are late."""
    for flight in flights:
        if flight.delay is not None and flight.delay > 60:
            yield flight.id, f"{flight.delay} minutes"


@udtf("each(names TABLE(name VARCHAR, times INTEGER)) -> TABLE(name VARCHAR, place BIGINT)")
def each(names: list) -> Iterator[dict]:
    """Each name so many times, in rows by names."""
    for name, times in names:
        for place in range(times):
            yield {"place": place, "name": name}


@udtf("half(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def half(numbers: list) -> list:
    """A list instead of a generator, of bare values."""
    return [number.n // 2 for number in numbers if number.n % 2 == 0]


@udtf("nothing(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def nothing(numbers: list) -> None:
    """No rows for any batch."""
    return None


@udtf("totals(numbers TABLE(n BIGINT, x DOUBLE)) -> TABLE(rows BIGINT, total DOUBLE)", vectorized=True)
def totals(numbers: pa.RecordBatch) -> dict:
    """A batch of one row for each."""
    return {"rows": [numbers.num_rows], "total": [pc.sum(numbers["x"]).as_py()]}


@udtf("twice(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", vectorized=True)
def twice(numbers: pa.RecordBatch) -> Iterator[dict]:
    """Two batches for each."""
    yield {"n": numbers["n"]}
    yield {"n": numbers["n"]}


@udtf("same(t TABLE(s VARCHAR, l INTEGER[], d DATE)) -> TABLE(s VARCHAR, l INTEGER[], d DATE)")
def same(rows: list) -> list:
    """The rows that came."""
    return rows


@udtf("odd(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def odd(numbers: list) -> Iterator[object]:
    """An error for each even number."""
    for (n,) in numbers:
        yield ValueError(f"{n} is even") if n % 2 == 0 else n


@udtf("odd_or_null(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", on_error="null")
def odd_or_null(numbers: list) -> Iterator[object]:
    """The same, where errors are NULLs."""
    for (n,) in numbers:
        if n == 4:
            raise ValueError("four")
        yield ValueError(f"{n} is even") if n % 2 == 0 else n


@udtf("raises(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def raises(numbers: list) -> Iterator[object]:
    """An error behind a row."""
    yield 1
    raise ValueError("no more")


@udtf("unprepared(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", on_error="null", retries=1)
class Unprepared:
    """A set-up that fails, for which the options do not count."""

    def __init__(self) -> None:
        raise ValueError("no model")

    def __call__(self, numbers: list) -> list:
        return numbers


@udtf("wrong(numbers TABLE(n BIGINT)) -> TABLE(n UTINYINT)")
def wrong(numbers: list) -> list:
    """What may not fit."""
    return [n for (n,) in numbers]
