// Table functions and stream functions: takes the rows that a function yields, and writes them into
// columns.
//
// The host calls `openScan` with the arguments, or `openMap` with a batch of a stream. Then it
// calls `scanRows` for each batch. These methods return an array when they are done. While a
// promise is pending they return the milliseconds to wait, as `begin` does (`run.js`). A batch is
// [whether it is the last, rows that became NULL, rows, NULLs, bitmap, buffers...]. If a row fails,
// the rows before it are a batch, and the next call throws. `closeScan` ends a generator that has
// more rows.

const TEXT = { __proto__: null, kind: "VARCHAR", name: "VARCHAR" };
const PLACES = {
  __proto__: null,
  kind: "LIST",
  name: "INTEGER[]",
  child: { __proto__: null, kind: "INTEGER", name: "INTEGER" },
};

// The most rows of a batch, and about how many bytes of texts and lists it has, so that it fits
// into the caches.
const MOST_ROWS = 2048;
const MOST_WIDTH = 1 << 18;
// The most choices of columns whose loops are reused.
const MOST_CHOICES = 64;
// How long a generator that waits for a timer may take to end, in milliseconds.
const CLOSING = 1000;
// The bits of the progress that hold the row.
const ROW = 0x3fffffff;

// The scan under way; there is one at a time.
let scan;

class Scan {
  iterator;
  next;
  end;
  // The promise that the function returned.
  promise;
  // Whether the steps are promises, whether one is awaited, and since when.
  asynchronous = false;
  pending = false;
  since = 0;
  // The number of rows that were sent; the most rows of the next batch; the number of rows that
  // became NULL and were not reported.
  sent = 0;
  most = 0;
  errors = 0;
  // Whether the rows in the columns were sent.
  taken = false;
  // Whether there are no more rows, and the error if there is one.
  done = false;
  failed = false;
  error;
  closing;
  // A batch of columns whose rows from `first` on are not written yet.
  columns;
  first = 0;
  count = 0;

  constructor(prepared, sink, isTable) {
    this.prepared = prepared;
    this.sink = sink;
    this.isTable = isTable;
    this.vectorized = isTable && prepared.spec.vectorized;
  }
}
setPrototypeOf(Scan.prototype, null);

// The words for progress and for messages of the engine: each call has its own.
let scanProgress, scanNews, scanSeen;

// ---- the function

const PARTITION = asArray(mapped([TEXT], (type) => ({ __proto__: null, name: "partition", type })));

// Prepares a table function, from its types as the host parsed them.
function prepareTable(declared, types) {
  const { options, function: f } = declared;
  const offset = options.partitions === null ? 0 : 1;
  const spec = { __proto__: null, ...options, ...types };
  const leading = [TEXT, PLACES];
  return {
    __proto__: null,
    f,
    spec,
    named: mapped(types.parameters, (_, at) => at + offset >= f.length),
    scanned: argumentsOf(spec, addAll(addAll(list(), leading), types.parameters)),
    listed: argumentsOf(spec, types.parameters),
    sinks: new Map(),
  };
}

// Prepares a stream function, from its types as the host parsed them.
function prepareStream(declared, types) {
  const { stateful } = declared;
  const spec = { __proto__: null, ...declared.options, ...types };
  const table = types.parameters[0];
  return {
    __proto__: null,
    f: stateful ? (table) => declared.instance.call(table) : declared.function,
    spec,
    isStream: true,
    given: spec.vectorized ? columnsOfTable(spec, table) : rowsOfTable(spec, table),
    sinks: new Map(),
  };
}

// Compiles a function that returns the rows of a table as an array of objects.
function rowsOfTable(spec, table) {
  const source = new Source(spec);
  const { value } = reader(table, source);
  return compile(
    source,
    `function rows(b, count) {
      ${join(source.lines, "\n")}
      const r = blank(count);
      for (let i = 0; i < count; i++) r[i] = ${value("i")};
      return asArray(r);
    }`,
  );
}

// Compiles a function that returns a table as an object of its columns: typed arrays of numbers if
// no row is NULL, else arrays.
function columnsOfTable(spec, table) {
  const source = new Source(spec);
  // The rows of a table are never NULL.
  source.buffer();
  const fields = mapped(table.fields, ({ name, type }) => {
    const column = { __proto__: null, ...reader(type, source), type };
    const of = (admits) => vector({ __proto__: null, ...column, admits }, spec, true);
    return property(name, `${column.validity} === undefined ? ${of(false)} : ${of(true)}`);
  });
  return compile(
    source,
    `function columns(b, count) {
      const chosen = undefined;
      ${join(source.lines, "\n")}
      return { ${join(fields, ", ")} };
    }`,
  );
}

// Compiles a function that returns the first row of columns of these types as a list.
function argumentsOf(spec, parameters) {
  const source = new Source(spec);
  const values = mapped(parameters, (type, at) => {
    const { valid, value } = reader(type, source);
    return `r[${at}] = ${valid("i")} ? ${value("i")} : null;`;
  });
  return compile(
    source,
    `function values(b) { ${join(source.lines, "\n")} const i = 0, r = list(); ${join(values, "\n")} return r; }`,
  );
}

