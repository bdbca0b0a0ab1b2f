// The table functions of the section `tables` of cases.json.

// Numbers and their texts.
udtf(
  "numbers(n BIGINT, step BIGINT, label VARCHAR) -> TABLE(i BIGINT, s VARCHAR)",
  function* (n, step = 1, label = "no") {
    for (let i = 0; i < n; i++) yield [i * step, `${label} ${i * step}`];
  },
);

function* counted(n) {
  for (let i = 0; i < n; i++) yield i;
}

// Plain values as rows.
udtf("singles(n BIGINT) -> TABLE(i BIGINT)", counted);

// Columns by their places.
udtf("batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", { vectorized: true }, function* (n) {
  for (let start = 0; start < n; start += 1000) {
    const i = Array.from({ length: Math.min(n - start, 1000) }, (_, at) => start + at);
    yield [i, i.map((x) => (x % 3 === 2 ? null : `no ${x}`))];
  }
});

// Columns by their names.
udtf("named_batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", { vectorized: true }, function* (n) {
  const i = [...counted(n)];
  yield { s: i.map((x) => `no ${x}`), i };
});

// Rows with the names of their columns.
udtf("by_name() -> TABLE(i BIGINT, s VARCHAR)", function* () {
  yield { s: "first", i: 1 };
  yield { i: 2, s: null };
});

// A table with partitions.
udtf(
  "pages(n BIGINT) -> TABLE(page BIGINT, line BIGINT)",
  { partitions: (n) => [...counted(n)] },
  function* (page, n) {
    for (let line = 0; line < n; line++) yield [page, line];
  },
);

// Rows without an end.
udtf("endless() -> TABLE(i BIGINT)", () => counted(Infinity));

function* failing(n) {
  yield* counted(n);
  throw new Error("no more");
}

// A table that fails after its rows.
udtf("fails(n BIGINT) -> TABLE(i BIGINT)", failing);

// The same, but errors become NULL.
udtf("ends(n BIGINT) -> TABLE(i BIGINT)", { on_error: "null" }, failing);

// Each second row is an error.
udtf("spotted(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", { on_error: "null" }, function* (n) {
  for (let i = 0; i < n; i++) yield i % 2 ? new Error("a spot") : [i, "good"];
});

// The second row is an error.
udtf("refused() -> TABLE(i BIGINT, s VARCHAR)", function* () {
  yield [1, "good"];
  yield new Error("a spot");
});

// The second row has too many values.
udtf("wrong() -> TABLE(i BIGINT, s VARCHAR)", function* () {
  yield [1, "good"];
  yield [2, "one", "too many"];
});

// The argument of its call.
udtf("sees_null(x BIGINT) -> TABLE(x BIGINT)", { nulls: "call" }, function* (x) {
  yield x;
});

// Its arguments, and a row of NULLs.
udtf(
  "nested(l BIGINT[], s STRUCT(a VARCHAR, b BIGINT)) -> TABLE(l BIGINT[], s STRUCT(a VARCHAR, b BIGINT))",
  function* (l, s) {
    yield [l, s];
    yield [null, null];
  },
);
