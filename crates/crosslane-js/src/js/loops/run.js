// Runs the functions: for one row, for several rows at once, or for a whole batch.
//
// The host calls `begin` with a batch. Each method returns the buffers of the results. While
// promises are pending or a row waits for its next try, it returns the milliseconds to wait: the
// host runs microtasks, waits, and calls `settled`. If a method throws, `progress[0]` is the row
// that failed. The host then calls `resume` with a decision: another call after a pause, or NULL.
//
// If several rows run at once, each fails alone, by its promise or by its own deadline, and the
// others go on. If the running code is ended (by the watch, a memory limit, or an error of a
// timer), all of them end, because the row that the code belongs to is not known.

const AsyncFunction = getPrototypeOf(async () => {}).constructor;

// Prepares a declared function, from its types as the host parsed them.
function prepare(declared, admits, types) {
  const { asynchronous, stateful } = declared;
  const spec = { __proto__: null, ...declared.options, ...types, admits, stateful };
  return {
    __proto__: null,
    // The instance is there after the set-up.
    get f() {
      return stateful ? declared.instance : declared.function;
    },
    spec,
    asynchronous,
    write: columnWriter(spec),
    vectors: spec.vectorized ? vectors(spec) : undefined,
    rows: spec.vectorized ? undefined : rowLoop(spec),
    launches: spec.vectorized ? undefined : asyncLoop(spec),
  };
}

function begin(rows, prepared, memory, word) {
  clearTimers();
  buffers = memory;
  progress = word;
  batch = new Batch(rows, prepared);
  if (prepared.spec.vectorized) return runVector();
  return prepared.asynchronous ? beginAsync() : beginRows();
}

// Decides about the row that failed: call it again in so many milliseconds, or make it NULL; then
// go on.
function resume(row, isNull, pause) {
  if (batch.open !== undefined && !batch.writing) return resumeAsync(row, isNull, pause);
  clearTimers();
  const again = () => {
    if (batch.writing) return resumeWriting(row, isNull);
    if (batch.prepared.spec.vectorized) return isNull ? allNull() : runVector();
    return resumeRows(row, isNull);
  };
  if (isNull) return again();
  batch.rest = again;
  return pause;
}

// Called after microtasks have run: each promise has settled, waits for a timer, or never settles.
function settled() {
  const { rest, prepared } = batch;
  if (rest !== undefined) {
    batch.rest = undefined;
    return rest();
  }
  if (prepared.spec.vectorized) return runTimers() ? 0 : settledVector();
  noteRows();
  // Timers run only while a row waits. The microtasks of a timer run when this returns.
  return sizeOfMap(batch.open) > 0 && runTimers() ? 0 : settledRows();
}

// The error of a call that takes too long outside of JavaScript's own code.
function late(timeout) {
  const error = new Error(told(RULES.late, timeout));
  defineProperty(error, "name", { __proto__: null, value: "TimeoutError" });
  return error;
}

// How long to wait for promises and retries: until this time, or that of the first timer.
function untilNext(time) {
  return max(0, min(firstTimer(), time) - now());
}

const deadline = (since) => since + (batch.prepared.spec.timeout ?? Infinity) * 1000;

// ---- row by row

function beginRows() {
  const { rows, prepared } = batch;
  const store = STORES[prepared.spec.returns.kind];
  batch.out = store === undefined ? blank(rows) : resultArray(store.array, rows * store.per);
  return loop(0);
}

// The arrays for results of row functions, by kind. User code does not see them, so all batches
// share them: the host has read the results of the last batch when the next one begins.
const resultArrays = { __proto__: null };
const MOST_REUSED = 32768;

// An array of this kind for so many results. It may contain old results.
function resultArray(kind, length) {
  const Kind = globals[kind];
  if (length > MOST_REUSED) return new Kind(length);
  let array = resultArrays[kind];
  if (array === undefined || lengthOf(array) < length) {
    let size = 1024;
    while (size < length) size *= 2;
    array = resultArrays[kind] = new Kind(size);
  }
  return prefix(array, length, Kind);
}

