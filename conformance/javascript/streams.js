udtf("late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, told VARCHAR)", function* (flights) {
  for (const { id, delay } of flights) if (delay > 60) yield [id, `${delay} minutes`];
});

udtf("each(names TABLE(name VARCHAR, times INTEGER)) -> TABLE(name VARCHAR, place BIGINT)", function* (names) {
  for (const { name, times } of names) for (let place = 0; place < times; place++) yield { place, name };
});

udtf("half(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", (numbers) =>
  numbers.filter(({ n }) => n % 2 === 0).map(({ n }) => n / 2),
);

udtf("nothing(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", () => null);

udtf(
  "totals(numbers TABLE(n BIGINT, x DOUBLE)) -> TABLE(rows BIGINT, total DOUBLE)",
  { vectorized: true },
  ({ n, x }) => ({ rows: [n.length], total: [x.reduce((sum, each) => sum + each, 0)] }),
);

udtf("twice(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", { vectorized: true }, function* ({ n }) {
  yield { n };
  yield [n];
});

udtf("same(t TABLE(s VARCHAR, l INTEGER[], d DATE)) -> TABLE(s VARCHAR, l INTEGER[], d DATE)", (rows) => rows);

udtf("odd(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", function* (numbers) {
  for (const { n } of numbers) yield n % 2 === 0 ? new Error(`${n} is even`) : n;
});

udtf("odd_or_null(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", { on_error: "null" }, function* (numbers) {
  for (const { n } of numbers) {
    if (n === 4) throw new Error("four");
    yield n % 2 === 0 ? new Error(`${n} is even`) : n;
  }
});

udtf("raises(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", function* () {
  yield 1;
  throw new Error("no more");
});

// Cannot be set up. The options for failed calls do not count.
udtf(
  "unprepared(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)",
  { on_error: "null", retries: 1 },
  class Unprepared {
    constructor() {
      throw new Error("no model");
    }
    call(numbers) {
      return numbers;
    }
  },
);

udtf("wrong(numbers TABLE(n BIGINT)) -> TABLE(n UTINYINT)", (numbers) => numbers.map(({ n }) => n));
