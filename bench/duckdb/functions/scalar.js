// The JavaScript functions that are measured.

udf("js_add(a DOUBLE, b DOUBLE) -> DOUBLE", (a, b) => a + b);

udf("js_slugify(text VARCHAR) -> VARCHAR", (text) =>
  text
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .replace(/-{2,}/g, "-"),
);