// The sink that writes the wanted columns, or the partitions.
function sinkFor({ sinks, spec }, wanted, isTable) {
  const all = isTable ? spec.returns.fields : PARTITION;
  const chosen = wanted === null ? mapped(all, (_, at) => at) : addAll(list(), wanted);
  const key = isTable ? join(addAll(list(), chosen), ",") : "partitions";
  let sink = mapGet(sinks, key);
  if (sink === undefined) {
    if (sizeOfMap(sinks) >= MOST_CHOICES) mapClear(sinks);
    sink = sinkOf(spec, all, chosen, isTable);
    mapSet(sinks, key, sink);
  }
  sink.restore(0);
  return sink;
}

// Begins a scan, or lists the partitions without `isTable`.
function openScan(prepared, isTable, word, memory) {
  clearTimers();
  // A scan that has ended is still there, and the arguments may be none.
  scan = undefined;
  const { f, spec, named } = prepared;
  const values = (isTable ? prepared.scanned : prepared.listed)(memory);
  const wanted = isTable ? values[1] : null;
  scan = new Scan(prepared, sinkFor(prepared, wanted, isTable), isTable);
  const given = list();
  if (isTable && spec.partitions !== null)
    given[0] = values[0] === null ? undefined : deserialized(values[0]);
  const first = isTable ? 2 : 0;
  for (let at = 0; at < named.length; at++) {
    const value = values[first + at];
    if (value === null && !named[at] && spec.nulls !== "call") {
      scan.done = true;
      return [0];
    }
    given[given.length] = value === null && named[at] ? undefined : value;
  }
  if (isTable && spec.projection) {
    const names = list();
    const { fields } = spec.returns;
    const count = wanted === null ? fields.length : wanted.length;
    for (let i = 0; i < count; i++) names[i] = fields[wanted === null ? i : wanted[i]].name;
    given[given.length] = { wanted: asArray(names) };
  }
  return beginScan(isTable ? f : spec.partitions, given, word);
}

// Begins to work on a batch of a stream.
function openMap(prepared, rows, word, memory) {
  clearTimers();
  scan = new Scan(prepared, sinkFor(prepared, null, true), true);
  const given = list();
  given[0] = prepared.given(memory, rows);
  return beginScan(prepared.f, given, word);
}

function beginScan(f, given, word) {
  word[0] = 0;
  const result = apply(f, undefined, given);
  if (result instanceof Promise) {
    scan.asynchronous = true;
    scan.promise = result;
  } else {
    adoptRows(result);
  }
  return [0];
}

// Decides how to take rows from the value that a function returned.
function adoptRows(result) {
  const no = () =>
    new TypeError(
      `returned ${show(result)} where rows are due: yield them, in a \`function*\`, or return what can be iterated`,
    );
  if (scan.prepared.isStream) {
    if (result === undefined || result === null) {
      scan.done = true;
      return;
    }
    if (scan.vectorized && isBatch(result)) result = [result];
  }
  if (typeof result !== "object" || result === null) throw no();
  if (isArray(result)) {
    let at = 0;
    scan.next = () => ({ done: at >= result.length, value: result[at++] });
    return;
  }
  const isSync = isAbove(Generator, result);
  if (isSync || isAbove(AsyncGenerator, result)) {
    scan.iterator = result;
    scan.asynchronous ||= !isSync;
    scan.next = isSync ? nextOfGenerator : nextOfAsync;
    scan.end = isSync ? returnOfGenerator : returnOfAsync;
    return;
  }
  const later = result[ASYNC_ITERATOR] ?? undefined;
  const iterate = later ?? result[ITERATOR];
  const iterator = typeof iterate === "function" ? callOn(iterate, result) : undefined;
  const next = iterator?.next;
  if (typeof next !== "function") throw no();
  scan.iterator = iterator;
  scan.asynchronous ||= later !== undefined;
  scan.next = next;
  scan.end = iterator.return;
}

// Whether the value that a function returned is a batch, and nothing that yields batches.
const isBatch = (result) =>
  typeof result === "object" && result[ITERATOR] === undefined && result[ASYNC_ITERATOR] === undefined;

// ---- batches

// Returns the next batch, of at most `most` rows, and fewer if the engine has sent a message.
function scanRows(most, seen, word, news) {
  scanProgress = word;
  scanNews = news;
  scanSeen = seen;
  scan.most = most;
  if (scan.taken) {
    scan.taken = false;
    scan.sink.restore(0);
  }
  if (scan.failed) throw scan.error;
  if (scan.done) return takeRows();
  if (scan.asynchronous) {
    if (!scan.pending) pumpRows(scan);
    return 0;
  }
  try {
    if (scan.vectorized) {
      runColumns();
    } else {
      const { sink, iterator, next, sent } = scan;
      scan.done = sink.run(iterator, next, word, news, seen, sent, most);
    }
  } catch (error) {
    failScan(error);
  }
  return endBatch();
}

