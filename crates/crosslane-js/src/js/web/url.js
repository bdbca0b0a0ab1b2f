// URL and URLSearchParams. The host parses and changes URLs (`url.rs`): each answer is the list of
// all parts of the URL. It also decodes and encodes the names and values in their queries.

const { iterator } = Symbol;
// The indices of the parts.
const [HREF, ORIGIN, PROTOCOL, USERNAME, PASSWORD, HOST, HOSTNAME, PORT, PATHNAME, SEARCH, HASH] =
  Array(11).keys();
// Memory of the host does not count for the limit, so the length is limited.
const LONGEST_URL = 2 ** 21;

function askHost(operation, first, second) {
  if (first.length > LONGEST_URL || second.length > LONGEST_URL) {
    throw new TypeError(`a URL of more than ${LONGEST_URL} characters`);
  }
  return urlParts(operation, first, second);
}

// Functions with which the two classes use each other's private fields.
let linkedTo;
let readAgain;
let writeSearch;

const encoded = (text) => urlParts("encode", text, "")[0];
const decoded = (text) =>
  find(text, "%") < 0 && find(text, "+") < 0 ? text : urlParts("decode", text, "")[0];

// The name-value pairs of a query. The list has an empty prototype, as `blank` makes it.
function pairsOf(query) {
  const pairs = blank(0);
  const { length } = query;
  let start = 0;
  while (start <= length) {
    let end = find(query, "&", start);
    if (end < 0) end = length;
    if (end > start) {
      const piece = part(query, start, end);
      const equals = find(piece, "=");
      pairs[pairs.length] = {
        __proto__: null,
        name: decoded(equals < 0 ? piece : part(piece, 0, equals)),
        value: equals < 0 ? "" : decoded(part(piece, equals + 1)),
      };
    }
    start = end + 1;
  }
  return pairs;
}

// Whether a pair has this name, and this value if one is given.
function matching(name, value = undefined) {
  const wanted = wellFormed(name);
  const only = value === undefined ? undefined : wellFormed(value);
  return (pair) => pair.name === wanted && (only === undefined || pair.value === only);
}

const withoutMark = (search) => (codeAt(search, 0) === 63 ? part(search, 1) : search);

class URLSearchParams {
  #pairs = blank(0);
  #url;

  static {
    linkedTo = (url, search) => {
      const params = new URLSearchParams();
      params.#url = url;
      params.#pairs = pairsOf(withoutMark(search));
      return params;
    };
    readAgain = (params, search) => {
      params.#pairs = pairsOf(withoutMark(search));
    };
  }

  constructor(init = "") {
    if ((typeof init !== "object" && typeof init !== "function") || init === null) {
      this.#pairs = pairsOf(withoutMark(wellFormed(init)));
    } else if (init[iterator] !== undefined && init[iterator] !== null) {
      for (const given of init) {
        const pair = [...given];
        if (pair.length !== 2) throw new TypeError(`a name and a value are due, not ${show(pair)}`);
        this.#add(pair[0], pair[1]);
      }
    } else {
      const names = keys(init);
      for (let index = 0; index < names.length; index++) this.#add(names[index], init[names[index]]);
    }
  }

