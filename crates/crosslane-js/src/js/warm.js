// Warming up: each function is called with a sample batch before the snapshot is taken, so that the snapshot has
// the code that the first row needs.

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
      return Array.from({ length: type.length }, () => of(type.child));
    case "MAP":
      return [type.child.fields.map((field) => of(field.type))];
    case "STRUCT":
      return Object.fromEntries(type.fields.map((field) => [field.name, of(field.type)]));
    default:
      return type.kind === "DATE" || type.kind.startsWith("TIMESTAMP") ? new Date(1e12) : 1;
  }
}

// The buffers of an argument, from what a writer of its type wrote.
function asArguments(type, written, buffers) {
  const next = () => written.shift();
  const bytes = (view) => view?.slice().buffer;
  next();
  next();
  buffers.push(bytes(next()));
  switch (type.kind) {
    case "VARCHAR":
    case "JSON": {
      const offsets = next();
      const text = Array.from({ length: next() }, next).join("");
      const strings = Array.from(offsets.subarray(1), (end, index) => text.slice(offsets[index], end));
      buffers.push(strings, undefined, undefined);
      break;
    }
    case "BLOB":
      buffers.push(bytes(next()), bytes(next()));
      break;
    case "LIST":
    case "MAP":
      buffers.push(bytes(next()));
      asArguments(type.child, written, buffers);
      break;
    case "ARRAY":
      asArguments(type.child, written, buffers);
      break;
    case "STRUCT":
      for (const field of type.fields) asArguments(field.type, written, buffers);
      break;
    default:
      buffers.push(bytes(next()));
  }
}

function warm(rows, prepared) {
  const { spec } = prepared;
  const last = spec.parameters.length - 1;
  const isRest = (index) => spec.variadic && index === last;
  const samples = () => spec.parameters.map((type, index) => sample(isRest(index) ? type.child : type, spec));
  const given = rows.length > 0 ? rows : [samples()];
  const buffers = [];
  spec.parameters.forEach((type, index) => {
    const write = columnWriter({ ...spec, returns: type });
    asArguments(
      type,
      write(
        given.map((row) => (isRest(index) ? row.slice(index) : row[index])),
        given.length,
        [0],
      ),
      buffers,
    );
  });
  return begin(given.length, prepared, buffers, new Uint32Array(2));
}
