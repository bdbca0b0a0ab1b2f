"""The aggregates of the section `aggregates` of cases.json."""

from crosslane import udaf


@udaf("total(x BIGINT) -> BIGINT")
class Total:
    """Adds values row by row."""

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
        self.sum += sum(x.to_pylist())


@udaf("listed(x BIGINT) -> BIGINT[]")
class Listed:
    """Keeps the order of rows."""

    def __init__(self):
        self.all = []

    def update(self, x):
        self.all.append(x)

    def merge(self, other):
        self.all += other.all

    def finish(self):
        return self.all


@udaf("listed_columns(x BIGINT) -> BIGINT[]", vectorized=True)
class ListedColumns(Listed):
    """Does the same by columns."""

    def update(self, x):
        self.all += x.to_pylist()


@udaf("weighted(x DOUBLE, weight DOUBLE) -> DOUBLE")
class Weighted:
    """Has no result for a group without rows."""

    def __init__(self):
        self.sum = self.weights = 0.0

    def update(self, x, weight):
        self.sum += x * weight
        self.weights += weight

    def merge(self, other):
        self.sum += other.sum
        self.weights += other.weights

    def finish(self):
        return self.sum / self.weights if self.weights else None


@udaf("missing(x BIGINT) -> BIGINT", nulls="call")
class Missing(Total):
    """Counts NULLs."""

    def update(self, x):
        self.sum += x is None


@udaf("longest(s VARCHAR) -> STRUCT(text VARCHAR, rows BIGINT)")
class Longest:
    """Has states and results of several values."""

    def __init__(self):
        self.text = ""
        self.rows = 0

    def update(self, s):
        self.rows += 1
        self.text = max(self.text, s, key=len)

    def merge(self, other):
        self.rows += other.rows
        self.text = max(self.text, other.text, key=len)

    def finish(self):
        return {"text": self.text, "rows": self.rows}


@udaf("picky(x BIGINT) -> BIGINT")
class Picky(Total):
    """Fails for a row of 13, and for a result of 100."""

    def update(self, x):
        if x == 13:
            raise ValueError("no 13")
        super().update(x)

    def finish(self):
        if self.sum == 100:
            raise ValueError("no 100")
        return self.sum


@udaf("lenient(x BIGINT) -> BIGINT", on_error="null")
class Lenient(Picky):
    """The same, but errors become NULL."""


@udaf("unmerged(x BIGINT) -> BIGINT", on_error="null")
class Unmerged(Total):
    """Has states that cannot be merged. The option for errors does not count."""

    def merge(self, other):
        raise ValueError("no merge")