function loop(first) {
  const { rows, prepared } = batch;
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

// `open` has the rows whose promises are pending, the oldest first; `again` the rows to be called
// once more, and when; `failed` the rows without a decision.
function openRows(next) {
  const { concurrency } = batch.prepared.spec;
  batch.out = blank(batch.rows);
  batch.next = next;
  batch.concurrency = concurrency;
  batch.open = new Map();
  batch.again = list();
  batch.failed = list();
  batch.settledCount = 0;
  batch.blamed = false;
}

// Writes the row at work into the progress. For several rows, it writes that there is progress.
function noteRows() {
  const { open, settledCount } = batch;
  const size = sizeOfMap(open);
  if (size === 1) progress[0] = oldestRow(open);
  else if (size > 1) progress[0] = COUNT + settledCount;
}

// The row whose promise has been pending for the longest time, or undefined.
function oldestRow(open) {
  return nextOfMap(keysOfMap(open)).value;
}

// A row function has returned a promise. From here on it is called as an asynchronous function.
function adopt(row, next = row + 1) {
  const { prepared, out, valid, promise } = batch;
  prepared.asynchronous = true;
  batch.promise = undefined;
  const wide = WIDE[prepared.spec.returns.kind];
  const done = isView(out) && wide ? new globals[wide](bufferOf(out)) : out;
  openRows(next);
  for (let i = 0; i < next; i++) {
    batch.out[i] = valid === undefined || ((valid[i >> 3] >> (i & 7)) & 1) === 1 ? done[i] : null;
  }
  call(row, () => promise);
  noteRows();
  return 0;
}

function launch() {
  const { rows, prepared, open } = batch;
  const start = (first, end) => prepared.launches(prepared.f, buffers, batch, progress, first, end, call);
  const due = list();
  const places = batch.concurrency - sizeOfMap(open);
  batch.again = chosenOf(batch.again, (one) => {
    if (one.due > now() || due.length >= places) return true;
    due[due.length] = one.row;
    return false;
  });
  for (let i = 0; i < due.length; i++) start(due[i], due[i] + 1);
  batch.next = start(batch.next, rows);
  noteRows();
  return sizeOfMap(open) === 0 ? settledRows() : 0;
}

async function call(row, body) {
  const { open, out } = batch;
  const within = batch;
  const ticket = { since: now() };
  mapSet(open, row, ticket);
  // A call that was given up may still settle: its ticket is then gone.
  const close = () => mapGet(open, row) === ticket && mapDelete(open, row) && ++within.settledCount;
  // `await` calls no method of the promise that the user could have replaced.
  try {
    const value = await body();
    if (close()) out[row] = value;
  } catch (error) {
    if (close()) within.failed[within.failed.length] = { row, error };
  }
}

// Gives up the calls for which `why` returns a reason, the oldest first.
function giveUp(why) {
  const { open, failed } = batch;
  for (let row = oldestRow(open); row !== undefined; row = oldestRow(open)) {
    const error = why(mapGet(open, row));
    if (error === undefined) return;
    mapDelete(open, row);
    batch.settledCount++;
    failed[failed.length] = { row, error };
  }
}

// The time at which the first row is to be called again.
function firstAgain() {
  let first = Infinity;
  for (let i = 0; i < batch.again.length; i++) first = min(first, batch.again[i].due);
  return first;
}

function settledRows() {
  const { rows, failed, open, again, concurrency, prepared } = batch;
  // The oldest calls reach their deadline first.
  giveUp(({ since }) => (deadline(since) <= now() ? late(prepared.spec.timeout) : undefined));
  if (failed.length > 0) {
    const { row, error } = failed[0];
    batch.failed = chosenOf(failed, (one) => one !== failed[0]);
    progress[0] = row;
    batch.blamed = true;
    throw error;
  }
  const pending = sizeOfMap(open);
  const more = pending < concurrency;
  if (more && (batch.next < rows || firstAgain() <= now())) return launch();
  if (pending === 0 && again.length === 0) return finish();
  if (pending > 0 && firstTimer() === Infinity && !(more && again.length > 0)) {
    const error = neverSettles();
    giveUp(() => error);
    return settledRows();
  }
  // No call waits for a timer.
  if (pending === 0) return max(0, firstAgain() - now());
  const end = deadline(mapGet(open, oldestRow(open)).since);
  return untilNext(more ? min(end, firstAgain()) : end);
}

function resumeAsync(row, isNull, pause) {
  const { open, out, again } = batch;
  const due = now() + pause;
  if (batch.blamed) {
    batch.blamed = false;
  } else {
    // The calls were ended together. They are called one by one to find the one that is the cause,
    // if it is not known.
    clearTimers();
    eachOfMap(open, (_, ended) => {
      if (ended !== row) again[again.length] = { row: ended, due: 0 };
    });
    const known = mapHas(open, row);
    mapClear(open);
    batch.concurrency = 1;
    if (!known) return settledRows();
  }
  if (isNull) out[row] = null;
  else again[again.length] = { row, due };
  return settledRows();
}

// ---- a batch at once

function runVector() {
  const { prepared } = batch;
  // Until results are written, a failure belongs to no row.
  progress[0] = ALL;
  const columns = prepared.vectors(buffers, batch);
  if (batch.chosen !== undefined && lengthOf(batch.chosen) === 0) return allNull();
  const { f, spec } = prepared;
  const result = spec.stateful ? apply(f.call, f, columns) : apply(f, undefined, columns);
  if (!(result instanceof Promise)) return vectorResult(result);
  const pending = {
    __proto__: null,
    done: false,
    failed: false,
    error: undefined,
    value: undefined,
    since: now(),
  };
  batch.pending = pending;
  settle(pending, result);
  return 0;
}

async function settle(pending, promise) {
  try {
    pending.value = await promise;
  } catch (error) {
    pending.failed = true;
    pending.error = error;
  }
  pending.done = true;
}

function settledVector() {
  const { done, failed, error, value, since } = batch.pending;
  if (failed) throw error;
  if (!done) {
    const end = deadline(since);
    if (end <= now()) throw late(batch.prepared.spec.timeout);
    if (firstTimer() === Infinity) throw neverSettles();
    return untilNext(end);
  }
  return vectorResult(value);
}

function vectorResult(result) {
  const { rows, chosen, prepared } = batch;
  const { returns } = prepared.spec;
  const count = chosen === undefined ? rows : lengthOf(chosen);
  if (!isArray(result) && !(result instanceof AnyArray)) {
    throw new TypeError(`returned ${show(result)} where an array of ${count} ${returns.name} is due`);
  }
  const length = isArray(result) ? result.length : lengthOf(result);
  if (length !== count) {
    throw new RangeError(`returned ${length} values for ${count} row${count === 1 ? "" : "s"}`);
  }
  const array = PLAIN[returns.kind] || WIDE[returns.kind];
  if (chosen === undefined && array !== undefined && getPrototypeOf(result) === globals[array].prototype) {
    return [rows, 0, undefined, result];
  }
  batch.out = result;
  if (chosen !== undefined) {
    batch.out = blank(rows);
    for (let k = 0; k < count; k++) batch.out[chosen[k]] = result[k];
  }
  return finish();
}

function allNull() {
  batch.out = blank(batch.rows);
  return finish();
}

// ---- the results' column

function finish() {
  const { rows, prepared, out, valid, nulls } = batch;
  if (isView(out) && !prepared.spec.vectorized) return [rows, nulls, bitmap(valid, nulls, rows), out];
  batch.writing = true;
  // After a result could not be written, each is written alone before all are written together.
  for (; batch.tried < rows; batch.tried++) {
    progress[0] = WRITING | batch.tried;
    prepared.write([out[batch.tried]], 1, [0]);
  }
  return prepared.write(out, rows, progress);
}

function resumeWriting(row, isNull) {
  const { prepared } = batch;
  if (prepared.spec.vectorized) {
    batch.writing = false;
    return isNull ? allNull() : runVector();
  }
  if (isNull) {
    batch.out[row] = null;
  } else if (prepared.asynchronous) {
    batch.writing = false;
    batch.again[batch.again.length] = { row, due: 0 };
    return launch();
  } else {
    prepared.rows(prepared.f, buffers, batch, progress, row, row + 1);
    if (batch.promise !== undefined) {
      batch.writing = false;
      return adopt(row, batch.rows);
    }
  }
  batch.tried = isNull ? row + 1 : row;
  return finish();
}
