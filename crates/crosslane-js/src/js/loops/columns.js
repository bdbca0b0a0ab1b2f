// Makes the source of code that reads and writes columns: one expression per type, so that V8
// compiles plain loops over typed arrays.
//
// A reader takes its buffers from the array `b` in Arrow's order: the validity (undefined if there
// is no NULL), then those of the type, then those of the children. Long strings come as an Array.
// Short strings come as one string and offsets: to take a substring costs V8 half as much as to
// pass a string.

// The typed arrays of the types whose values need no conversion.
const PLAIN = {
  __proto__: null,
  TINYINT: "Int8Array",
  SMALLINT: "Int16Array",
  INTEGER: "Int32Array",
  UTINYINT: "Uint8Array",
  USMALLINT: "Uint16Array",
  UINTEGER: "Uint32Array",
  FLOAT: "Float32Array",
  DOUBLE: "Float64Array",
};
const codes = (type) => ["", "Uint8Array", "Uint16Array", "", "Uint32Array"][type.width];
const WIDE = { __proto__: null, BIGINT: "BigInt64Array", UBIGINT: "BigUint64Array" };

// Collects the source of one function's code, and the constants that it uses.
class Source {
  constructor(options) {
    this.options = options;
    this.lines = list();
    this.constants = list();
    this.buffers = 0;
    this.names = 0;
    // For a writer: the code that reduces written columns to fewer rows, and the sizes of buffers
    // that grow with the values.
    this.backs = list();
    this.sizes = list();
  }
  id() {
    return this.names++;
  }
  buffer() {
    return `b[${this.buffers++}]`;
  }
  add(line) {
    this.lines[this.lines.length] = line;
  }
  back(line) {
    this.backs[this.backs.length] = line;
  }
  size(expression) {
    this.sizes[this.sizes.length] = expression;
  }
  constant(value) {
    this.constants[this.constants.length] = value;
    return `constants[${this.constants.length - 1}]`;
  }
}

