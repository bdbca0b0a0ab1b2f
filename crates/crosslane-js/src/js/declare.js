// udf(): what a file declares.

const declared = [];
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
defineProperty(DeclarationError.prototype, "name", { value: "DeclarationError" });

function bytes(size) {
  const parts = typeof size === "string" ? /^\s*([0-9.]+)\s*([A-Za-z]*)\s*$/.exec(size) : null;
  const count = parts === null ? size : Number(parts[1]) * RULES.sizeUnits[parts[2].toUpperCase()];
  if (!(typeof count === "number" && count >= 1 && count <= RULES.most.memory_limit))
    throw new DeclarationError(
      `memory_limit is a size such as '500 MB' or '2 GiB', at most 1 PiB, not ${show(size)}`,
    );
  return trunc(count);
}

function checkOptions(options) {
  const error = (message) => new DeclarationError(message);
  const one = (name, ...allowed) => {
    if (!allowed.includes(options[name])) {
      throw error(`${name} is ${allowed.map(show).join(" or ")}, not ${show(options[name])}`);
    }
  };
  one("nulls", "skip", "call");
  one("on_error", "fail", "null");
  one("decimal", "text", "bigint");
  for (const flag of ["deterministic", "vectorized", "bigint"]) one(flag, true, false);
  for (const [count, least] of [
    ["concurrency", 1],
    ["retries", 0],
  ]) {
    if (!isInteger(options[count]) || options[count] < least || options[count] > RULES.most[count]) {
      throw error(
        `${count} is a whole number from ${least} to ${RULES.most[count]}, not ${show(options[count])}`,
      );
    }
  }
  const { timeout } = options;
  if (timeout !== null && !(typeof timeout === "number" && timeout > 0 && timeout <= RULES.most.timeout)) {
    throw error(
      `timeout is a positive number of seconds, at most ${RULES.most.timeout}, not ${show(timeout)}`,
    );
  }
  if (!isArray(options.warmup) || !options.warmup.every(isArray)) {
    throw error(`warmup is an array of rows, each an array of arguments, not ${show(options.warmup)}`);
  }
  return { ...options, memory_limit: options.memory_limit === null ? null : bytes(options.memory_limit) };
}

// The user's file and line that the current call came from.
function caller() {
  const before = Error.prepareStackTrace;
  Error.prepareStackTrace = (_, frames) => frames;
  const frames = new Error().stack;
  Error.prepareStackTrace = before;
  const frame = frames.find((frame) => !String(frame.getFileName()).startsWith("crosslane:"));
  return frame ? { file: frame.getFileName(), line: frame.getLineNumber() } : { file: "", line: 0 };
}

function udf(signature, ...rest) {
  const f = rest.pop();
  const given = rest.pop() ?? {};
  if (!loading) throw new DeclarationError("udf declares functions while their file is loaded, not later");
  if (
    typeof signature !== "string" ||
    typeof f !== "function" ||
    typeof given !== "object" ||
    rest.length > 0
  ) {
    throw new DeclarationError(
      'use udf("name(parameter TYPE) -> TYPE", { options }, function), the options as you need them',
    );
  }
  for (const name of Object.keys(given)) {
    if (!(name in DEFAULTS)) {
      throw new DeclarationError(
        `there is no option ${show(name)}; the options are ${Object.keys(DEFAULTS).join(", ")}`,
      );
    }
  }
  declared.push({ signature, options: checkOptions({ ...DEFAULTS, ...given }), function: f, ...caller() });
  return f;
}
defineProperty(globalThis, "udf", { value: udf, writable: true, configurable: true });

function declarations() {
  return stringify(
    declared.map(({ signature, options, file, line, function: f }) => ({
      signature,
      file,
      line,
      calling: options.vectorized ? "vectorized" : f instanceof AsyncFunction ? "async" : "row",
      ...options,
      warmup: undefined,
    })),
  );
}
