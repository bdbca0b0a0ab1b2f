// The methods that the host calls, and what they share.

const help = {
  asIntN,
  asUintN,
  bitmap,
  checkStruct,
  checkTotal,
  dateOf,
  decimalText,
  entry,
  floor,
  grown,
  interval,
  intervalPart,
  isSafeInteger,
  nullRow,
  otherBig,
  otherNumber,
  parse,
  pieces,
  slice,
  timeText,
  timestamp,
  toArray,
  toBytes,
  toDays,
  toDecimal,
  toEntries,
  toJson,
  toList,
  toSigned,
  toTime,
  toTimestamp,
  toUnsigned,
  toUuid,
  tooLong,
  unfit,
  uuidText,
  wide,
  wideUnsigned,
  without,
  wrong,
  promised,
};

const prepared = [];

const methods = {
  describe,
  declarations,

  // Takes the types of all functions, as JSON.
  prepare([types]) {
    loading = false;
    letGoOfIntl();
    parse(types).forEach((types, index) => {
      const spec = declared[index];
      const wants = types.parameters.map(() => spec.options.nulls === "call");
      prepared.push(prepare({ ...spec, admits: wants }, types));
    });
  },

  // Calls a function with samples, so that its code is compiled.
  warm: (index) => warm(declared[index].options.warmup, prepared[index]),

  // Calls function `index` with a batch: `values` are the progress word's memory and then the columns'.
  begin(rows, index, values) {
    const [progress, ...buffers] = values;
    return begin(rows, prepared[index], buffers, new Uint32Array(progress));
  },
  resume: (row, isNull) => resume(row, isNull === 1),
  settled,
};
