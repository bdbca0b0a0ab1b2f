// TextEncoder and TextDecoder, atob and btoa, and DOMException.

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

const REPLACEMENT = "\ufffd";
const BYTE_ORDER_MARK = 0xfeff;
// The kinds of bytes that the host's `textOfBytes` reads. Those of UTF-16 begin at an even place.
const [UTF_8, LATIN_1, UTF_16] = [0, 1, 2];

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

// ---- from text to bytes

// Half of a surrogate pair becomes U+FFFD.
function utf8Of(text) {
  const bytes = new Uint8Array(utf8Size(text));
  writeUtf8(text, bytes);
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
    const counts = writeUtf8(`${text}`, bytes);
    return { read: counts[0], written: counts[1] };
  }
}
tagged(TextEncoder, "TextEncoder");

// ---- from bytes to text

// Invalid parts become U+FFFD.
const textIn = (bytes) => textOfBytes(bytes, UTF_8);

// Converts a value to a text without half surrogate pairs.
const wellFormed = (value) => textIn(utf8Of(`${value}`));

const isLeadingHalf = (unit) => unit >= 0xd800 && unit <= 0xdbff;

// A decoder returns the text of bytes, and whether they are valid. `unfinished` says how many bytes at the
// end begin a character that further bytes may complete.
const utf8 = {
  __proto__: null,
  decode(bytes) {
    const text = textIn(bytes);
    let isValid = true;
    if (find(text, REPLACEMENT) >= 0) {
      const again = utf8Of(text);
      isValid = lengthOf(again) === lengthOf(bytes);
      for (let at = 0; isValid && at < lengthOf(bytes); at++) isValid = again[at] === bytes[at];
    }
    return { text, isValid };
  },
  unfinished(bytes) {
    const length = lengthOf(bytes);
    for (let size = 1; size <= min(3, length); size++) {
      const byte = bytes[length - size];
      if (byte < 0x80 || byte > 0xf4) return 0;
      if (byte < 0xc2) continue;
      const due = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
      // If more than one U+FFFD stands for these bytes, nothing can complete them.
      return size < due && textIn(bytesOf(bytes, length - size, length)) === REPLACEMENT ? size : 0;
    }
    return 0;
  },
};

const utf16 = {
  __proto__: null,
  decode(bytes) {
    const odd = lengthOf(bytes) % 2;
    const units = textOfBytes(bytesOf(bytes, 0, lengthOf(bytes) - odd), UTF_16);
    let text = wellFormed(units);
    // A leading half and half a unit are one invalid part.
    if (odd === 1 && !isLeadingHalf(codeAt(units, units.length - 1))) text += REPLACEMENT;
    return { text, isValid: text === units };
  },
  unfinished(bytes) {
    const length = lengthOf(bytes);
    const odd = length % 2;
    const isHalf = length > 1 && isLeadingHalf(bytes[length - odd - 1] << 8);
    return isHalf ? odd + 2 : odd;
  },
};

// The code points of the bytes from 0x80 to 0x9f.
const WINDOWS_1252 =
  "\u20ac\x81\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\x8d\u017d\x8f" +
  "\x90\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\x9d\u017e\u0178";

const windows1252 = {
  __proto__: null,
  decode(bytes) {
    const units = new Uint16Array(lengthOf(bytes));
    for (let at = 0; at < lengthOf(bytes); at++) {
      const byte = bytes[at];
      units[at] = byte >= 0x80 && byte < 0xa0 ? codeAt(WINDOWS_1252, byte - 0x80) : byte;
    }
    return { text: textOfBytes(units, UTF_16), isValid: true };
  },
  unfinished: () => 0,
};

const DECODERS = { __proto__: null, "utf-8": utf8, "utf-16le": utf16, "windows-1252": windows1252 };
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

// All bytes of a buffer or a view. Undefined for another value.
function bytesUnder(value) {
  if (isView(value)) {
    return tagOf(value) === undefined
      ? new Uint8Array(bufferOfView(value), offsetOfView(value), lengthOfView(value))
      : new Uint8Array(bufferOf(value), offsetOf(value), bytesIn(value));
  }
  try {
    lengthOfBuffer(value);
  } catch {
    return undefined;
  }
  return new Uint8Array(value);
}

function joined(first, second) {
  const both = new Uint8Array(lengthOf(first) + lengthOf(second));
  setIn(both, first);
  setIn(both, second, lengthOf(first));
  return both;
}

