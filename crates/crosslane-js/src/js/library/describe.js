// Describes exceptions for the user.

// The most characters of a message that are shown.
const LEGIBLE = 4000;
const DEEPEST_CAUSE = 5;

function cut(text) {
  return text.length > LEGIBLE ? `${between(text, 0, LEGIBLE)}... (${text.length} characters)` : text;
}

// The class, the message and the stack of a thrown value, without frames of the prelude.
function describe(error) {
  try {
    return addAll(addAll(list(), title(error)), [error instanceof Error ? cut(stackOf(error, 0)) : ""]);
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
  const stack = String(error.stack);
  let frames = "";
  for (let start = 0; start < stack.length; ) {
    const newline = find(stack, "\n", start);
    const end = newline < 0 ? stack.length : newline;
    const line = between(stack, start, end);
    start = end + 1;
    if (executed(/^\s+at /, line) !== null && find(line, "crosslane:") < 0) {
      frames += frames === "" ? line : `\n${line}`;
    }
  }
  const { cause } = error;
  if (cause === undefined || cause === null || depth === DEEPEST_CAUSE) return frames;
  const made = title(cause);
  const below = cause instanceof Error ? stackOf(cause, depth + 1) : "";
  const caused = `${frames === "" ? "" : `${frames}\n`}  caused by ${made[0]}: ${made[1]}`;
  return below === "" ? caused : `${caused}\n${below}`;
}
