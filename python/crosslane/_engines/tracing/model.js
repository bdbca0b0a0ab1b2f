// What a trace has, read from the page's data. Times are in nanoseconds from the start of the trace on.

const FUNCTION = "function";
// What each kind is called, and whether it has a duration.
const KINDS = {
  load: { name: "load of a file", lasts: true },
  boot: { name: "start of a worker", lasts: true },
  set_up: { name: "set-up", lasts: true },
  wait: { name: "wait for a worker", lasts: true },
  copy_in: { name: "copying in", lasts: true },
  function: { name: "function", lasts: true },
  copy_out: { name: "copying out", lasts: true },
  fan_out: { name: "fan-out", lasts: false, isQuiet: true },
  retry: { name: "retry", lasts: false },
  exception: { name: "exception", lasts: false },
  lane_lost: { name: "lost worker", lasts: false },
};

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const few = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

// Functions have shades of one colour, in turn.
const SHADES = 4;

const count = (number) => (number < 1e7 ? whole : compact).format(number);

function duration(nanoseconds) {
  if (nanoseconds < 1e3) return `${few.format(nanoseconds)} ns`;
  if (nanoseconds < 1e6) return `${few.format(nanoseconds / 1e3)} µs`;
  if (nanoseconds < 1e9) return `${few.format(nanoseconds / 1e6)} ms`;
  return `${few.format(nanoseconds / 1e9)} s`;
}

// A moment of the axis, as exactly as a step of the axis needs. `last` is the last moment that is shown.
function moment(nanoseconds, step, last) {
  const [unit, name] = last < 1e6 ? [1e3, "µs"] : last < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const format = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return `${(nanoseconds / unit).toLocaleString("en", format)} ${name}`;
}

// The rows of the time line: all workers by their files, then all threads. Each has its events in the
// order of their starts, and the longest duration among them.
function rowsOf(data, events) {
  const rows = data.rows.map((row) => ({ ...row, events: [], longest: 0 }));
  for (let index = 0; index < events.length; index++) {
    const row = rows[events.row[index]];
    row.events.push(index);
    row.longest = Math.max(row.longest, events.duration[index]);
  }
  return rows;
}

function read() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { row, kind, function: functions, start, duration: durations, rows } = data.events;
  const starts = Float64Array.from(start);
  // Each start is stored as its distance from the one before.
  for (let index = 1; index < starts.length; index++) starts[index] += starts[index - 1];
  const events = {
    length: starts.length,
    row,
    kind: kind.map((number) => data.kinds[number]),
    function: functions.map((number) => data.functions[number] ?? null),
    start: starts,
    duration: Float64Array.from(durations),
    rows,
    detail: new Map(data.details),
  };
  const shades = new Map(data.functions.map((name, number) => [name, number % SHADES]));
  return {
    ...data,
    events,
    rows: rowsOf(data, events),
    // The name of the colour of a kind, and of a function.
    colour: (kind, name) => (kind === FUNCTION && shades.get(name) ? `${kind}_${shades.get(name)}` : kind),
    kinds: Object.keys(KINDS).filter((one) => data.kinds.includes(one)),
  };
}

// The sums of each function and kind. The longest sums come first, and the kinds of a function stay together.
function totalsOf({ events }) {
  const totals = new Map();
  for (let index = 0; index < events.length; index++) {
    const name = events.function[index];
    const key = `${events.kind[index]} ${name}`;
    let total = totals.get(key);
    if (!total) {
      total = { function: name, kind: events.kind[index], events: 0, rows: 0, time: 0, longest: 0 };
      totals.set(key, total);
    }
    total.events += 1;
    total.rows += events.rows[index];
    total.time += events.duration[index];
    total.longest = Math.max(total.longest, events.duration[index]);
  }
  const all = [...totals.values()];
  const sums = new Map();
  for (const { function: name, time } of all) sums.set(name, (sums.get(name) ?? 0) + time);
  const last = (name) => (name === null ? 1 : 0);
  return all.sort(
    (a, b) =>
      last(a.function) - last(b.function) ||
      sums.get(b.function) - sums.get(a.function) ||
      String(a.function).localeCompare(String(b.function)) ||
      b.time - a.time,
  );
}

// The slowest calls, whose first arguments are known.
function slowestOf({ events }, most) {
  const calls = [...events.detail.keys()].filter((index) => events.kind[index] === FUNCTION);
  return calls.sort((a, b) => events.duration[b] - events.duration[a]).slice(0, most);
}
