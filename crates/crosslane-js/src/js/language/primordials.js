// The language as it was before the user's code came. What that code changes later concerns this code only where it
// says so: names of globals are constants here, and of the objects that lead to a batch (`run.js`) none has a prototype
// or goes through a method that can be replaced. Functions must run whatever a library has changed. So what is called
// after the user's code has come stores in lists with an empty prototype, takes methods from here, and uses no iterator:
// no `for`-`of`, no destructuring of arrays, no spread of arrays.

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
const { apply, construct } = Reflect;
const { entries, keys, setPrototypeOf } = Object;
const { max, min } = Math;
const ArrayPrototype = Array.prototype;

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

// A part of a string, and what else is done with texts.
const between = uncurried(String.prototype.substring);
const find = uncurried(String.prototype.indexOf);
const upper = uncurried(String.prototype.toUpperCase);
const padded = uncurried(String.prototype.padStart);
const bigText = uncurried(BigInt.prototype.toString);
const executed = uncurried(RegExp.prototype.exec);
const { parseInt } = Number;

const mapHas = uncurried(Map.prototype.has);
const mapGet = uncurried(Map.prototype.get);
const mapSet = uncurried(Map.prototype.set);
const mapDelete = uncurried(Map.prototype.delete);
const mapClear = uncurried(Map.prototype.clear);
const sizeOfMap = uncurried(Object.getOwnPropertyDescriptor(Map.prototype, "size").get);
const eachOfMap = uncurried(Map.prototype.forEach);
const setAdd = uncurried(Set.prototype.add);
const setHas = uncurried(Set.prototype.has);
const eachOfSet = uncurried(Set.prototype.forEach);
const keysOfMap = uncurried(Map.prototype.keys);
const nextOfMap = uncurried(Object.getPrototypeOf(new Map().keys()).next);
const hasOwn = uncurried(Object.prototype.hasOwnProperty);

// What iterates, whatever is done to the prototypes of generators later.
const { asyncIterator: ASYNC_ITERATOR, iterator: ITERATOR } = Symbol;
const { prototype: Generator } = Object.getPrototypeOf(function* () {});
const { prototype: AsyncGenerator } = Object.getPrototypeOf(async function* () {});
const { next: nextOfGenerator, return: returnOfGenerator } = Generator;
const { next: nextOfAsync, return: returnOfAsync } = AsyncGenerator;

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

// Arrays whose prototype is empty: that of all arrays could have setters for their indices. An array that is made like
// this costs half of one that loses its prototype.
class List extends Array {
  // The constructor that a class has by itself passes its arguments by an iterator, in this V8.
  constructor(length) {
    if (length === undefined) super();
    else super(length);
  }
}
setPrototypeOf(List.prototype, null);

// A list for as many results.
function blank(length) {
  return new List(length);
}

// An empty list, to be filled by `list[list.length] = value`.
function list() {
  return new List();
}

// Makes such a list an array like those of the user, in place.
function asArray(list) {
  return setPrototypeOf(list, ArrayPrototype);
}

// What a function gives for each element, as a list.
function mapped(given, f) {
  const made = list();
  for (let i = 0; i < given.length; i++) made[i] = f(given[i], i);
  return made;
}

// The elements for which a function holds, as a list.
function chosenOf(given, holds) {
  const left = list();
  for (let i = 0; i < given.length; i++) if (holds(given[i])) left[left.length] = given[i];
  return left;
}

// Adds the elements of an array to a list.
function addAll(list, added) {
  for (let i = 0; i < added.length; i++) list[list.length] = added[i];
  return list;
}

const joinList = uncurried(ArrayPrototype.join);
const sortIn = uncurried(ArrayPrototype.sort);

// The texts of a list as one. V8 joins an array several times faster if it has its usual prototype.
function join(list, separator) {
  return joinList(asArray(list), separator);
}
