// Table functions and aggregates in JavaScript.

udtf("js_numbers(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", function* (n) {
  for (let i = 0; i < n; i++) yield [i, String(i)];
});

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
udaf("js_total(x BIGINT) -> BIGINT", Total);
