"""The stateful functions of the section `stateful` of cases.json."""

from crosslane import udf


@udf("city(code VARCHAR) -> VARCHAR")
class City:
    """Looks up a code in a table that the set-up has made."""

    def __init__(self):
        self.places = {"JFK": "New York", "SFO": "San Francisco"}

    def __call__(self, code):
        return self.places.get(code)


@udf("known(code VARCHAR) -> BOOLEAN", nulls="call")
class Known(City):
    """Is called for NULL, too."""

    def __call__(self, code):
        return code in self.places


@udf("raised(x BIGINT) -> BIGINT", vectorized=True)
class Raised:
    """Takes a column, and adds a number from the set-up."""

    def __init__(self):
        self.by = 10

    def __call__(self, x):
        return [value + self.by for value in x.to_pylist()]


@udf("joined(separator VARCHAR, *rest VARCHAR) -> VARCHAR")
class Joined:
    """Takes any number of arguments."""

    def __init__(self):
        self.first = ["first"]

    def __call__(self, separator, *rest):
        return separator.join([*self.first, *rest])


@udf("shown(x ANY) -> VARCHAR")
class Shown:
    """Takes any argument."""

    def __init__(self):
        self.label = "it is"

    def __call__(self, x):
        return f"{self.label} {x}"


@udf("waited(x BIGINT) -> BIGINT", concurrency=8)
class Waited:
    """Is called for several rows at once."""

    def __init__(self):
        self.by = 3

    async def __call__(self, x):
        return x * self.by


@udf("kept(x BIGINT) -> BIGINT", deterministic=False)
class Kept:
    """Keeps a count between rows."""

    def __init__(self):
        self.count = 0

    def __call__(self, x):
        self.count += 1
        return min(self.count, 2)


@udf("spotted(x BIGINT) -> BIGINT", on_error="null")
class Spotted:
    """Fails for each second row."""

    def __init__(self):
        self.parts = 2

    def __call__(self, x):
        if x % self.parts:
            raise ValueError("a spot")
        return x


@udf("tried(x BIGINT) -> BIGINT", retries=1)
class Tried:
    """Fails at its first call."""

    def __init__(self):
        self.tries = 0

    def __call__(self, x):
        self.tries += 1
        if self.tries == 1:
            raise ValueError("not yet")
        return x


@udf("unprepared(x BIGINT) -> BIGINT", on_error="null", retries=1)
class Unprepared:
    """Cannot be set up. The options for failed calls do not count."""

    def __init__(self):
        raise ValueError("no model")

    def __call__(self, x):
        return x
