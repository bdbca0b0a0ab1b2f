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

  // Calls function `index` with a batch: the word for its progress, and the memory of its columns.
  begin: (rows, index, word, memory) => begin(rows, prepared[index], memory, word),
  resume: (row, isNull, pause) => resume(row, isNull === 1, pause),
  settled,
};
