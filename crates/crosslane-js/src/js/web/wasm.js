// WebAssembly. V8 has none while it makes a snapshot, and puts no object of it into one. So the constructors here
// return stand-ins while a file is loaded. A stand-in makes its real object when a call first uses it. In calls,
// the constructors return V8's own objects, whose prototypes inherit from those here. Nothing is compiled in the
// background, so promises are settled at once.

// Called when an isolate has booted, with V8's WebAssembly in `v8Wasm`.
const beginWasm = (() => {
  const {
    getOwnPropertyDescriptor: propertyOf,
    getOwnPropertyDescriptors: propertiesOf,
    keys: namesOf,
  } = Object;
  const { ownKeys } = Reflect;
  const { prototype: weak } = WeakMap;
  // The kind, the arguments and the real object of each stand-in.
  const standIns = new WeakMap();
  const standInOf = uncurried(weak.get).bind(undefined, standIns);
  const noteStandIn = uncurried(weak.set).bind(undefined, standIns);
  // The bytes of each module. V8 copies them, and no limit counts that copy. This one counts.
  const bytesOfModules = new WeakMap();
  const keepBytes = uncurried(weak.set).bind(undefined, bytesOfModules);
  // The methods and properties of V8's prototypes, by the kind and the name. The file can change the prototypes.
  const ofV8 = { __proto__: null };
  let v8Exports, v8Imports;
  // The largest function in bytes. V8's compiler takes 150 bytes and more for each.
  const LARGEST_FUNCTION = 256 * 1024;

  function now(what) {
    if (v8Wasm !== undefined) return v8Wasm;
    throw new Error(
      `${what} works when a function is called, and not while its file is loaded: ` +
        "use it in the function, or in the constructor of a class",
    );
  }

  // V8's object of a stand-in. Another value is returned as it is.
  function real(value) {
    const noted = standInOf(value);
    if (noted === undefined) return value;
    noted.real ??= make(noted.kind, noted.passed);
    return noted.real;
  }

  // Calls V8's method, or the getter or setter of V8's property.
  function called(kind, name, part, self, passed = list()) {
    now(`WebAssembly.${kind}`);
    return apply(ofV8[kind][name][part], real(self), asArray(mapped(passed, real)));
  }

  // What a constructor of this kind returns for these arguments.
  function made(kind, passed) {
    if (v8Wasm !== undefined) return make(kind, passed);
    const self = Object.create(classes[kind].prototype);
    noteStandIn(self, { __proto__: null, kind, passed, real: undefined, exports: undefined });
    return self;
  }

  function make(kind, passed) {
    const { [kind]: Real } = now(`WebAssembly.${kind}`);
    if (kind === "Instance") return instantiated(Real, real(passed[0]), passed[1]);
    if (kind === "Module") checkSections(passed[0]);
    const given = kind === "Tag" ? [countedType(passed[0])] : mapped(passed, real);
    const value = construct(Real, asArray(given));
    if (kind === "Module") keepBytes(value, passed[0]);
    if (kind === "Memory") refuseShared(value);
    return value;
  }

  function instantiated(Real, module, imports) {
    const instance = new Real(module, realImports(module, imports));
    const exports = called("Instance", "exports", "get", instance);
    const kinds = v8Exports(module);
    for (let i = 0; i < kinds.length; i++) {
      const { name, kind } = kinds[i];
      if (kind === "memory") refuseShared(exports[name]);
    }
    return instance;
  }

  // V8 keeps each type of WebAssembly until its process ends.
  function countTypes(text) {
    if (noteTypes(text)) return;
    throw new RangeError("the modules of this process have more types of WebAssembly than V8 can keep");
  }

  // Refuses a module that needs too much of what no limit counts. V8 checks the rest.
  function checkSections(bytes) {
    let at = 8;
    // A number in LEB128. V8 refuses one of more than five bytes.
    function number() {
      let value = 0;
      for (let i = 0; i < 5; i++) {
        const byte = bytes[at++];
        value += (byte & 127) * 128 ** i;
        if ((byte & 128) === 0) break;
      }
      return value;
    }
    const size = lengthOf(bytes);
    while (at < size) {
      const kind = bytes[at++];
      const length = number();
      const end = min(at + length, size);
      if (kind === 1 && at < end) countTypes(textOfBytes(bytesOf(bytes, at, end), LATIN_1));
      if (kind === 10) {
        number();
        while (at < end) {
          const body = number();
          if (body > LARGEST_FUNCTION) {
            throw new RangeError(`a function of WebAssembly has more than ${LARGEST_FUNCTION / 1024} KiB`);
          }
          at += body;
        }
      }
      at = end;
    }
  }

  // The type of a tag, of which V8 reads the same as was counted.
  function countedType(type) {
    if (!isObject(type)) return type;
    const { parameters } = type;
    if (!isObject(parameters)) return { __proto__: null, parameters };
    const { length } = parameters;
    // V8 allows 1000.
    const names = list();
    let text = "tag";
    for (let i = 0; i < length && i <= 1000; i++) {
      names[i] = `${parameters[i]}`;
      text += `,${names[i]}`;
    }
    countTypes(text);
    return { __proto__: null, parameters: asArray(names) };
  }

  // The imports that a module needs, without stand-ins.
  function realImports(module, imports) {
    if (!isModule(module) || !isObject(imports)) return imports;
    const found = { __proto__: null };
    const needed = v8Imports(module);
    for (let i = 0; i < needed.length; i++) {
      const { module: from, name } = needed[i];
      const given = imports[from];
      if (!isObject(given)) {
        found[from] = given;
        continue;
      }
      found[from] ??= { __proto__: null };
      found[from][name] = real(given[name]);
    }
    return found;
  }

  const isObject = (value) => (typeof value === "object" && value !== null) || typeof value === "function";
  const isModule = (value) => isAbove(Module.prototype, value);

  function refuseShared(value) {
    if (bytesUnder(called("Memory", "buffer", "get", value)) !== undefined) return;
    throw new TypeError("memory of WebAssembly cannot be shared: there are no other threads");
  }

  // The exports of an instance that was made while the file was loaded.
  function laterExports(instance) {
    const exportsFor = (key) => {
      // The end of a promise looks for `then`.
      if (v8Wasm === undefined && (key === "then" || typeof key === "symbol")) return {};
      now("an export of WebAssembly");
      return called("Instance", "exports", "get", instance);
    };
    const traps = {
      __proto__: null,
      get: (_, key) => exportsFor(key)[key],
      has: (_, key) => key in exportsFor(key),
      ownKeys: () => ownKeys(exportsFor()),
      getOwnPropertyDescriptor(_, key) {
        const found = propertyOf(exportsFor(key), key);
        return found && { ...found, writable: true, configurable: true };
      },
    };
    return new Proxy({ __proto__: null }, traps);
  }

  class Module {
    constructor(source) {
      const bytes = bytesUnder(source);
      if (bytes === undefined) {
        throw new TypeError(`the bytes of a module are an ArrayBuffer or a view, not ${show(source)}`);
      }
      return made("Module", [bytesOf(bytes, 0, lengthOf(bytes))]);
    }
    static imports(module) {
      return now("Module.imports").Module.imports(real(module));
    }
    static exports(module) {
      return now("Module.exports").Module.exports(real(module));
    }
    static customSections(module, name) {
      return now("Module.customSections").Module.customSections(real(module), name);
    }
  }
  class Instance {
    constructor(module) {
      return made("Instance", arguments);
    }
    get exports() {
      if (v8Wasm !== undefined) return called("Instance", "exports", "get", this);
      const noted = standInOf(this);
      if (noted?.kind !== "Instance") throw new TypeError(`${show(this)} is no WebAssembly.Instance`);
      noted.exports ??= laterExports(this);
      return noted.exports;
    }
  }
  class Table {
    constructor(descriptor) {
      return made("Table", arguments);
    }
    get length() {
      return called("Table", "length", "get", this);
    }
    grow(delta) {
      return called("Table", "grow", "value", this, arguments);
    }
    set(index) {
      return called("Table", "set", "value", this, arguments);
    }
    get(index) {
      return called("Table", "get", "value", this, arguments);
    }
  }
  class Memory {
    constructor(descriptor) {
      return made("Memory", arguments);
    }
    grow(pages) {
      return called("Memory", "grow", "value", this, arguments);
    }
    get buffer() {
      return called("Memory", "buffer", "get", this);
    }
  }
  class Global {
    constructor(descriptor) {
      return made("Global", arguments);
    }
    valueOf() {
      return called("Global", "value", "get", this);
    }
    get value() {
      return called("Global", "value", "get", this);
    }
    set value(value) {
      called("Global", "value", "set", this, [value]);
    }
  }
  class Tag {
    constructor(type) {
      return made("Tag", arguments);
    }
  }
  class Exception {
    constructor(tag, payload) {
      return made("Exception", arguments);
    }
    getArg(tag, index) {
      return called("Exception", "getArg", "value", this, arguments);
    }
    is(tag) {
      return called("Exception", "is", "value", this, arguments);
    }
    get stack() {
      const exception = real(this);
      // V8's objects have their stacks themselves.
      return exception === this ? undefined : exception.stack;
    }
  }
  class CompileError extends Error {
    constructor(message, options = undefined) {
      super(message, options);
    }
  }
  class LinkError extends Error {
    constructor(message, options = undefined) {
      super(message, options);
    }
  }
  class RuntimeError extends Error {
    constructor(message, options = undefined) {
      super(message, options);
    }
  }

  const kinds = { __proto__: null, Module, Instance, Table, Memory, Global, Tag, Exception };
  const errors = { __proto__: null, CompileError, LinkError, RuntimeError };
  const classes = { __proto__: null, ...kinds, ...errors };
  const own = (value) => ({ __proto__: null, value, writable: true, configurable: true });

  for (const kind of namesOf(kinds)) {
    defineProperty(kinds[kind].prototype, Symbol.toStringTag, {
      value: `WebAssembly.${kind}`,
      configurable: true,
    });
  }
  for (const kind of namesOf(errors)) defineProperty(errors[kind].prototype, "name", own(kind));

  const exposed = {
    async compile(source) {
      return new Module(source);
    },
    async instantiate(source, imports = undefined) {
      if (isModule(source)) return new Instance(source, imports);
      const module = new Module(source);
      return { module, instance: new Instance(module, imports) };
    },
    validate(source) {
      const { validate } = now("WebAssembly.validate");
      const bytes = bytesUnder(source);
      if (bytes !== undefined) checkSections(bytes);
      return validate(source);
    },
  };
  for (const kind of namesOf(classes)) defineProperty(exposed, kind, own(classes[kind]));
  defineProperty(exposed, Symbol.toStringTag, { value: "WebAssembly", configurable: true });
  if (hasWasm) expose("WebAssembly", exposed);

  return () => {
    if (v8Wasm === undefined) return;
    v8Exports = v8Wasm.Module.exports;
    v8Imports = v8Wasm.Module.imports;
    for (const kind in classes) {
      const { prototype } = v8Wasm[kind];
      ofV8[kind] = propertiesOf(prototype);
      setPrototypeOf(prototype, classes[kind].prototype);
      defineProperty(prototype, "constructor", own(classes[kind]));
    }
  };
})();
beginWasm();
