// The methods that the host calls, and what they share.

const help = {
  __proto__: null,
  ...globals,
  Array,
  BigInt,
  Map,
  Number,
  Promise,
  apply,
  asIntN,
  asUintN,
  between,
  bigBytes,
  bigOf,
  bitmap,
  bufferOf,
  bytesOf,
  checkStruct,
  checkTotal,
  columnsOf,
  dayOf,
  decimalText,
  entry,
  floor,
  grown,
  interval,
  intervalPart,
  isFinite,
  isSafeInteger,
  lengthOf,
  nullRow,
  otherBig,
  otherNumber,
  parseJson,
  pieces,
  prefix,
  setIn,
  spread,
  timeText,
  timestamp,
  toArray,
  toBytes,
  toDays,
  toDecimal,
  toDouble,
  toEntries,
  toJson,
  toList,
  toSigned,
  toTime,
  toTag,
  toTimestamp,
  toUnsigned,
  toUuid,
  toZonedTime,
  tooLong,
  unfit,
  uuidText,
  wide,
  wideUnsigned,
  without,
  wrong,
  zonedTimeText,
  promised,
};

// The functions by their indices, and behind them what was prepared for calls with types of their own.
const prepared = [];

function typed(index, types) {
  const spec = declared[index];
  const wants = types.parameters.map(() => spec.options.nulls === "call");
  return prepare({ ...spec, admits: wants }, types);
}

const methods = {
  describe,
  declarations,

  // Takes the types of all functions, as JSON: null of those whose calls say them.
  prepare([types]) {
    loading = false;
    letGoOfIntl();
    parse(types).forEach((types, index) => {
      prepared.push(types === null ? undefined : typed(index, types));
    });
  },

  // Takes types of calls of function `index`, as JSON. What is prepared for them has that number.
  instance(index, number, [types]) {
    prepared[number] = typed(index, parse(types));
  },

  // Calls a function with samples, so that its code is compiled.
  warm: (index) => prepared[index] && warm(declared[index].options.warmup, prepared[index]),

  // Calls what has that number with a batch: the word for its progress, and the memory of its columns.
  begin: (rows, index, word, memory) => begin(rows, prepared[index], memory, word),
  resume: (row, isNull, pause) => resume(row, isNull === 1, pause),
  settled,
};
