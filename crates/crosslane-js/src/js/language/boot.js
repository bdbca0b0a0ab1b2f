// What V8 adds to the context of a snapshot when an isolate boots: `WebAssembly`, and the number of frames
// that an error notes. V8 ends the process if the context has them already, or if it cannot add them.

const world = globalThis;
const { getOwnPropertyDescriptor, isExtensible } = Object;
const { deleteProperty } = Reflect;
const functions = Function.prototype;
const LIMIT = "stackTraceLimit";
const WASM = "WebAssembly";
// The number of frames. The file may change it.
let frames = 20;
// What the file has made of `WebAssembly`, and V8's, which an isolate without a snapshot has at once.
let ownWasm;
let v8Wasm = hasWasm ? world[WASM] : undefined;

const numberOfFrames = (value) => ({
  __proto__: null,
  value,
  writable: true,
  enumerable: true,
  configurable: true,
});

// While a file is loaded, `Error` inherits the number, and V8 reads it there.
if (hasOwn(Error, LIMIT)) Error[LIMIT] = frames;
else defineProperty(functions, LIMIT, numberOfFrames(frames));

// Removes both before a snapshot is taken, and runs no code of the file. Returns whether V8 can add them.
function beforeSnapshot() {
  const limit = getOwnPropertyDescriptor(Error, LIMIT) ?? getOwnPropertyDescriptor(functions, LIMIT);
  if (limit !== undefined && hasOwn(limit, "value") && typeof limit.value === "number") frames = limit.value;
  ownWasm = getOwnPropertyDescriptor(world, WASM) ?? ownWasm;
  if (ownWasm !== undefined) setPrototypeOf(ownWasm, null);
  deleteProperty(functions, LIMIT);
  const isFree = deleteProperty(Error, LIMIT) && deleteProperty(world, WASM);
  return isFree && isExtensible(Error) && isExtensible(world);
}

function afterBoot() {
  defineProperty(Error, LIMIT, numberOfFrames(frames));
  if (hasWasm) v8Wasm = world[WASM];
  deleteProperty(world, WASM);
  if (ownWasm !== undefined) defineProperty(world, WASM, ownWasm);
}

// No limit counts shared memory. `Atomics` is of no use without it.
deleteProperty(world, "Atomics");

// Adds methods that V8 leaves out of a snapshot.
function addMissing(target, methods) {
  for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(methods))) {
    defineProperty(target, name, { value, writable: true, configurable: true });
  }
}
