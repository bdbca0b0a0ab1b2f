// Runs the functions: per row, for several rows at once, or per batch.
//
// The host calls `begin` with a batch. Each method gives the buffers of the results, or, while promises are
// pending, how many milliseconds there is nothing to do: the host lets microtasks run, waits, and calls
// `settled`. If one throws, `progress[0]` is the row to blame, and the host calls `resume` with what is to become of it:
// another call, or NULL.

const globals = {
  Int8Array,
  Int16Array,
  Int32Array,
  Uint8Array,
  Uint16Array,
  Uint32Array,
  Float32Array,
  Float64Array,
  BigInt64Array,
  BigUint64Array,
};

// The batch at work; there is one at a time.
let batch;

function nullRow(i) {
  batch.valid = without(batch.valid, i);
  batch.nulls++;
}

// Notes that a row returned a promise: the batch goes on the asynchronous way.
function promised(promise) {
  batch.promise = promise;
  return 0;
}

// What a row function returned for a column of numbers if it is not the type's kind of number. Gives the number.
function otherNumber(r, i, type) {
  if (r === null || r === undefined) {
    nullRow(i);
    return 0;
  }
  if (r instanceof Promise) return promised(r);
  if (typeof r === "bigint") {
    const number = Number(r);
    if (BigInt(number) !== r) throw unfit(r, type);
    return number;
  }
  throw wrong(r, type);
}

// The same for 64-bit integers: a BigInt of any kind of integer.
function otherBig(r, i, bits, type) {
  if (r === null || r === undefined) {
    nullRow(i);
    return 0n;
  }
  if (r instanceof Promise) return BigInt(promised(r));
  return bits(r, 64, type);
}

// The source that stores a result `r` of row `i`, for types whose column can be filled row by row.
const STORES = {
  FLOAT: {
    array: "Float32Array",
    code: `if (typeof r === 'number') { out[i] = r; if (isFinite(r) && !isFinite(out[i])) throw unfit(r, 'FLOAT'); }
      else out[i] = otherNumber(r, i, 'FLOAT');`,
  },
  DOUBLE: {
    array: "Float64Array",
    code: `out[i] = typeof r === 'number' ? r : otherNumber(r, i, 'DOUBLE');`,
  },
  BIGINT: {
    array: "Int32Array",
    per: 2,
    setup: "const wideOut = new BigInt64Array(out.buffer);",
    code: `if (typeof r === 'number' && isSafeInteger(r)) { out[2 * i] = r; out[2 * i + 1] = floor(r * ${1 / TWO_32}); }
      else wideOut[i] = otherBig(r, i, toSigned, 'BIGINT');`,
  },
  UBIGINT: {
    array: "Uint32Array",
    per: 2,
    setup: "const wideOut = new BigUint64Array(out.buffer);",
    code: `if (typeof r === 'number' && isSafeInteger(r) && r >= 0) { out[2 * i] = r; out[2 * i + 1] = floor(r * ${1 / TWO_32}); }
      else wideOut[i] = otherBig(r, i, toUnsigned, 'UBIGINT');`,
  },
};
for (const [kind, array] of Object.entries(PLAIN)) {
  STORES[kind] ??= {
    array,
    code: `if (typeof r !== 'number') r = otherNumber(r, i, '${kind}'); out[i] = r; if (out[i] !== r) throw unfit(r, '${kind}');`,
  };
}

// The source of all that a function's code starts with: its columns.
function columns(spec, source) {
  return spec.parameters.map((type, index) => ({
    ...reader(type, source),
    admits: spec.admits[index],
    type,
  }));
}

const compile = (source, result) =>
  new Function(
    "constants",
    "help",
    `'use strict'; const { ${Object.keys(help).join(", ")} } = help; return ${result};\n//# sourceURL=crosslane:loop`,
  )(source.constants, help);

const skips = (read) => read.filter((column) => !column.admits).map((column) => `!${column.valid("i")}`);
const passed = (read) =>
  read.map((column) =>
    column.admits ? `(${column.valid("i")} ? ${column.value("i")} : null)` : column.value("i"),
  );

