"""The table functions of the section `tables` of cases.json."""

from crosslane import udtf


@udtf("numbers(n BIGINT, step BIGINT, label VARCHAR) -> TABLE(i BIGINT, s VARCHAR)")
def numbers(n, step=1, label="no"):
    """Numbers and their texts."""
    for i in range(n):
        yield i * step, f"{label} {i * step}"


@udtf("singles(n BIGINT) -> TABLE(i BIGINT)")
def singles(n):
    """Plain values as rows."""
    yield from range(n)


@udtf("batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", vectorized=True)
def batches(n):
    """Columns by their places."""
    for start in range(0, n, 1000):
        i = list(range(start, min(n, start + 1000)))
        yield i, [None if x % 3 == 2 else f"no {x}" for x in i]


@udtf("named_batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", vectorized=True)
def named_batches(n):
    """Columns by their names."""
    yield {"s": [f"no {x}" for x in range(n)], "i": list(range(n))}


@udtf("by_name() -> TABLE(i BIGINT, s VARCHAR)")
def by_name():
    """Rows with the names of their columns."""
    yield {"s": "first", "i": 1}
    yield {"i": 2, "s": None}


@udtf("pages(n BIGINT) -> TABLE(page BIGINT, line BIGINT)", partitions=lambda n: list(range(n)))
def pages(page, n):
    """A table with partitions."""
    for line in range(n):
        yield page, line


@udtf("endless() -> TABLE(i BIGINT)")
def endless():
    """Rows without an end."""
    i = 0
    while True:
        yield i
        i += 1


@udtf("fails(n BIGINT) -> TABLE(i BIGINT)")
def fails(n):
    """A table that fails after its rows."""
    yield from range(n)
    raise ValueError("no more")


@udtf("ends(n BIGINT) -> TABLE(i BIGINT)", on_error="null")
def ends(n):
    """The same, but errors become NULL."""
    yield from range(n)
    raise ValueError("no more")


@udtf("spotted(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", on_error="null")
def spotted(n):
    """Each second row is an error."""
    for i in range(n):
        yield ValueError("a spot") if i % 2 else (i, "good")


@udtf("refused() -> TABLE(i BIGINT, s VARCHAR)")
def refused():
    """The second row is an error."""
    yield 1, "good"
    yield ValueError("a spot")


@udtf("wrong() -> TABLE(i BIGINT, s VARCHAR)")
def wrong():
    """The second row has too many values."""
    yield 1, "good"
    yield 2, "one", "too many"


@udtf("sees_null(x BIGINT) -> TABLE(x BIGINT)", nulls="call")
def sees_null(x):
    """The argument of its call."""
    yield x


@udtf("nested(l BIGINT[], s STRUCT(a VARCHAR, b BIGINT)) -> TABLE(l BIGINT[], s STRUCT(a VARCHAR, b BIGINT))")
def nested(l, s):  # noqa: E741
    """Its arguments, and a row of NULLs."""
    yield l, s
    yield None, None
