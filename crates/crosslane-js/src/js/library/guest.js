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
  blank,
  asArray,
  checkStruct,
  checkTotal,
  columnsOf,
  dayOf,
  decimalText,
  AnyArray,
  Error,
  callOn,
  checkColumn,
  checkRow,
  cleared,
  entry,
  flat,
  forgiveRow,
  floor,
  grown,
  interval,
  intervalPart,
  isArray,
  isBare,
  isFinite,
  isSafeInteger,
  lengthOf,
  list,
  mapGet,
  mapSet,
  noColumns,
  noRow,
  noStep,
  nullRow,
  otherBig,
  otherNumber,
  parseJson,
  pieces,
  prefix,
  validityFor,
  serialized,
  setIn,
  sizeOfMap,
  appended,
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
  wrongLength,
  zonedTimeText,
  promised,
};

// The functions by their indices, and behind them what was prepared for calls with types of their own.
const prepared = list();

function typed(index, types) {
  const spec = declared[index];
  if (types.stream) return prepareStream(spec, types);
  if (spec.kind === "table") return prepareTable(spec, types);
  if (spec.kind === "aggregate") return prepareAggregate(spec, types);
  const wants = mapped(types.parameters, () => spec.options.nulls === "call");
  return prepare(spec, wants, types);
}

const anyStates = () => [chosenOf(prepared, (one) => one?.holdsStates?.() === true).length > 0 ? 1 : 0];

const methods = {
  describe,
  declarations,

  // Takes the types of all functions, as JSON: null of those whose calls say them.
  prepare(texts) {
    loading = false;
    letGoOfIntl();
    const all = parse(texts[0]);
    for (let index = 0; index < all.length; index++) {
      prepared[index] = all[index] === null ? undefined : typed(index, all[index]);
    }
  },

  // Takes types of calls of function `index`, as JSON. What is prepared for them has that number.
  instance(index, number, texts) {
    prepared[number] = typed(index, parse(texts[0]));
  },

  // Calls a function with samples, so that its code is compiled.
  warm(index) {
    if (prepared[index] === undefined) return undefined;
    setUp(index);
    return warm(declared[index], prepared[index]);
  },

  // Makes what a stateful function is called on, and ends it.
  setUp(index) {
    scan = undefined;
    setUp(index);
  },
  tearDown,

  // Calls what has that number with a batch: the word for its progress, and the memory of its columns.
  begin(rows, index, word, memory) {
    // One that came to its end is still there.
    scan = undefined;
    return begin(rows, prepared[index], memory, word);
  },
  // The same for an entry of an aggregate. `flush` does what waits for it.
  enter: (rows, index, entry, word, memory) => enter(rows, prepared[index], entry, memory, word),
  flush: (index, word) => flush(prepared[index], word),
  resume: (row, isNull, pause) => resume(row, isNull === 1, pause),
  settled: () => (scan === undefined ? settled() : settledScan()),

  // Scans a table: what yields its rows is opened, gives batches, and is closed before its end.
  openScan: (index, isTable, word, memory) => openScan(prepared[index], isTable === 1, word, memory),
  // The same of what a function makes of a batch of a stream.
  openMap: (rows, index, word, memory) => openMap(prepared[index], rows, word, memory),
  scanRows,
  restOfScan,
  closeScan,
};