// Counts a failed row that becomes NULL. Throws the error if failed rows do not become NULL, or for
// a partition.
function forgiveRow(error) {
  if (!scan.isTable || scan.prepared.spec.on_error !== "null") throw error;
  scan.errors++;
}

function noteRow() {
  scanProgress[0] = (scan.sent + scan.sink.rows()) & ROW;
}

const isBatchOver = () => scan.sink.rows() >= scan.most || scanNews[0] !== scanSeen || scan.sink.isWide();

// Takes the row or batch of a step of the iterator. Returns whether the iterator has ended.
function takeStep(step) {
  if (typeof step !== "object" || step === null) throw noStep(step);
  if (step.done) {
    scan.done = true;
    return true;
  }
  if (scan.vectorized) takeColumns(step.value);
  else scan.sink.add(step.value);
  return false;
}

function runColumns() {
  const { iterator, next } = scan;
  for (writeColumns(); !isBatchOver(); writeColumns()) {
    noteRow();
    if (takeStep(callOn(next, iterator))) return;
  }
}

function takeColumns(value) {
  const { sink } = scan;
  try {
    const columns = sink.columns(value);
    scan.count = evenLength(columns, sink.names);
    scan.columns = columns;
    scan.first = 0;
  } catch (error) {
    forgiveRow(error);
    sink.addNull();
  }
}

// Writes as many rows of the batch of columns as there is room for.
function writeColumns() {
  const { sink, columns, count, first, most } = scan;
  if (columns === undefined) return;
  const before = sink.rows();
  const end = min(count, first + most - before);
  scan.first = end;
  if (end === count) scan.columns = undefined;
  try {
    sink.slice(columns, first, end);
  } catch {
    // The rows are written one by one to find the one that fails.
    sink.restore(before);
    for (let i = first; i < end; i++) {
      noteRow();
      sink.sliceRow(columns, i);
    }
  }
}

// Awaits steps until the batch is full or the host has given up the scan.
async function pumpRows(within) {
  within.pending = true;
  try {
    within.since = now();
    if (within.promise !== undefined) {
      const { promise } = within;
      within.promise = undefined;
      const result = await promise;
      if (scan !== within) return;
      adoptRows(result);
    }
    for (writeColumns(); !within.done && !isBatchOver(); writeColumns()) {
      noteRow();
      within.since = now();
      const step = await callOn(within.next, within.iterator);
      if (scan !== within || within.closing !== undefined) return;
      if (takeStep(step)) break;
    }
  } catch (error) {
    if (scan === within) failScan(error);
  }
  within.pending = false;
}

// No more rows come. The rows before the error are a batch.
function failScan(error) {
  const { sink } = scan;
  sink.restore(sink.rows());
  scan.failed = true;
  scan.error = error;
}

function endBatch() {
  if (scan.failed && scan.sink.rows() === 0) throw scan.error;
  return takeRows();
}

function takeRows() {
  const { sink, errors, done, columns } = scan;
  const rows = sink.rows();
  scan.taken = true;
  scan.sent += rows;
  scan.errors = 0;
  return flat(addAll(addAll(list(), [done && columns === undefined ? 1 : 0, errors, rows]), sink.outputs()));
}

// The rows that were written before the function took too long.
function restOfScan() {
  failScan(undefined);
  return takeRows();
}

const timeLimit = () => (scan.prepared.spec.timeout ?? Infinity) * 1000;

// Called after microtasks have run, as `settled`.
function settledScan() {
  if (runTimers()) return 0;
  const waits = firstTimer() !== Infinity;
  const { closing, since, pending, sink } = scan;
  if (closing !== undefined) {
    const end = since + min(CLOSING, timeLimit());
    return closing.done || !waits || end <= now() ? leaveScan() : untilNext(end);
  }
  if (!pending) return endBatch();
  const end = since + timeLimit();
  if (end <= now()) throw late(scan.prepared.spec.timeout);
  if (!waits) throw neverSettles();
  const pause = untilNext(end);
  // A query that needs few rows does not wait for more.
  return pause > 0 && sink.rows() > 0 ? takeRows() : pause;
}

function leaveScan() {
  scan = undefined;
  clearTimers();
  return [0];
}

// Ends a function that has more rows, so that its `finally` blocks run.
function closeScan(word) {
  if (scan === undefined) return [0];
  const { iterator, end, done, asynchronous } = scan;
  word[0] = scan.sent & ROW;
  if (done || typeof end !== "function") return leaveScan();
  if (!asynchronous) {
    leaveScan();
    callOn(end, iterator);
    return [0];
  }
  const closing = { __proto__: null, done: false, failed: false, error: undefined, value: undefined };
  scan.closing = closing;
  scan.since = now();
  settle(closing, callOn(end, iterator));
  return 0;
}