// Adds the code that reads a column. Returns the sources of two expressions of a row's index:
// whether the row is not NULL, and its value if so.
function reader(type, source) {
  const id = source.id();
  const name = stringify(type.name);
  const at = source.buffer();
  source.add(`const v${id} = ${at} && new Uint8Array(${at});`);
  const valid = (i) => `(v${id} === undefined || (v${id}[${i} >> 3] >> (${i} & 7) & 1) === 1)`;
  const view = (kind, letter = "d") => source.add(`const ${letter}${id} = new ${kind}(${source.buffer()});`);
  const offsets = () => view("Int32Array", "o");
  const nullable = (child) => (i) => `(${child.valid(i)} ? ${child.value(i)} : null)`;
  const words = (call) => {
    view("Int32Array");
    return (i) => `${call}(d${id}[2 * ${i}], d${id}[2 * ${i} + 1]`;
  };
  let value;
  switch (type.kind) {
    case "BOOLEAN":
      view("Uint8Array");
      value = (i) => `((d${id}[${i} >> 3] >> (${i} & 7) & 1) === 1)`;
      break;
    case "BIGINT":
    case "UBIGINT": {
      const signed = type.kind === "BIGINT";
      if (source.options.bigint && !type.isNumber) {
        view(signed ? "BigInt64Array" : "BigUint64Array");
        value = (i) => `d${id}[${i}]`;
      } else {
        // Small integers stay small integers, which V8 compiles best.
        view("Int32Array");
        const low = (i) => `d${id}[2 * ${i}]`;
        const high = (i) => `d${id}[2 * ${i} + 1]`;
        value = signed
          ? (i) => `(${high(i)} === ${low(i)} >> 31 ? ${low(i)} : wide(${low(i)}, ${high(i)}, ${name}))`
          : (i) =>
              `(${high(i)} === 0 && ${low(i)} >= 0 ? ${low(i)} : wideUnsigned(${low(i)}, ${high(i)}, ${name}))`;
      }
      break;
    }
    case "HUGEINT":
    case "UHUGEINT":
    case "DECIMAL": {
      view("BigUint64Array");
      const bits = type.kind === "UHUGEINT" ? "asUintN" : "asIntN";
      const whole = (i) => `${bits}(128, d${id}[2 * ${i} + 1] << 64n | d${id}[2 * ${i}])`;
      const text = type.kind === "DECIMAL" && source.options.decimal !== "bigint";
      value = text ? (i) => `decimalText(${whole(i)}, ${type.scale})` : whole;
      break;
    }
    case "VARCHAR":
    case "BIT":
    case "JSON": {
      const made = source.buffer();
      const whole = source.buffer();
      const ends = source.buffer();
      source.add(`const d${id} = ${made}, t${id} = ${whole}, o${id} = ${ends} && new Int32Array(${ends});`);
      const text = (i) =>
        `(d${id} !== undefined && d${id}[${i}] !== undefined ? d${id}[${i}]
          : t${id} === undefined ? tooLong() : between(t${id}, o${id}[${i}], o${id}[${i} + 1]))`;
      value = type.kind === "JSON" ? (i) => `parseJson(${text(i)})` : (i) => text(i);
      break;
    }
    case "BIGNUM":
      offsets();
      view("Uint8Array");
      value = (i) => `bigOf(d${id}, o${id}[${i}], o${id}[${i} + 1])`;
      break;
    case "BLOB":
    case "GEOMETRY":
      offsets();
      view("Uint8Array");
      // A copy, because the function may keep it.
      value = (i) => `bytesOf(d${id}, o${id}[${i}], o${id}[${i} + 1])`;
      break;
    case "DATE":
      view("Int32Array");
      value = (i) => `dayOf(d${id}[${i}])`;
      break;
    case "TIME":
    case "TIME_NS": {
      const call = words("timeText");
      value = (i) => `${call(i)}, ${DIGITS[type.kind]})`;
      break;
    }
    case "TIMETZ": {
      const call = words("zonedTimeText");
      value = (i) => `${call(i)})`;
      break;
    }
    case "TIMESTAMP_S":
    case "TIMESTAMP_MS":
    case "TIMESTAMP":
    case "TIMESTAMPTZ":
    case "TIMESTAMP_NS": {
      const call = words("timestamp");
      value = (i) => `${call(i)}, ${PER_MILLISECOND[type.kind]}, ${name})`;
      break;
    }
    case "INTERVAL":
      view("Int32Array");
      value = (i) => {
        const part = (part) => `d${id}[4 * ${i} + ${part}]`;
        return `interval(${part(0)}, ${part(1)}, ${part(2)}, ${part(3)})`;
      };
      break;
    case "UUID":
      view("Uint8Array");
      value = (i) => `uuidText(d${id}, 16 * ${i})`;
      break;
    case "ENUM": {
      view(codes(type));
      const names = source.constant(type.values);
      value = (i) => `${names}[d${id}[${i}]]`;
      break;
    }
    case "LIST":
    case "ARRAY":
    case "MAP": {
      const fixed = type.kind === "ARRAY";
      if (!fixed) offsets();
      const child = reader(type.child, source);
      const first = fixed ? `i * ${type.length}` : `o${id}[i]`;
      const end = fixed ? `start + ${type.length}` : `o${id}[i + 1]`;
      let body;
      if (type.kind === "MAP") {
        body = `const r = new Map(); for (let j = start; j < end; j++) { const e = ${child.value("j")}; mapSet(r, e.key, e.value); } return r;`;
      } else {
        // An assignment to an element of an array may call a setter of its prototype; an array
        // literal does not. Short lists are literals only, because to set the prototype costs more
        // than to make the array.
        source.add(`function e${id}(j) { return ${nullable(child)("j")}; }`);
        body = `switch (end - start) {
          case 0: return [];
          case 1: return [e${id}(start)];
          case 2: return [e${id}(start), e${id}(start + 1)];
          case 3: return [e${id}(start), e${id}(start + 1), e${id}(start + 2)];
          case 4: return [e${id}(start), e${id}(start + 1), e${id}(start + 2), e${id}(start + 3)];
        }
        const r = list(); for (let j = start; j < end; j++) r[j - start] = e${id}(j); return asArray(r);`;
      }
      source.add(`function r${id}(i) { const start = ${first}, end = ${end}; ${body} }`);
      value = (i) => `r${id}(${i})`;
      break;
    }
    case "STRUCT": {
      const fields = mapped(type.fields, (field) =>
        property(field.name, nullable(reader(field.type, source))("i")),
      );
      source.add(`function r${id}(i) { return {${join(fields, ", ")}}; }`);
      value = (i) => `r${id}(${i})`;
      break;
    }
    case "UNION": {
      const cases = mapped(type.fields, (field, at) => {
        const member = reader(field.type, source);
        if (at === 0) return `switch (${member.value("i")}) {`;
        const name = stringify(field.name);
        return `case ${name}: return { tag: ${name}, value: ${nullable(member)("i")} };`;
      });
      source.add(`function r${id}(i) { ${join(cases, " ")} } }`);
      value = (i) => `r${id}(${i})`;
      break;
    }
    default:
      view(PLAIN[type.kind]);
      value = (i) => `d${id}[${i}]`;
  }
  return { valid, value, validity: `v${id}`, view: `d${id}`, array: PLAIN[type.kind] ?? WIDE[type.kind] };
}

