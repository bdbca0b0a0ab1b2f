// The stateful functions of the section `stateful` of cases.json.

class City {
  constructor() {
    this.places = new Map([
      ["JFK", "New York"],
      ["SFO", "San Francisco"],
    ]);
  }
  call(code) {
    return this.places.get(code);
  }
}

// Looks up a code in a table that the set-up has made.
udf("city(code VARCHAR) -> VARCHAR", City);

class Known extends City {
  call(code) {
    return this.places.has(code);
  }
}

// Is called for NULL, too.
udf("known(code VARCHAR) -> BOOLEAN", { nulls: "call" }, Known);

// Takes a column, and adds a number from the set-up.
udf(
  "raised(x BIGINT) -> BIGINT",
  { vectorized: true },
  class Raised {
    by = 10;
    call(x) {
      return x.map((value) => value + this.by);
    }
  },
);

// Takes any number of arguments.
udf(
  "joined(separator VARCHAR, *rest VARCHAR) -> VARCHAR",
  class Joined {
    first = ["first"];
    call(separator, ...rest) {
      return [...this.first, ...rest].join(separator);
    }
  },
);

// Takes any argument.
udf(
  "shown(x ANY) -> VARCHAR",
  class Shown {
    label = "it is";
    call(x) {
      return `${this.label} ${x}`;
    }
  },
);

// Is called for several rows at once.
udf(
  "waited(x BIGINT) -> BIGINT",
  { concurrency: 8 },
  class Waited {
    by = 3;
    async call(x) {
      return x * this.by;
    }
  },
);

// Keeps a count between rows.
udf(
  "kept(x BIGINT) -> BIGINT",
  { deterministic: false },
  class Kept {
    count = 0;
    call() {
      return Math.min(++this.count, 2);
    }
  },
);

// Fails for each second row.
udf(
  "spotted(x BIGINT) -> BIGINT",
  { on_error: "null" },
  class Spotted {
    parts = 2;
    call(x) {
      if (x % this.parts) throw new Error("a spot");
      return x;
    }
  },
);

// Fails at its first call.
udf(
  "tried(x BIGINT) -> BIGINT",
  { retries: 1 },
  class Tried {
    tries = 0;
    call(x) {
      if (++this.tries === 1) throw new Error("not yet");
      return x;
    }
  },
);

// Cannot be set up. The options for failed calls do not count.
udf(
  "unprepared(x BIGINT) -> BIGINT",
  { on_error: "null", retries: 1 },
  class Unprepared {
    constructor() {
      throw new Error("no model");
    }
    call(x) {
      return x;
    }
  },
);
