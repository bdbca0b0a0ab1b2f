// Buffers cannot be resized. V8 takes the memory of those that can from the system and not from the isolate's
// allocator, so that no limit counts it. And a result could shrink after it was checked.

{
  function FixedArrayBuffer(length, options) {
    if (new.target === undefined) throw new TypeError("Constructor ArrayBuffer requires 'new'");
    const isObject = (typeof options === "object" && options !== null) || typeof options === "function";
    if (isObject && options.maxByteLength !== undefined) {
      throw new RangeError(
        "an ArrayBuffer cannot be resizable here (maxByteLength): no limit counts its memory",
      );
    }
    return construct(ArrayBuffer, [length], new.target);
  }
  for (const key of Reflect.ownKeys(ArrayBuffer)) {
    defineProperty(FixedArrayBuffer, key, Object.getOwnPropertyDescriptor(ArrayBuffer, key));
  }
  const usual = { value: FixedArrayBuffer, writable: true, configurable: true };
  defineProperty(ArrayBuffer.prototype, "constructor", usual);
  defineProperty(globalThis, "ArrayBuffer", usual);
}
