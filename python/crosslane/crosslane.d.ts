// What a JavaScript or TypeScript file of functions for Crosslane has, for editors and compilers.
// `crosslane init` puts this file beside your functions. docs/javascript.md explains everything.

declare namespace Crosslane {
  /** A function of rows or of columns. The types of its arguments are those of the signature. */
  type Callable = (...args: any[]) => unknown;

  /** A stateful function: each worker makes an instance, and calls it for each row or batch. */
  type Stateful = new () => { call(...args: any[]): unknown; close?(): unknown };

  /** Several rows, or columns by their names. */
  type Rows = Iterable<unknown> | AsyncIterable<unknown> | { readonly [column: string]: ArrayLike<unknown> };
  type Table = Rows | null | undefined | void;

  /** A table function: it gives rows, or batches with `vectorized`. */
  type TableFunction = (...args: any[]) => Table | Promise<Table>;

  /** A stateful function of a stream. */
  type StatefulTable = new () => { call(...args: any[]): Table | Promise<Table>; close?(): unknown };

  /** An aggregate: each group has an instance. */
  type Aggregate = new () => {
    update(...args: any[]): unknown;
    merge(other: any): unknown;
    finish(): unknown;
  };

  /** An aggregate of four functions. If `update` or `merge` returns nothing, it has changed the state. */
  interface Fold<State> {
    start(): State;
    update(state: State, ...args: any[]): State | void;
    merge(state: State, other: State): State | void;
    finish(state: State): unknown;
  }

  /** The options that all kinds of functions have. */
  interface Options {
    /** `"call"`: the function is called for every NULL, with null. By default `"skip"`. */
    nulls?: "skip" | "call";
    /** `false`: the function is called for each row, even if the arguments are equal. */
    deterministic?: boolean;
    /** `true`: the function takes and returns columns. */
    vectorized?: boolean;
    /** Seconds that a call may take. */
    timeout?: number | null;
    /** What a call may use, in bytes or as a text such as `"500 MB"`. By default `"512 MiB"`. */
    memory_limit?: number | string | null;
    /** `"null"`: after an exception, a timeout or too much memory the row is NULL. By default `"fail"`. */
    on_error?: "fail" | "null";
    /** How often a failed call is tried again. */
    retries?: number;
    /** `true`: BIGINT and UBIGINT arguments are BigInts. */
    bigint?: boolean;
    /** `"bigint"`: DECIMAL arguments are BigInts that count the smallest unit. By default `"text"`. */
    decimal?: "text" | "bigint";
    /** Rows of arguments with which the function is called before the snapshot is taken. */
    warmup?: readonly (readonly unknown[])[];
  }

  /** The options of `udf`. */
  interface FunctionOptions extends Options {
    /** Rows that may wait at once, for a function that returns promises. By default 1. */
    concurrency?: number;
    /** `true`: functions of the name that take other types stay. */
    overload?: boolean;
    /** What kept results may take, in bytes or as a text such as `"200 MB"`. */
    memoize?: number | string | null;
    /** The most rows that may be called in a time, such as `"50/s"`. */
    rate?: string | null;
    /** The most calls within one query. */
    budget?: number | null;
    /** The most rows that a call gets, for a vectorized function or one that returns promises. */
    batch?: number | null;
    /** `true`: results are kept for later programs, in a file in the user's cache. */
    cache?: boolean | null;
    /** Seconds after which kept results hold no more. */
    ttl?: number | null;
    /** The most workers that call the function. They are its own. */
    workers?: number | null;
  }

  /** The options of `udtf`. */
  interface TableOptions extends Options {
    /** Lists the partitions of the table. The function gets one as its first argument. */
    partitions?: ((...args: any[]) => readonly unknown[]) | null;
    /** `true`: the last argument is `{ wanted }`, the names of the columns that the query uses. */
    projection?: boolean;
    /** About how many rows there are. */
    cardinality?: number | null;
  }

  /** The options of `udaf`. */
  interface AggregateOptions extends Options {
    /** The classes of objects in states, beside the aggregate's own. */
    classes?: readonly (new (...args: any[]) => unknown)[];
  }

  /** A value of the type INTERVAL. */
  interface Interval {
    months: number;
    days: number;
    microseconds: number;
  }