// The loop that calls a row function. `kept` makes it keep the results, for types of variable length.
function rowLoop(spec) {
  const source = new Source(spec);
  const read = columns(spec, source);
  const store = STORES[spec.returns.kind];
  const skip = skips(read);
  const keep = store === undefined;
  return compile(
    source,
    `function loop(f, b, batch, progress, first, end) {
      const out = batch.out; ${keep ? "" : store.setup || ""}
      ${source.lines.join("\n")}
      for (let i = first; i < end; i++) {
        ${skip.length ? `if (${skip.join(" || ")}) { ${keep ? "out[i] = null;" : "nullRow(i);"} continue; }` : ""}
        progress[0] = i;
        let r = f(${passed(read).join(", ")});
        ${keep ? `if (typeof r === 'object' && r instanceof Promise) promised(r); else out[i] = r;` : store.code}
        if (batch.promise !== undefined) return i;
      }
      return end;
    }`,
  );
}

// The loop that starts calls of rows until as many run as may.
function asyncLoop(spec) {
  const source = new Source(spec);
  const read = columns(spec, source);
  const skip = skips(read);
  return compile(
    source,
    `function loop(f, b, batch, progress, first, end, launch) {
      const out = batch.out;
      ${source.lines.join("\n")}
      let i = first;
      for (; i < end && batch.open.size < batch.concurrency; i++) {
        ${skip.length ? `if (${skip.join(" || ")}) { out[i] = null; continue; }` : ""}
        progress[0] = i;
        launch(i, () => f(${passed(read).join(", ")}));
      }
      return i;
    }`,
  );
}

// Gives a vectorized function's arguments: typed arrays over the batch's own memory where that is what the function
// takes, of the rows in `chosen` if not all.
function vectors(spec) {
  const source = new Source(spec);
  const read = columns(spec, source);
  const arrays = read.map((column) => {
    const element = column.admits
      ? `(${column.valid("i")} ? ${column.value("i")} : null)`
      : column.value("i");
    const wide = ["BIGINT", "UBIGINT"].includes(column.type.kind);
    const direct = !column.admits && (PLAIN[column.type.kind] !== undefined || (wide && spec.bigint));
    const list = wide && !spec.bigint && !column.admits ? "new Float64Array(count)" : "new Array(count)";
    const copy = `(() => { const list = ${direct ? `new ${column.view}.constructor(count)` : list};
      for (let k = 0; k < count; k++) { const i = chosen === undefined ? k : chosen[k]; list[k] = ${element}; } return list; })()`;
    return direct ? `chosen === undefined ? ${column.view} : ${copy}` : copy;
  });
  const skip = skips(read);
  return compile(
    source,
    `function vectors(b, batch) {
      const rows = batch.rows;
      ${source.lines.join("\n")}
      let chosen;
      ${
        skip.length
          ? `let left = 0; for (let i = 0; i < rows; i++) if (${skip.join(" || ")}) left++;
      if (left > 0) { chosen = new Int32Array(rows - left); let k = 0; for (let i = 0; i < rows; i++) if (!(${skip.join(" || ")})) chosen[k++] = i; }`
          : ""
      }
      batch.chosen = chosen;
      const count = chosen === undefined ? rows : chosen.length;
      return [${arrays.join(", ")}];
    }`,
  );
}

// Writes results, of any type, as the buffers of a column.
function columnWriter(spec) {
  const source = new Source(spec);
  const root = writer(spec.returns, source, "rows");
  return compile(
    source,
    `function write(results, rows, progress) {
      ${source.lines.join("\n")}
      for (let i = 0; i < rows; i++) { progress[0] = i; ${root.call}(results[i]); }
      return [${root.outputs.join(", ")}];
    }`,
  );
}

// ---- calls

const AsyncFunction = getPrototypeOf(async () => {}).constructor;

