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
  const pointAt = uncurried(String.prototype.codePointAt);

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

  // The escape of a character at an index of a text, or undefined if it stands for itself.
  function escapeOf(one, point, index) {
    const known = mapGet(ESCAPED, one);
    if (known !== undefined) return known;
    if (index === 0 && executed(/^[0-9A-Za-z]$/, one) !== null) return `\\x${hexOf(point, 16)}`;
    const isHalf = point >= 0xd800 && point <= 0xdfff;
    return isHalf || trimmed(one) === "" ? `\\u${padded(hexOf(point, 16), 4, "0")}` : undefined;
  }

  addMissing(RegExp, {
    escape(text) {
      textOnly(text);
      let escaped = "";
      for (let index = 0; index < text.length; ) {
        const point = pointAt(text, index);
        const one = part(text, index, index + (point > 0xffff ? 2 : 1));
        escaped += escapeOf(one, point, index) ?? one;
        index += one.length;
      }
      return escaped;
    },
  });

  // The texts of bytes: `Uint8Array.fromBase64` and its kind.

  const CHUNKS = { __proto__: null, loose: true, strict: true, "stop-before-partial": true };

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

  function outcome({ read, written, isWrong }, kind) {
    if (isWrong) throw new ParseError(`this is no text in ${kind}`);
    return { read, written };
  }

  const alphabetOf = (options) => ALPHABETS[option(options, "alphabet", ALPHABETS, "base64")];
  const handlingOf = (options) => option(options, "lastChunkHandling", CHUNKS, "loose");

  addMissing(Uint8Array, {
    fromBase64(text, options = undefined) {
      // More room than the bytes need.
      const bytes = new Uint8Array(textOnly(text).length + 3);
      const done = readBase64(text, bytes, alphabetOf(options), handlingOf(options));
      const { written } = outcome(done, "base64");
      return bytesOf(bytes, 0, written);
    },
    fromHex(text) {
      const bytes = new Uint8Array(textOnly(text).length >> 1);
      outcome(readHex(text, bytes), "hexadecimal digits");
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
      return outcome(readBase64(text, bytes, alphabet, handling), "base64");
    },
    setFromHex(text) {
      const bytes = bytesOnly(this);
      checkBounds(bytes);
      return outcome(readHex(textOnly(text), bytes), "hexadecimal digits");
    },
    toBase64(options = undefined) {
      const bytes = bytesOnly(this);
      const alphabet = alphabetOf(options);
      const isPadded = !options?.omitPadding;
      checkBounds(bytes);
      return base64Of(bytes, alphabet, isPadded);
    },
    toHex() {
      const bytes = bytesOnly(this);
      checkBounds(bytes);
      return hexText(bytes);
    },
  });
}
