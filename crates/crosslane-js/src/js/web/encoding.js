// TextEncoder and TextDecoder, atob and btoa, and DOMException.

const fromCodes = String.fromCharCode;
const trimmed = uncurried(String.prototype.trim);
const lower = uncurried(String.prototype.toLowerCase);
const isAbove = uncurried(Object.prototype.isPrototypeOf);
const lengthOfBuffer = uncurried(Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, "byteLength").get);
const tagOf = uncurried(ofTypedArrays(Symbol.toStringTag).get);
const bytesIn = uncurried(ofTypedArrays("byteLength").get);
const ofDataViews = (name) => uncurried(Object.getOwnPropertyDescriptor(DataView.prototype, name).get);
const bufferOfView = ofDataViews("buffer");
const offsetOfView = ofDataViews("byteOffset");
const lengthOfView = ofDataViews("byteLength");

const REPLACEMENT = 0xfffd;
const BYTE_ORDER_MARK = 0xfeff;

// Defines a global as built-in ones are: it is not enumerable.
function expose(name, value) {
  defineProperty(globalThis, name, { __proto__: null, value, writable: true, configurable: true });
}

function tagged(Class, name) {
  defineProperty(Class.prototype, Symbol.toStringTag, { __proto__: null, value: name, configurable: true });
  expose(name, Class);
}

class DOMException extends Error {
  constructor(message = "", name = "Error") {
    super(`${message}`);
    defineProperty(this, "name", { __proto__: null, value: `${name}`, writable: true, configurable: true });
  }

  get code() {
    if (this.name === "InvalidCharacterError") return 5;
    return this.name === "DataCloneError" ? 25 : 0;
  }
}
tagged(DOMException, "DOMException");

// Collects the UTF-16 units of a string, in a list that keeps its own length.
class Units {
  #text = "";
  #units = blank(0);

  add(unit) {
    if (this.#units.length === 8192) this.#flush();
    this.#units[this.#units.length] = unit;
  }

  addPoint(point) {
    if (point > 0xffff) {
      this.add(0xd800 + ((point - 0x10000) >> 10));
      this.add(0xdc00 + (point & 0x3ff));
    } else {
      this.add(point);
    }
  }

  finish() {
    this.#flush();
    return this.#text;
  }

  #flush() {
    this.#text += apply(fromCodes, undefined, this.#units);
    this.#units.length = 0;
  }
}

// ---- from text to bytes

// The code point at an index; half of a surrogate pair is U+FFFD.
function pointAt(text, at) {
  const code = codeAt(text, at);
  if (code < 0xd800 || code > 0xdfff) return code;
  const next = code < 0xdc00 ? codeAt(text, at + 1) : 0;
  if (!(next >= 0xdc00 && next <= 0xdfff)) return REPLACEMENT;
  return 0x10000 + ((code - 0xd800) << 10) + (next - 0xdc00);
}

const utf8Size = (point) => (point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4);

// Writes as many characters as fit into `room` bytes.
function writeUtf8(text, bytes, room) {
  const { length } = text;
  let read = 0;
  let written = 0;
  while (read < length) {
    const point = pointAt(text, read);
    const size = utf8Size(point);
    if (written + size > room) break;
    if (size === 1) {
      bytes[written++] = point;
    } else {
      bytes[written++] = (0xf00 >> size) | (point >> (6 * (size - 1)));
      for (let shift = 6 * (size - 2); shift >= 0; shift -= 6) {
        bytes[written++] = 0x80 | ((point >> shift) & 0x3f);
      }
    }
    read += size === 4 ? 2 : 1;
  }
  return { read, written };
}

function utf8Of(text) {
  const { length } = text;
  let size = 0;
  for (let at = 0; at < length; at++) {
    const next = utf8Size(pointAt(text, at));
    size += next;
    if (next === 4) at++;
  }
  const bytes = new Uint8Array(size);
  writeUtf8(text, bytes, size);
  return bytes;
}

class TextEncoder {
  get encoding() {
    return "utf-8";
  }

  encode(text = "") {
    return utf8Of(`${text}`);
  }

  encodeInto(text, bytes) {
    if (!isView(bytes) || tagOf(bytes) !== "Uint8Array") {
      throw new TypeError(`encodeInto writes into a Uint8Array, not ${show(bytes)}`);
    }
    return writeUtf8(`${text}`, bytes, lengthOf(bytes));
  }
}
tagged(TextEncoder, "TextEncoder");

