// Makes the loops that call functions. They are source for V8's compiler, one loop for the types of
// each function.

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

// The state of a batch. Each property that a batch can have is its own.
class Batch {
  promise;
  rest;
  nulls = 0;
  valid;
  out;
  writing = false;
  tried;
  // For several rows at once.
  next = 0;
  concurrency = 0;
  open;
  again;
  failed;
  settledCount = 0;
  blamed = false;
  // For a vectorized function.
  chosen;
  pending;

  constructor(rows, prepared) {
    this.rows = rows;
    this.prepared = prepared;
  }
}
setPrototypeOf(Batch.prototype, null);

// The batch at work; there is one at a time. The batch and its memory are never a property of
// another object.
let batch, buffers, progress;

function nullRow(i) {
  batch.valid = without(batch.valid, i);
  batch.nulls++;
}

// Notes that a row returned a promise: the batch goes on asynchronously.
function promised(promise) {
  batch.promise = promise;
  return 0;
}

// Converts a result for a column of numbers that is not the type's kind of number. Returns the
// number.
function otherNumber(r, i, type) {
  if (r === null || r === undefined) {
    nullRow(i);
    return 0;
  }
  if (r instanceof Promise) return promised(r);
  if (typeof r === "bigint") return toDouble(r, type);
  throw wrong(r, type);
}

// The same for 64-bit integers. Returns a BigInt.
function otherBig(r, i, bits, type) {
  if (r === null || r === undefined) {
    nullRow(i);
    return 0n;
  }
  if (r instanceof Promise) return BigInt(promised(r));
  return bits(r, 64, type);
}

// How a result `r` of row `i` is stored: the kind of array, how many of its elements a result takes, and the
// source.
const storeOf = (array, code, per = 1, setup = "") => ({ array, code, per, setup });

// 64-bit integers. A number is written as two halves, because a BigInt would be an allocation.
const wideStore = (half, wide, bits, type, condition = "") =>
  storeOf(
    half,
    `if (typeof r === 'number' && isSafeInteger(r)${condition}) { out[2 * i] = r; out[2 * i + 1] = floor(r * ${1 / TWO_32}); }
      else wideOut[i] = otherBig(r, i, ${bits}, '${type}');`,
    2,
    `const wideOut = new ${wide}(bufferOf(out));`,
  );

// The types whose column can be filled row by row.
const STORES = {
  __proto__: null,
  FLOAT: storeOf(
    "Float32Array",
    `if (typeof r !== 'number') r = otherNumber(r, i, 'FLOAT');
      out[i] = r; if (isFinite(r) && !isFinite(out[i])) throw unfit(r, 'FLOAT');`,
  ),
  DOUBLE: storeOf("Float64Array", `out[i] = typeof r === 'number' ? r : otherNumber(r, i, 'DOUBLE');`),
  BIGINT: wideStore("Int32Array", "BigInt64Array", "toSigned", "BIGINT"),
  UBIGINT: wideStore("Uint32Array", "BigUint64Array", "toUnsigned", "UBIGINT", " && r >= 0"),
  // For functions without results.
  NOTHING: storeOf("Uint8Array", ""),
};
for (const [kind, array] of Object.entries(PLAIN)) {
  STORES[kind] ??= storeOf(
    array,
    `if (typeof r !== 'number') r = otherNumber(r, i, '${kind}'); out[i] = r; if (out[i] !== r) throw unfit(r, '${kind}');`,
  );
}

// The source at the start of a function's code: its columns.
function columns(spec, source) {
  return mapped(spec.parameters, (type, index) => ({
    ...reader(type, source),
    admits: spec.admits[index],
    type,
  }));
}

const compile = (source, result) =>
  new Function(
    "constants",
    "help",
    `'use strict'; const { ${join(keys(help), ", ")} } = help; return ${result};\n//# sourceURL=crosslane:loop`,
  )(source.constants, help);

// The source of the condition under which a row is skipped, or an empty text.
const skips = (read) =>
  join(
    mapped(
      chosenOf(read, (column) => !column.admits),
      (column) => `!${column.valid("i")}`,
    ),
    " || ",
  );
const passed = (column) =>
  column.admits ? `(${column.valid("i")} ? ${column.value("i")} : null)` : column.value("i");

// The arguments, followed by those of a list.
function appended(fixed, rest) {
  return addAll(addAll(list(), fixed), rest);
}

// Removes the last element of a list, and returns it.
function withoutLast(list) {
  const last = list[list.length - 1];
  list.length--;
  return last;
}

// The source of a call of `f` with a row.
function called(spec, read) {
  const values = mapped(read, passed);
  const callee = spec.stateful ? "f.call" : "f";
  if (!spec.variadic) return `${callee}(${join(values, ", ")})`;
  const rest = withoutLast(values);
  const itself = spec.stateful ? "f" : "undefined";
  return `apply(${callee}, ${itself}, ${values.length === 0 ? rest : `appended([${join(values, ", ")}], ${rest})`})`;
}

