"""Table functions, aggregates and streams in Python."""

from crosslane import udaf, udf, udtf


@udf
def padded(x: int, width: int = 3) -> str:
    """One function for each number of arguments."""
    return str(x).rjust(width, "0")


@udtf("numbers(n BIGINT, step BIGINT) -> TABLE(i BIGINT, s VARCHAR)")
def numbers(n, step=1):
    for i in range(0, n, step):
        yield i, str(i)


@udtf("parts() -> TABLE(p BIGINT)", partitions=lambda: [1, 2, 3])
def parts(part):
    yield (part,)
    yield (part * 10,)


@udtf("unlucky_numbers(n BIGINT) -> TABLE(i BIGINT)")
def unlucky_numbers(n):
    for i in range(n):
        if i == 13:
            raise ValueError("thirteen")
        yield (i,)


@udaf("total(x BIGINT) -> BIGINT")
class Total:
    """Adds rows."""

    def __init__(self):
        self.sum = 0

    def update(self, x):
        self.sum += x

    def merge(self, other):
        self.sum += other.sum

    def finish(self):
        return self.sum


@udaf("total_columns(x BIGINT) -> BIGINT", vectorized=True)
class TotalColumns(Total):
    """Adds columns."""

    def update(self, x):
        self.sum += x.sum().as_py()


@udaf("listed(x VARCHAR) -> VARCHAR[]")
class Listed:
    """Keeps what it sees."""

    def __init__(self):
        self.all = []

    def update(self, x):
        self.all.append(x)

    def merge(self, other):
        self.all += other.all

    def finish(self):
        return sorted(self.all)


@udaf("unmerged(x BIGINT) -> BIGINT")
class Unmerged(Total):
    """Cannot be aggregated partially."""

    def merge(self, other):
        raise ValueError("no merge")


@udtf("doubled(rows TABLE(i BIGINT, s VARCHAR)) -> TABLE(j BIGINT, t VARCHAR)")
def doubled(batches):
    for batch in batches:
        yield batch
        yield batch
