"""The stream functions of the section `streams` of cases.json."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from crosslane import udtf


@udtf("late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, told VARCHAR)")
def late(flights: list) -> Iterator[tuple]:
    """Yields rows of late flights."""
    for flight in flights:
        if flight.delay is not None and flight.delay > 60:
            yield flight.id, f"{flight.delay} minutes"


@udtf("each(names TABLE(name VARCHAR, times INTEGER)) -> TABLE(name VARCHAR, place BIGINT)")
def each(names: list) -> Iterator[dict]:
    """Yields each name as many times as its row says, in dicts."""
    for name, times in names:
        for place in range(times):
            yield {"place": place, "name": name}


@udtf("half(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def half(numbers: list) -> list:
    """Returns a list of plain values instead of a generator."""
    return [number.n // 2 for number in numbers if number.n % 2 == 0]


@udtf("nothing(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def nothing(numbers: list) -> None:
    """Returns no rows for any batch."""
    return None


@udtf("totals(numbers TABLE(n BIGINT, x DOUBLE)) -> TABLE(rows BIGINT, total DOUBLE)", vectorized=True)
def totals(numbers: pa.RecordBatch) -> dict:
    """Returns a batch of one row for each batch."""
    return {"rows": [numbers.num_rows], "total": [pc.sum(numbers["x"]).as_py()]}


@udtf("twice(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", vectorized=True)
def twice(numbers: pa.RecordBatch) -> Iterator[dict]:
    """Yields two batches for each batch."""
    yield {"n": numbers["n"]}
    yield {"n": numbers["n"]}


@udtf("same(t TABLE(s VARCHAR, l INTEGER[], d DATE)) -> TABLE(s VARCHAR, l INTEGER[], d DATE)")
def same(rows: list) -> list:
    """Returns its rows."""
    return rows


@udtf("odd(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def odd(numbers: list) -> Iterator[object]:
    """Yields an error for each even number."""
    for (n,) in numbers:
        yield ValueError(f"{n} is even") if n % 2 == 0 else n


@udtf("odd_or_null(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", on_error="null")
def odd_or_null(numbers: list) -> Iterator[object]:
    """Does the same as `odd`, and errors become NULLs."""
    for (n,) in numbers:
        if n == 4:
            raise ValueError("four")
        yield ValueError(f"{n} is even") if n % 2 == 0 else n


@udtf("raises(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)")
def raises(numbers: list) -> Iterator[object]:
    """Yields a row, and then raises an error."""
    yield 1
    raise ValueError("no more")


@udtf("unprepared(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", on_error="null", retries=1)
class Unprepared:
    """Cannot be set up. The options for failed calls do not count."""

    def __init__(self) -> None:
        raise ValueError("no model")

    def __call__(self, numbers: list) -> list:
        return numbers


@udtf("wrong(numbers TABLE(n BIGINT)) -> TABLE(n UTINYINT)")
def wrong(numbers: list) -> list:
    """Returns values that may not fit."""
    return [n for (n,) in numbers]
