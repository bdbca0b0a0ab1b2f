// udf(): what a file declares.

const declared = list();
let loading = true;

const DEFAULTS = {
  __proto__: null,
  nulls: "skip",
  deterministic: true,
  vectorized: false,
  concurrency: 1,
  timeout: null,
  memory_limit: null,
  on_error: "fail",
  retries: 0,
  bigint: false,
  decimal: "text",
  warmup: [],
};

class DeclarationError extends Error {}
defineProperty(DeclarationError.prototype, "name", { __proto__: null, value: "DeclarationError" });

function bytes(size) {
  const parts = typeof size === "string" ? executed(/^\s*([0-9.]+)\s*([A-Za-z]*)\s*$/, size) : null;
  const count = parts === null ? size : Number(parts[1]) * RULES.sizeUnits[upper(parts[2])];
  if (!(typeof count === "number" && count >= 1 && count <= RULES.most.memory_limit))
    throw new DeclarationError(
      `memory_limit is a size such as '500 MB' or '2 GiB', at most 1 PiB, not ${show(size)}`,
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
  const whole = (count, least) => {
    if (!isInteger(options[count]) || options[count] < least || options[count] > RULES.most[count]) {
      throw error(
        `${count} is a whole number from ${least} to ${RULES.most[count]}, not ${show(options[count])}`,
      );
    }
  };
  whole("concurrency", 1);
  whole("retries", 0);
  const { timeout } = options;
  if (timeout !== null && !(typeof timeout === "number" && timeout > 0 && timeout <= RULES.most.timeout)) {
    throw error(
      `timeout is a positive number of seconds, at most ${RULES.most.timeout}, not ${show(timeout)}`,
    );
  }
  if (!isArray(options.warmup) || chosenOf(options.warmup, isArray).length < options.warmup.length) {
    throw error(`warmup is an array of rows, each an array of arguments, not ${show(options.warmup)}`);
  }
  return {
    __proto__: null,
    ...options,
    memory_limit: options.memory_limit === null ? null : bytes(options.memory_limit),
  };
}

// The user's file and line that the current call came from.
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

function udf(signature, ...rest) {
  const f = rest[rest.length - 1];
  const given = (rest.length > 1 ? rest[0] : undefined) ?? {};
  if (!loading) throw new DeclarationError("udf declares functions while their file is loaded, not later");
  if (
    typeof signature !== "string" ||
    typeof f !== "function" ||
    typeof given !== "object" ||
    rest.length > 2
  ) {
    throw new DeclarationError(
      'use udf("name(parameter TYPE) -> TYPE", { options }, function), the options as you need them',
    );
  }
  const names = keys(given);
  for (let i = 0; i < names.length; i++) {
    if (!(names[i] in DEFAULTS)) {
      throw new DeclarationError(
        `there is no option ${show(names[i])}; the options are ${join(keys(DEFAULTS), ", ")}`,
      );
    }
  }
  declared[declared.length] = {
    signature,
    options: checkOptions({ __proto__: null, ...DEFAULTS, ...given }),
    function: f,
    ...caller(),
  };
  return f;
}
defineProperty(globalThis, "udf", { value: udf, writable: true, configurable: true });

function declarations() {
  return stringify(
    mapped(declared, ({ signature, options, file, line, function: f }) => ({
      __proto__: null,
      signature,
      file,
      line,
      calling: options.vectorized ? "vectorized" : f instanceof AsyncFunction ? "async" : "row",
      ...options,
      warmup: undefined,
    })),
  );
}