// Makes what runs a declared function, from its types as the host parsed them.
function prepare(declared, types) {
  const spec = { ...declared.options, ...types, admits: declared.admits };
  const asynchronous = declared.function instanceof AsyncFunction;
  const prepared = { f: declared.function, spec, asynchronous, write: columnWriter(spec) };
  if (spec.vectorized) {
    prepared.vectors = vectors(spec);
  } else {
    prepared.rows = rowLoop(spec);
    prepared.launches = asyncLoop(spec);
  }
  return prepared;
}

function begin(rows, prepared, buffers, progress) {
  clearTimers();
  batch = {
    rows,
    prepared,
    buffers,
    progress,
    promise: undefined,
    nulls: 0,
    valid: undefined,
    out: undefined,
  };
  if (prepared.spec.vectorized) return vector();
  return prepared.asynchronous ? beginAsync() : beginRows();
}

// What to do about the row that raised: call it again, or make it NULL; then go on.
function resume(row, isNull) {
  clearTimers();
  if (batch.writing) return resumeWriting(row, isNull);
  if (batch.prepared.spec.vectorized) return isNull ? allNull() : vector();
  return batch.prepared.asynchronous ? resumeAsync(row, isNull) : resumeRows(row, isNull);
}

// Microtasks have run: every promise has settled, waits for a timer, or never will.
function settled() {
  // What a timer resolved runs when this returns.
  if (runTimers()) return 0;
  return batch.prepared.spec.vectorized ? settledVector() : settledRows();
}

// ---- row by row

function beginRows() {
  const { rows, prepared } = batch;
  const store = STORES[prepared.spec.returns.kind];
  batch.out = store === undefined ? new Array(rows) : new globals[store.array](rows * (store.per || 1));
  return loop(0);
}

function loop(first) {
  const { rows, prepared, buffers, progress } = batch;
  const done = prepared.rows(prepared.f, buffers, batch, progress, first, rows);
  return batch.promise === undefined ? finish() : adopt(done);
}

function resumeRows(row, isNull) {
  if (!isNull) return loop(row);
  if (isView(batch.out)) nullRow(row);
  else batch.out[row] = null;
  return loop(row + 1);
}

// ---- several rows at once

function beginAsync() {
  openRows(0);
  return launch();
}

// `open` are the rows whose promises are pending; `again` those to be called before others are.
function openRows(next) {
  const { concurrency } = batch.prepared.spec;
  Object.assign(batch, {
    out: new Array(batch.rows),
    next,
    concurrency,
    open: new Map(),
    again: [],
    failed: [],
  });
}

// A row function has returned a promise. From here on it is called as what it is.
function adopt(row) {
  const { prepared, out, valid, promise, progress } = batch;
  prepared.asynchronous = true;
  const { kind } = prepared.spec.returns;
  const wide = { BIGINT: BigInt64Array, UBIGINT: BigUint64Array }[kind];
  const done = isView(out) && wide ? new wide(out.buffer) : out;
  openRows(row + 1);
  for (let i = 0; i < row; i++) {
    batch.out[i] = valid === undefined || ((valid[i >> 3] >> (i & 7)) & 1) === 1 ? done[i] : null;
  }
  progress[0] = row;
  call(row, () => promise);
  return 0;
}

function launch() {
  const { rows, prepared, buffers, progress, again, open } = batch;
  const start = (first, end) => prepared.launches(prepared.f, buffers, batch, progress, first, end, call);
  while (again.length > 0 && open.size < batch.concurrency) {
    const row = again.shift();
    start(row, row + 1);
  }
  batch.next = start(batch.next, rows);
  // Which of several rows is at work cannot be told.
  if (open.size > 1) progress[0] = 0xffffffff;
  return open.size === 0 ? settledRows() : 0;
}

function call(row, body) {
  const { open, out, failed } = batch;
  const ticket = {};
  open.set(row, ticket);
  // A call that was given up may still settle: its ticket is no longer there.
  const close = () => open.get(row) === ticket && open.delete(row);
  (async () => body())().then(
    (value) => {
      if (close()) out[row] = value;
    },
    (error) => {
      if (close()) failed.push({ row, error });
    },
  );
}

