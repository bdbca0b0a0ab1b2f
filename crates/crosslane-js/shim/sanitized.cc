// Tests of the shim with a small host, built with sanitizers (`tools/sanitize`). They call every
// function of `shim.h`, with a small prelude. The program ends with 0 if all tests pass.
#include <string.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "shim.h"

namespace {

const char* kPrelude = R"(
(function (print) {
  const functions = [];
  let kept;
  globalThis.declare = (f) => functions.push(f);
  return {
    describe: (error) => [error.constructor.name, error.message, error.stack],
    beforeSnapshot: () => true,
    afterBoot: () => {},
    count: () => functions.length,
    text: (index) => String(functions[index]()),
    print: (index) => print(index, 'printed'),
    sums: (rows, values) => {
      const a = new Float64Array(values[0]), b = new Float64Array(values[1]);
      const sums = new Float64Array(rows);
      for (let i = 0; i < rows; i++) sums[i] = a[i] + b[i];
      kept = a;
      return [rows, undefined, sums];
    },
    kept: () => kept.length,
    joined: ([strings]) => [strings.join(''), strings.map((s) => s.length).reduce((a, b) => a + b, 0)],
  };
}))";

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "sanitized.cc:%d: not so: %s\n", __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

ClText View(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }
std::string Copy(ClText text) { return std::string(reinterpret_cast<const char*>(text.data), text.length); }

// The modules, the printed text, and the result of the last call by JavaScript.
struct Program {
  std::map<std::string, std::string> modules;
  std::string path, source, printed, answer;
  ClIsolate* isolate = nullptr;
};

bool Resolve(void* host, ClText specifier, ClText, ClText* path, ClText* source) {
  auto* program = static_cast<Program*>(host);
  program->path = Copy(specifier);
  auto found = program->modules.find(program->path);
  if (found == program->modules.end()) program->path = "there is no " + program->path;
  if (found != program->modules.end()) program->source = found->second;
  *path = View(program->path);
  *source = View(program->source);
  return found != program->modules.end();
}

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string Tag(uint8_t tag) { return Bytes(tag); }
std::string Int(int32_t value) { return Tag(CL_VALUE_INT) + Bytes(value); }
std::string Sized(const std::string& bytes) { return Bytes(static_cast<uint32_t>(bytes.size())) + bytes; }
std::string Textual(const std::string& text) { return Tag(CL_VALUE_TEXT) + Sized(text); }

constexpr size_t kStack = 500 << 10;

// The program's functions: 0 returns its arguments, 1 fails, 2 runs a script, 3 returns one value
// of each kind.
bool CallProgram(void* host, uint32_t number, ClText arguments, ClText* result) {
  auto* program = static_cast<Program*>(host);
  std::string passed = Copy(arguments);
  ClOutcome outcome{};
  switch (number) {
    case 0:
      program->answer = Tag(CL_VALUE_ARRAY) + passed;
      break;
    case 1:
      // If the argument is a text, it is the error. It comes after the count, its tag and its
      // length.
      program->answer = passed.size() > 9 ? passed.substr(4 + 1 + 4) : "ProgramError\nrefused";
      break;
    case 2: {
      // The script comes after the count, the tag and the length.
      std::string script = passed.substr(4 + 1 + 4);
      cl_eval(program->isolate, View(script), View("inner"), kStack / 2, &outcome);
      program->answer = outcome.status == CL_OK ? Copy(outcome.value) : "Error\nthe inner script failed";
      break;
    }
    default:
      program->answer = Tag(CL_VALUE_ARRAY) + Bytes<uint32_t>(8) + Tag(CL_VALUE_TRUE) + Tag(CL_VALUE_FALSE) +
                        Tag(CL_VALUE_UNDEFINED) + Tag(CL_VALUE_NUMBER) + Bytes(2.5) + Tag(CL_VALUE_OBJECT) +
                        Bytes<uint32_t>(1) + Sized("k") + Textual("\xc3\xbc") + Tag(CL_VALUE_DATE) +
                        Bytes(1e12) + Tag(CL_VALUE_BIGINT) + Bytes<uint8_t>(1) + Bytes<uint32_t>(1) +
                        Bytes<uint64_t>(7) + Tag(CL_VALUE_BYTES) + Sized("\x01\xff");
  }
  *result = View(program->answer);
  return number != 1 && outcome.status == CL_OK;
}

