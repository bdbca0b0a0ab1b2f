// The methods that the host calls, and the values that compiled loops use (`help`).

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

// The prepared functions by their indices, and after them those that were prepared for the types of
// calls.
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
  beforeSnapshot,
  afterBoot() {
    afterBoot();
    beginWasm();
  },

  // Takes the types of all functions, as JSON: null for functions whose calls have the types.
  prepare(texts) {
    loading = false;
    letGoOfIntl();
    if (!beforeSnapshot()) {
      throw new TypeError(
        "V8 adds properties to globalThis and Error when a worker starts: the file must not freeze or seal these two, " +
          "or make Error.stackTraceLimit or WebAssembly read-only",
      );
    }
    const all = parse(texts[0]);
    for (let index = 0; index < all.length; index++) {
      prepared[index] = all[index] === null ? undefined : typed(index, all[index]);
    }
  },

  // Prepares function `index` for the types of some calls, as JSON. It is then called by `number`.
  instance(index, number, texts) {
    prepared[number] = typed(index, parse(texts[0]));
  },

  // Calls a function with samples, so that V8 compiles its code.
  warm(index) {
    if (prepared[index] === undefined) return undefined;
    setUp(index);
    return warm(declared[index], prepared[index]);
  },

  // Makes the instance of a stateful function, and closes it.
  setUp(index) {
    scan = undefined;
    setUp(index);
  },
  tearDown,

  // Calls the prepared function of this index with a batch. `word` is for its progress, `memory`
  // the buffers of its columns.
  begin(rows, index, word, memory) {
    // A scan that has ended is still there.
    scan = undefined;
    return begin(rows, prepared[index], memory, word);
  },
  // The same for an entry of an aggregate. `flush` updates states with the rows that wait.
  enter: (rows, index, entry, word, memory) => enter(rows, prepared[index], entry, memory, word),
  flush: (index, word) => flush(prepared[index], word),
  resume: (row, isNull, pause) => resume(row, isNull === 1, pause),
  settled: () => (scan === undefined ? settled() : settledScan()),

  // A scan of a table: it is opened, returns batches, and can be closed before its end.
  openScan: (index, isTable, word, memory) => openScan(prepared[index], isTable === 1, word, memory),
  // The same for the rows that a stream function makes of a batch.
  openMap: (rows, index, word, memory) => openMap(prepared[index], rows, word, memory),
  scanRows,
  restOfScan,
  closeScan,
};
