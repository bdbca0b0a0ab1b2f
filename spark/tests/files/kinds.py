"""Functions of Spark's own tests, in addition to those of `conformance`."""

from crosslane import udf, udtf


@udf
def padded(x: int, width: int = 3) -> str:
    """One function for each number of arguments."""
    return str(x).rjust(width, "0")


@udtf("unlucky_numbers(n BIGINT) -> TABLE(i BIGINT)")
def unlucky_numbers(n):
    for i in range(n):
        if i == 13:
            raise ValueError("thirteen")
        yield (i,)


@udtf("doubled(rows TABLE(i BIGINT, s VARCHAR)) -> TABLE(j BIGINT, t VARCHAR)")
def doubled(batches):
    for batch in batches:
        yield batch
        yield batch
