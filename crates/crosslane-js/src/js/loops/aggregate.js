// Aggregates. The engine numbers the states. Each entry is a function that is called row by row
// (`run.js`); some have no results.

const STATE = { __proto__: null, kind: "BIGINT", name: "BIGINT", isNumber: true };
const FLAG = { __proto__: null, kind: "BOOLEAN", name: "BOOLEAN" };
const NOTHING = { __proto__: null, kind: "NOTHING", name: "" };
// The numbers of the entries.
const [UPDATE, COMBINE, FINISH, SAVE, LOAD, FORGET] = [3, 4, 5, 8, 9, 10];
// The number of waiting rows at which a vectorized update runs.
const MOST_WAITING = 16384;
// The rows of a batch of the engine's usual size.
const MOST_ADDED = 2048;

// The methods of a class or an object, as functions that take a state.
function methodsOf(made) {
  if (typeof made === "function") {
    const Class = made;
    return {
      __proto__: null,
      start: () => new Class(),
      merge(state, other) {
        state.merge(other);
      },
      finish: (state) => state.finish(),
      updated: "(s.update(",
    };
  }
  return {
    __proto__: null,
    start: () => made.start(),
    merge: (state, other) => made.merge(state, other),
    finish: (state) => made.finish(state),
    updated: "f.keep(n, f.made.update(s, ",
  };
}

// Prepares an aggregate, from its types as the host parsed them.
function prepareAggregate(declared, types) {
  const { options, function: made } = declared;
  const { start, merge, finish, updated } = methodsOf(made);
  const prototypes = prototypesOf(made, options.classes);
  const states = list();
  const spec = { __proto__: null, ...options, concurrency: 1, vectorized: false, variadic: false };
  const admits = mapped(types.parameters, () => options.nulls === "call");
  const keep = (number, state) => {
    // A method that returns nothing has changed the state in place.
    if (state !== undefined) states[number] = state;
  };
  const merged = (number, other) => {
    if (states[number] === undefined) states[number] = other;
    else keep(number, merge(states[number], other));
  };
  const forget = (number) => {
    waiting?.forget(number);
    states[number] = undefined;
    while (states.length > 0 && states[states.length - 1] === undefined) states.length--;
  };
  const aggregate = { __proto__: null, made, states, keep, start };
  const entries = list();
  const add = (entry, f, parameters, returns) => {
    const of = { __proto__: null, ...spec, parameters, returns, admits: mapped(parameters, () => false) };
    entries[entry] = { ...preparedRows(f, of), rows: rowLoop(of) };
  };
  const given = addAll(addAll(list(), [STATE]), types.parameters);
  const update = {
    ...spec,
    __proto__: null,
    parameters: given,
    returns: NOTHING,
    admits: addAll(addAll(list(), [false]), admits),
  };
  const waiting = options.vectorized ? waitingRows(types.parameters, options, aggregate) : undefined;
  const begin = (read) =>
    options.vectorized
      ? ""
      : `const n = ${passed(read[0])}; let s = f.states[n]; if (s === undefined) s = f.states[n] = f.start();`;
  const call = (_, read) => {
    const values = mapped(read, passed);
    if (options.vectorized) return `f.add(${join(values, ", ")})`;
    const behind = list();
    for (let at = 1; at < values.length; at++) behind[at - 1] = values[at];
    return `${updated}${join(behind, ", ")}))`;
  };
  entries[UPDATE] = {
    ...preparedRows(waiting ?? aggregate, update),
    rows: rowLoop(update, begin, call),
    waiting,
  };
  const combine = (target, source, isKept) => {
    const from = states[source];
    if (from === undefined) return;
    if (isKept || target === source) return merged(target, copied(from, prototypes));
    states[source] = undefined;
    merged(target, from);
  };
  add(COMBINE, combine, [STATE, STATE, FLAG], NOTHING);
  add(
    FINISH,
    (number) => finish(states[number] === undefined ? start() : states[number]),
    [STATE],
    types.returns,
  );
  const serializedState = (number) =>
    states[number] === undefined ? null : serialized(states[number], prototypes);
  add(SAVE, serializedState, [STATE], TEXT);
  add(LOAD, (number, text) => merged(number, deserialized(text, prototypes)), [STATE, TEXT], NOTHING);
  add(FORGET, forget, [STATE], NOTHING);
  const holdsStates = () => states.length > 0 || (waiting !== undefined && waiting.count() > 0);
  return { __proto__: null, spec: { ...types, ...spec, __proto__: null }, entries, waiting, holdsStates };
}

const preparedRows = (f, spec) => ({
  __proto__: null,
  f,
  spec,
  asynchronous: false,
  write: spec.returns === NOTHING ? undefined : columnWriter(spec),
  vectors: undefined,
  launches: spec.returns === NOTHING ? undefined : asyncLoop(spec),
});

// The prototypes that copies of objects in states keep.
function prototypesOf(made, classes) {
  const prototypes = addAll(list(), NO_CLASSES);
  if (typeof made === "function") prototypes[prototypes.length] = made.prototype;
  for (let i = 0; i < classes.length; i++) prototypes[prototypes.length] = classes[i].prototype;
  return prototypes;
}

