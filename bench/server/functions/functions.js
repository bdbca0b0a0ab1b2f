// What the benchmark of the server calls in JavaScript.

udf("js_nothing(x DOUBLE) -> DOUBLE", (x) => x);

udf("js_add(x DOUBLE) -> DOUBLE", (x) => x + 1);
