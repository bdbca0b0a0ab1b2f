// console: each call writes a line of text to the log of the lane.

const groups = [];
const counts = new Map();
const started = new Map();

// A value as text for the log: strings without quotes, objects with their content.
function inspect(value, depth = 0, seen = []) {
  if (typeof value === "string") return depth === 0 ? value : `'${value}'`;
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "symbol") return value.toString();
  if (typeof value === "function") return `[function ${value.name || "anonymous"}]`;
  if (typeof value !== "object" || value === null) return Object.is(value, -0) ? "-0" : String(value);
  if (seen.includes(value)) return "[circular]";
  if (value instanceof Error) return value.stack || String(value);
  if (value instanceof Date) return Number.isNaN(getTime(value)) ? "Invalid Date" : value.toISOString();
  if (value instanceof RegExp) return String(value);
  if (depth > 3) return isArray(value) ? "[...]" : "{...}";
  const inner = (part) => inspect(part, depth + 1, [...seen, value]);
  const listed = (parts, count) => [...parts, ...(count > 100 ? [`... ${count - 100} more`] : [])].join(", ");
  const made = value.constructor?.name;
  const prefix = made && made !== "Object" && made !== "Array" ? `${made} ` : "";
  if (isArray(value) || value instanceof AnyArray) {
    return `${prefix}[${listed(Array.from(value.slice(0, 100), inner), value.length)}]`;
  }
  if (value instanceof Set)
    return `${prefix}{${listed(Array.from(value).slice(0, 100).map(inner), value.size)}}`;
  const pairs = value instanceof Map ? Array.from(value) : Object.entries(value);
  const separator = value instanceof Map ? " => " : ": ";
  const shown = pairs
    .slice(0, 100)
    .map(([key, part]) => `${value instanceof Map ? inner(key) : key}${separator}${inner(part)}`);
  return `${prefix}{${listed(shown, pairs.length)}}`;
}

function format(parts) {
  const [first, ...rest] = parts;
  if (typeof first !== "string" || !first.includes("%")) return parts.map((part) => inspect(part)).join(" ");
  const text = first.replace(/%[sdifoOjc%]/g, (place) => {
    if (place === "%%") return "%";
    if (rest.length === 0) return place;
    const value = rest.shift();
    if (place === "%c") return "";
    if (place === "%d" || place === "%f") return String(Number(value));
    if (place === "%i") return String(trunc(Number(value)));
    if (place === "%j") return stringify(value);
    return inspect(value, place === "%s" ? 0 : 1);
  });
  return [text, ...rest.map((part) => inspect(part))].join(" ");
}

function log(level, parts) {
  const indent = groups.join("");
  print(level, `${indent}${format(parts).replaceAll("\n", `\n${indent}`)}\n`);
}

const [LOG, ERROR] = [0, 1];
globalThis.console = {
  log: (...parts) => log(LOG, parts),
  info: (...parts) => log(LOG, parts),
  debug: (...parts) => log(LOG, parts),
  warn: (...parts) => log(ERROR, parts),
  error: (...parts) => log(ERROR, parts),
  dir: (value) => log(LOG, [inspect(value, 1)]),
  table: (value) => log(LOG, [inspect(value, 1)]),
  trace: (...parts) =>
    log(ERROR, ["Trace:", ...parts, `\n${new Error().stack.split("\n").slice(2).join("\n")}`]),
  assert: (condition, ...parts) => condition || log(ERROR, ["Assertion failed:", ...parts]),
  count: (label = "default") => {
    counts.set(label, (counts.get(label) || 0) + 1);
    log(LOG, [`${label}: ${counts.get(label)}`]);
  },
  countReset: (label = "default") => void counts.delete(label),
  time: (label = "default") => void started.set(label, now()),
  timeEnd: (label = "default") => {
    if (started.has(label)) log(LOG, [`${label}: ${now() - started.get(label)} ms`]);
    started.delete(label);
  },
  group: (...parts) => {
    if (parts.length > 0) log(LOG, parts);
    groups.push("  ");
  },
  groupEnd: () => void groups.pop(),
};