// The source of a property in an object literal. `["__proto__"]` is a usual property.
const property = (name, value) => `${name === "__proto__" ? '["__proto__"]' : stringify(name)}: ${value}`;

// ---- writing

// Sets row `i` to NULL in a validity bitmap, which grows if needed.
function without(valid, i) {
  const index = i >> 3;
  if (valid === undefined || index >= lengthOf(valid)) {
    const larger = fillIn(new Uint8Array(max(256, 2 * (index + 1))), 255);
    if (valid !== undefined) setIn(larger, valid);
    valid = larger;
  }
  valid[index] &= ~(1 << (i & 7));
  return valid;
}

// Sets all rows from this one on to not NULL. Returns how many rows before it are NULL.
function validityFor(valid, rows) {
  if (valid === undefined) return 0;
  let nulls = 0;
  for (let index = 0; index < lengthOf(valid); index++) {
    const left = rows - 8 * index;
    if (left < 8) valid[index] |= left > 0 ? 0xff << left : 0xff;
    for (let bits = ~valid[index] & 0xff; bits !== 0; bits &= bits - 1) nulls++;
  }
  return nulls;
}

// Sets all bits from this one on to 0.
function cleared(bits, from) {
  const first = from >> 3;
  if (first >= lengthOf(bits)) return;
  bits[first] &= (1 << (from & 7)) - 1;
  fillIn(bits, 0, first + 1);
}

function grown(array, length, Kind) {
  if (length <= lengthOf(array)) return array;
  const larger = new Kind(max(length, 2 * lengthOf(array)));
  setIn(larger, array);
  return larger;
}

const MOST_BYTES = RULES.mostBytes;

function checkTotal(total) {
  if (total > MOST_BYTES) throw new RangeError(RULES.tooMuch);
  return total;
}

// The bitmap for `rows` rows, or undefined if none is NULL.
function bitmap(valid, nulls, rows) {
  if (nulls === 0) return undefined;
  const bytes = (rows + 7) >> 3;
  if (lengthOf(valid) < bytes) {
    const full = fillIn(new Uint8Array(bytes), 255);
    setIn(full, valid);
    return full;
  }
  return prefix(valid, bytes, Uint8Array);
}

// The longest string that parts of a column are joined to.
const PIECE = 1 << 28;