// The loop that calls a row function. For types of variable length it keeps the results.
function rowLoop(spec, before = () => "", call = called) {
  const source = new Source(spec);
  const read = columns(spec, source);
  const store = STORES[spec.returns.kind];
  const skip = skips(read);
  const keep = store === undefined;
  return compile(
    source,
    `function loop(f, b, batch, progress, first, end) {
      const out = batch.out; ${keep ? "" : store.setup}
      ${join(source.lines, "\n")}
      for (let i = first; i < end; i++) {
        ${skip ? `if (${skip}) { ${keep ? "out[i] = null;" : "nullRow(i);"} continue; }` : ""}
        progress[0] = i;
        ${before(read)}
        let r = ${call(spec, read)};
        ${keep ? `if (typeof r === 'object' && r instanceof Promise) promised(r); else out[i] = r;` : store.code}
        if (batch.promise !== undefined) return i;
      }
      return end;
    }`,
  );
}

// The loop that starts calls of rows up to the limit of concurrency.
function asyncLoop(spec) {
  const source = new Source(spec);
  const read = columns(spec, source);
  const skip = skips(read);
  return compile(
    source,
    `function loop(f, b, batch, progress, first, end, launch) {
      const out = batch.out;
      ${join(source.lines, "\n")}
      let i = first;
      for (; i < end && sizeOfMap(batch.open) < batch.concurrency; i++) {
        ${skip ? `if (${skip}) { out[i] = null; continue; }` : ""}
        progress[0] = i;
        launch(i, () => ${called(spec, read)});
      }
      return i;
    }`,
  );
}

// The name of the typed arrays for values of a type that are not NULL, or undefined.
const arrayFor = (kind, bigint) =>
  WIDE[kind] !== undefined && !bigint ? "Float64Array" : (WIDE[kind] ?? PLAIN[kind]);

// The source of a column for a vectorized function. Without NULLs it is a typed array, over the
// batch's own memory if that may be written to. With `chosen`, it has only those rows.
function vector(column, spec, own) {
  const array = column.admits ? undefined : arrayFor(column.type.kind, spec.bigint);
  const isTyped = array !== undefined;
  const copy = `(() => { const r = ${isTyped ? `new ${array}(count)` : "blank(count)"};
    for (let k = 0; k < count; k++) { const i = chosen === undefined ? k : chosen[k]; r[k] = ${passed(column)}; }
    return ${isTyped ? "r" : "asArray(r)"}; })()`;
  return own && isTyped && array === column.array ? `chosen === undefined ? ${column.view} : ${copy}` : copy;
}

// Makes the arguments of a vectorized function.
function vectors(spec) {
  const source = new Source(spec);
  const read = columns(spec, source);
  // The next try must not read values that a try has written.
  const arrays = mapped(read, (column) => vector(column, spec, spec.retries === 0));
  const skip = skips(read);
  const rest = spec.variadic ? `columnsOf(${withoutLast(arrays)}, ${columnKind(spec)})` : "[]";
  return compile(
    source,
    `function vectors(b, batch) {
      const rows = batch.rows;
      ${join(source.lines, "\n")}
      let chosen;
      ${
        skip
          ? `let left = 0; for (let i = 0; i < rows; i++) if (${skip}) left++;
      if (left > 0) { chosen = new Int32Array(rows - left); let k = 0; for (let i = 0; i < rows; i++) if (!(${skip})) chosen[k++] = i; }`
          : ""
      }
      batch.chosen = chosen;
      const count = chosen === undefined ? rows : lengthOf(chosen);
      return appended([${join(arrays, ", ")}], ${rest});
    }`,
  );
}

// The name of the arrays for the variadic arguments of a vectorized function.
function columnKind(spec) {
  const index = spec.parameters.length - 1;
  const { kind } = spec.parameters[index].child;
  return (spec.admits[index] ? undefined : arrayFor(kind, spec.bigint)) ?? "Array";
}

// Turns rows with equally many values into columns.
function columnsOf(lists, Kind) {
  const columns = list();
  for (let k = 0; lists.length > 0 && k < lists[0].length; k++) {
    const column = Kind === Array ? blank(lists.length) : new Kind(lists.length);
    for (let i = 0; i < lists.length; i++) column[i] = lists[i][k];
    columns[k] = Kind === Array ? asArray(column) : column;
  }
  return columns;
}

// Marks a row in the progress: its result is being written.
const WRITING = 0x40000000;
// Marks a progress that counts something other than rows.
const COUNT = 0x80000000;
// Stands for the batch as a whole.
const ALL = 0xffffffff;

// Writes results, of any type, as the buffers of a column.
function columnWriter(spec) {
  const source = new Source(spec);
  const root = writer(spec.returns, source);
  return compile(
    source,
    `function write(results, rows, progress) {
      ${join(source.lines, "\n")}
      for (let i = 0; i < rows; i++) { progress[0] = ${WRITING} | i; ${root.call}(results[i]); }
      return flat([${join(root.outputs, ", ")}]);
    }`,
  );
}
