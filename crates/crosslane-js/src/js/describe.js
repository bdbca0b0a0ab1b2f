// Exceptions as the host's user should read them.

// The most characters of a message or a stack that anybody reads.
const LEGIBLE = 4000;
const DEEPEST_CAUSE = 5;

function cut(text) {
  return text.length > LEGIBLE ? `${text.slice(0, LEGIBLE)}... (${text.length} characters)` : text;
}

// The class, the message and the stack of what was thrown, without the frames of this code.
function describe(error) {
  try {
    return [...title(error), error instanceof Error ? cut(stackOf(error, 0)) : ""];
  } catch {
    return ["Error", "(what was thrown cannot be shown)", ""];
  }
}

function title(error) {
  if (!(error instanceof Error)) {
    const isObject = typeof error === "object" && error !== null;
    const made = isObject && error.constructor?.name;
    return [made || `thrown ${typeof error}`, show(error)];
  }
  const made = error.constructor?.name;
  const name = error.name && error.name !== "Error" ? error.name : made || "Error";
  return [String(name), cut(String(error.message))];
}

function stackOf(error, depth) {
  const frames = String(error.stack)
    .split("\n")
    .filter((line) => /^\s+at /.test(line) && !line.includes("crosslane:"));
  const { cause } = error;
  if (cause === undefined || cause === null || depth === DEEPEST_CAUSE) return frames.join("\n");
  const [name, message] = title(cause);
  const below = cause instanceof Error ? stackOf(cause, depth + 1) : "";
  return [...frames, `  caused by ${name}: ${message}`, below].join("\n").trimEnd();
}

Error.stackTraceLimit = 20;
