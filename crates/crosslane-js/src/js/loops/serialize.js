// Values as text, from one isolate to another of the same library: the partitions of a table, the
// states of an aggregate. Shared objects and cycles are preserved. Values that JSON has are written
// as they are. All others are arrays that begin with their kind.

// The kinds of values that JSON lacks.
const [UNDEFINED, BIG, ODD, ARRAY, OBJECT, MAP, SET, DATE, VIEW, BUFFER, SEEN, NEGATIVE] = Array(12).keys();

function notSerializable(value) {
  let text = "an object that cannot be shown";
  try {
    text = show(value);
  } catch {}
  return new DOMException(
    `${text} cannot be sent to another worker: what is sent is made of plain objects, arrays, Maps, Sets, Dates, bytes, texts and numbers`,
    "DataCloneError",
  );
}

// A list, because `stringify` calls `toJSON` of usual arrays.
function partOf(kind, content) {
  const part = list();
  part[0] = kind;
  if (content !== undefined) part[1] = content;
  return part;
}

// Converts a value to one that JSON has. `seen` has the numbers of the objects so far. `classes`
// has the prototypes that objects may have besides `Object.prototype`, with null among them.
function serializedPart(value, seen, classes) {
  switch (typeof value) {
    case "string":
    case "boolean":
      return value;
    case "number":
      // JSON lacks NaN, infinities and negative zero.
      return value - value === 0 && !(value === 0 && 1 / value < 0)
        ? value
        : partOf(ODD, value === 0 ? "-0" : `${value}`);
    case "undefined":
      return partOf(UNDEFINED);
    case "bigint":
      // The digits are hexadecimal, because V8's time for decimal digits grows faster than their
      // number.
      return value < 0n ? partOf(NEGATIVE, bigText(-value, 16)) : partOf(BIG, bigText(value, 16));
    case "object":
      break;
    default:
      throw notSerializable(value);
  }
  if (value === null) return null;
  const known = mapGet(seen, value);
  if (known !== undefined) return partOf(SEEN, known);
  mapSet(seen, value, sizeOfMap(seen));
  const made = list();
  const add = (part) => {
    made[made.length] = serializedPart(part, seen, classes);
  };
  if (isArray(value)) {
    made[0] = ARRAY;
    for (let i = 0; i < value.length; i++) add(value[i]);
    return made;
  }
  const prototype = getPrototypeOf(value);
  let place = prototype === plain ? 0 : -1;
  for (let i = 0; place < 0 && i < classes.length; i++) if (classes[i] === prototype) place = i + 1;
  if (place >= 0) {
    made[0] = OBJECT;
    made[1] = place;
    const names = keys(value);
    for (let i = 0; i < names.length; i++) {
      made[made.length] = names[i];
      add(value[names[i]]);
    }
    return made;
  }
  if (prototype === Map.prototype || prototype === Set.prototype) {
    const isMap = prototype === Map.prototype;
    made[0] = isMap ? MAP : SET;
    const parts = listed(isMap ? eachOfMap : eachOfSet, value);
    for (let i = 0; i < parts.length; i += isMap ? 1 : 2) add(parts[i]);
    return made;
  }
  if (prototype === Date.prototype || prototype === Timestamp.prototype) {
    made[0] = DATE;
    add(getTime(value));
    if (prototype === Timestamp.prototype) add(value.nanoseconds);
    return made;
  }
  if (value instanceof AnyArray) {
    made[0] = VIEW;
    made[1] = tagOf(value);
    add(bufferOf(value));
    made[3] = offsetOf(value);
    made[4] = lengthOf(value);
    return made;
  }
  if (prototype === ArrayBuffer.prototype) return partOf(BUFFER, hexText(new Uint8Array(value)));
  throw notSerializable(value);
}

function deserializedPart(part, seen, classes) {
  if (typeof part !== "object" || part === null) return part;
  const kind = part[0];
  if (kind === UNDEFINED) return undefined;
  if (kind === BIG) return BigInt(`0x${part[1]}`);
  if (kind === NEGATIVE) return -BigInt(`0x${part[1]}`);
  if (kind === ODD) return Number(part[1]);
  if (kind === SEEN) return seen[part[1]];
  const number = seen.length;
  const note = (made) => {
    seen[number] = made;
    return made;
  };
  const at = (index) => deserializedPart(part[index], seen, classes);
  note(undefined);
  switch (kind) {
    case ARRAY: {
      const made = note(list());
      for (let i = 1; i < part.length; i++) made[i - 1] = at(i);
      return asArray(made);
    }
    case OBJECT: {
      const made = note(part[1] === 0 ? {} : setPrototypeOf({}, classes[part[1] - 1]));
      for (let i = 2; i < part.length; i += 2) define(made, part[i], at(i + 1));
      return made;
    }
    case MAP: {
      const made = note(new Map());
      for (let i = 1; i < part.length; i += 2) {
        const key = at(i);
        mapSet(made, key, at(i + 1));
      }
      return made;
    }
    case SET: {
      const made = note(new Set());
      for (let i = 1; i < part.length; i++) setAdd(made, at(i));
      return made;
    }
    case DATE:
      return note(part.length > 2 ? new Timestamp(at(1), at(2)) : new Date(at(1)));
    case VIEW:
      return note(new kinds[part[1]](at(2), part[3], part[4]));
    default: {
      const bytes = new Uint8Array(part[1].length >> 1);
      readHex(part[1], bytes);
      return note(bufferOf(bytes));
    }
  }
}

const NO_CLASSES = addAll(list(), [null]);

function serialized(value, classes = NO_CLASSES) {
  return stringify(serializedPart(value, new Map(), classes));
}

function deserialized(text, classes = NO_CLASSES) {
  return deserializedPart(parse(text), list(), classes);
}