// ---- from bytes to text

// Decoders take bytes in pieces. They call `bad` for each invalid part; it may throw.

class Utf8 {
  #point = 0;
  #missing = 0;
  #low = 0x80;
  #high = 0xbf;

  take(bytes, length, units, bad) {
    let point = this.#point;
    let missing = this.#missing;
    let low = this.#low;
    let high = this.#high;
    for (let at = 0; at < length; at++) {
      const byte = bytes[at];
      if (missing > 0) {
        const fits = byte >= low && byte <= high;
        low = 0x80;
        high = 0xbf;
        if (fits) {
          point = (point << 6) | (byte & 0x3f);
          if (--missing === 0) units.addPoint(point);
          continue;
        }
        // The byte may begin the next character.
        missing = 0;
        bad(units);
      }
      if (byte < 0x80) {
        units.add(byte);
      } else if (byte >= 0xc2 && byte <= 0xdf) {
        missing = 1;
        point = byte & 0x1f;
      } else if (byte >= 0xe0 && byte <= 0xef) {
        missing = 2;
        point = byte & 0xf;
        if (byte === 0xe0) low = 0xa0;
        if (byte === 0xed) high = 0x9f;
      } else if (byte >= 0xf0 && byte <= 0xf4) {
        missing = 3;
        point = byte & 7;
        if (byte === 0xf0) low = 0x90;
        if (byte === 0xf4) high = 0x8f;
      } else {
        bad(units);
      }
    }
    this.#point = point;
    this.#missing = missing;
    this.#low = low;
    this.#high = high;
  }

  end(units, bad) {
    if (this.#missing > 0) bad(units);
  }
}

class Utf16 {
  #byte = -1;
  #lead = 0;

  take(bytes, length, units, bad) {
    for (let at = 0; at < length; at++) {
      if (this.#byte < 0) {
        this.#byte = bytes[at];
        continue;
      }
      const unit = this.#byte | (bytes[at] << 8);
      this.#byte = -1;
      const trails = unit >= 0xdc00 && unit <= 0xdfff;
      const lead = this.#lead;
      this.#lead = 0;
      if (lead > 0 && trails) {
        units.add(lead);
        units.add(unit);
        continue;
      }
      if (lead > 0) bad(units);
      if (unit >= 0xd800 && unit <= 0xdbff) this.#lead = unit;
      else if (trails) bad(units);
      else units.add(unit);
    }
  }

  end(units, bad) {
    if (this.#byte >= 0 || this.#lead > 0) bad(units);
  }
}

// The code points of the bytes from 0x80 to 0x9f.
const WINDOWS_1252 =
  "\u20ac\x81\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\x8d\u017d\x8f" +
  "\x90\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\x9d\u017e\u0178";

class Windows1252 {
  take(bytes, length, units) {
    for (let at = 0; at < length; at++) {
      const byte = bytes[at];
      units.add(byte >= 0x80 && byte < 0xa0 ? codeAt(WINDOWS_1252, byte - 0x80) : byte);
    }
  }

  end() {}
}

const DECODERS = { __proto__: null, "utf-8": Utf8, "utf-16le": Utf16, "windows-1252": Windows1252 };
// https://encoding.spec.whatwg.org/#names-and-labels
const LABELS = { __proto__: null };
for (const [name, labels] of [
  ["utf-8", "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8"],
  ["utf-16le", "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le"],
  [
    "windows-1252",
    "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 " +
      "iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252",
  ],
]) {
  for (const label of labels.split(" ")) LABELS[label] = name;
}

const replaced = (units) => units.add(REPLACEMENT);

// All bytes of a buffer or a view.
function bytesUnder(value) {
  if (isView(value)) {
    return tagOf(value) === undefined
      ? new Uint8Array(bufferOfView(value), offsetOfView(value), lengthOfView(value))
      : new Uint8Array(bufferOf(value), offsetOf(value), bytesIn(value));
  }
  try {
    lengthOfBuffer(value);
  } catch {
    throw new TypeError(`bytes are an ArrayBuffer or a view, not ${show(value)}`);
  }
  return new Uint8Array(value);
}

// Decodes UTF-8; invalid parts become U+FFFD.
function textIn(bytes) {
  const length = lengthOf(bytes);
  const units = new Units();
  const decoder = new Utf8();
  decoder.take(bytes, length, units, replaced);
  decoder.end(units, replaced);
  return units.finish();
}

class TextDecoder {
  #encoding;
  #fatal;
  #ignoreBOM;
  // The state of a stream that has not ended.
  #decoder;
  #begun = false;

