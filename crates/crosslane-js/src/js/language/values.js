// Converts values of JavaScript from and to the buffers of an Arrow column.

// Later changes by the user's code do not affect these.
const { floor, abs, trunc } = Math;
const { isArray } = Array;
const { isInteger, isNaN: isNotANumber, isSafeInteger } = Number;
const { parse, stringify } = JSON;
const { defineProperty, getPrototypeOf } = Object;
const { isView } = ArrayBuffer;
const { asIntN, asUintN } = BigInt;
const AnyArray = getPrototypeOf(Int8Array);
const getTime = uncurried(Date.prototype.getTime);

const TWO_32 = 4294967296;
const MILLISECONDS_PER_DAY = RULES.day * 1000;
// ECMA-262 21.4.1.1: a Date reaches this far from 1970.
const LONGEST_TIME = 8.64e15;
// The numbers that stand for infinity; with a minus, for negative infinity.
const LAST_DAY = RULES.lastDay;
const LAST_MOMENT = BigInt(RULES.lastMoment);
// The high half of `LAST_MOMENT`.
const LAST_HIGH = Number(LAST_MOMENT >> 32n);

const isInfinite = (value) => value === Infinity || value === -Infinity;

// A value as text for a message.
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
  return text.length > 100 ? `${between(text, 0, 100)}...` : text;
}

// The message of a rule with these texts in its gaps.
function told(words, ...texts) {
  let text = words[0];
  for (let i = 0; i < texts.length; i++) text += texts[i] + words[i + 1];
  return text;
}

const CLASSES = { __proto__: null, RangeError, TypeError };

function refused({ class: name, words }, value, type) {
  return new CLASSES[name](told(words, show(value), type));
}

const wrong = (value, type) => refused(RULES.refusals.wrong, value, type);
const unfit = (value, type) => refused(RULES.refusals.unfit, value, type);

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

// Converts an integral Number or a BigInt to a BigInt.
function toBig(value, type) {
  if (typeof value === "bigint") return value;
  if (typeof value !== "number") throw wrong(value, type);
  if (!isInteger(value)) throw unfit(value, type);
  return BigInt(value);
}

function toDouble(big, type) {
  const number = Number(big);
  if (isInfinite(number)) throw unfit(big, type);
  return number;
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
  if (scale === 0) return bigText(unscaled);
  const negative = unscaled < 0n;
  const digits = padded(bigText(negative ? -unscaled : unscaled), scale + 1, "0");
  const point = digits.length - scale;
  return `${negative ? "-" : ""}${between(digits, 0, point)}.${between(digits, point)}`;
}

