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

// The name of a library, without the folder of a file.
const short = (library) => (library.startsWith("/") ? library.split("/").pop() : library);

// What the threads of events are: those of a database, or the connections of a server.
const HOSTS = {
  database: { group: "Threads of the database", name: (number) => `thread ${number}` },
  server: {
    group: "Connections of clients",
    name: (number) => (number ? `connection ${number}` : "loads of files"),
  },
};
// What a worker does not do itself.
const OF_THREADS = new Set(["wait", "copy_in", "copy_out"]);
// The most workers and threads that have a row of their own. Browsers limit the height of a canvas.
const MOST_ROWS = 250;

function inOrder(one, other) {
  const at = one.order.findIndex((value, index) => value !== other.order[index]);
  return at < 0 ? 0 : one.order[at] < other.order[at] ? -1 : 1;
}

// The row for all that have no row of their own.
function restOf(hidden) {
  const name = `${count(hidden)} more`;
  return { group: "Workers and threads without a row of their own", name, short: name };
}

// The rows of the time line: all workers by their files, then all threads. Each has its events in the
// order of their starts, and the longest duration among them. A place has a library, a worker, its
// process, and a thread. An event belongs to one of the two.
function rowsOf({ host, libraries, places }, events, placeOf) {
  const [all, ofWorkers, ofThreads] = [new Map(), [], []];
  const row = (order, make) => {
    const key = JSON.stringify(order);
    if (!all.has(key)) all.set(key, { order, ...make() });
    return all.get(key);
  };
  const worker = ([number, lane, process]) =>
    row([0, libraries[number], lane, process], () => {
      const name = `worker ${lane}${process ? `, process ${process}` : ""}`;
      return {
        group: `Workers of ${short(libraries[number])}`,
        name,
        short: `worker ${lane}`,
        isWorker: true,
      };
    });
  const thread = ([, , , number]) =>
    row([1, number], () => {
      const { group, name } = HOSTS[host];
      return { group, name: name(number), short: String(number) };
    });
  const found = placeOf.map((place, index) => {
    const isOfWorker = places[place][1] && !OF_THREADS.has(events.kind[index]);
    const [known, make] = isOfWorker ? [ofWorkers, worker] : [ofThreads, thread];
    known[place] ??= make(places[place]);
    return known[place];
  });
  const rows = [...all.values()].sort(inOrder);
  for (const [number, one] of rows.entries()) one.number = Math.min(number, MOST_ROWS);
  const workers = rows.filter((one) => one.isWorker).length;
  const hidden = rows.splice(MOST_ROWS).length;
  if (hidden > 0) rows.push(restOf(hidden));
  for (const one of rows) Object.assign(one, { events: [], longest: 0 });
  events.row = found.map((one) => one.number);
  for (let index = 0; index < events.length; index++) {
    const one = rows[events.row[index]];
    one.events.push(index);
    one.longest = Math.max(one.longest, events.duration[index]);
  }
  return { rows, workers };
}

function read() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { place, kind, function: functions, start, duration: durations, rows } = data.events;
  const starts = Float64Array.from(start);
  // Each start is stored as its distance from the one before.
  for (let index = 1; index < starts.length; index++) starts[index] += starts[index - 1];
  const events = {
    length: starts.length,
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
    ...rowsOf(data, events, place),
    events,
    // Swedes write a time as year, month, day, hour, minute and second.
    about: `${new Date(data.ended).toLocaleString("sv")}, process ${data.process}`,
    duration: starts.reduce((last, start, index) => Math.max(last, start + events.duration[index]), 0),
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
