// The aggregates of the section `aggregates` of cases.json.

class Total {
  sum = 0;
  update(x) {
    this.sum += x;
  }
  merge(other) {
    this.sum += other.sum;
  }
  finish() {
    return this.sum;
  }
}

// Adds values row by row.
udaf("total(x BIGINT) -> BIGINT", Total);

class TotalColumns extends Total {
  update(x) {
    for (const value of x) this.sum += value;
  }
}

// Adds columns.
udaf("total_columns(x BIGINT) -> BIGINT", { vectorized: true }, TotalColumns);

// Keeps the order of rows.
udaf("listed(x BIGINT) -> BIGINT[]", {
  start: () => [],
  update: (all, x) => {
    all.push(x);
  },
  merge: (all, others) => all.concat(others),
  finish: (all) => all,
});

// Does the same by columns.
udaf(
  "listed_columns(x BIGINT) -> BIGINT[]",
  { vectorized: true },
  {
    start: () => [],
    update: (all, x) => all.concat([...x]),
    merge: (all, others) => all.concat(others),
    finish: (all) => all,
  },
);

// Has no result for a group without rows.
udaf("weighted(x DOUBLE, weight DOUBLE) -> DOUBLE", {
  start: () => [0, 0],
  update: ([sum, weights], x, weight) => [sum + x * weight, weights + weight],
  merge: (a, b) => [a[0] + b[0], a[1] + b[1]],
  finish: ([sum, weights]) => (weights ? sum / weights : null),
});

class Missing extends Total {
  update(x) {
    if (x === null) this.sum++;
  }
}

// Counts NULLs.
udaf("missing(x BIGINT) -> BIGINT", { nulls: "call" }, Missing);

const longer = (a, b) => (b.length > a.length ? b : a);

class Longest {
  text = "";
  rows = 0;
  update(s) {
    this.rows++;
    this.text = longer(this.text, s);
  }
  merge(other) {
    this.rows += other.rows;
    this.text = longer(this.text, other.text);
  }
  finish() {
    return { text: this.text, rows: this.rows };
  }
}

// Has states and results of several values.
udaf("longest(s VARCHAR) -> STRUCT(text VARCHAR, rows BIGINT)", Longest);

class Picky extends Total {
  update(x) {
    if (x === 13) throw new Error("no 13");
    super.update(x);
  }
  finish() {
    if (this.sum === 100) throw new Error("no 100");
    return this.sum;
  }
}

// Fails for a row of 13, and for a result of 100.
udaf("picky(x BIGINT) -> BIGINT", Picky);
udaf("lenient(x BIGINT) -> BIGINT", { on_error: "null" }, Picky);

class Unmerged extends Total {
  merge() {
    throw new Error("no merge");
  }
}

// Has states that cannot be merged. The option for errors does not count.
udaf("unmerged(x BIGINT) -> BIGINT", { on_error: "null" }, Unmerged);