ClHost Host(Program* program) {
  auto print = [](void* host, uint32_t, ClText text) { static_cast<Program*>(host)->printed += Copy(text); };
  auto fatal = [](void*, uint32_t, ClText what) { fprintf(stderr, "fatal: %s\n", Copy(what).c_str()); };
  auto confirm = [](void*, uint32_t) { return true; };
  return {program, print, Resolve, confirm, fatal, CallProgram};
}

std::string Call(ClIsolate* isolate, const char* method, double argument, ClOutcome* outcome) {
  cl_call(isolate, method, &argument, 1, nullptr, 0, outcome);
  return Copy(outcome->value);
}

void Exercise(ClText snapshot) {
  Program program;
  ClHost host = Host(&program);
  ClOutcome outcome;
  ClIsolate* isolate = cl_boot(false, snapshot, {}, &host, 64 << 20, size_t{2} << 30, 500 << 10, &outcome);
  CHECK(outcome.status == CL_OK);
  CHECK(Call(isolate, "text", 0, &outcome) == "1");
  CHECK(Call(isolate, "text", 0, &outcome) == "2");
  Call(isolate, "print", 1, &outcome);
  CHECK(program.printed == "printed");

  Call(isolate, "text", 1, &outcome);
  CHECK(outcome.status == CL_EXCEPTION && Copy(outcome.name) == "TypeError" &&
        Copy(outcome.message) == "bad");
  Call(isolate, "text", 2, &outcome);
  CHECK(outcome.status == CL_EXCEPTION && Copy(outcome.name) == "RangeError");
  Call(isolate, "text", 3, &outcome);
  CHECK(outcome.status == CL_TERMINATED && outcome.reason == CL_MEMORY);
  Call(isolate, "text", 4, &outcome);
  CHECK(outcome.status == CL_EXCEPTION && outcome.reason == CL_MEMORY);

  for (bool stack : {true, false}) {
    std::thread ender([&] {
      // An endless loop comes to checks.
      while (cl_sign(isolate) != CL_HEARD) std::this_thread::yield();
      while (cl_sign(isolate) != CL_HEARD) std::this_thread::yield();
      cl_terminate(isolate, 7, stack);
    });
    Call(isolate, "text", 5, &outcome);
    CHECK(outcome.status == CL_TERMINATED && outcome.reason == 7 && (outcome.stack.length > 0) == stack);
    ender.join();
    CHECK(cl_pending(isolate) == 0 && cl_sign(isolate) == CL_IDLE);
  }
  cl_terminate(isolate, 7, true);
  CHECK(Call(isolate, "text", 0, &outcome) == "3");

  std::vector<double> a(1000), b(1000);
  for (int i = 0; i < 1000; i++) a[i] = i, b[i] = 2 * i;
  for (int round = 0; round < 200; round++) {
    ClValue values[2] = {};
    values[0] = {CL_BYTES, reinterpret_cast<uint8_t*>(a.data()), 8000, nullptr, 0, 0};
    values[1] = {CL_BYTES, reinterpret_cast<uint8_t*>(b.data()), 8000, nullptr, 0, 0};
    double rows = 1000;
    CHECK(cl_call(isolate, "sums", &rows, 1, values, 2, &outcome) == 3);
    ClValue results[3];
    cl_results(isolate, results, 3);
    CHECK(results[0].kind == CL_NUMBER && results[1].kind == CL_NONE && results[2].kind == CL_BYTES);
    CHECK(reinterpret_cast<const double*>(results[2].data)[999] == 2997);
    cl_detach(isolate);
    CHECK(reinterpret_cast<const double*>(results[2].data)[999] == 2997);
    cl_call(isolate, "kept", nullptr, 0, nullptr, 0, &outcome);
    CHECK(outcome.number == 0);
  }

  const std::string text = "plain, \xc3\xbcn\xc3\xad \xf0\x9f\x98\x80";
  const int32_t offsets[] = {0, 5, 7, 12, 17};
  for (size_t strings : {1, 3, 4}) {
    ClValue value = {strings == 1 ? CL_ASCII : CL_UTF8, View(text).data, text.size(), offsets, strings, 0};
    CHECK(cl_call(isolate, "joined", nullptr, 0, &value, 1, &outcome) == 2);
    ClValue results[2];
    cl_results(isolate, results, 2);
    CHECK(results[0].kind == (strings == 4 ? CL_UTF16 : CL_LATIN1));
    CHECK(results[0].length == static_cast<size_t>(results[1].number));
    std::vector<uint8_t> latin1(results[0].length);
    std::vector<uint16_t> utf16(results[0].length);
    cl_read_string(isolate, 0, strings == 4 ? nullptr : latin1.data(), utf16.data());
  }
  cl_set_memory_limit(isolate, 128 << 20);
  CHECK(cl_memory_used(isolate) > 0);
  CHECK(cl_dispose(isolate));
}