  /** A value of the type UNION: the name of the member, and its value. */
  interface Tagged {
    tag: string;
    value: unknown;
  }
}

/**
 * Declares a function for SQL, such as `udf("slug(title VARCHAR) -> VARCHAR", (title) => ...)`.
 * Returns the function.
 */
declare function udf<F extends Crosslane.Callable | Crosslane.Stateful>(signature: string, f: F): F;
declare function udf<F extends Crosslane.Callable | Crosslane.Stateful>(
  signature: string,
  options: Crosslane.FunctionOptions | null | undefined,
  f: F,
): F;

/**
 * Declares a table function, such as `udtf("numbers(n INTEGER) -> TABLE(i INTEGER)", function* (n) ...)`,
 * or a function of a stream, whose parameter is a TABLE. Returns the function.
 */
declare function udtf<F extends Crosslane.TableFunction | Crosslane.StatefulTable>(signature: string, f: F): F;
declare function udtf<F extends Crosslane.TableFunction | Crosslane.StatefulTable>(
  signature: string,
  options: Crosslane.TableOptions | null | undefined,
  f: F,
): F;

/**
 * Declares an aggregate: a class with `update`, `merge` and `finish`, or an object of them and `start`.
 * Returns the class or the object.
 */
declare function udaf<C extends Crosslane.Aggregate>(signature: string, aggregate: C): C;
declare function udaf<State>(
  signature: string,
  aggregate: Crosslane.Fold<State>,
): Crosslane.Fold<State>;
declare function udaf<C extends Crosslane.Aggregate>(
  signature: string,
  options: Crosslane.AggregateOptions | null | undefined,
  aggregate: C,
): C;
declare function udaf<State>(
  signature: string,
  options: Crosslane.AggregateOptions | null | undefined,
  aggregate: Crosslane.Fold<State>,
): Crosslane.Fold<State>;

/** A point in time with nanoseconds: a Date, and 0 to 999,999 nanoseconds after it. */
interface Timestamp extends Date {
  nanoseconds: number;
}
declare var Timestamp: {
  prototype: Timestamp;
  new (milliseconds: number, nanoseconds?: number): Timestamp;
};

declare module "crosslane" {
  export const udf: typeof globalThis.udf;
  export const udtf: typeof globalThis.udtf;
  export const udaf: typeof globalThis.udaf;
  export const Timestamp: typeof globalThis.Timestamp;
  export type Timestamp = globalThis.Timestamp;
  export default udf;
}

// ---- what isolates have of the web's interfaces