  #add(name, value) {
    this.#pairs[this.#pairs.length] = { __proto__: null, name: wellFormed(name), value: wellFormed(value) };
  }

  #changed() {
    if (this.#url !== undefined) writeSearch(this.#url, this.#text());
  }

  #text() {
    const texts = mapped(this.#pairs, ({ name, value }) => `${encoded(name)}=${encoded(value)}`);
    return join(texts, "&");
  }

  get size() {
    return this.#pairs.length;
  }

  append(name, value) {
    this.#add(name, value);
    this.#changed();
  }

  delete(name, value = undefined) {
    const matches = matching(name, value);
    this.#pairs = chosenOf(this.#pairs, (pair) => !matches(pair));
    this.#changed();
  }

  get(name) {
    return chosenOf(this.#pairs, matching(name))[0]?.value ?? null;
  }

  getAll(name) {
    return asArray(mapped(chosenOf(this.#pairs, matching(name)), ({ value }) => value));
  }

  has(name, value = undefined) {
    return chosenOf(this.#pairs, matching(name, value)).length > 0;
  }

  set(name, value) {
    const wanted = wellFormed(name);
    const text = wellFormed(value);
    const matches = matching(wanted);
    const first = chosenOf(this.#pairs, matches)[0];
    if (first === undefined) {
      this.#add(wanted, text);
    } else {
      first.value = text;
      this.#pairs = chosenOf(this.#pairs, (pair) => pair === first || !matches(pair));
    }
    this.#changed();
  }

  sort() {
    sortIn(this.#pairs, (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
    this.#changed();
  }

  forEach(call, self = undefined) {
    if (typeof call !== "function") throw new TypeError(`forEach calls a function, not ${show(call)}`);
    for (let index = 0; index < this.#pairs.length; index++) {
      const pair = this.#pairs[index];
      apply(call, self, [pair.value, pair.name, this]);
    }
  }

  *entries() {
    for (let index = 0; index < this.#pairs.length; index++) {
      yield [this.#pairs[index].name, this.#pairs[index].value];
    }
  }

  *keys() {
    for (let index = 0; index < this.#pairs.length; index++) yield this.#pairs[index].name;
  }

  *values() {
    for (let index = 0; index < this.#pairs.length; index++) yield this.#pairs[index].value;
  }

  toString() {
    return this.#text();
  }
}
defineProperty(URLSearchParams.prototype, iterator, {
  __proto__: null,
  value: URLSearchParams.prototype.entries,
  writable: true,
  configurable: true,
});
tagged(URLSearchParams, "URLSearchParams");

class URL {
  #parts;
  #params;

  static {
    writeSearch = (url, search) => {
      url.#parts = askHost("search", url.#parts[HREF], search) ?? url.#parts;
    };
    for (const [name, place] of Object.entries({
      protocol: PROTOCOL,
      username: USERNAME,
      password: PASSWORD,
      host: HOST,
      hostname: HOSTNAME,
      port: PORT,
      pathname: PATHNAME,
      hash: HASH,
    })) {
      const { get, set } = Object.getOwnPropertyDescriptor(
        {
          get [name]() {
            return this.#parts[place];
          },
          set [name](value) {
            this.#set(name, value);
          },
        },
        name,
      );
      defineProperty(URL.prototype, name, { __proto__: null, get, set, configurable: true });
    }
  }

  static canParse(url, base = undefined) {
    return parsed(url, base) !== undefined;
  }

  constructor(url, base = undefined) {
    this.#parts = parsed(url, base);
    if (this.#parts === undefined) {
      const beside = base === undefined ? "" : `, as seen from ${show(`${base}`)}`;
      throw new TypeError(`Invalid URL: ${show(`${url}`)}${beside}`);
    }
  }

  // An invalid value leaves the URL as it is.
  #set(operation, value) {
    this.#parts = askHost(operation, this.#parts[HREF], wellFormed(value)) ?? this.#parts;
  }

  get searchParams() {
    this.#params ??= linkedTo(this, this.#parts[SEARCH]);
    return this.#params;
  }

  get href() {
    return this.#parts[HREF];
  }

  set href(value) {
    const parts = parsed(value, undefined);
    if (parts === undefined) throw new TypeError(`Invalid URL: ${show(`${value}`)}`);
    this.#parts = parts;
    if (this.#params !== undefined) readAgain(this.#params, parts[SEARCH]);
  }

  get origin() {
    return this.#parts[ORIGIN];
  }

  get search() {
    return this.#parts[SEARCH];
  }

  set search(value) {
    this.#set("search", value);
    if (this.#params !== undefined) readAgain(this.#params, this.#parts[SEARCH]);
  }

  toString() {
    return this.#parts[HREF];
  }

  toJSON() {
    return this.#parts[HREF];
  }
}
tagged(URL, "URL");

function parsed(url, base) {
  return base === undefined
    ? askHost("parse", wellFormed(url), "")
    : askHost("join", wellFormed(url), wellFormed(base));
}
