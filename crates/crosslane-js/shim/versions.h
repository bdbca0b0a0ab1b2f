// V8's headers, and what differs between the versions of V8: 10.2 of Debian's libnode, and those of
// Node's programs.
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to compile.
#pragma once

#include <libplatform/libplatform.h>
#include <v8-array-buffer.h>
#include <v8-container.h>
#include <v8-context.h>
#include <v8-date.h>
#include <v8-exception.h>
#include <v8-function.h>
#include <v8-initialization.h>
#include <v8-isolate.h>
#include <v8-locker.h>
#include <v8-message.h>
#include <v8-microtask-queue.h>
#include <v8-primitive.h>
#include <v8-promise.h>
#include <v8-script.h>
#include <v8-snapshot.h>
#include <v8-statistics.h>
#include <v8-template.h>
#include <v8-typed-array.h>
#include <v8-version.h>

// V8's headers do not declare this. It sets the function that V8 calls before it ends the process
// because a check failed.
namespace v8::base {
void SetPrintStackTrace(void (*)());
}

namespace {

v8::ScriptOrigin Origin(v8::Isolate* isolate, v8::Local<v8::String> name, bool is_module = false) {
#if V8_MAJOR_VERSION < 12
  return {isolate, name, 0, 0, false, -1, v8::Local<v8::Value>(), false, false, is_module};
#else
  return {name, 0, 0, false, -1, v8::Local<v8::Value>(), false, false, is_module};
#endif
}

// Makes an error of a class. Newer versions take options, too.
template <auto Make>
v8::Local<v8::Value> MakeError(v8::Local<v8::String> message) {
#if V8_MAJOR_VERSION < 12
  return Make(message);
#else
  return Make(message, {});
#endif
}

#if V8_MAJOR_VERSION < 12
using OutOfMemoryDetails = bool;
bool IsHeap(OutOfMemoryDetails is_heap) { return is_heap; }
#else
using OutOfMemoryDetails = const v8::OOMDetails&;
bool IsHeap(OutOfMemoryDetails details) { return details.is_heap_oom; }
#endif

}  // namespace
