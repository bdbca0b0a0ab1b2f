// The shim with a host of its own, to be built with sanitizers (`tools/test` does): every function of
// `shim.h`, with a prelude that does little. It ends with 0 if all went as it should.
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

// The modules, and what was printed.
struct Program {
  std::map<std::string, std::string> modules;
  std::string path, source, printed;
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

ClHost Host(Program* program) {
  auto print = [](void* host, uint32_t, ClText text) { static_cast<Program*>(host)->printed += Copy(text); };
  auto fatal = [](void*, ClText what) { fprintf(stderr, "fatal: %s\n", Copy(what).c_str()); };
  auto confirm = [](void*, uint32_t) { return true; };
  return {program, print, Resolve, confirm, fatal};
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
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      cl_terminate(isolate, 7, stack);
    });
    Call(isolate, "text", 5, &outcome);
    CHECK(outcome.status == CL_TERMINATED && outcome.reason == 7 && (outcome.stack.length > 0) == stack);
    ender.join();
    CHECK(cl_pending(isolate) == 0);
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
  cl_dispose(isolate);
}

}  // namespace

int main() {
  cl_initialize(View("--no-expose-wasm --single-threaded-gc"));
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
  puts("the shim is clean");
}