function settledRows() {
  const { rows, progress, failed, open } = batch;
  if (failed.length > 0) {
    const { row, error } = failed.shift();
    progress[0] = row;
    throw error;
  }
  if (open.size >= batch.concurrency) return untilTimer();
  if (batch.again.length > 0 || batch.next < rows) return launch();
  return open.size > 0 ? untilTimer() : finish();
}

function resumeAsync(row, isNull) {
  const { open } = batch;
  if (open.size > 0) {
    // The calls were ended together. One by one it will show which of them was to blame.
    const ended = [...open.keys()];
    const alone = ended.length === 1;
    open.clear();
    batch.concurrency = 1;
    if (alone && isNull) batch.out[ended[0]] = null;
    else batch.again.push(...ended);
  } else if (isNull) {
    batch.out[row] = null;
  } else {
    batch.again.push(row);
  }
  return settledRows();
}

// ---- a batch at once

function vector() {
  const { rows, prepared, buffers } = batch;
  const columns = prepared.vectors(buffers, batch);
  if (batch.chosen !== undefined && batch.chosen.length === 0) return allNull();
  const result = prepared.f(...columns);
  if (!(result instanceof Promise)) return vectorResult(result);
  const pending = { done: false };
  batch.pending = pending;
  result.then(
    (value) => Object.assign(pending, { done: true, value }),
    (error) => Object.assign(pending, { done: true, failed: true, error }),
  );
  return 0;
}

function settledVector() {
  const { done, failed, error, value } = batch.pending;
  if (!done) return untilTimer();
  if (failed) throw error;
  return vectorResult(value);
}

function vectorResult(result) {
  const { rows, chosen, prepared, buffers } = batch;
  const { returns } = prepared.spec;
  const count = chosen === undefined ? rows : chosen.length;
  if (!isArray(result) && !(result instanceof AnyArray)) {
    throw new TypeError(`returned ${show(result)} where an array of ${count} ${returns.name} is due`);
  }
  if (result.length !== count) {
    throw new RangeError(`returned ${result.length} values for ${count} row${count === 1 ? "" : "s"}`);
  }
  const array = PLAIN[returns.kind] || { BIGINT: "BigInt64Array", UBIGINT: "BigUint64Array" }[returns.kind];
  if (chosen === undefined && array !== undefined && getPrototypeOf(result) === globals[array].prototype) {
    // A result that is an argument lies in memory that is about to be taken away.
    return [rows, 0, undefined, buffers.includes(result.buffer) ? slice(result) : result];
  }
  batch.out = result;
  if (chosen !== undefined) {
    batch.out = new Array(rows);
    for (let k = 0; k < count; k++) batch.out[chosen[k]] = result[k];
  }
  return finish();
}

function allNull() {
  batch.out = new Array(batch.rows);
  return finish();
}

// ---- the results' column

function finish() {
  const { rows, prepared, progress, out, valid, nulls } = batch;
  if (isView(out) && !prepared.spec.vectorized) return [rows, nulls, bitmap(valid, nulls, rows), out];
  batch.writing = true;
  // Once a result could not be written, each is tried alone before all are written together.
  for (; batch.tried < rows; batch.tried++) {
    progress[0] = batch.tried;
    prepared.write([out[batch.tried]], 1, [0]);
  }
  return prepared.write(out, rows, progress);
}

function resumeWriting(row, isNull) {
  const { prepared, buffers, progress } = batch;
  if (prepared.spec.vectorized) {
    batch.writing = false;
    return isNull ? allNull() : vector();
  }
  if (isNull) {
    batch.out[row] = null;
  } else if (prepared.asynchronous) {
    batch.writing = false;
    batch.again.push(row);
    return launch();
  } else {
    prepared.rows(prepared.f, buffers, batch, progress, row, row + 1);
  }
  batch.tried = isNull ? row + 1 : row;
  return finish();
}
