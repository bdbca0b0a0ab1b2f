// WebAssembly. V8 has none while it makes a snapshot, and puts no object of it into one. So the constructors here
// return stand-ins while a file is loaded. A stand-in makes its real object when a call first uses it. In calls,
// the constructors return V8's own objects, whose prototypes inherit from those here. Nothing is compiled in the
// background, so promises are settled at once.

// Called when an isolate has booted, with V8's WebAssembly in `v8Wasm`.
const beginWasm = (() => {
  const { getOwnPropertyDescriptor: propertyOf, keys: namesOf } = Object;
  const { ownKeys } = Reflect;
  const { prototype: weak } = WeakMap;
  // The kind, the arguments and the real object of each stand-in.
  const standIns = new WeakMap();
  const standInOf = uncurried(weak.get).bind(undefined, standIns);
  const noteStandIn = uncurried(weak.set).bind(undefined, standIns);
  // The bytes of each module. V8 copies them, and no limit counts that copy. This one counts.
  const bytesOfModules = new WeakMap();
  const keepBytes = uncurried(weak.set).bind(undefined, bytesOfModules);
  let bufferOfMemory;

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

  // V8's object for a method of a class here. V8's own objects have methods of their own.
  function realOf(self, Class) {
    const found = real(self);
    if (found === self) throw new TypeError(`${show(self)} is no WebAssembly.${Class.name}`);
    return found;
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
    const value = construct(Real, asArray(mapped(passed, real)));
    if (kind === "Module") keepBytes(value, passed[0]);
    if (kind === "Memory") refuseShared(value);
    return value;
  }

  function instantiated(Real, module, imports) {
    const instance = new Real(module, realImports(module, imports));
    const { exports } = instance;
    const names = namesOf(exports);
    for (let i = 0; i < names.length; i++) refuseShared(exports[names[i]]);
    return instance;
  }

  // The imports that a module needs, without stand-ins.
  function realImports(module, imports) {
    if (!isModule(module) || !isObject(imports)) return imports;
    const found = { __proto__: null };
    const needed = v8Wasm.Module.imports(module);
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
    if (!isAbove(Memory.prototype, value) || bytesUnder(bufferOfMemory(value)) !== undefined) return;
    throw new TypeError("memory of WebAssembly cannot be shared: there are no other threads");
  }

  // The exports of an instance that was made while the file was loaded.
  function laterExports(instance) {
    const exportsFor = (key) => {
      // The end of a promise looks for `then`.
      if (v8Wasm === undefined && (key === "then" || typeof key === "symbol")) return {};
      now("an export of WebAssembly");
      return real(instance).exports;
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
      if (v8Wasm !== undefined) return realOf(this, Instance).exports;
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
      return realOf(this, Table).length;
    }
    grow(delta) {
      return apply(realOf(this, Table).grow, real(this), mapped(arguments, real));
    }
    set(index) {
      return apply(realOf(this, Table).set, real(this), mapped(arguments, real));
    }
    get(index) {
      return realOf(this, Table).get(index);
    }
  }
  class Memory {
    constructor(descriptor) {
      return made("Memory", arguments);
    }
    grow(pages) {
      return realOf(this, Memory).grow(pages);
    }
    get buffer() {
      return realOf(this, Memory).buffer;
    }
  }
  class Global {
    constructor(descriptor) {
      return made("Global", arguments);
    }
    valueOf() {
      return realOf(this, Global).value;
    }
    get value() {
      return realOf(this, Global).value;
    }
    set value(value) {
      realOf(this, Global).value = value;
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
      return realOf(this, Exception).getArg(real(tag), index);
    }
    is(tag) {
      return realOf(this, Exception).is(real(tag));
    }
    get stack() {
      return realOf(this, Exception).stack;
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
      return now("WebAssembly.validate").validate(source);
    },
  };
  for (const kind of namesOf(classes)) defineProperty(exposed, kind, own(classes[kind]));
  defineProperty(exposed, Symbol.toStringTag, { value: "WebAssembly", configurable: true });
  if (hasWasm) expose("WebAssembly", exposed);

  return () => {
    if (v8Wasm === undefined) return;
    bufferOfMemory = uncurried(propertyOf(v8Wasm.Memory.prototype, "buffer").get);
    for (const kind in classes) {
      const { prototype } = v8Wasm[kind];
      setPrototypeOf(prototype, classes[kind].prototype);
      defineProperty(prototype, "constructor", own(classes[kind]));
    }
  };
})();
beginWasm();
