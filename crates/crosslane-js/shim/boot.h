// Boots isolates and makes their contexts.
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to compile.
#pragma once

#include "values.h"

namespace {

// What V8 reserves for the code of a builder, and of other isolates; and how much more address space an
// isolate takes until it has booted.
constexpr size_t kBuilderCode = V8_MAJOR_VERSION < 12 ? 128u << 20 : 512u << 20;
constexpr size_t kCode = 128u << 20;
constexpr size_t kBoot = 24u << 20;
// The most memory of young objects. Limits of memory are enforced after collections, and V8 collects the
// young objects when this memory is full. Newer versions would take four times as much.
constexpr size_t kYoung = 48u << 20;

// V8's seeds of random numbers. V8 would open a file for each isolate.
bool Random(unsigned char* bytes, size_t count) {
  return getrandom(bytes, count, 0) == static_cast<ssize_t>(count);
}

// Locked from the check for room until the isolate has booted: otherwise another thread that boots
// counts on the same room.
std::mutex one_boots;

// Whether the address space has room for one more isolate. Without room, V8 ends the process.
bool IsRoomToBoot(size_t code, ClOutcome* outcome) {
  *outcome = {};
  if (IsThere(code + kBoot, PROT_NONE)) return true;
  outcome->status = CL_TERMINATED;
  outcome->reason = CL_NO_HEAP;
  return false;
}

ClIsolate* Allocate(ClText blob, const ClHost* host) {
  auto* self = new ClIsolate;
  self->host = *host;
  self->blob = {reinterpret_cast<const char*>(blob.data), static_cast<int>(blob.length)};
  self->isolate = v8::Isolate::Allocate();
  self->isolate->SetData(0, self);
  return self;
}

// Makes the context: the one of the snapshot, or a new one in which the prelude runs.
ClIsolate* MakeContext(ClIsolate* self, ClText prelude, ClOutcome* outcome) {
  v8::Isolate* isolate = self->isolate;
  Begin(self, outcome);
  v8::HandleScope scope(isolate);
  v8::Local<v8::Context> context = v8::Context::New(isolate);
  v8::Context::Scope context_scope(context);
  self->context.Reset(isolate, context);
  if (self->blob.raw_size) {
    self->guest.Reset(isolate, context->GetDataFromSnapshotOnce<v8::Object>(0).ToLocalChecked());
    v8::TryCatch caught(isolate);
    if (!self->creator && Method(self, context, "afterBoot", 0, nullptr).IsEmpty()) {
      Failed(self, context, caught, outcome);
    }
    return self;
  }
#if V8_MAJOR_VERSION >= 12
  // Shared memory of WebAssembly is refused. If a function still got some, it could make more, uncounted.
  auto shared = v8::SharedArrayBuffer::New(isolate, 0)->GetPrototype().As<v8::Object>();
  for (const char* name : {"constructor", "grow", "slice"}) {
    shared->Delete(context, Text(isolate, std::string_view(name))).Check();
  }
#endif
  v8::TryCatch caught(isolate);
  v8::ScriptOrigin origin = Origin(isolate, Text(isolate, "crosslane:guest", 15));
  v8::Local<v8::Script> script;
  v8::Local<v8::Value> make, guest;
  std::vector<v8::Local<v8::Value>> arguments;
  for (auto function : {Print, IsError, UrlParts, Utf8Size, WriteUtf8, TextOfBytes, NoteTypes}) {
    arguments.push_back(v8::Function::New(context, function).ToLocalChecked());
  }
  if (!v8::Script::Compile(context, Text(isolate, prelude), &origin).ToLocal(&script) ||
      !script->Run(context).ToLocal(&make) ||
      !make.As<v8::Function>()
           ->Call(context, context->Global(), static_cast<int>(arguments.size()), arguments.data())
           .ToLocal(&guest)) {
    Failed(self, context, caught, outcome);
    guest = v8::Object::New(isolate);
  }
  self->guest.Reset(isolate, guest.As<v8::Object>());
  return self;
}

}  // namespace

// Isolates of lanes are entered only during a call, so that one thread can use several.
struct Scopes {
  explicit Scopes(ClIsolate* self)
      : lock(self->shared ? std::optional<v8::Locker>(std::in_place, self->isolate) : std::nullopt),
        isolate_scope(self->isolate),
        handle_scope(self->isolate),
        context(self->context.Get(self->isolate)),
        context_scope(context) {}
  std::optional<v8::Locker> lock;
  v8::Isolate::Scope isolate_scope;
  v8::HandleScope handle_scope;
  v8::Local<v8::Context> context;
  v8::Context::Scope context_scope;
};
