// structuredClone: a deep copy of a value. Shared objects and cycles are preserved.

const objectText = uncurried(Object.prototype.toString);
const sizeOfSet = uncurried(Object.getOwnPropertyDescriptor(Set.prototype, "size").get);
const sourceOf = uncurried(Object.getOwnPropertyDescriptor(RegExp.prototype, "source").get);
const flagsOf = uncurried(Object.getOwnPropertyDescriptor(RegExp.prototype, "flags").get);
const numberOf = uncurried(Number.prototype.valueOf);
const booleanOf = uncurried(Boolean.prototype.valueOf);
const bigIntOf = uncurried(BigInt.prototype.valueOf);
const ownProperty = Object.getOwnPropertyDescriptor;
const boxed = Object;
const { prototype: plain } = Object;
const Pattern = RegExp;
const Bytes = DataView;

const kinds = { __proto__: null, ...globals, Uint8ClampedArray };
const errors = {
  __proto__: null,
  Error,
  EvalError,
  RangeError,
  ReferenceError,
  SyntaxError,
  TypeError,
  URIError,
};

// Like an assignment, but calls no setter of a prototype.
function define(target, key, value, enumerable = true) {
  defineProperty(target, key, { __proto__: null, value, enumerable, writable: true, configurable: true });
}

function uncloneable(value) {
  let text = "an object that cannot be shown";
  try {
    text =
      typeof value === "symbol" ? "a symbol" : typeof value === "function" ? show(value) : objectText(value);
  } catch {}
  return new DOMException(`${text} cannot be cloned`, "DataCloneError");
}

// Objects with internal state that cannot be copied.
const uncloneables = [Promise, WeakMap, WeakSet, WeakRef, URL, URLSearchParams, TextEncoder, TextDecoder].map(
  (Class) => Class.prototype,
);

// Whether a method of a class accepts the object: it is then an object of that class.
const takes = (method) => (value) => {
  try {
    method(value);
    return true;
  } catch {
    return false;
  }
};

// Makes a function that copies a Map, or a Set, whose elements are their own keys.
const clonedParts = (each, Class, add) => (value, seen) => {
  const parts = listed(each, value);
  const copy = new Class();
  mapSet(seen, value, copy);
  for (let index = 0; index < parts.length; index += 2) {
    const key = cloned(parts[index], seen);
    add(copy, key, cloned(parts[index + 1], seen));
  }
  return copy;
};

// The classes of objects with internal state, and how they are copied.
const special = [
  { is: takes(sizeOfMap), copy: clonedParts(eachOfMap, Map, mapSet) },
  { is: takes(sizeOfSet), copy: clonedParts(eachOfSet, Set, setAdd) },
  { is: takes(getTime), copy: clonedDate },
  { is: takes(lengthOfBuffer), copy: clonedBuffer },
  { is: takes(sourceOf), copy: (value) => new Pattern(sourceOf(value), flagsOf(value)) },
  { is: takes(textOf), copy: (value) => boxed(textOf(value)) },
  { is: takes(numberOf), copy: (value) => boxed(numberOf(value)) },
  { is: takes(booleanOf), copy: (value) => boxed(booleanOf(value)) },
  { is: takes(bigIntOf), copy: (value) => boxed(bigIntOf(value)) },
];

function clonedDate(value) {
  const time = getTime(value);
  return isAbove(Timestamp.prototype, value) ? new Timestamp(time, value.nanoseconds) : new Date(time);
}

function clonedBuffer(value) {
  const bytes = new Uint8Array(value);
  const copy = new Uint8Array(lengthOf(bytes));
  setIn(copy, bytes);
  return bufferOf(copy);
}

function clonedView(value, seen) {
  const kind = tagOf(value);
  if (kind === undefined) {
    return new Bytes(cloned(bufferOfView(value), seen), offsetOfView(value), lengthOfView(value));
  }
  return new kinds[kind](cloned(bufferOf(value), seen), offsetOf(value), lengthOf(value));
}

function clonedError(value, seen) {
  const name = `${value.name}`;
  const message = ownProperty(value, "message");
  let copy;
  if (isAbove(DOMException.prototype, value)) {
    copy = new DOMException(message?.value, name);
  } else {
    copy = new (errors[name] ?? Error)();
    if (message !== undefined && "value" in message) define(copy, "message", `${message.value}`, false);
  }
  mapSet(seen, value, copy);
  define(copy, "stack", `${value.stack}`, false);
  const cause = ownProperty(value, "cause");
  if (cause !== undefined && "value" in cause) define(copy, "cause", cloned(cause.value, seen), false);
  return copy;
}

// The parts of a Map or a Set, which may change while they are copied.
function listed(each, value) {
  const parts = blank(0);
  each(value, (content, key) => {
    parts[parts.length] = key;
    parts[parts.length] = content;
  });
  return parts;
}

// The copy of an object that is not plain, or undefined.
function clonedSpecial(value, seen) {
  if (isView(value)) return clonedView(value, seen);
  for (let index = 0; index < uncloneables.length; index++) {
    if (isAbove(uncloneables[index], value)) throw uncloneable(value);
  }
  if (isIntl(value)) throw uncloneable(value);
  if (isAbove(Error.prototype, value)) return clonedError(value, seen);
  const tag = objectText(value);
  if (find(tag, "[object WebAssembly.") === 0) throw uncloneable(value);
  if (tag === "[object Object]") return undefined;
  for (let index = 0; index < special.length; index++) {
    if (special[index].is(value)) return special[index].copy(value, seen);
  }
  return undefined;
}

// The prototypes that copies keep. structuredClone keeps none but the usual one.
const NONE_KEPT = list();
let keptPrototypes = NONE_KEPT;

const isKept = (prototype) => {
  for (let index = 0; index < keptPrototypes.length; index++)
    if (keptPrototypes[index] === prototype) return true;
  return false;
};

function cloned(value, seen) {
  if (typeof value === "symbol" || typeof value === "function") throw uncloneable(value);
  if (typeof value !== "object" || value === null) return value;
  if (mapHas(seen, value)) return mapGet(seen, value);
  const prototype = getPrototypeOf(value);
  const kept = isKept(prototype);
  const simple = isArray(value) || prototype === plain || kept;
  const copied = simple ? undefined : clonedSpecial(value, seen);
  if (copied !== undefined) {
    mapSet(seen, value, copied);
    return copied;
  }
  const copy = isArray(value) ? new Array(value.length) : kept ? setPrototypeOf({}, prototype) : {};
  mapSet(seen, value, copy);
  const names = keys(value);
  for (let index = 0; index < names.length; index++) {
    define(copy, names[index], cloned(value[names[index]], seen));
  }
  return copy;
}

expose("structuredClone", function structuredClone(...given) {
  checkGiven(given.length, "structuredClone");
  const transfer = given.length > 1 ? given[1]?.transfer : undefined;
  if (transfer !== undefined && [...transfer].length > 0) {
    throw new DOMException("nothing can be transferred here: leave `transfer` out", "DataCloneError");
  }
  return cloned(given[0], new Map());
});