std::string Eval(Program& program, const std::string& source, ClOutcome* outcome) {
  cl_eval(program.isolate, View(source), View("script"), kStack, outcome);
  return Copy(outcome->value);
}

const char* kSmallPrelude =
    "(function (print) { return { describe: (error) => [error.name, error.message, String(error.stack)], "
    "beforeSnapshot: () => true, afterBoot: () => {} }; })";

void BootShared(Program& program, const ClHost& host) {
  ClOutcome outcome;
  const size_t memory = 60 << 20;
  program.isolate =
      cl_boot(true, {}, View(kSmallPrelude), &host, memory, memory + (size_t{2} << 30), kStack, &outcome);
  CHECK(outcome.status == CL_OK);
}

// What a program that embeds V8 does: scripts, calls, its own functions, and values in both
// directions.
void Embed() {
  Program program;
  ClHost host = Host(&program);
  ClOutcome outcome;
  BootShared(program, host);
  const char* names[] = {"same", "fails", "runs", "kinds"};
  for (uint32_t number = 0; number < 4; number++) {
    cl_attach(program.isolate, View(names[number]), number, kStack, &outcome);
    CHECK(outcome.status == CL_OK);
  }
  cl_attach(program.isolate, View("is.made"), 0, kStack, &outcome);
  CHECK(outcome.status == CL_OK);
  cl_attach(program.isolate, View("Math.PI.digits"), 0, kStack, &outcome);
  CHECK(outcome.status == CL_EXCEPTION);

  CHECK(Eval(program, "6 * 7", &outcome) == Int(42));
  CHECK(Eval(program, "same(1, 'x')", &outcome) ==
        Tag(CL_VALUE_ARRAY) + Bytes<uint32_t>(2) + Int(1) + Textual("x"));
  CHECK(Eval(program, "same([1, , 'a'], new Map([['k', new Set([2])]]), new Date(5), new Uint8Array(3))",
             &outcome) ==
        Eval(program, "[[1, undefined, 'a'], { k: [2] }, new Date(5), new Uint8Array(3)]", &outcome));
  CHECK(Eval(program, "same('\\u00fc\\ud800').length", &outcome) == Int(1));
  CHECK(Eval(program, "try { fails() } catch (e) { e.name + ': ' + e.message }", &outcome) ==
        Textual("ProgramError: refused"));
  CHECK(Eval(program, "try { fails('RangeError\\nbad') } catch (e) { (e instanceof RangeError) + e.message }",
             &outcome) == Textual("truebad"));
  Eval(program, "try { fails() } catch (e) { runs('1'); throw e }", &outcome);
  CHECK(outcome.status == CL_EXCEPTION && outcome.reason == CL_PROGRAM);
  Eval(program, "try { fails() } catch (e) { throw new Error(e.message) }", &outcome);
  CHECK(outcome.status == CL_EXCEPTION && outcome.reason == 0);
  CHECK(Eval(program, "runs('runs(\"1 + 1\") + 1')", &outcome) == Int(3));
  CHECK(Eval(program,
             "const [t, f, u, n, o, d, b, y] = kinds();"
             "[t, f, u, n, o.k, d.getTime(), b, y[1]].join()",
             &outcome) == Textual("true,false,,2.5,\xc3\xbc,1000000000000,-7,255"));

  CHECK(Eval(program, "Promise.resolve(1).then((x) => x + 1)", &outcome) == Int(2));
  CHECK(Eval(program, "new Promise(() => {})", &outcome) == Tag(CL_VALUE_PENDING));

  Eval(program, "globalThis.deep = { sum: (a, b) => a + b, throws() { throw new RangeError('bad'); } }",
       &outcome);
  std::string two = Bytes<uint32_t>(2) + Int(2) + Int(3);
  cl_invoke(program.isolate, View("deep.sum"), View(two), kStack, &outcome);
  CHECK(outcome.status == CL_OK && Copy(outcome.value) == Int(5));
  cl_invoke(program.isolate, View("deep.throws"), View(two), kStack, &outcome);
  CHECK(outcome.status == CL_EXCEPTION && Copy(outcome.message) == "bad");
  for (const char* missing : {"nothing", "deep.nothing", "no.where"}) {
    cl_invoke(program.isolate, View(missing), View(two), kStack, &outcome);
    CHECK(outcome.status == CL_EXCEPTION);
  }

  for (const char* bad :
       {"let x = ;", "null.x", "const a = []; a.push(a); a", "({ get x() { throw new Error('no'); } })",
        "Promise.reject(new Error('no'))", "(function f() { return f() + 1; })()",
        "new Proxy({}, { ownKeys() { throw new Error('no'); } })"}) {
    Eval(program, bad, &outcome);
    CHECK(outcome.status == CL_EXCEPTION);
  }
  // Scripts may change their prototypes: that must not break the shim.
  Eval(program,
       "for (const name of ['0', '1', 'k']) Object.defineProperty(Object.prototype, name,"
       "  { set() { throw 1; }, configurable: true });"
       "for (const name of ['name', 'stack']) Object.defineProperty(Error.prototype, name,"
       "  { set() { throw 1; }, configurable: true });",
       &outcome);
  CHECK(outcome.status == CL_OK);
  CHECK(Eval(program, "kinds().length", &outcome) == Int(8));
  CHECK(Eval(program, "try { fails() } catch (e) { e.message }", &outcome) == Textual("refused"));

  Eval(program, "globalThis.kept = []; for (let i = 0; i < 1e5; i++) kept.push([i]); kept = null", &outcome);
  cl_heap_stats(program.isolate, kStack, &outcome);
  CHECK(outcome.status == CL_OK && Copy(outcome.value).find("used_heap_size") != std::string::npos);
  size_t used = cl_memory_used(program.isolate);
  cl_collect(program.isolate, kStack, &outcome);
  CHECK(outcome.status == CL_OK && cl_memory_used(program.isolate) < used);

  // The text is longer than V8's longest string: it is not even read.
  for (size_t length : {size_t{1} << 30, size_t{1} << 31, size_t{1} << 32}) {
    cl_eval(program.isolate, {View("1").data, length}, View("script"), kStack, &outcome);
    CHECK(outcome.status == CL_EXCEPTION && Copy(outcome.name) == "RangeError");
  }

  // A call can be ended while its value is encoded.
  Eval(program, "const long = []; long.length = 4e8; long", &outcome);
  CHECK(outcome.status == CL_TERMINATED && outcome.reason == CL_MEMORY);
  CHECK(Eval(program, "1", &outcome) == Int(1));
  cl_set_memory_limit(program.isolate, size_t{1} << 40);
  std::thread ender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cl_terminate(program.isolate, 7, true);
  });
  Eval(program, "const longer = []; longer.length = 4e8; longer", &outcome);
  CHECK(outcome.status == CL_TERMINATED && outcome.reason == 7);
  ender.join();
  CHECK(cl_dispose(program.isolate));
}

