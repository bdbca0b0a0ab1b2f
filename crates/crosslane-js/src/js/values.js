// Values as JavaScript sees them, from and to the words of an Arrow buffer.

// What the user's code does to these later is not seen here.
const { floor, abs, trunc } = Math;
const { isArray } = Array;
const { isInteger, isNaN: isNotANumber, isSafeInteger } = Number;
const { parse, stringify } = JSON;
const { defineProperty, getPrototypeOf } = Object;
const { isView } = ArrayBuffer;
const { asIntN, asUintN } = BigInt;
const AnyArray = getPrototypeOf(Int8Array);
const join = Function.prototype.call.bind(Array.prototype.join);
const slice = Function.prototype.call.bind(AnyArray.prototype.slice);
const getTime = Function.prototype.call.bind(Date.prototype.getTime);

const TWO_32 = 4294967296;
const MILLISECONDS_PER_DAY = 86400000;
// ECMA-262 21.4.1.1: a Date reaches this far from 1970.
const LONGEST_TIME = 8.64e15;

// The value for a message.
function show(value) {
  let text;
  if (typeof value === "string") {
    text = stringify(value);
  } else if (typeof value === "bigint") {
    text = `${value}n`;
  } else if (typeof value === "function") {
    text = `function ${value.name}`;
  } else if (typeof value === "object" && value !== null) {
    try {
      const made = value.constructor?.name;
      text = value instanceof Date || value instanceof Error ? String(value) : stringify(value);
      if (made && made !== "Object" && made !== "Array") text = `${made} ${text}`;
    } catch {
      text = "an object that cannot be shown";
    }
  } else {
    text = String(value);
  }
  return text.length > 100 ? `${text.slice(0, 100)}...` : text;
}

function wrong(value, type) {
  return new TypeError(`returned ${show(value)} where ${type} is due`);
}

function unfit(value, type) {
  return new RangeError(`returned ${show(value)}, which does not fit ${type}`);
}

// ---- integers of 64 and 128 bits

function outside(value, type) {
  return new RangeError(
    `the ${type} ${value} is beyond 2^53, up to which a Number is exact: declare the function with` +
      " { bigint: true }, which passes BigInts",
  );
}

function wide(low, high, type) {
  const value = high * TWO_32 + (low >>> 0);
  if (!isSafeInteger(value)) throw outside((BigInt(high) << 32n) | BigInt(low >>> 0), type);
  return value;
}

function wideUnsigned(low, high, type) {
  const value = (high >>> 0) * TWO_32 + (low >>> 0);
  if (!isSafeInteger(value)) throw outside((BigInt(high >>> 0) << 32n) | BigInt(low >>> 0), type);
  return value;
}

// Any integral Number or BigInt as a BigInt.
function toBig(value, type) {
  if (typeof value === "bigint") return value;
  if (typeof value !== "number") throw wrong(value, type);
  if (!isInteger(value)) throw unfit(value, type);
  return BigInt(value);
}

function toSigned(value, bits, type) {
  const big = toBig(value, type);
  if (asIntN(bits, big) !== big) throw unfit(value, type);
  return big;
}

function toUnsigned(value, bits, type) {
  const big = toBig(value, type);
  if (asUintN(bits, big) !== big) throw unfit(value, type);
  return big;
}

// ---- DECIMAL: text with all its digits, or the unscaled BigInt

function decimalText(unscaled, scale) {
  if (scale === 0) return unscaled.toString();
  const negative = unscaled < 0n;
  const digits = (negative ? -unscaled : unscaled).toString().padStart(scale + 1, "0");
  const point = digits.length - scale;
  return `${negative ? "-" : ""}${digits.slice(0, point)}.${digits.slice(point)}`;
}

// Rounds half away from zero, as DuckDB's casts do.
function toDecimal(value, precision, scale, type, unscaledBigInts) {
  let unscaled;
  if (typeof value === "bigint") {
    unscaled = unscaledBigInts ? value : value * 10n ** BigInt(scale);
  } else {
    if (typeof value !== "string" && typeof value !== "number") throw wrong(value, type);
    const parts = /^\s*([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,4}))?\s*$/.exec(value);
    if (parts === null || (!parts[2] && !parts[3])) throw unfit(value, type);
    const fraction = parts[3] || "";
    const exponent = Number(parts[4] || 0) + scale - fraction.length;
    unscaled = BigInt(parts[2] + fraction);
    if (exponent >= 0) {
      if (exponent > 100 && unscaled !== 0n) throw unfit(value, type);
      unscaled *= 10n ** BigInt(Math.min(exponent, 100));
    } else {
      const divisor = 10n ** BigInt(-exponent);
      unscaled = (unscaled + divisor / 2n) / divisor;
    }
    if (parts[1] === "-") unscaled = -unscaled;
  }
  const most = 10n ** BigInt(precision);
  if (unscaled >= most || unscaled <= -most) throw unfit(value, type);
  return unscaled;
}

// ---- dates and times

// A point in time finer than a millisecond: `nanoseconds` counts from 0 to 999,999 on top of the Date.
class Timestamp extends Date {
  constructor(milliseconds, nanoseconds = 0) {
    super(milliseconds);
    defineProperty(this, "nanoseconds", { value: nanoseconds, writable: true, configurable: true });
  }
}
defineProperty(globalThis, "Timestamp", { value: Timestamp, writable: true, configurable: true });

function beyondDate(type) {
  return new RangeError(
    `a ${type} outside the years -271821 to 275760, or infinite, which a JavaScript Date cannot hold`,
  );
}

function dateOf(milliseconds, nanoseconds, type) {
  if (!(abs(milliseconds) <= LONGEST_TIME)) throw beyondDate(type);
  return nanoseconds === 0 ? new Date(milliseconds) : new Timestamp(milliseconds, nanoseconds);
}

