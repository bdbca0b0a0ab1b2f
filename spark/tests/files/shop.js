udf("shout(text VARCHAR) -> VARCHAR", (text) => `${text.toUpperCase()}!`);

udf("js_add(x BIGINT, y BIGINT) -> BIGINT", { bigint: true }, (x, y) => x + y);

udf("js_fails(x BIGINT) -> BIGINT", (x) => {
  if (x === 7) throw new RangeError(`no ${x}`);
  return x;
});

udf("or_default(x VARCHAR) -> VARCHAR", { nulls: "call" }, (x) => x ?? "default");
