// Stateful functions are classes. Each isolate makes an instance before the first call.

// A method of an object or of its classes. Methods that a file adds to `Object.prototype` do not
// count.
function methodOf(object, name) {
  for (let one = object; one !== null && one !== undefined && one !== plain; one = getPrototypeOf(one)) {
    if (hasOwn(one, name)) return typeof one[name] === "function" ? one[name] : undefined;
  }
  return undefined;
}

// The method `call` of a class, if the class is a stateful function.
const calledOf = (f) => methodOf(f.prototype, "call");

// How many arguments the constructor of a class takes: its `length`, unless the class defines a
// property of that name.
function countOfArguments(f) {
  const { value, writable } = { __proto__: null, ...ownProperty(f, "length") };
  return writable === false ? value : 0;
}

const sourceOfFunction = uncurried(Function.prototype.toString);

// Throws if an isolate cannot make an instance of a class, or cannot call it.
function checkStateful(f, isStateful) {
  const name = f.name || "the class";
  if (!isStateful) {
    if (executed(/^class\b/, sourceOfFunction(f)) === null) return;
    throw new DeclarationError(
      `${name} has no method call: it is called for each row of a stateful function`,
    );
  }
  const needed = countOfArguments(f);
  if (needed > 0) {
    const count = `${needed} argument${needed === 1 ? "" : "s"}`;
    throw new DeclarationError(
      `each worker makes an instance without arguments; the constructor of ${name} needs ${count}`,
    );
  }
}

// Makes the instance of function `index`, if it needs one and there is none.
function setUp(index) {
  const spec = declared[index];
  if (!spec.stateful || spec.instance !== undefined) return;
  clearTimers();
  spec.instance = construct(spec.function, []);
  keepTimers();
}

// Ends the instance of function `index`.
function tearDown(index) {
  const { instance } = declared[index];
  declared[index].instance = undefined;
  const close = methodOf(instance, "close");
  if (close !== undefined) callOn(close, instance);
}
