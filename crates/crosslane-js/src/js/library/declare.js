// `udf`, `udtf` and `udaf`: a file declares its functions with them.

const declared = list();
let loading = true;

const ANY_KIND = {
  __proto__: null,
  nulls: "skip",
  deterministic: true,
  vectorized: false,
  timeout: null,
  memory_limit: null,
  on_error: "fail",
  retries: 0,
  bigint: false,
  decimal: "text",
  warmup: [],
};

// The global that declares each kind of function, and the options of the kind.
const KINDS = {
  __proto__: null,
  scalar: {
    __proto__: null,
    declares: "udf",
    options: {
      __proto__: null,
      ...ANY_KIND,
      concurrency: 1,
      overload: false,
      memoize: null,
      rate: null,
      budget: null,
      batch: null,
      workers: null,
      cache: null,
      ttl: null,
    },
    usage: 'use udf("name(parameter TYPE) -> TYPE", { options }, function), the options as you need them',
  },
  table: {
    __proto__: null,
    declares: "udtf",
    options: { __proto__: null, ...ANY_KIND, partitions: null, projection: false, cardinality: null },
    usage:
      'use udtf("name(parameter TYPE) -> TABLE(column TYPE)", { options }, function*), the options as you need them',
  },
};

KINDS.aggregate = {
  __proto__: null,
  declares: "udaf",
  options: { __proto__: null, ...ANY_KIND, classes: [] },
  usage:
    'use udaf("name(parameter TYPE) -> TYPE", { options }, class), with a class or an object of the methods',
};

class DeclarationError extends Error {}
defineProperty(DeclarationError.prototype, "name", { __proto__: null, value: "DeclarationError" });

// The file of kept results, as the engine is told: the user's cache is "". A path would let a function
// make files.
function cacheFile({ cache = null }) {
  if (cache === null || cache === false) return null;
  if (cache === true) return "";
  throw new DeclarationError(
    `cache is true for a file in the user's cache, not ${show(cache)}: JavaScript has no files`,
  );
}

// The bytes of an option's size.
function bytes(options, name) {
  const { [name]: size = null } = options;
  if (size === null) return null;
  const parts = typeof size === "string" ? executed(/^\s*([0-9.]+)\s*([A-Za-z]*)\s*$/, size) : null;
  const count = parts === null ? size : Number(parts[1]) * RULES.sizeUnits[upper(parts[2])];
  if (!(typeof count === "number" && count >= 1 && count <= RULES.most.memory_limit))
    throw new DeclarationError(
      `${name} is a size such as '500 MB' or '2 GiB', at most 1 PiB, not ${show(size)}`,
    );
  return trunc(count);
}

function checkOptions(options) {
  const error = (message) => new DeclarationError(message);
  const one = (name, first, second) => {
    const given = options[name];
    if (given !== first && given !== second) {
      throw error(`${name} is ${show(first)} or ${show(second)}, not ${show(given)}`);
    }
  };
  one("nulls", "skip", "call");
  one("on_error", "fail", "null");
  one("decimal", "text", "bigint");
  one("deterministic", true, false);
  one("vectorized", true, false);
  one("bigint", true, false);
  if ("projection" in options) one("projection", true, false);
  if ("overload" in options) one("overload", true, false);
  const whole = (count, least) => {
    if (!isInteger(options[count]) || options[count] < least || options[count] > RULES.most[count]) {
      throw error(
        `${count} is a whole number from ${least} to ${RULES.most[count]}, not ${show(options[count])}`,
      );
    }
  };
  if ("concurrency" in options) whole("concurrency", 1);
  if ((options.budget ?? null) !== null) whole("budget", 1);
  if ((options.batch ?? null) !== null) whole("batch", 1);
  if ((options.workers ?? null) !== null) whole("workers", 1);
  whole("retries", 0);
  const seconds = (name) => {
    const { [name]: time = null } = options;
    if (time !== null && !(typeof time === "number" && time > 0 && time <= RULES.most.timeout)) {
      throw error(
        `${name} is a positive number of seconds, at most ${RULES.most.timeout}, not ${show(time)}`,
      );
    }
  };
  seconds("timeout");
  seconds("ttl");
  const { rate = null } = options;
  if (rate !== null && typeof rate !== "string")
    throw error(`rate is a text such as '50/s', not ${show(rate)}`);
  const { cardinality = null, partitions = null } = options;
  if (cardinality !== null && !(isSafeInteger(cardinality) && cardinality >= 0)) {
    throw error(`cardinality is a whole number of rows, not ${show(cardinality)}`);
  }
  if (partitions !== null && typeof partitions !== "function") {
    throw error(`partitions is a function that returns a list of partitions, not ${show(partitions)}`);
  }
  const { classes = [] } = options;
  if (!isArray(classes) || chosenOf(classes, (made) => typeof made === "function").length < classes.length) {
    throw error(`classes is an array of the classes that states are made of, not ${show(classes)}`);
  }
  if (!isArray(options.warmup) || chosenOf(options.warmup, isArray).length < options.warmup.length) {
    throw error(`warmup is an array of rows, each an array of arguments, not ${show(options.warmup)}`);
  }
  return {
    __proto__: null,
    ...options,
    memory_limit: bytes(options, "memory_limit"),
    memoize: bytes(options, "memoize"),
    cache: cacheFile(options),
  };
}