// A copy of a state that shares nothing with it.
function copied(state, prototypes) {
  if (typeof state !== "object") return state;
  keptPrototypes = prototypes;
  try {
    return cloned(state, new Map());
  } finally {
    keptPrototypes = NONE_KEPT;
  }
}

// ---- whole columns at once

// Rows that wait until there are enough for updates by columns.
function waitingRows(parameters, options, { states, start, made, keep }) {
  let numbers = new Int32Array(MOST_WAITING + MOST_ADDED);
  const kinds = mapped(parameters, ({ kind }) =>
    options.nulls === "call" ? undefined : arrayFor(kind, options.bigint),
  );
  const isClass = typeof made === "function";
  let columns;
  let count = 0;
  const clear = () => {
    columns = mapped(kinds, (kind) => (kind === undefined ? list() : new globals[kind](lengthOf(numbers))));
    count = 0;
  };
  clear();
  const add = (number, ...values) => {
    numbers[count] = number;
    for (let at = 0; at < values.length; at++) columns[at][count] = values[at];
    count++;
  };
  // Makes room for so many more rows.
  const reserve = (rows) => {
    const room = count + rows;
    if (room <= lengthOf(numbers)) return;
    numbers = grown(numbers, room, Int32Array);
    for (let at = 0; at < columns.length; at++) {
      if (kinds[at] !== undefined) columns[at] = grown(columns[at], lengthOf(numbers), globals[kinds[at]]);
    }
  };
  // Sorts the rows by state, and keeps their order within a state. `ends` first counts the rows
  // before each state, and then is where its next row goes.
  const sorted = () => {
    let most = 0;
    for (let i = 0; i < count; i++) most = max(most, numbers[i]);
    const ends = new Int32Array(most + 2);
    for (let i = 0; i < count; i++) ends[numbers[i] + 1]++;
    for (let i = 0; i <= most; i++) ends[i + 1] += ends[i];
    const order = new Int32Array(count);
    for (let i = 0; i < count; i++) order[ends[numbers[i]]++] = i;
    return order;
  };
  const update = (number, given) => {
    if (states[number] === undefined) states[number] = start();
    const state = states[number];
    if (isClass) apply(state.update, state, given);
    else keep(number, apply(made.update, made, addAll(addAll(list(), [state]), given)));
  };
  // Updates all states for which rows wait. Returns how many rows were left out. Each update counts
  // as progress, so that it has a time limit of its own.
  const flush = (word) => {
    const order = sorted();
    const all = columns;
    const total = count;
    let errors = 0;
    let calls = 0;
    clear();
    for (let from = 0; from < total; ) {
      const number = numbers[order[from]];
      let to = from + 1;
      while (to < total && numbers[order[to]] === number) to++;
      for (let tries = 0; ; tries++) {
        word[0] = COUNT + calls++;
        try {
          update(
            number,
            mapped(kinds, (kind, at) => taken(all[at], kind, order, from, to)),
          );
          break;
        } catch (error) {
          if (tries < options.retries) continue;
          if (options.on_error !== "null") throw error;
          errors += to - from;
          break;
        }
      }
      from = to;
    }
    return errors;
  };
  // Rows of forgotten states are removed at the end of the entry that forgets them.
  const forgotten = new Map();
  const forget = (number) => {
    if (count > 0) mapSet(forgotten, number, true);
  };
  const sweep = () => {
    if (sizeOfMap(forgotten) === 0) return;
    let left = 0;
    for (let i = 0; i < count; i++) {
      if (mapHas(forgotten, numbers[i])) continue;
      numbers[left] = numbers[i];
      for (let at = 0; at < columns.length; at++) columns[at][left] = columns[at][i];
      left++;
    }
    count = left;
    mapClear(forgotten);
  };
  return { __proto__: null, add, flush, forget, sweep, reserve, count: () => count };
}

// The values of a column in the rows of `order` from `from` to `to`.
function taken(column, kind, order, from, to) {
  const part = kind === undefined ? blank(to - from) : new globals[kind](to - from);
  for (let i = from; i < to; i++) part[i - from] = column[order[i]];
  return kind === undefined ? asArray(part) : part;
}

// Runs an entry. An update returns whether too many rows wait. `FORGET` returns whether any
// aggregate still has states.
function enter(rows, prepared, entry, memory, word) {
  if (entry === UPDATE) prepared.waiting?.reserve(rows);
  const done = begin(rows, prepared.entries[entry], memory, word);
  if (entry === FORGET) {
    prepared.waiting?.sweep();
    return anyStates();
  }
  return entry === UPDATE && typeof done !== "number" ? tooMany(prepared) : done;
}

const tooMany = ({ waiting }) => [waiting !== undefined && waiting.count() >= MOST_WAITING ? 1 : 0];

function flush(prepared, word) {
  return [prepared.waiting === undefined ? 0 : prepared.waiting.flush(word)];
}
