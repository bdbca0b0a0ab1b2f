// What V8 adds to the context of a snapshot when an isolate boots: `WebAssembly`, and the number of frames
// that an error notes. V8 ends the process if the context has them already.

const world = globalThis;
const { deleteProperty, set: setProperty } = Reflect;
const functions = Function.prototype;
const LIMIT = "stackTraceLimit";
const WASM = "WebAssembly";
const { getOwnPropertyDescriptor } = Object;
// The number of frames. The file may change it.
let frames = 20;

// A file may freeze `Error`. So, while it is loaded, `Error` inherits the number, and V8 reads it there.
if (hasOwn(Error, LIMIT)) Error[LIMIT] = frames;
else defineProperty(functions, LIMIT, { value: frames, writable: true, configurable: true });

// What the file has made of `WebAssembly`.
let ownWasm;

// Removes both before a snapshot is taken. Returns whether that was possible.
function beforeSnapshot() {
  if (LIMIT in Error) frames = Error[LIMIT];
  ownWasm = getOwnPropertyDescriptor(world, WASM) ?? ownWasm;
  deleteProperty(functions, LIMIT);
  if (ownWasm !== undefined) setPrototypeOf(ownWasm, null);
  return deleteProperty(Error, LIMIT) && deleteProperty(world, WASM);
}

// V8's `WebAssembly` is off, because no limit counts its memory.
function afterBoot() {
  setProperty(Error, LIMIT, frames);
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
