// The built-in objects and methods as they were before the user's code ran. Functions must run
// whatever a library changes in them later. So names of globals are constants here. No object that
// leads to a batch (`run.js`) has a prototype, or is passed to a method that can be replaced. Code
// that runs after the user's code stores values in lists with an empty prototype, takes methods
// from here, and uses no iterator: no `for`-`of`, no destructuring of arrays, no spread of arrays.

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

// Makes a function of a method: the first argument is the object.
const uncurried = Function.prototype.bind.bind(Function.prototype.call);
const ofTypedArrays = (name) =>
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Int8Array.prototype), name);

// Methods of typed arrays. `slice` and `subarray` are not used: they look up the array's
// constructor, which the user's code can change.
const lengthOf = uncurried(ofTypedArrays("length").get);
const bufferOf = uncurried(ofTypedArrays("buffer").get);
const offsetOf = uncurried(ofTypedArrays("byteOffset").get);
const setIn = uncurried(ofTypedArrays("set").value);
const fillIn = uncurried(ofTypedArrays("fill").value);

// Methods of strings.
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
const eachOfSet = uncurried(Set.prototype.forEach);
const keysOfMap = uncurried(Map.prototype.keys);
const nextOfMap = uncurried(Object.getPrototypeOf(new Map().keys()).next);
const hasOwn = uncurried(Object.prototype.hasOwnProperty);

// Methods of iterators, taken before the user's code can change the prototypes of generators.
const { asyncIterator: ASYNC_ITERATOR, iterator: ITERATOR } = Symbol;
const { prototype: Generator } = Object.getPrototypeOf(function* () {});
const { prototype: AsyncGenerator } = Object.getPrototypeOf(async function* () {});
const { next: nextOfGenerator, return: returnOfGenerator } = Generator;
const { next: nextOfAsync, return: returnOfAsync } = AsyncGenerator;

// A view of the first elements of a typed array of this kind.
function prefix(array, length, Kind) {
  return length === lengthOf(array) ? array : new Kind(bufferOf(array), 0, length);
}

// Copies a part of an array of bytes.
function bytesOf(array, start, end) {
  const copy = new Uint8Array(end - start);
  setIn(copy, new Uint8Array(bufferOf(array), offsetOf(array) + start, end - start));
  return copy;
}

// Arrays with an empty prototype: the usual prototype could have setters for indices. Such an array
// costs half as much as an array whose prototype is removed later.
class List extends Array {
  // In this V8 the default constructor of a class passes its arguments through an iterator.
  constructor(length) {
    if (length === undefined) super();
    else super(length);
  }
}
setPrototypeOf(List.prototype, null);

// A list with room for so many results.
function blank(length) {
  return new List(length);
}

// An empty list. Elements are added by `list[list.length] = value`.
function list() {
  return new List();
}

// Makes a usual array of a list, in place.
function asArray(list) {
  return setPrototypeOf(list, ArrayPrototype);
}

// The results of a function for each element, as a list.
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

// Joins the texts of a list. V8 joins an array with its usual prototype several times faster.
function join(list, separator) {
  return joinList(asArray(list), separator);
}
