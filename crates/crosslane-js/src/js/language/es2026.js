// Methods of ECMAScript 2025 and 2026 that V8 13.6 leaves out of an isolate that builds a snapshot. V8 adds
// some of them when an isolate boots from the snapshot, and crashes if a file has frozen their object or
// defined methods of the same name. So V8 must not add them (`engine.rs`), and this file adds all of them.

const callOn = Function.prototype.call.bind(Function.prototype.call);

{
  const ParseError = SyntaxError;
  const { withResolvers } = Promise;

  addMissing(Promise, {
    try(call, ...passed) {
      const { promise, resolve, reject } = callOn(withResolvers, this);
      let value;
      try {
        value = apply(call, undefined, passed);
      } catch (error) {
        reject(error);
        return promise;
      }
      resolve(value);
      return promise;
    },
  });

  addMissing(Error, {
    isError: (value) => isError(value),
  });

  const hexOf = uncurried(Number.prototype.toString);

  function textOnly(text) {
    if (typeof text !== "string") throw new TypeError(`${show(text)} is no string`);
    return text;
  }

  // RegExp.escape of each character that is not itself, but for those that `\u` escapes.
  const ESCAPED = new Map([
    ...[..."^$\\.*+?()[]{}|/"].map((one) => [one, `\\${one}`]),
    ...Object.entries({ "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r" }),
    ...[..." ,-=<>#&!%:;@~'`\"\u00a0"].map((one) => [one, `\\x${hexOf(one.charCodeAt(0), 16)}`]),
  ]);

  // The escape of a character, or undefined if it stands for itself.
  function escapeOf(text, index) {
    const one = text[index];
    const code = codeAt(one, 0);
    const known = mapGet(ESCAPED, one);
    if (known !== undefined) return known;
    if (code < 0x80) {
      const six = sextet(code);
      return index === 0 && six >= 0 && six < 62 ? `\\x${hexOf(code, 16)}` : undefined;
    }
    const isHalf = code !== REPLACEMENT && pointAt(text, index) === REPLACEMENT;
    return isHalf || trimmed(one) === "" ? `\\u${padded(hexOf(code, 16), 4, "0")}` : undefined;
  }

  addMissing(RegExp, {
    escape(text) {
      textOnly(text);
      const units = new Units();
      for (let index = 0; index < text.length; index++) {
        const escaped = escapeOf(text, index);
        const point = pointAt(text, index);
        if (escaped === undefined) units.addPoint(point);
        else for (let at = 0; at < escaped.length; at++) units.add(codeAt(escaped, at));
        if (point > 0xffff) index++;
      }
      return units.finish();
    },
  });

  // The texts of bytes: `Uint8Array.fromBase64` and its kind.

  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  const ALPHABETS = { __proto__: null, base64: `${DIGITS}+/`, base64url: `${DIGITS}-_` };
  const CHUNKS = { __proto__: null, loose: true, strict: true, "stop-before-partial": true };
  const HEX = "0123456789abcdef";

  function bytesOnly(self) {
    if (!isView(self) || tagOf(self) !== "Uint8Array") throw new TypeError(`${show(self)} is no Uint8Array`);
    return self;
  }

  // An option of these names, and its default.
  function option(options, name, known, usual) {
    if (
      options !== undefined &&
      (options === null || (typeof options !== "object" && typeof options !== "function"))
    ) {
      throw new TypeError(`${show(options)} is no object of options`);
    }
    const value = options?.[name];
    if (value === undefined) return usual;
    if (typeof value !== "string" || known[value] === undefined) {
      throw new TypeError(`${name} is one of ${join(addAll(list(), keys(known)), ", ")}, not ${show(value)}`);
    }
    return value;
  }

  // Throws if the array is no part of its buffer any more.
  const checkBounds = (bytes) => fillIn(bytes, 0, 0, 0);
  const wrongText = (what) => new ParseError(`this is no ${what}`);

  // The number that a digit of an alphabet stands for, or -1.
  function numberOf(alphabet, code) {
    const six = sextet(code);
    if (six >= 0 && six < 62) return six;
    if (code === codeAt(alphabet, 62)) return 62;
    return code === codeAt(alphabet, 63) ? 63 : -1;
  }

  // Writes the bytes of a text in base64. Returns how much of the text they are, how many bytes, and an error
  // after them. https://tc39.es/ecma262/#sec-frombase64
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
    const ended = () => ({ read, written });
    const failed = () => ({ read, written, error: wrongText("text in base64") });
    const put = (count) => {
      for (let byte = 0; byte < count; byte++) bytes[written++] = (chunk >> (16 - 8 * byte)) & 255;
    };
    if (most === 0) return ended();
    for (;;) {
      const one = next();
      if (one === undefined || one === "=") break;
      const digit = numberOf(alphabet, codeAt(one, 0));
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

  // The same of hexadecimal digits.
  function readHex(text, bytes) {
    const failed = (written) => ({
      read: 2 * written,
      written,
      error: wrongText("text in hexadecimal digits"),
    });
    if (text.length % 2 !== 0) return failed(0);
    const count = min(text.length / 2, lengthOf(bytes));
    for (let index = 0; index < count; index++) {
      const high = hexDigit(codeAt(text, 2 * index));
      const low = hexDigit(codeAt(text, 2 * index + 1));
      if (high < 0 || low < 0) return failed(index);
      bytes[index] = 16 * high + low;
    }
    return { read: 2 * count, written: count };
  }

  function outcome({ read, written, error }) {
    if (error !== undefined) throw error;
    return { read, written };
  }

  const alphabetOf = (options) => ALPHABETS[option(options, "alphabet", ALPHABETS, "base64")];
  const handlingOf = (options) => option(options, "lastChunkHandling", CHUNKS, "loose");

  addMissing(Uint8Array, {
    fromBase64(text, options = undefined) {
      // More room than the bytes need.
      const bytes = new Uint8Array(textOnly(text).length + 3);
      const { written } = outcome(readBase64(text, bytes, alphabetOf(options), handlingOf(options)));
      return bytesOf(bytes, 0, written);
    },
    fromHex(text) {
      const bytes = new Uint8Array(textOnly(text).length >> 1);
      outcome(readHex(text, bytes));
      return bytes;
    },
  });

  addMissing(Uint8Array.prototype, {
    setFromBase64(text, options = undefined) {
      const bytes = bytesOnly(this);
      textOnly(text);
      const alphabet = alphabetOf(options);
      const handling = handlingOf(options);
      checkBounds(bytes);
      return outcome(readBase64(text, bytes, alphabet, handling));
    },
    setFromHex(text) {
      const bytes = bytesOnly(this);
      checkBounds(bytes);
      return outcome(readHex(textOnly(text), bytes));
    },
    toBase64(options = undefined) {
      const bytes = bytesOnly(this);
      const alphabet = alphabetOf(options);
      const isPadded = !options?.omitPadding;
      checkBounds(bytes);
      const units = new Units();
      for (let index = 0; index < lengthOf(bytes); index += 3) {
        const size = min(3, lengthOf(bytes) - index);
        const chunk = (bytes[index] << 16) | ((bytes[index + 1] ?? 0) << 8) | (bytes[index + 2] ?? 0);
        for (let digit = 0; digit < 4; digit++) {
          if (digit <= size) units.add(codeAt(alphabet, (chunk >> (18 - 6 * digit)) & 63));
          else if (isPadded) units.add(EQUALS);
        }
      }
      return units.finish();
    },
    toHex() {
      const bytes = bytesOnly(this);
      checkBounds(bytes);
      const units = new Units();
      for (let index = 0; index < lengthOf(bytes); index++) {
        units.add(codeAt(HEX, bytes[index] >> 4));
        units.add(codeAt(HEX, bytes[index] & 15));
      }
      return units.finish();
    },
  });
}
