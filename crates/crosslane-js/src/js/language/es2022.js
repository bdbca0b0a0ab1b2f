// Methods of ECMAScript 2022 and 2023 that V8 10.2 leaves out of an isolate that builds a snapshot.
// By default V8 adds them when an isolate boots from the snapshot, and crashes if a file has frozen
// their object or defined methods of the same name. So V8 must not add them (`FLAGS` in
// `engine.rs`), and this file adds all of them.

const toObject = Object;
const toText = String;
const callOn = Function.prototype.call.bind(Function.prototype.call);
const lengthOfTyped = Function.prototype.call.bind(
  Object.getOwnPropertyDescriptor(AnyArray.prototype, "length").get,
);

function lengthOfList(list) {
  const length = trunc(list.length) || 0;
  return length < 0 ? 0 : length > 2 ** 53 - 1 ? 2 ** 53 - 1 : length;
}

// The index for the argument of `at`, or -1.
function indexAt(index, length) {
  const whole = trunc(index) || 0;
  const found = whole < 0 ? length + whole : whole;
  return found < length ? found : -1;
}

function objectOf(value) {
  if (value === null || value === undefined) throw new TypeError(`${value} is no object`);
  return toObject(value);
}

function lastMatch(list, length, test, self) {
  if (typeof test !== "function") throw new TypeError(`${show(test)} is not a function`);
  for (let index = length - 1; index >= 0; index--) {
    const value = list[index];
    if (callOn(test, self, value, index, list)) return { index, value };
  }
  return { index: -1, value: undefined };
}

addMissing(Array.prototype, {
  at(index) {
    const list = objectOf(this);
    const found = indexAt(index, lengthOfList(list));
    return found < 0 ? undefined : list[found];
  },
  findLast(test, self) {
    const list = objectOf(this);
    return lastMatch(list, lengthOfList(list), test, self).value;
  },
  findLastIndex(test, self) {
    const list = objectOf(this);
    return lastMatch(list, lengthOfList(list), test, self).index;
  },
});

addMissing(AnyArray.prototype, {
  at(index) {
    const found = indexAt(index, lengthOfTyped(this));
    return found < 0 ? undefined : this[found];
  },
  findLast(test, self) {
    return lastMatch(this, lengthOfTyped(this), test, self).value;
  },
  findLastIndex(test, self) {
    return lastMatch(this, lengthOfTyped(this), test, self).index;
  },
});

addMissing(String.prototype, {
  at(index) {
    const text = toText(this ?? objectOf(this));
    const found = indexAt(index, text.length);
    return found < 0 ? undefined : text[found];
  },
});

addMissing(Object, {
  hasOwn(object, key) {
    return hasOwn(objectOf(object), key);
  },
});