// The file and line of the user's code that made the current call.
function caller() {
  const before = Error.prepareStackTrace;
  Error.prepareStackTrace = (_, frames) => frames;
  const frames = new Error().stack;
  Error.prepareStackTrace = before;
  for (let i = 0; i < frames.length; i++) {
    const frame = frames[i];
    if (find(String(frame.getFileName()), "crosslane:") !== 0) {
      return { file: frame.getFileName(), line: frame.getLineNumber() };
    }
  }
  return { file: "", line: 0 };
}

// Checks the given options of a kind, and adds the defaults.
function optionsOf(kind, given) {
  const { declares, options } = KINDS[kind];
  const names = keys(given);
  for (let i = 0; i < names.length; i++) {
    const name = names[i];
    if (name in options) continue;
    const others = chosenOf(keys(KINDS), (other) => name in KINDS[other].options);
    throw new DeclarationError(
      others.length > 0
        ? `${name} is an option of ${KINDS[others[0]].declares}, and not of ${declares}`
        : `there is no option ${show(name)}; the options are ${join(keys(options), ", ")}`,
    );
  }
  return checkOptions({ __proto__: null, ...options, ...given });
}

// Throws if an aggregate lacks a method, or if its states cannot be copied or sent to other
// workers.
function checkAggregate(made, { classes }) {
  const isClass = typeof made === "function";
  const name = (isClass && made.name) || "the aggregate";
  const methods = isClass ? made.prototype : made;
  const needed = isClass ? ["update", "merge", "finish"] : ["start", "update", "merge", "finish"];
  for (let i = 0; i < needed.length; i++) {
    const method = methodOf(methods, needed[i]);
    if (method === undefined) {
      throw new DeclarationError(
        `${name} has no method ${needed[i]}: an aggregate has ${join(mapped(needed, String), ", ")}`,
      );
    }
    if (method instanceof AsyncFunction) {
      throw new DeclarationError(`${name}: ${needed[i]} is async, and an aggregate waits for no promise`);
    }
  }
  const all = addAll(addAll(list(), isClass ? [made] : []), classes);
  for (let i = 0; i < all.length; i++) {
    for (let one = all[i]; typeof one === "function"; one = getPrototypeOf(one)) {
      const found = executed(/[.]\s*(#[\p{ID_Start}$_][\p{ID_Continue}$]*)/u, sourceOfFunction(one));
      if (found !== null) {
        throw new DeclarationError(
          `${one.name} has private fields (${found[1]}), which copies of a state and what is sent to other workers have not: use properties without #`,
        );
      }
    }
  }
  const state = isClass ? construct(made, []) : made.start();
  if (state === undefined) throw new DeclarationError(`${name}: start gives undefined, which is no state`);
  try {
    serialized(state, prototypesOf(made, classes));
  } catch (error) {
    throw new DeclarationError(
      `${name}: in a new state, ${error.message}; the option classes names the classes of objects in it`,
    );
  }
}

function declare(kind, signature, rest) {
  const f = rest[rest.length - 1];
  const given = (rest.length > 1 ? rest[0] : undefined) ?? {};
  const { declares, usage } = KINDS[kind];
  if (!loading) {
    throw new DeclarationError(`${declares} declares functions while their file is loaded, not later`);
  }
  if (
    typeof signature !== "string" ||
    (typeof f !== "function" && !(kind === "aggregate" && typeof f === "object" && f !== null)) ||
    typeof given !== "object" ||
    rest.length > 2
  ) {
    throw new DeclarationError(usage);
  }
  const options = optionsOf(kind, given);
  const called = kind === "aggregate" ? undefined : calledOf(f);
  const stateful = called !== undefined;
  if (kind === "aggregate") checkAggregate(f, options);
  else checkStateful(f, stateful);
  declared[declared.length] = {
    __proto__: null,
    kind,
    signature,
    options,
    function: f,
    stateful,
    asynchronous: (called ?? f) instanceof AsyncFunction,
    // The set-up of a stateful function makes this.
    instance: undefined,
    ...caller(),
  };
  return f;
}

for (const kind of keys(KINDS)) {
  const { declares } = KINDS[kind];
  const { [declares]: value } = { [declares]: (signature, ...rest) => declare(kind, signature, rest) };
  defineProperty(globalThis, declares, { value, writable: true, configurable: true });
}

function declarations() {
  return stringify(
    mapped(declared, ({ kind, signature, options, file, line, function: f, stateful, asynchronous }) => ({
      __proto__: null,
      kind,
      signature,
      file,
      line,
      calling: options.vectorized ? "vectorized" : kind === "scalar" && asynchronous ? "async" : "row",
      ...options,
      // The parameters from this position on have a default.
      required: kind === "table" ? f.length - (options.partitions === null ? 0 : 1) : undefined,
      partitions: kind === "table" ? options.partitions !== null : undefined,
      set_up: stateful,
      warmup: undefined,
      classes: undefined,
    })),
  );
}
