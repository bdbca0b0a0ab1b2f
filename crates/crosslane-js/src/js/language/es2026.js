// Methods of ECMAScript 2025 and 2026 that V8 13.6 leaves out of an isolate that builds a snapshot. V8 adds
// some of them when an isolate boots from the snapshot, and crashes if a file has frozen their object or
// defined methods of the same name. So V8 must not add them (`engine.rs`), and this file adds all of them.

const callOn = Function.prototype.call.bind(Function.prototype.call);

{
  const { SyntaxError } = globalThis;

  addMissing(Promise, {
    try(call, ...passed) {
      return new this((resolve) => resolve(apply(call, undefined, passed)));
    },
  });

  addMissing(Error, {
    isError: (value) => isError(value),
  });

  const codeAt = uncurried(String.prototype.charCodeAt);
  const hexOf = uncurried(Number.prototype.toString);

  // RegExp.escape of each character that is not itself, but for those that `\u` escapes.
  const ESCAPED = new Map([
    ...[..."^$\\.*+?()[]{}|/"].map((one) => [one, `\\${one}`]),
    ...Object.entries({ "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r" }),
    ...[..." ,-=<>#&!%:;@~'`\"\u00a0"].map((one) => [one, `\\x${hexOf(codeAt(one, 0), 16)}`]),
  ]);
  const OTHER_SPACE = /^[\s\u2028\u2029]$/;

  addMissing(RegExp, {
    escape(text) {
      if (typeof text !== "string") throw new TypeError(`RegExp.escape takes a string, not ${show(text)}`);
      let escaped = "";
      for (let index = 0; index < text.length; index++) {
        const code = codeAt(text, index);
        const one = text[index];
        const other = code >= 0xdc00 && code <= 0xdfff ? 0 : codeAt(text, index + 1);
        if (code >= 0xd800 && code <= 0xdbff && other >= 0xdc00 && other <= 0xdfff) {
          escaped += one + text[++index];
        } else if (mapHas(ESCAPED, one)) {
          escaped += mapGet(ESCAPED, one);
        } else if (index === 0 && executed(/^[0-9A-Za-z]$/, one) !== null) {
          escaped += `\\x${hexOf(code, 16)}`;
        } else if ((code >= 0xd800 && code <= 0xdfff) || executed(OTHER_SPACE, one) !== null) {
          escaped += `\\u${padded(hexOf(code, 16), 4, "0")}`;
        } else {
          escaped += one;
        }
      }
      return escaped;
    },
  });

  // The texts of bytes: `Uint8Array.fromBase64` and its kind.

  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  const ALPHABETS = { __proto__: null, base64: `${DIGITS}+/`, base64url: `${DIGITS}-_` };
  const CHUNKS = { __proto__: null, loose: true, strict: true, "stop-before-partial": true };
  const HEX = "0123456789abcdef";
  const lower = uncurried(String.prototype.toLowerCase);

  function bytesOnly(self) {
    if (!(self instanceof Uint8Array)) throw new TypeError(`${show(self)} is no Uint8Array`);
    return self;
  }

  function textOnly(text) {
    if (typeof text !== "string") throw new TypeError(`${show(text)} is no string`);
    return text;
  }

  // An option of these names, and its default.
  function option(options, name, known, usual) {
    if (options !== undefined && (options === null || (typeof options !== "object" && typeof options !== "function"))) {
      throw new TypeError(`${show(options)} is no object of options`);
    }
    const value = options?.[name];
    if (value === undefined) return usual;
    if (typeof value !== "string" || known[value] === undefined) {
      throw new TypeError(`${name} is one of ${join(addAll(list(), keys(known)), ", ")}, not ${show(value)}`);
    }
    return value;
  }

  const wrongText = (what) => new SyntaxError(`this is no ${what}`);

  // The bytes of a text in base64, at most so many, and how much of the text they are. An error is noted beside
  // the bytes before it.
  function fromBase64(text, options, most = 2 ** 53 - 1) {
    const alphabet = ALPHABETS[option(options, "alphabet", ALPHABETS, "base64")];
    const handling = option(options, "lastChunkHandling", CHUNKS, "loose");
    const bytes = list();
    let read = 0;
    let chunk = 0;
    let size = 0;
    let index = 0;
    const next = () => {
      while (index < text.length && find("\t\n\f\r ", text[index]) >= 0) index++;
      return text[index];
    };
    const failed = () => ({ bytes, read, error: wrongText("text in base64") });
    const put = (count) => {
      for (let byte = 0; byte < count; byte++) bytes[bytes.length] = (chunk >> (16 - 8 * byte)) & 255;
    };
    if (most === 0) return { bytes, read };
    for (;;) {
      const one = next();
      if (one === undefined || one === "=") break;
      const digit = find(alphabet, one);
      if (digit < 0) return failed();
      // The next digit would make a byte for which there is no room.
      const left = most - bytes.length;
      if ((left === 1 && size === 2) || (left === 2 && size === 3)) return { bytes, read };
      index++;
      chunk |= digit << (18 - 6 * size++);
      if (size === 4) {
        put(3);
        read = index;
        chunk = size = 0;
        if (bytes.length === most) return { bytes, read };
      }
    }
    const isPadded = next() === "=";
    if (isPadded) {
      if (size < 2) return failed();
      index++;
      if (size === 2) {
        if (next() === undefined) return handling === "stop-before-partial" ? { bytes, read } : failed();
        if (next() !== "=") return failed();
        index++;
      }
      if (next() !== undefined) return failed();
    } else {
      if (size === 0) return { bytes, read: text.length };
      if (handling === "stop-before-partial") return { bytes, read };
      if (handling === "strict" || size === 1) return failed();
    }
    // The bits beyond the last byte.
    const rest = chunk & (size === 2 ? 0xffff : 0xff);
    if (handling === "strict" && rest !== 0) return failed();
    put(size - 1);
    return { bytes, read: text.length };
  }

  function fromHex(text, most = 2 ** 53 - 1) {
    const bytes = list();
    let read = 0;
    if (text.length % 2 !== 0) return { bytes, read, error: wrongText("text in hexadecimal digits") };
    for (; read < text.length && bytes.length < most; read += 2) {
      const high = find(HEX, lower(text[read]));
      const low = find(HEX, lower(text[read + 1]));
      if (high < 0 || low < 0) return { bytes, read, error: wrongText("text in hexadecimal digits") };
      bytes[bytes.length] = 16 * high + low;
    }
    return { bytes, read };
  }

  function made({ bytes, error }) {
    if (error !== undefined) throw error;
    const array = new Uint8Array(bytes.length);
    for (let index = 0; index < bytes.length; index++) array[index] = bytes[index];
    return array;
  }

  function written(array, { bytes, read, error }) {
    for (let index = 0; index < bytes.length; index++) array[index] = bytes[index];
    if (error !== undefined) throw error;
    return { read, written: bytes.length };
  }

  addMissing(Uint8Array, {
    fromBase64: (text, options) => made(fromBase64(textOnly(text), options)),
    fromHex: (text) => made(fromHex(textOnly(text))),
  });

  addMissing(Uint8Array.prototype, {
    setFromBase64(text, options) {
      return written(this, fromBase64(textOnly(text), options, lengthOf(bytesOnly(this))));
    },
    setFromHex(text) {
      return written(this, fromHex(textOnly(text), lengthOf(bytesOnly(this))));
    },
    toBase64(options) {
      const bytes = bytesOnly(this);
      const alphabet = ALPHABETS[option(options, "alphabet", ALPHABETS, "base64")];
      const isPadded = !options?.omitPadding;
      let text = "";
      for (let index = 0; index < lengthOf(bytes); index += 3) {
        const size = min(3, lengthOf(bytes) - index);
        const chunk = (bytes[index] << 16) | ((bytes[index + 1] ?? 0) << 8) | (bytes[index + 2] ?? 0);
        for (let digit = 0; digit <= size; digit++) text += alphabet[(chunk >> (18 - 6 * digit)) & 63];
        if (isPadded) text += between("==", 0, 3 - size);
      }
      return text;
    },
    toHex() {
      const bytes = bytesOnly(this);
      let text = "";
      for (let index = 0; index < lengthOf(bytes); index++) text += HEX[bytes[index] >> 4] + HEX[bytes[index] & 15];
      return text;
    },
  });
}