interface Console {
  log(...values: unknown[]): void;
  info(...values: unknown[]): void;
  debug(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
  dir(value: unknown): void;
  table(value: unknown): void;
  trace(...values: unknown[]): void;
  assert(condition?: unknown, ...values: unknown[]): void;
  count(label?: string): void;
  countReset(label?: string): void;
  time(label?: string): void;
  timeEnd(label?: string): void;
  group(...values: unknown[]): void;
  groupEnd(): void;
}
/** Writes to the log of the database's process. */
declare var console: Console;

declare function setTimeout(call: (...passed: any[]) => unknown, milliseconds?: number, ...passed: unknown[]): number;
declare function setInterval(call: (...passed: any[]) => unknown, milliseconds?: number, ...passed: unknown[]): number;
declare function clearTimeout(id?: number): void;
declare function clearInterval(id?: number): void;

declare function atob(text: string): string;
declare function btoa(text: string): string;
declare function structuredClone<T>(value: T): T;

interface DOMException extends Error {
  readonly code: number;
}
declare var DOMException: {
  prototype: DOMException;
  new (message?: string, name?: string): DOMException;
};

interface TextEncoder {
  readonly encoding: string;
  encode(text?: string): Uint8Array;
  encodeInto(text: string, bytes: Uint8Array): { read: number; written: number };
}
declare var TextEncoder: { prototype: TextEncoder; new (): TextEncoder };

interface TextDecoder {
  readonly encoding: string;
  readonly fatal: boolean;
  readonly ignoreBOM: boolean;
  decode(bytes?: ArrayBuffer | ArrayBufferView, options?: { stream?: boolean }): string;
}
declare var TextDecoder: {
  prototype: TextDecoder;
  new (label?: string, options?: { fatal?: boolean; ignoreBOM?: boolean }): TextDecoder;
};

interface URLSearchParams extends Iterable<[string, string]> {
  readonly size: number;
  append(name: string, value: string): void;
  delete(name: string, value?: string): void;
  get(name: string): string | null;
  getAll(name: string): string[];
  has(name: string, value?: string): boolean;
  set(name: string, value: string): void;
  sort(): void;
  forEach(call: (value: string, name: string, all: URLSearchParams) => void, self?: unknown): void;
  entries(): IterableIterator<[string, string]>;
  keys(): IterableIterator<string>;
  values(): IterableIterator<string>;
  toString(): string;
}
declare var URLSearchParams: {
  prototype: URLSearchParams;
  new (init?: string | Iterable<[string, string]> | { readonly [name: string]: string }): URLSearchParams;
};

interface URL {
  hash: string;
  host: string;
  hostname: string;
  href: string;
  readonly origin: string;
  password: string;
  pathname: string;
  port: string;
  protocol: string;
  search: string;
  readonly searchParams: URLSearchParams;
  username: string;
  toJSON(): string;
  toString(): string;
}
declare var URL: {
  prototype: URL;
  new (url: string | URL, base?: string | URL): URL;
  canParse(url: string | URL, base?: string | URL): boolean;
};

declare namespace WebAssembly {
  type Bytes = ArrayBuffer | ArrayBufferView;
  type ValueType = "i32" | "i64" | "f32" | "f64" | "v128" | "externref" | "anyfunc";
  type Kind = "function" | "global" | "memory" | "table" | "tag";
  type Imports = { readonly [module: string]: { readonly [name: string]: any } };
  type Exports = { readonly [name: string]: any };

  /** A module of the top level of a file is compiled when a call first uses it. */
  class Module {
    constructor(bytes: Bytes);
    static exports(module: Module): { name: string; kind: Kind }[];
    static imports(module: Module): { module: string; name: string; kind: Kind }[];
    static customSections(module: Module, name: string): ArrayBuffer[];
  }
  class Instance {
    constructor(module: Module, imports?: Imports);
    readonly exports: Exports;
  }
  class Memory {
    constructor(descriptor: { initial: number; maximum?: number });
    readonly buffer: ArrayBuffer;
    grow(pages: number): number;
  }
  class Table {
    constructor(descriptor: { element: ValueType; initial: number; maximum?: number }, value?: any);
    readonly length: number;
    get(index: number): any;
    set(index: number, value?: any): void;
    grow(delta: number, value?: any): number;
  }
  class Global {
    constructor(descriptor: { value: ValueType; mutable?: boolean }, value?: any);
    value: any;
    valueOf(): any;
  }
  class Tag {
    constructor(type: { parameters: ValueType[] });
  }
  class Exception {
    constructor(tag: Tag, payload: any[]);
    is(tag: Tag): boolean;
    getArg(tag: Tag, index: number): any;
  }
  class CompileError extends Error {}
  class LinkError extends Error {}
  class RuntimeError extends Error {}
  function validate(bytes: Bytes): boolean;
  function compile(bytes: Bytes): Promise<Module>;
  function instantiate(bytes: Bytes, imports?: Imports): Promise<{ module: Module; instance: Instance }>;
  function instantiate(module: Module, imports?: Imports): Promise<Instance>;
}

// ---- methods of later editions than ECMAScript 2022

interface ReadonlyArray<T> {
  findLast<S extends T>(test: (value: T, index: number, all: readonly T[]) => value is S, self?: unknown): S | undefined;
  findLast(test: (value: T, index: number, all: readonly T[]) => unknown, self?: unknown): T | undefined;
  findLastIndex(test: (value: T, index: number, all: readonly T[]) => unknown, self?: unknown): number;
}
interface Array<T> {
  findLast<S extends T>(test: (value: T, index: number, all: T[]) => value is S, self?: unknown): S | undefined;
  findLast(test: (value: T, index: number, all: T[]) => unknown, self?: unknown): T | undefined;
  findLastIndex(test: (value: T, index: number, all: T[]) => unknown, self?: unknown): number;
}
