// Objects of Intl hold memory of ICU, which cannot be in a snapshot, but files make such objects at
// their top level. So the constructors here return stand-ins. A stand-in makes its real object
// again when it is not there. Before a snapshot is taken, the real objects are released.

// The stand-ins that were made while the file was loaded.
let madeAtLoad = list();
// The arguments and the real object of each stand-in.
const intlObjects = new WeakMap();

const intlOf = uncurried(WeakMap.prototype.get);
const isIntl = uncurried(WeakMap.prototype.has).bind(undefined, intlObjects);

function realIntl(self) {
  const made = intlOf(intlObjects, self);
  if (made === undefined) throw new TypeError(`${show(self)} is not an object of Intl`);
  made.real ??= construct(made.constructor, made.passed);
  return made.real;
}

function letGoOfIntl() {
  for (let i = 0; i < madeAtLoad.length; i++) madeAtLoad[i].real = undefined;
  madeAtLoad = undefined;
}

function standIn(Real) {
  function StandIn(...passed) {
    // Wrong arguments throw here.
    const made = { constructor: Real, passed, real: new Real(...passed) };
    const self = Reflect.construct(Object, [], new.target ?? StandIn);
    intlObjects.set(self, made);
    if (madeAtLoad !== undefined) madeAtLoad[madeAtLoad.length] = made;
    return self;
  }
  for (const [key, property] of Object.entries(Object.getOwnPropertyDescriptors(Real.prototype))) {
    if (key !== "constructor") defineProperty(StandIn.prototype, key, standInProperty(key, property));
  }
  const tag = Object.getOwnPropertyDescriptor(Real.prototype, Symbol.toStringTag);
  defineProperty(StandIn.prototype, Symbol.toStringTag, tag);
  for (const [key, property] of Object.entries(Object.getOwnPropertyDescriptors(Real))) {
    if (key !== "prototype") defineProperty(StandIn, key, property);
  }
  return StandIn;
}

function standInProperty(key, property) {
  if (property.get === undefined) {
    const { value } = property;
    return typeof value === "function"
      ? {
          ...property,
          value: {
            [key]: function (...passed) {
              return realIntl(this)[key](...passed);
            },
          }[key],
        }
      : property;
  }
  // The getters `format` and `compare` return functions that are bound to their object.
  const bound = new WeakMap();
  return {
    ...property,
    get() {
      const value = realIntl(this)[key];
      if (typeof value !== "function") return value;
      if (!bound.has(this)) bound.set(this, (...passed) => realIntl(this)[key](...passed));
      return bound.get(this);
    },
  };
}

for (const [name, property] of Object.entries(Object.getOwnPropertyDescriptors(Intl))) {
  if (typeof property.value === "function" && property.value.prototype !== undefined) {
    defineProperty(Intl, name, { ...property, value: standIn(property.value) });
  }
}