// `perMillisecond` is the unit's: 1 for milliseconds, 1e3, 1e6; 0 for seconds.
function timestamp(low, high, perMillisecond, type) {
  const value = high * TWO_32 + (low >>> 0);
  if (perMillisecond <= 1) return dateOf(perMillisecond === 0 ? value * 1000 : value, 0, type);
  if (isSafeInteger(value)) {
    const milliseconds = floor(value / perMillisecond);
    return dateOf(milliseconds, ((value - milliseconds * perMillisecond) * 1e6) / perMillisecond, type);
  }
  const exact = (BigInt(high) << 32n) | BigInt(low >>> 0);
  const unit = BigInt(perMillisecond);
  const rest = ((exact % unit) + unit) % unit;
  const milliseconds = Number((exact - rest) / unit);
  return dateOf(milliseconds, (Number(rest) * 1e6) / perMillisecond, type);
}

function timeValue(value, type) {
  if (!(value instanceof Date)) throw wrong(value, type);
  const milliseconds = getTime(value);
  if (isNotANumber(milliseconds)) throw new RangeError(`returned an invalid Date where ${type} is due`);
  return milliseconds;
}

function toDays(value, type) {
  return floor(timeValue(value, type) / MILLISECONDS_PER_DAY);
}

function toTimestamp(value, perMillisecond, type) {
  const milliseconds = timeValue(value, type);
  if (perMillisecond <= 1) return BigInt(perMillisecond === 0 ? floor(milliseconds / 1000) : milliseconds);
  const rest = value instanceof Timestamp ? floor((value.nanoseconds * perMillisecond) / 1e6) : 0;
  const exact = milliseconds * perMillisecond + rest;
  if (isSafeInteger(exact)) return BigInt(exact);
  return toSigned(BigInt(milliseconds) * BigInt(perMillisecond) + BigInt(rest), 64, type);
}

// TIME is text, for want of a type: HH:MM:SS, and six digits if it has microseconds.
function timeText(low, high) {
  const value = high * TWO_32 + (low >>> 0);
  const seconds = floor(value / 1e6);
  const rest = value - seconds * 1e6;
  const two = (number) => (number < 10 ? `0${number}` : `${number}`);
  const text = `${two(floor(seconds / 3600))}:${two(floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
  return rest === 0 ? text : `${text}.${String(rest).padStart(6, "0")}`;
}

function toTime(value, type) {
  if (typeof value !== "string") throw wrong(value, type);
  const parts = /^(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d{1,6})\d*)?)?$/.exec(value);
  if (parts === null || parts[2] > 59 || (parts[3] || 0) > 59) throw unfit(value, type);
  const seconds = parts[1] * 3600 + parts[2] * 60 + Number(parts[3] || 0);
  const time = seconds * 1e6 + Number((parts[4] || "").padEnd(6, "0"));
  if (time > 86400e6) throw unfit(value, type);
  return BigInt(time);
}

function interval(months, days, low, high) {
  const microseconds = high * TWO_32 + (low >>> 0);
  if (!isSafeInteger(microseconds)) {
    throw new RangeError("an INTERVAL of more than 2^53 microseconds, up to which a Number is exact");
  }
  return { months, days, microseconds };
}

// A part of an INTERVAL, which must fit so many bits; a part that is missing is 0.
function intervalPart(value, name, bits, type) {
  if (typeof value !== "object" || isArray(value)) throw wrong(value, type);
  return value[name] === undefined ? 0n : toSigned(value[name], bits, type);
}

// ---- bytes

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

function uuidText(bytes, at) {
  let text = "";
  for (let index = 0; index < 16; index++) {
    if (index === 4 || index === 6 || index === 8 || index === 10) text += "-";
    text += HEX[bytes[at + index]];
  }
  return text;
}

function toUuid(value, bytes, at, type) {
  if (typeof value !== "string") throw wrong(value, type);
  if (!/^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i.test(value)) throw unfit(value, type);
  const digits = value.replaceAll("-", "");
  for (let index = 0; index < 16; index++) {
    bytes[at + index] = Number.parseInt(digits.slice(2 * index, 2 * index + 2), 16);
  }
}

function toBytes(value, type) {
  if (value instanceof Uint8Array) return value;
  if (isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  throw wrong(value, type);
}

// ---- text and JSON

function tooLong() {
  throw new RangeError("a string of more than 536,870,888 characters, which JavaScript cannot hold");
}

function toJson(value, type) {
  const text = stringify(value, (_, part) =>
    typeof part === "bigint" && isSafeInteger(Number(part)) ? Number(part) : part,
  );
  if (text === undefined) throw wrong(value, type);
  return text;
}

// ---- collections

// What may be a LIST: an Array, a typed array, a Set.
function toList(value, type) {
  if (isArray(value) || value instanceof AnyArray) return value;
  if (value instanceof Set) return Array.from(value);
  throw wrong(value, type);
}

function toArray(value, length, type) {
  const list = toList(value, type);
  if (list.length !== length) {
    throw new RangeError(`returned ${list.length} elements where ${type} has ${length}`);
  }
  return list;
}

// What may be a MAP: a Map, an object, an Array of pairs.
function toEntries(value, type) {
  if (value instanceof Map) return Array.from(value);
  if (isArray(value)) return value;
  if (typeof value === "object") return Object.entries(value);
  throw wrong(value, type);
}

// The STRUCT of a MAP's entry.
function entry([key, value]) {
  if (key === null || key === undefined) {
    throw new TypeError(`returned a MAP with the key ${key}; keys cannot be NULL`);
  }
  return { key, value };
}
