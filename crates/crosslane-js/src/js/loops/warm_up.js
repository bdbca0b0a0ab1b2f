// Warming up: each function is called with a sample batch before the snapshot is taken, so that the
// snapshot has the compiled code for the first row.

function sample(type, options) {
  const of = (type) => sample(type, options);
  switch (type.kind) {
    case "BOOLEAN":
      return true;
    case "VARCHAR":
      return "Sample text, 1";
    case "JSON":
      return {};
    case "DECIMAL":
      return options.decimal === "bigint" ? 1n : "1";
    case "BLOB":
      return new Uint8Array(8);
    case "TIME":
      return "12:00:00";
    case "UUID":
      return "123e4567-e89b-12d3-a456-426614174000";
    case "INTERVAL":
      return { months: 0, days: 1, microseconds: 0 };
    case "ENUM":
      return type.values[0];
    case "LIST":
      return [of(type.child)];
    case "ARRAY":
      return asArray(mapped({ __proto__: null, length: type.length }, () => of(type.child)));
    case "MAP":
      return [asArray(mapped(type.child.fields, (field) => of(field.type)))];
    case "STRUCT": {
      const made = {};
      for (let i = 0; i < type.fields.length; i++) {
        const { name, type: kind } = type.fields[i];
        defineProperty(made, name, { __proto__: null, value: of(kind), enumerable: true });
      }
      return made;
    }
    default:
      return type.kind === "DATE" || between(type.kind, 0, 9) === "TIMESTAMP" ? new Date(1e12) : 1;
  }
}

// Makes the buffers of an argument from the output of a writer of its type.
function asArguments(type, next, buffers) {
  const add = (buffer) => {
    buffers[buffers.length] = buffer;
  };
  const bytes = (view) => view && bufferOf(bytesOf(view, 0, bytesIn(view)));
  next();
  next();
  add(bytes(next()));
  switch (type.kind) {
    case "VARCHAR":
    case "JSON": {
      const offsets = next();
      const text = join(mapped({ __proto__: null, length: next() }, next), "");
      const strings = list();
      for (let i = 1; i < lengthOf(offsets); i++) strings[i - 1] = between(text, offsets[i - 1], offsets[i]);
      add(strings);
      add(undefined);
      add(undefined);
      break;
    }
    case "BLOB":
      add(bytes(next()));
      add(bytes(next()));
      break;
    case "LIST":
    case "MAP":
      add(bytes(next()));
      asArguments(type.child, next, buffers);
      break;
    case "ARRAY":
      asArguments(type.child, next, buffers);
      break;
    case "STRUCT":
      for (let i = 0; i < type.fields.length; i++) asArguments(type.fields[i].type, next, buffers);
      break;
    default:
      add(bytes(next()));
  }
}

// The buffers of columns of these types with these rows.
function buffersOf(types, rows, spec) {
  const buffers = list();
  mapped(types, (type, index) => {
    const write = columnWriter({ __proto__: null, ...spec, returns: type });
    const values = mapped(rows, (row) => row[index]);
    const written = write(values, rows.length, [0]);
    let at = 0;
    asArguments(type, () => written[at++], buffers);
  });
  return buffers;
}

function warm({ kind, options }, prepared) {
  const { spec } = prepared;
  const { parameters, variadic } = spec;
  const last = parameters.length - 1;
  const samples = mapped(parameters, (type, index) =>
    sample(variadic && index === last ? type.child : type, spec),
  );
  const given = options.warmup.length > 0 ? options.warmup : [samples];
  if (prepared.isStream) return warmStream(given, prepared);
  if (kind === "table") return warmTable(given, prepared);
  if (kind === "aggregate") return warmAggregate(given, prepared);
  const rows = mapped(given, (row) => {
    if (!variadic) return row;
    const made = list();
    const rest = list();
    for (let i = 0; i < row.length; i++) {
      if (i < last) made[i] = row[i];
      else rest[i - last] = row[i];
    }
    made[last] = rest;
    return made;
  });
  return begin(rows.length, prepared, buffersOf(parameters, rows, spec), new Uint32Array(2));
}

// Scans some rows for each row of samples. A partitioned table lists its partitions, because there
// is none to be scanned.
function warmTable(given, prepared) {
  const { spec } = prepared;
  const word = new Uint32Array(2);
  const isTable = spec.partitions === null;
  const types = isTable ? addAll(addAll(list(), [TEXT, PLACES]), spec.parameters) : spec.parameters;
  for (let i = 0; i < given.length; i++) {
    const row = isTable ? addAll(addAll(list(), [null, null]), given[i]) : given[i];
    openScan(prepared, isTable, word, buffersOf(types, [row], spec));
    warmScan(word);
  }
}

// Calls a stream function with a batch of the samples.
function warmStream(given, prepared) {
  const { spec } = prepared;
  const word = new Uint32Array(2);
  openMap(prepared, given.length, word, buffersOf(spec.parameters, given, spec));
  warmScan(word);
}

function warmScan(word) {
  for (let batches = 0; batches < 4; batches++) scanRows(256, 0, word, word);
  closeScan(word);
}

// Updates a state with the samples, and finishes it.
function warmAggregate(given, prepared) {
  const { spec, entries } = prepared;
  const word = new Uint32Array(2);
  const numbered = mapped(given, (row) => addAll(addAll(list(), [0]), row));
  const { parameters } = entries[UPDATE].spec;
  enter(numbered.length, prepared, UPDATE, buffersOf(parameters, numbered, { ...spec, bigint: false }), word);
  flush(prepared, word);
  const states = mapped([0], (number) => addAll(list(), [number]));
  return enter(1, prepared, FINISH, buffersOf([STATE], states, spec), word);
}
