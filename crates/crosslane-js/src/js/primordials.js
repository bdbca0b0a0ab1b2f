// The language as it was before the user's code came. What that code changes later concerns this code only where it
// says so: names of globals are constants here, and of the objects that lead to a batch (`run.js`) none has a prototype
// or goes through a method that can be replaced.

const {
  Array,
  ArrayBuffer,
  BigInt,
  BigInt64Array,
  BigUint64Array,
  Date,
  Error,
  Float32Array,
  Float64Array,
  Function,
  Int16Array,
  Int32Array,
  Int8Array,
  Map,
  Number,
  Promise,
  RangeError,
  Set,
  String,
  TypeError,
  Uint16Array,
  Uint32Array,
  Uint8Array,
  WeakMap,
  isFinite,
} = globalThis;
const { apply } = Reflect;
const { entries, keys, setPrototypeOf } = Object;
const { max, min } = Math;

// A method as a function of its object.
const uncurried = Function.prototype.bind.bind(Function.prototype.call);
const ofTypedArrays = (name) =>
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Int8Array.prototype), name);

// Typed arrays. Those that make an array of their own (`slice`, `subarray`) ask the array which, and so the user's code.
const lengthOf = uncurried(ofTypedArrays("length").get);
const bufferOf = uncurried(ofTypedArrays("buffer").get);
const offsetOf = uncurried(ofTypedArrays("byteOffset").get);
const setIn = uncurried(ofTypedArrays("set").value);
const fillIn = uncurried(ofTypedArrays("fill").value);

// A part of a string.
const between = uncurried(String.prototype.substring);

// The first elements of an array of this kind, in place.
function prefix(array, length, Kind) {
  return length === lengthOf(array) ? array : new Kind(bufferOf(array), 0, length);
}

// A copy of a part of an array of bytes.
function bytesOf(array, start, end) {
  const copy = new Uint8Array(end - start);
  setIn(copy, new Uint8Array(bufferOf(array), offsetOf(array) + start, end - start));
  return copy;
}

// An array for as many results. It has no prototype, which could have setters for its indices.
function blank(length) {
  return setPrototypeOf(new Array(length), null);
}