// Joins strings, in as few pieces as V8's longest string allows. The number of pieces comes first.
function pieces(strings, offsets) {
  if (offsets[strings.length] <= PIECE) return [1, join(strings, "")];
  const joined = list();
  joined[0] = 0;
  let part = list();
  for (let index = 1; index <= strings.length; index++) {
    part[part.length] = strings[index - 1];
    if (index === strings.length || offsets[index + 1] - offsets[index - part.length] > PIECE) {
      joined[++joined[0]] = join(part, "");
      part = list();
    }
  }
  return joined;
}

// The outputs of a writer, with its lists flattened.
function flat(outputs) {
  const all = list();
  for (let i = 0; i < outputs.length; i++) {
    if (isArray(outputs[i])) addAll(all, outputs[i]);
    else all[all.length] = outputs[i];
  }
  return all;
}

// Adds a function `w<id>` that appends a value to a column, and the column's buffers. `factor`
// estimates how many values there are for one row of the batch; it stays small in lists of lists.
// Returns the function's name, and the sources of the outputs: rows, NULLs, bitmap, buffers, and
// then those of the children. `rowCount` is the source of the number of rows that the column has
// after the source's `backs` ran.
function writer(type, source, factor = 1, rowCount = "n") {
  const expected = `${factor} * rows`;
  const id = source.id();
  const name = stringify(type.name);
  const outputs = addAll(list(), [`c${id}`, `z${id}`, `bitmap(v${id}, z${id}, c${id})`]);
  const output = (expression) => {
    outputs[outputs.length] = expression;
  };
  source.add(`let c${id} = 0, z${id} = 0, v${id};`);
  source.back(`const t${id} = ${rowCount}; z${id} = validityFor(v${id}, t${id}); c${id} = t${id};`);
  let append;
  let empty = "";
  const column = (kind, per = 1) => {
    source.add(`let d${id} = new ${kind}(${per} * ${expected});`);
    const room = `d${id} = grown(d${id}, ${per} * (c${id} + 1), ${kind}); `;
    output(`prefix(d${id}, ${per} * c${id}, ${kind})`);
    empty = room;
    return room;
  };
  const offsets = (bytes) => {
    source.add(`let o${id} = new Int32Array(${expected} + 1);`);
    source.size(`${bytes} * o${id}[c${id}]`);
  };
  const end = (total) => `o${id} = grown(o${id}, c${id} + 2, Int32Array); o${id}[c${id} + 1] = ${total}; `;
  const put = (expression) => `d${id}[c${id}] = ${expression}; `;
  const halves = (expression) =>
    `const x = ${expression}; d${id}[2 * c${id}] = x; d${id}[2 * c${id} + 1] = x >> 64n; `;
  // A number is written as two halves, because a BigInt would be an allocation.
  const words = (wide, half, condition, big) => {
    source.add(`let d${id} = new ${wide}(${expected}), h${id} = new ${half}(bufferOf(d${id}));`);
    output(`prefix(d${id}, c${id}, ${wide})`);
    empty = `if (c${id} >= lengthOf(d${id})) { d${id} = grown(d${id}, c${id} + 1, ${wide}); h${id} = new ${half}(bufferOf(d${id})); } `;
    return `${empty}if (typeof r === 'number' && isSafeInteger(r) ${condition}) {
        h${id}[2 * c${id}] = r; h${id}[2 * c${id} + 1] = floor(r * ${1 / TWO_32});
      } else d${id}[c${id}] = ${big}; `;
  };
  switch (type.kind) {
    case "BOOLEAN":
      source.add(`let d${id} = new Uint8Array((${expected} >> 3) + 1);`);
      source.back(`cleared(d${id}, t${id});`);
      output(`prefix(d${id}, (c${id} + 7) >> 3, Uint8Array)`);
      append = `d${id} = grown(d${id}, (c${id} >> 3) + 1, Uint8Array);
        if (r === true) d${id}[c${id} >> 3] |= 1 << (c${id} & 7); else if (r !== false) throw wrong(r, ${name}); `;
      empty = `d${id} = grown(d${id}, (c${id} >> 3) + 1, Uint8Array); `;
      break;
    case "BIGINT":
      append = words("BigInt64Array", "Int32Array", "", `toSigned(r, 64, ${name})`);
      break;
    case "UBIGINT":
      append = words("BigUint64Array", "Uint32Array", "&& r >= 0 ", `toUnsigned(r, 64, ${name})`);
      break;
    case "HUGEINT":
      append = column("BigUint64Array", 2) + halves(`asUintN(128, toSigned(r, 128, ${name}))`);
      break;
    case "UHUGEINT":
      append = column("BigUint64Array", 2) + halves(`toUnsigned(r, 128, ${name})`);
      break;
    case "DECIMAL": {
      const unscaled = source.options.decimal === "bigint";
      const decimal = `toDecimal(r, ${type.precision}, ${type.scale}, ${name}, ${unscaled})`;
      append = column("BigUint64Array", 2) + halves(`asUintN(128, ${decimal})`);
      break;
    }
    case "VARCHAR":
    case "BIT":
    case "JSON":
      offsets(1);
      source.add(`let s${id} = list();`);
      // `join` gives the list a prototype.
      source.back(`if (t${id} === 0) s${id} = list(); else s${id}.length = t${id};`);
      output(`prefix(o${id}, c${id} + 1, Int32Array)`);
      output(`pieces(s${id}, o${id})`);
      append =
        (type.kind === "JSON"
          ? `r = toJson(r, ${name}); `
          : `if (typeof r !== 'string') throw wrong(r, ${name}); `) +
        end(`checkTotal(o${id}[c${id}] + r.length)`) +
        `s${id}[c${id}] = r; `;
      empty = `${end(`o${id}[c${id}]`)} s${id}[c${id}] = ''; `;
      break;
    case "BIGNUM":
    case "BLOB":
    case "GEOMETRY": {
      const bytes = type.kind === "BIGNUM" ? "bigBytes" : "toBytes";
      offsets(1);
      source.add(`let d${id} = new Uint8Array(16 * ${expected});`);
      output(`prefix(o${id}, c${id} + 1, Int32Array)`);
      output(`prefix(d${id}, o${id}[c${id}], Uint8Array)`);
      append =
        `r = ${bytes}(r, ${name}); const from = o${id}[c${id}], to = checkTotal(from + lengthOf(r)); ` +
        `d${id} = grown(d${id}, to, Uint8Array); setIn(d${id}, r, from); ${end("to")}`;
      empty = end(`o${id}[c${id}]`);
      break;
    }
    case "DATE":
      append = column("Int32Array") + put(`toDays(r, 'DATE')`);
      break;
    case "TIME":
    case "TIME_NS":
      append = column("BigInt64Array") + put(`toTime(r, ${DIGITS[type.kind]}, ${name})`);
      break;
    case "TIMETZ":
      append = column("BigInt64Array") + put(`toZonedTime(r, ${name})`);
      break;
    case "TIMESTAMP_S":
    case "TIMESTAMP_MS":
    case "TIMESTAMP":
    case "TIMESTAMPTZ":
    case "TIMESTAMP_NS":
      append = column("BigInt64Array") + put(`toTimestamp(r, ${PER_MILLISECOND[type.kind]}, ${name})`);
      break;
    case "INTERVAL": {
      const part = (part, bits) => `intervalPart(r, '${part}', ${bits}, ${name})`;
      append =
        column("BigInt64Array", 2) +
        `d${id}[2 * c${id}] = asIntN(64, asUintN(32, ${part("months", 32)}) | ${part("days", 32)} << 32n);` +
        `d${id}[2 * c${id} + 1] = ${part("microseconds", 64)};`;
      break;
    }
    case "UUID":
      append = `${column("Uint8Array", 16)}toUuid(r, d${id}, 16 * c${id}, ${name}); `;
      break;
    case "ENUM": {
      const places = source.constant(placesOf(type.values));
      append =
        column(codes(type)) +
        `const code = mapGet(${places}, r); if (code === undefined) throw unfit(r, ${name}); ${put("code")}`;
      break;
    }
    case "LIST":
    case "MAP": {
      offsets(8);
      output(`prefix(o${id}, c${id} + 1, Int32Array)`);
      const child = writer(type.child, source, factor > 4 ? factor : 2 * factor, `o${id}[t${id}]`);
      addAll(outputs, child.outputs);
      const isMap = type.kind === "MAP";
      append =
        `r = ${isMap ? "toEntries" : "toList"}(r, ${name}); ` +
        `for (let j = 0; j < r.length; j++) ${child.call}(${isMap ? "entry(r[j])" : "r[j]"}); ${end(child.count)}`;
      empty = end(`o${id}[c${id}]`);
      break;
    }
    case "ARRAY": {
      const most = factor > 4096 ? factor : type.length * factor;
      const child = writer(type.child, source, most, `${type.length} * t${id}`);
      addAll(outputs, child.outputs);
      append = `r = toArray(r, ${type.length}, ${name}); for (let j = 0; j < ${type.length}; j++) ${child.call}(r[j]); `;
      empty = `for (let j = 0; j < ${type.length}; j++) ${child.call}(null); `;
      break;
    }
    case "STRUCT":
    case "UNION": {
      const isStruct = type.kind === "STRUCT";
      const known = placesOf(mapped(type.fields, (field) => field.name));
      // The first field of a UNION is the tag itself.
      if (!isStruct) mapDelete(known, type.fields[0].name);
      const places = source.constant(known);
      const part = (at) =>
        isStruct
          ? `r[${stringify(type.fields[at].name)}]`
          : at === 0
            ? "r.tag"
            : `at === ${at} ? r.value : null`;
      append = isStruct
        ? `checkStruct(r, ${places}, ${name}); `
        : `const at = toTag(r, ${places}, ${name}); `;
      for (let at = 0; at < type.fields.length; at++) {
        const child = writer(type.fields[at].type, source, factor, `t${id}`);
        addAll(outputs, child.outputs);
        append += `${child.call}(${part(at)}); `;
        empty += `${child.call}(null); `;
      }
      break;
    }
    case "FLOAT":
      append = `${column("Float32Array")}if (typeof r === 'bigint') r = toDouble(r, ${name}); if (typeof r !== 'number') throw wrong(r, ${name});
        ${put("r")} if (isFinite(r) && !isFinite(d${id}[c${id}])) throw unfit(r, ${name}); `;
      break;
    case "DOUBLE":
      append = `${column("Float64Array")}if (typeof r === 'bigint') r = toDouble(r, ${name}); if (typeof r !== 'number') throw wrong(r, ${name}); ${put("r")}`;
      break;
    default:
      append = `${column(PLAIN[type.kind])}if (typeof r === 'bigint') r = Number(r); if (typeof r !== 'number') throw wrong(r, ${name});
        ${put("r")} if (d${id}[c${id}] !== r) throw unfit(r, ${name}); `;
  }
  source.add(`function w${id}(r) {
    if (r === null || r === undefined) { ${empty} v${id} = without(v${id}, c${id}); z${id}++; } else { ${append} }
    c${id}++;
  }`);
  return { call: `w${id}`, count: `c${id}`, outputs };
}

// The indices of texts, as a Map.
function placesOf(texts) {
  const places = new Map();
  for (let i = 0; i < texts.length; i++) mapSet(places, texts[i], i);
  return places;
}

// Throws if a value is no STRUCT of this type. Inherited fields count only if the type has them.
function checkStruct(value, known, type) {
  if (typeof value !== "object" || isArray(value)) throw wrong(value, type);
  for (const name in value) {
    if (!mapHas(known, name) && hasOwn(value, name)) {
      throw new TypeError(`returned ${show(value)}, whose ${show(name)} is no field of ${type}`);
    }
  }
}
