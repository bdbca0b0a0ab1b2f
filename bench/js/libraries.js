// 1.4 MB of libraries, and functions that use them.
import _ from "./node_modules/lodash/lodash.js";
import math from "./node_modules/mathjs/lib/browser/math.js";
import { DateTime } from "./node_modules/luxon/build/es6/luxon.js";

udf("bench_words(text VARCHAR) -> BIGINT", (text) => _.words(text).length);
udf("bench_evaluate(text VARCHAR) -> DOUBLE", { warmup: [["sqrt(3 ^ 2 + 4 ^ 2)"]] }, (text) =>
  math.evaluate(text),
);
udf(
  "bench_local(time TIMESTAMP, zone VARCHAR) -> VARCHAR",
  { warmup: [[new Date(0), "America/New_York"]] },
  (time, zone) => DateTime.fromJSDate(time, { zone }).toFormat("yyyy-LL-dd HH:mm"),
);