// Rounds half away from zero, as DuckDB's casts do.
function toDecimal(value, precision, scale, type, unscaledBigInts) {
  let unscaled;
  if (typeof value === "bigint") {
    unscaled = unscaledBigInts ? value : value * 10n ** BigInt(scale);
  } else {
    if (typeof value !== "string" && typeof value !== "number") throw wrong(value, type);
    const parts = executed(/^\s*([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,4}))?\s*$/, value);
    if (parts === null || (!parts[2] && !parts[3])) throw unfit(value, type);
    const fraction = parts[3] || "";
    const exponent = Number(parts[4] || 0) + scale - fraction.length;
    unscaled = BigInt(parts[2] + fraction);
    if (exponent >= 0) {
      if (exponent > 100 && unscaled !== 0n) throw unfit(value, type);
      unscaled *= 10n ** BigInt(min(exponent, 100));
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

// A point in time with a resolution below a millisecond: `nanoseconds` is from 0 to 999,999, and
// adds to the Date.
class Timestamp extends Date {
  constructor(milliseconds, nanoseconds = 0) {
    super(milliseconds);
    defineProperty(this, "nanoseconds", {
      __proto__: null,
      value: nanoseconds,
      writable: true,
      configurable: true,
    });
  }
}
defineProperty(globalThis, "Timestamp", { value: Timestamp, writable: true, configurable: true });

function beyondDate(type) {
  return new RangeError(`a ${type} outside the years -271821 to 275760, which a JavaScript Date cannot hold`);
}

function dateOf(milliseconds, nanoseconds, type) {
  if (!(abs(milliseconds) <= LONGEST_TIME)) throw beyondDate(type);
  return nanoseconds === 0 ? new Date(milliseconds) : new Timestamp(milliseconds, nanoseconds);
}

// An infinite DATE or TIMESTAMP is an infinite Number.
function dayOf(days) {
  return abs(days) === LAST_DAY ? days * Infinity : dateOf(days * MILLISECONDS_PER_DAY, 0, "DATE");
}

// `perMillisecond` is the number of units in a millisecond: 1 for milliseconds, 1e3, 1e6; 0 for
// seconds.
function timestamp(low, high, perMillisecond, type) {
  if (high === LAST_HIGH && low === -1) return Infinity;
  if (high === -LAST_HIGH - 1 && low === 1) return -Infinity;
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
  if (isInfinite(value)) return value > 0 ? LAST_DAY : -LAST_DAY;
  return floor(timeValue(value, type) / MILLISECONDS_PER_DAY);
}

function toTimestamp(value, perMillisecond, type) {
  if (isInfinite(value)) return value > 0 ? LAST_MOMENT : -LAST_MOMENT;
  const milliseconds = timeValue(value, type);
  if (perMillisecond <= 1) return BigInt(perMillisecond === 0 ? floor(milliseconds / 1000) : milliseconds);
  const rest = value instanceof Timestamp ? floor((value.nanoseconds * perMillisecond) / 1e6) : 0;
  const exact = milliseconds * perMillisecond + rest;
  if (isSafeInteger(exact)) return BigInt(exact);
  return toSigned(BigInt(milliseconds) * BigInt(perMillisecond) + BigInt(rest), 64, type);
}

// JavaScript has no type for times of day, so they are text: HH:MM:SS, a fraction if there is one,
// and the zone of a TIMETZ as SQL writes it.
const two = (number) => (number < 10 ? `0${number}` : `${number}`);

// How many digits the fraction of a second has, and how many units a millisecond has: 0 for
// seconds.
const DIGITS = { __proto__: null };
const PER_MILLISECOND = { __proto__: null };
for (const [kind, units] of Object.entries(RULES.unitsPerSecond)) {
  DIGITS[kind] = String(units).length - 1;
  PER_MILLISECOND[kind] = floor(units / 1000);
}

// `digits` is the number of digits of the fraction: 6 for microseconds, 9 for nanoseconds.
function clockText(value, digits) {
  const unit = 10 ** digits;
  const seconds = floor(value / unit);
  const rest = value - seconds * unit;
  const text = `${two(floor(seconds / 3600))}:${two(floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
  return rest === 0 ? text : `${text}.${padded(String(rest), digits, "0")}`;
}

function timeText(low, high, digits) {
  return clockText(high * TWO_32 + (low >>> 0), digits);
}

// The low 24 bits of a TIMETZ are the distance of its zone from the easternmost one, in seconds;
// the microseconds are above them.
const EASTERNMOST = RULES.easternmost;

function zonedTimeText(low, high) {
  const offset = EASTERNMOST - (low & 0xffffff);
  const seconds = abs(offset);
  let zone = two(floor(seconds / 3600));
  if (seconds % 3600 !== 0) zone += `:${two(floor(seconds / 60) % 60)}`;
  if (seconds % 60 !== 0) zone += `:${two(seconds % 60)}`;
  return `${clockText(high * 256 + (low >>> 24), DIGITS.TIMETZ)}${offset < 0 ? "-" : "+"}${zone}`;
}

const TIME = /^(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:([+-])(\d\d)(?::?(\d\d)(?::?(\d\d))?)?|(Z))?$/;

// The parts of a time of day. Those of the zone begin at 5.
function timeParts(value, zoned, type) {
  if (typeof value !== "string") throw wrong(value, type);
  const parts = executed(TIME, value);
  if (parts === null || parts[2] > 59 || (parts[3] || 0) > 59) throw unfit(value, type);
  if (zoned !== (parts[5] !== undefined || parts[9] !== undefined)) {
    throw new TypeError(`returned ${show(value)} ${zoned ? "without" : "with"} a zone where ${type} is due`);
  }
  return parts;
}

// A time of day in its units; finer fractions are cut.
function clock(parts, digits, value, type) {
  const seconds = parts[1] * 3600 + parts[2] * 60 + Number(parts[3] || 0);
  let fraction = between(parts[4] || "", 0, digits);
  while (fraction.length < digits) fraction += "0";
  const time = seconds * 10 ** digits + Number(fraction);
  if (time > RULES.day * 10 ** digits) throw unfit(value, type);
  return BigInt(time);
}

function toTime(value, digits, type) {
  return clock(timeParts(value, false, type), digits, value, type);
}

function toZonedTime(value, type) {
  const parts = timeParts(value, true, type);
  const seconds = Number(parts[6] || 0) * 3600 + Number(parts[7] || 0) * 60 + Number(parts[8] || 0);
  if (seconds > EASTERNMOST || parts[7] > 59 || parts[8] > 59) throw unfit(value, type);
  const offset = parts[5] === "-" ? -seconds : seconds;
  return (clock(parts, DIGITS.TIMETZ, value, type) << 24n) | BigInt(EASTERNMOST - offset);
}

function interval(months, days, low, high) {
  const microseconds = high * TWO_32 + (low >>> 0);
  if (!isSafeInteger(microseconds)) {
    throw new RangeError("an INTERVAL of more than 2^53 microseconds, up to which a Number is exact");
  }
  return { months, days, microseconds };
}

// A part of an INTERVAL, which must fit into so many bits; a missing part is 0.
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
  if (executed(/^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i, value) === null) throw unfit(value, type);
  let from = 0;
  for (let index = 0; index < 16; index++) {
    if (value[from] === "-") from++;
    bytes[at + index] = parseInt(between(value, from, from + 2), 16);
    from += 2;
  }
}

function toBytes(value, type) {
  const bytes = value instanceof Uint8Array ? value : bytesUnder(value);
  if (bytes === undefined) throw wrong(value, type);
  return bytes;
}

// Makes an integer of any size of its two's complement, the lowest byte first.
function bigOf(bytes, from, to) {
  let text = "0x";
  for (let index = to - 1; index >= from; index--) text += HEX[bytes[index]];
  return asIntN(8 * (to - from), BigInt(text));
}

// The two's complement of an integer, the lowest byte first.
function bigBytes(value, type) {
  const big = toBig(value, type);
  const digits = bigText(big < 0n ? ~big : big, 16).length;
  const count = (digits >> 1) + 1;
  const bytes = new Uint8Array(count);
  const text = padded(bigText(asUintN(8 * count, big), 16), 2 * count, "0");
  for (let index = 0; index < count; index++) {
    const at = text.length - 2 * index;
    bytes[index] = parseInt(between(text, at - 2, at), 16);
  }
  return bytes;
}

// ---- text

function tooLong() {
  throw new RangeError("a string of more than 536,870,888 characters, which JavaScript cannot hold");
}

// ---- collections

// The elements of a value for a LIST: an Array, a typed array or a Set.
function toList(value, type) {
  if (isArray(value) || value instanceof AnyArray) return value;
  if (value instanceof Set) {
    const elements = list();
    eachOfSet(value, (element) => {
      elements[elements.length] = element;
    });
    return elements;
  }
  throw wrong(value, type);
}

function toArray(value, length, type) {
  const elements = toList(value, type);
  if (elements.length !== length) {
    throw new RangeError(`returned ${elements.length} elements where ${type} has ${length}`);
  }
  return elements;
}

// The entries of a value for a MAP: a Map, an object, or an Array of pairs.
function toEntries(value, type) {
  if (value instanceof Map) {
    const pairs = list();
    eachOfMap(value, (value, key) => {
      pairs[pairs.length] = [key, value];
    });
    return pairs;
  }
  if (isArray(value)) return value;
  if (typeof value === "object") return entries(value);
  throw wrong(value, type);
}

// The index of the tag of a UNION's `{ tag, value }`, from a Map of the members' names.
function toTag(value, places, type) {
  if (typeof value !== "object" || !("tag" in value)) {
    throw new TypeError(`returned ${show(value)} where ${type} is due; return { tag, value }`);
  }
  const place = mapGet(places, value.tag);
  if (place === undefined)
    throw new RangeError(`returned ${show(value)}, whose tag no member of ${type} has`);
  return place;
}

// The STRUCT of an entry of a MAP.
function entry(pair) {
  let key, value;
  if (isArray(pair)) {
    key = pair[0];
    value = pair[1];
  } else {
    [key, value] = pair;
  }
  if (key === null || key === undefined) {
    throw new TypeError(RULES.nullKey);
  }
  return { key, value };
}