class TextDecoder {
  #encoding;
  #fatal;
  #ignoreBOM;
  // Of a stream that has not ended: the bytes of a character that is not complete, and whether there was
  // text before.
  #rest;
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
    let bytes = input === undefined ? new Uint8Array(0) : bytesUnder(input);
    if (bytes === undefined) throw new TypeError(`bytes are an ArrayBuffer or a view, not ${show(input)}`);
    const goesOn = Boolean(options?.stream);
    const decoder = DECODERS[this.#encoding];
    const rest = this.#rest;
    // An error ends the stream.
    this.#rest = undefined;
    if (rest === undefined) this.#begun = false;
    else if (lengthOf(rest) > 0) bytes = joined(rest, bytes);
    const end = lengthOf(bytes) - (goesOn ? decoder.unfinished(bytes) : 0);
    const { text, isValid } = decoder.decode(new Uint8Array(bufferOf(bytes), offsetOf(bytes), end));
    if (this.#fatal && !isValid) throw new TypeError(`bytes that are no ${this.#encoding}`);
    if (goesOn) this.#rest = bytesOf(bytes, end, lengthOf(bytes));
    const isFirst = !this.#begun && text !== "";
    if (isFirst) this.#begun = true;
    return isFirst && !this.#ignoreBOM && codeAt(text, 0) === BYTE_ORDER_MARK ? part(text, 1) : text;
  }
}
tagged(TextDecoder, "TextDecoder");

// ---- base 64

const DIGITS_64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const ALPHABETS = { __proto__: null, base64: `${DIGITS_64}+/`, base64url: `${DIGITS_64}-_` };
const EQUALS = 61;

// The number that a digit of an alphabet stands for, or -1.
function sextet(alphabet, code) {
  if (code >= 65 && code <= 90) return code - 65;
  if (code >= 97 && code <= 122) return code - 71;
  if (isDigit(code)) return code + 4;
  if (code === codeAt(alphabet, 62)) return 62;
  return code === codeAt(alphabet, 63) ? 63 : -1;
}

// Writes the bytes of a text in base64. Returns how much of the text they are, how many bytes, and whether
// the text is invalid after them. https://tc39.es/ecma262/#sec-frombase64
function readBase64(text, bytes, alphabet, handling) {
  const most = lengthOf(bytes);
  let read = 0;
  let written = 0;
  let chunk = 0;
  let size = 0;
  let index = 0;
  const next = () => {
    while (index < text.length && (isBlank(codeAt(text, index)) || text[index] === "\f")) index++;
    return text[index];
  };
  const ended = (isWrong = false) => ({ read, written, isWrong });
  const failed = () => ended(true);
  const put = (count) => {
    for (let byte = 0; byte < count; byte++) bytes[written++] = (chunk >> (16 - 8 * byte)) & 255;
  };
  if (most === 0) return ended();
  for (;;) {
    const one = next();
    if (one === undefined || one === "=") break;
    const digit = sextet(alphabet, codeAt(one, 0));
    if (digit < 0) return failed();
    // The next digit would make a byte for which there is no room.
    const left = most - written;
    if ((left === 1 && size === 2) || (left === 2 && size === 3)) return ended();
    index++;
    chunk |= digit << (18 - 6 * size++);
    if (size === 4) {
      put(3);
      read = index;
      chunk = size = 0;
      if (written === most) return ended();
    }
  }
  if (next() === "=") {
    if (size < 2) return failed();
    index++;
    if (size === 2) {
      if (next() === undefined) return handling === "stop-before-partial" ? ended() : failed();
      if (next() !== "=") return failed();
      index++;
    }
    if (next() !== undefined) return failed();
    // The bits beyond the last byte.
    if (handling === "strict" && (chunk & (size === 2 ? 0xffff : 0xff)) !== 0) return failed();
  } else if (size > 0) {
    if (handling === "stop-before-partial") return ended();
    if (handling === "strict" || size === 1) return failed();
  }
  if (size > 0) put(size - 1);
  read = text.length;
  return ended();
}

function base64Of(bytes, alphabet, isPadded) {
  const length = lengthOf(bytes);
  const codes = new Uint8Array(4 * floor((length + 2) / 3));
  let written = 0;
  for (let index = 0; index < length; index += 3) {
    const size = min(3, length - index);
    const chunk = (bytes[index] << 16) | ((bytes[index + 1] ?? 0) << 8) | (bytes[index + 2] ?? 0);
    for (let digit = 0; digit < 4; digit++) {
      if (digit <= size) codes[written++] = codeAt(alphabet, (chunk >> (18 - 6 * digit)) & 63);
      else if (isPadded) codes[written++] = EQUALS;
    }
  }
  return textOfBytes(prefix(codes, written, Uint8Array), LATIN_1);
}

// ---- hexadecimal digits

const HEX_DIGITS = "0123456789abcdef";

function hexDigit(code) {
  if (isDigit(code)) return code - ZERO;
  const letter = code | 32;
  return letter >= 97 && letter <= 102 ? letter - 87 : -1;
}

// Writes the bytes of a text of hexadecimal digits, as `readBase64` does.
function readHex(text, bytes) {
  const ended = (written, isWrong) => ({ read: 2 * written, written, isWrong });
  if (text.length % 2 !== 0) return ended(0, true);
  const count = min(text.length / 2, lengthOf(bytes));
  for (let index = 0; index < count; index++) {
    const high = hexDigit(codeAt(text, 2 * index));
    const low = hexDigit(codeAt(text, 2 * index + 1));
    if (high < 0 || low < 0) return ended(index, true);
    bytes[index] = 16 * high + low;
  }
  return ended(count, false);
}

function hexText(bytes) {
  const codes = new Uint8Array(2 * lengthOf(bytes));
  for (let index = 0; index < lengthOf(bytes); index++) {
    codes[2 * index] = codeAt(HEX_DIGITS, bytes[index] >> 4);
    codes[2 * index + 1] = codeAt(HEX_DIGITS, bytes[index] & 15);
  }
  return textOfBytes(codes, LATIN_1);
}

// ---- atob and btoa

function checkGiven(count, name) {
  if (count === 0) throw new TypeError(`${name} takes an argument`);
}

function atob(...given) {
  checkGiven(given.length, "atob");
  const text = `${given[0]}`;
  // More room than the bytes need.
  const bytes = new Uint8Array(text.length);
  const { written, isWrong } = readBase64(text, bytes, ALPHABETS.base64, "loose");
  if (isWrong) throw new DOMException("a text that is no base 64", "InvalidCharacterError");
  return textOfBytes(prefix(bytes, written, Uint8Array), LATIN_1);
}

function btoa(...given) {
  checkGiven(given.length, "btoa");
  const text = `${given[0]}`;
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) {
    const code = codeAt(text, at);
    if (code > 0xff) {
      throw new DOMException("a character beyond U+00FF has no byte", "InvalidCharacterError");
    }
    bytes[at] = code;
  }
  return base64Of(bytes, ALPHABETS.base64, true);
}

expose("atob", atob);
expose("btoa", btoa);