  constructor(label = "utf-8", options = undefined) {
    this.#encoding = LABELS[lower(trimmed(`${label}`))];
    if (this.#encoding === undefined) {
      throw new RangeError(`the encoding ${show(label)} is not known here: utf-8, utf-16le and latin1 are`);
    }
    this.#fatal = Boolean(options?.fatal);
    this.#ignoreBOM = Boolean(options?.ignoreBOM);
  }

  get encoding() {
    return this.#encoding;
  }

  get fatal() {
    return this.#fatal;
  }

  get ignoreBOM() {
    return this.#ignoreBOM;
  }

  decode(input = undefined, options = undefined) {
    const bytes = input === undefined ? new Uint8Array(0) : bytesUnder(input);
    const goesOn = Boolean(options?.stream);
    if (this.#decoder === undefined) this.#begun = false;
    const decoder = this.#decoder ?? new DECODERS[this.#encoding]();
    // An error ends the stream.
    this.#decoder = undefined;
    const encoding = this.#encoding;
    const bad = this.#fatal
      ? () => {
          throw new TypeError(`bytes that are no ${encoding}`);
        }
      : replaced;
    const length = lengthOf(bytes);
    const units = new Units();
    decoder.take(bytes, length, units, bad);
    if (goesOn) this.#decoder = decoder;
    else decoder.end(units, bad);
    const text = units.finish();
    const first = !this.#begun;
    if (text !== "") this.#begun = true;
    return first && !this.#ignoreBOM && codeAt(text, 0) === BYTE_ORDER_MARK ? part(text, 1) : text;
  }
}
tagged(TextDecoder, "TextDecoder");

// ---- base 64

const BASE_64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const EQUALS = 61;

function sextet(code) {
  if (code >= 65 && code <= 90) return code - 65;
  if (code >= 97 && code <= 122) return code - 71;
  if (isDigit(code)) return code + 4;
  if (code === 43) return 62;
  return code === 47 ? 63 : -1;
}

function checkGiven(count, name) {
  if (count === 0) throw new TypeError(`${name} takes an argument`);
}

function atob(...given) {
  checkGiven(given.length, "atob");
  const text = `${given[0]}`;
  const { length } = text;
  const units = new Units();
  const invalid = () => new DOMException("a text that is no base 64", "InvalidCharacterError");
  let bits = 0;
  let held = 0;
  let count = 0;
  let padding = 0;
  for (let at = 0; at < length; at++) {
    const code = codeAt(text, at);
    if (isBlank(code) || code === 12) continue;
    if (code === EQUALS) {
      padding++;
      continue;
    }
    const six = sextet(code);
    if (six < 0 || padding > 0) throw invalid();
    count++;
    bits = ((bits << 6) | six) & 0x3fff;
    held += 6;
    if (held >= 8) {
      held -= 8;
      units.add((bits >> held) & 0xff);
    }
  }
  const padded = padding === 0 || (padding <= 2 && (count + padding) % 4 === 0);
  if (count % 4 === 1 || !padded) throw invalid();
  return units.finish();
}

function btoa(...given) {
  checkGiven(given.length, "btoa");
  const text = `${given[0]}`;
  const { length } = text;
  const units = new Units();
  for (let at = 0; at < length; at += 3) {
    let bits = 0;
    for (let byte = 0; byte < 3; byte++) {
      const code = at + byte < length ? codeAt(text, at + byte) : 0;
      if (code > 0xff) {
        throw new DOMException("a character beyond U+00FF has no byte", "InvalidCharacterError");
      }
      bits = (bits << 8) | code;
    }
    const there = min(3, length - at);
    for (let index = 0; index < 4; index++) {
      units.add(index <= there ? codeAt(BASE_64, (bits >> (18 - 6 * index)) & 0x3f) : EQUALS);
    }
  }
  return units.finish();
}

expose("atob", atob);
expose("btoa", btoa);
