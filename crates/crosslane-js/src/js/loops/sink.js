// Writes rows, as objects, arrays or columns, into the columns of a batch.

function noRow(row, columns) {
  if (row instanceof Promise) {
    return new TypeError("yielded a promise where a row is due: await it, in an `async function*`");
  }
  return new TypeError(
    `yielded ${show(row)}, which is no row: yield an array of ${countOf(columns, "value")}, or an object with the names ${namesOf(columns)}`,
  );
}

const countOf = (columns, what) => `${columns.length} ${what}${columns.length === 1 ? "" : "s"}`;
const namesOf = (columns) =>
  join(
    mapped(columns, (column) => column.name),
    ", ",
  );

function wrongLength(row, columns) {
  const given = row.length;
  return new RangeError(
    `yielded ${show(row)}: ${given} value${given === 1 ? "" : "s"}, where a row has ${countOf(columns, "column")} (${namesOf(columns)})`,
  );
}

// Throws if an object is no row: a row has at least one column, and no other names.
function checkRow(row, known, columns) {
  if (row instanceof Promise || typeof row === "function") throw noRow(row, columns);
  for (const name in row) {
    if (!mapHas(known, name) && hasOwn(row, name)) {
      throw new TypeError(`yielded ${show(row)}, whose ${show(name)} is no column (${namesOf(columns)})`);
    }
  }
  for (let at = 0; at < columns.length; at++) if (columns[at].name in row) return;
  throw noRow(row, columns);
}

// Whether an object is the value of a table's only column, rather than a row.
function isBare(value, name) {
  return (
    isView(value) ||
    value instanceof ArrayBuffer ||
    value instanceof Date ||
    value instanceof Map ||
    value instanceof Set ||
    !(name in value)
  );
}

// Throws if a value is no column of a batch.
function checkColumn(column, name) {
  if (isArray(column) || column instanceof AnyArray) return column;
  throw new TypeError(
    `yielded ${show(column)} for the column ${name}, which is no array: a vectorized function yields columns`,
  );
}

function noColumns(given, columns) {
  if (given instanceof Promise) return noRow(given, columns);
  return new TypeError(
    `yielded ${show(given)}, which is no batch: yield an array of ${countOf(columns, "column")}, or an object of them with the names ${namesOf(columns)}`,
  );
}

// The number of rows of columns with these names; throws if it differs.
function evenLength(columns, names) {
  const count = columns[0].length;
  for (let at = 1; at < columns.length; at++) {
    const { length } = columns[at];
    if (length !== count) {
      throw new RangeError(
        `yielded columns of different lengths: ${names[at]} has ${length}, and ${names[0]} has ${count}`,
      );
    }
  }
  return count;
}

// Makes a sink, which writes rows into the chosen columns: `chosen` has their indices in `all`.
// Partitions are written as serialized text.
function sinkOf(spec, all, chosen, isTable) {
  const source = new Source(spec);
  const writers = mapped(chosen, (place) => {
    const { name, type } = all[place];
    return { __proto__: null, place, name: stringify(name), ...writer(type, source) };
  });
  const names = source.constant(all);
  const write = (of) =>
    join(
      mapped(writers, (column, at) => `${column.call}(${of(column, at)});`),
      " ",
    );
  const fewer = spec.projection && chosen.length < all.length;
  const isLength = `r.length === ${all.length}`;
  const outputs = isTable ? addAll(list(), ["n", "0", "undefined"]) : list();
  for (let at = 0; at < writers.length; at++) addAll(outputs, writers[at].outputs);
  const bare = all.length === 1 ? `{ ${write(() => "r")} return; }` : `throw noRow(r, ${names});`;
  const known = source.constant(placesOf(mapped(all, ({ name }) => name)));
  const check = `checkRow(r, ${known}, ${names});`;
  const single = stringify(all[0].name);
  const put = isTable
    ? `if (typeof r !== 'object' || r === null) ${bare}
      if (isArray(r)) {
        if (${isLength}) { ${write(({ place }) => `r[${place}]`)} return; }
        ${fewer ? `if (r.length === ${chosen.length}) { ${write((_, at) => `r[${at}]`)} return; }` : ""}
        throw wrongLength(r, ${names});
      }
      if (r instanceof Error) throw r;
      ${all.length === 1 ? `if (isBare(r, ${single})) ${bare}` : ""}
      ${check} ${write(({ name }) => `r[${name}]`)}`
    : `if (r instanceof Error) throw r; ${write(() => "serialized(r)")}`;
  const columnOf = ({ place, name }, at) =>
    `isArray(r) ? r[${fewer ? `${isLength} ? ${place} : ${at}` : place}] : r[${name}]`;
  const columns = `
      if (typeof r !== 'object' || r === null) throw noColumns(r, ${names});
      if (r instanceof Error) throw r;
      ${all.length === 1 ? `if (r instanceof AnyArray) r = [r];` : ""}
      if (isArray(r)) { if (!(${isLength}${fewer ? ` || r.length === ${chosen.length}` : ""})) throw wrongLength(r, ${names}); }
      else ${check}
      const k = list();
      ${join(
        mapped(writers, (column, at) => `k[${at}] = checkColumn(${columnOf(column, at)}, ${column.name});`),
        "\n",
      )}
      ${chosen.length === 0 ? `k[0] = checkColumn(isArray(r) ? r[0] : r[${single}], ${single});` : ""}
      return k;`;
  const isWide = source.sizes.length === 0 ? "false" : `${join(source.sizes, " + ")} >= ${MOST_WIDTH}`;
  return compile(
    source,
    `function sink() {
      const rows = ${MOST_ROWS};
      let n = 0;
      ${join(source.lines, "\n")}
      function put(r) { ${put} }
      function restore(n) { ${join(source.backs, "\n")} }
      function add(r) {
        try { put(r); } catch (error) {
          restore(n);
          forgiveRow(error);
          ${write(() => "null")}
        }
        n++;
      }
      return {
        __proto__: null,
        names: ${source.constant(chosen.length === 0 ? [all[0].name] : mapped(writers, ({ place }) => all[place].name))},
        // Takes rows until there are \`most\`, or until the batch ends for another reason. Returns
        // whether the iterator has ended.
        run(iterator, next, progress, news, seen, sent, most) {
          while (n < most) {
            progress[0] = (sent + n) & ${ROW};
            const step = callOn(next, iterator);
            if (typeof step !== 'object' || step === null) throw noStep(step);
            if (step.done) return true;
            add(step.value);
            if (news[0] !== seen || ${isWide}) return false;
          }
          return false;
        },
        add,
        columns(r) { ${isTable ? columns : ""} },
        // Adds the rows of columns from \`from\` to \`to\`.
        slice(k, from, to) {
          ${join(
            mapped(
              writers,
              ({ call }, at) =>
                `const k${at} = k[${at}]; for (let i = from; i < to; i++) ${call}(k${at}[i]);`,
            ),
            "\n",
          )}
          n += to - from;
        },
        // Adds one row of columns. If it fails, it is a row of NULLs.
        sliceRow(k, i) {
          try { ${write((_, at) => `k[${at}][i]`)} } catch (error) {
            restore(n);
            forgiveRow(error);
            ${write(() => "null")}
          }
          n++;
        },
        addNull() { ${write(() => "null")} n++; },
        rows: () => n,
        isWide: () => ${isWide},
        restore(rows) { n = rows; restore(rows); },
        outputs() { return [${join(outputs, ", ")}]; },
      };
    }`,
  )();
}

function noStep(step) {
  return new TypeError(`an iterator gave ${show(step)} where an object with \`done\` and \`value\` is due`);
}