// A call that cannot be ended is given up, together with the calls around it, and nothing else is.
void LeaveBehind() {
  // The programs must stay: their isolates do, and point to them.
  static Program programs[2];
  // A list beyond V8's longest, and more memory than the isolate may use.
  const char* scripts[] = {"'a'.repeat(3e8).split('')", "runs('Array.from({ length: 3e8 })')"};
  const uint32_t reasons[] = {CL_STUCK, CL_MEMORY};
  for (int index = 0; index < 2; index++) {
    Program& program = programs[index];
    ClHost host = Host(&program);
    ClOutcome outcome;
    BootShared(program, host);
    cl_attach(program.isolate, View("runs"), 2, kStack, &outcome);
    Eval(program, scripts[index], &outcome);
    CHECK(outcome.status == CL_TERMINATED && outcome.reason == reasons[index]);
    Eval(program, "1", &outcome);
    CHECK(outcome.status == CL_TERMINATED && outcome.reason == reasons[index]);
    CHECK(cl_memory_used(program.isolate) == 0);
    CHECK(!cl_dispose(program.isolate));
  }
  Embed();
}

}  // namespace

int main() {
  cl_initialize(View("--no-expose-wasm --single-threaded-gc"));
  cl_know_time_zone();
  Program program;
  program.modules = {
      {"main",
       "import { next } from 'lib'; import script from 'script'; declare(next);"
       "declare(() => { throw new TypeError('bad'); });"
       "declare(function f() { return f() + 1; });"
       "declare(() => { const all = []; for (;;) all.push({ all }); });"
       "declare(() => new Uint8Array(2 ** 30).length);"
       "declare(() => { for (;;) {} });"
       "if (script.answer !== 42) throw new Error('no script');"},
      {"lib", "let count = 0; export const next = () => ++count;"},
      {"script", "module.exports = { answer: 42 };"},
  };
  ClHost host = Host(&program);
  ClOutcome outcome;
  const std::string path = "main";

  for (const char* bad : {"const = 1", "import 'nothing'", "null.x", "await new Promise(() => {})"}) {
    ClIsolate* builder = cl_builder({}, View(kPrelude), &host, 64 << 20, &outcome);
    cl_load(builder, View(path), View(bad), &outcome);
    CHECK(outcome.status == CL_EXCEPTION);
    cl_dispose(builder);
  }

  ClIsolate* builder = cl_builder({}, View(kPrelude), &host, 64 << 20, &outcome);
  CHECK(outcome.status == CL_OK);
  cl_load(builder, View(path), View(program.modules["main"]), &outcome);
  CHECK(outcome.status == CL_OK);
  cl_call(builder, "count", nullptr, 0, nullptr, 0, &outcome);
  CHECK(outcome.number == 6);
  ClText cold = cl_snapshot(builder);
  ClIsolate* warmer = cl_builder(cold, {}, &host, 64 << 20, &outcome);
  CHECK(Call(warmer, "text", 0, &outcome) == "1");
  ClText warm = cl_snapshot(warmer);
  cl_free_blob(cold);

  std::thread first(Exercise, warm), second(Exercise, warm);
  first.join();
  second.join();
  cl_free_blob(warm);

  Embed();
  LeaveBehind();
  puts("the shim is clean");
}
