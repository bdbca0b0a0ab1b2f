// JSON with exact integers: those beyond 2^53 are BigInts. V8's `JSON` has no BigInts. So in a text
// with such integers, each string that is no key gets a first letter: `s` marks a string, `n` the
// digits of a BigInt.

const codeAt = uncurried(String.prototype.charCodeAt);
const part = uncurried(String.prototype.slice);
const textOf = uncurried(String.prototype.valueOf);
const [QUOTE, BACKSLASH, COLON, MINUS, ZERO, NINE] = [34, 92, 58, 45, 48, 57];

// Matches a text that may have an integer beyond 2^53.
const longNumber = /[0-9]{16}/;
defineProperty(longNumber, "exec", { value: RegExp.prototype.exec });
const matches = uncurried(RegExp.prototype.test);

const isDigit = (code) => code >= ZERO && code <= NINE;
const isBlank = (code) => code === 32 || code === 10 || code === 13 || code === 9;

// Replaces strings and numbers of a JSON text. `onString` and `onNumber` return the text that
// replaces the one from `start` to `end`, or undefined to leave it. Text that is no JSON stays, so
// that `parse` refuses it.
function translate(text, onString, onNumber) {
  const { length } = text;
  let out = "";
  let copied = 0;
  let at = 0;
  while (at < length) {
    const start = at;
    const code = codeAt(text, at++);
    let other;
    if (code === QUOTE) {
      while (at < length) {
        const inner = codeAt(text, at++);
        if (inner === QUOTE) break;
        if (inner === BACKSLASH) at++;
      }
      let next = at;
      while (next < length && isBlank(codeAt(text, next))) next++;
      if (codeAt(text, next) !== COLON) other = onString(start, at);
    } else if (code === MINUS || isDigit(code)) {
      let whole = true;
      for (; at < length; at++) {
        const inner = codeAt(text, at);
        if (isDigit(inner)) continue;
        // The characters of a fraction or an exponent.
        if (inner !== 46 && inner !== 69 && inner !== 101 && inner !== 43 && inner !== MINUS) break;
        whole = false;
      }
      if (whole) other = onNumber?.(start, at);
    }
    if (other !== undefined) {
      out += part(text, copied, start) + other;
      copied = at;
    }
  }
  return out + part(text, copied);
}

function parseJson(text) {
  if (!matches(longNumber, text)) return parse(text);
  let wide = false;
  const marked = translate(
    text,
    (start, end) => `"s${part(text, start + 1, end)}`,
    (start, end) => {
      const digits = part(text, start, end);
      if (isSafeInteger(Number(digits))) return undefined;
      wide = true;
      return `"n${digits}"`;
    },
  );
  // The error of a text that is no JSON must show the text as it was written.
  if (!wide) return parse(text);
  try {
    return parse(marked, (_, value) => {
      if (typeof value !== "string") return value;
      return codeAt(value, 0) === 110 ? BigInt(part(value, 1)) : part(value, 1);
    });
  } catch {
    return parse(text);
  }
}

// Modules of JSON files call this (`source.rs`).
defineProperty(globalThis, Symbol.for("crosslane.json"), { value: parseJson });

function toJson(result, type) {
  let wide = false;
  const plain = stringify(result, (_, value) => {
    if (typeof value !== "bigint") return value;
    if (isSafeInteger(Number(value))) return Number(value);
    wide = true;
    return null;
  });
  if (plain === undefined) throw wrong(result, type);
  if (!wide) return plain;
  const marked = stringify(result, (_, value) => {
    if (typeof value === "string") return `s${value}`;
    if (typeof value === "bigint") return `n${value}`;
    try {
      // A String object is written as a string.
      return typeof value === "object" && value !== null ? `s${textOf(value)}` : value;
    } catch {
      return value;
    }
  });
  return translate(marked, (start, end) =>
    codeAt(marked, start + 1) === 110 ? part(marked, start + 2, end - 1) : `"${part(marked, start + 2, end)}`,
  );
}
