function saw(x) {
  if (x === null || typeof x === "boolean") return String(x);
  if (typeof x === "bigint") return `${x}n`;
  if (typeof x === "number") return Object.is(x, -0) ? "-0" : String(x);
  if (typeof x === "string") return JSON.stringify(x);
  if (x instanceof Timestamp) return `Timestamp ${x.toISOString()} + ${x.nanoseconds}`;
  if (x instanceof Date) return `Date ${x.toISOString()}`;
  if (x instanceof Uint8Array) return `Uint8Array [${x.join(", ")}]`;
  if (Array.isArray(x)) return `[${x.map(saw).join(", ")}]`;
  if (x instanceof Map) return `Map {${Array.from(x, (pair) => pair.map(saw).join(" => ")).join(", ")}}`;
  const fields = Object.entries(x).map(([name, value]) => `${JSON.stringify(name)}: ${saw(value)}`);
  return `${x.constructor.name} {${fields.join(", ")}}`;
}
