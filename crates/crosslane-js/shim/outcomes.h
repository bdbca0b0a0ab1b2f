// The functions that the prelude can call, and the outcomes of calls.
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to compile.
#pragma once

#include "limits.h"

namespace {

void Print(const v8::FunctionCallbackInfo<v8::Value>& info) {
  ClIsolate* self = Self(info.GetIsolate());
  {
    v8::String::Utf8Value text(info.GetIsolate(), info[1]);
    ClText view{reinterpret_cast<const uint8_t*>(*text), static_cast<size_t>(text.length())};
    OutsideV8 outside_v8(self);
    self->host.print(self->host.host, info[0].As<v8::Int32>()->Value(), view);
  }
  LeaveIfGivenUp(self);
}

// Whether a value is an error, as `Error.isError` says.
void IsError(const v8::FunctionCallbackInfo<v8::Value>& info) {
  info.GetReturnValue().Set(info[0]->IsNativeError());
}

// Separates the parts of an answer of the host. No text has this byte in UTF-8.
constexpr int kSeparator = 0xff;

// Returns the list of the parts of the host's answer, or undefined.
void UrlParts(const v8::FunctionCallbackInfo<v8::Value>& info) {
  v8::Isolate* isolate = info.GetIsolate();
  ClIsolate* self = Self(isolate);
  std::string operation = ToString(isolate, info[0]);
  std::string first = ToString(isolate, info[1]);
  std::string second = ToString(isolate, info[2]);
  ClText result;
  {
    OutsideV8 outside_v8(self);
    if (!self->host.url(self->host.host, View(operation), View(first), View(second), &result)) return;
  }
  std::vector<v8::Local<v8::Value>> parts;
  auto* data = reinterpret_cast<const char*>(result.data);
  const char* end = data + result.length;
  for (;;) {
    auto* line = static_cast<const char*>(memchr(data, kSeparator, end - data));
    parts.push_back(Text(isolate, data, (line ? line : end) - data));
    if (!line) break;
    data = line + 1;
  }
  info.GetReturnValue().Set(v8::Array::New(isolate, parts.data(), parts.size()));
}

// The bytes of a view. They live as long as the store.
uint8_t* BytesOf(v8::Local<v8::ArrayBufferView> view, std::shared_ptr<v8::BackingStore>* store) {
  // This moves the memory of a small array out of the heap, so that it stays where it is.
  *store = view->Buffer()->GetBackingStore();
  return static_cast<uint8_t*>((*store)->Data()) + view->ByteOffset();
}

// The size of a text in UTF-8.
void Utf8Size(const v8::FunctionCallbackInfo<v8::Value>& info) {
  info.GetReturnValue().Set(info[0].As<v8::String>()->Utf8Length(info.GetIsolate()));
}

// Writes as much of a text in UTF-8 as an array has room for: whole characters. Returns the numbers of units
// that were read, and of bytes that were written.
void WriteUtf8(const v8::FunctionCallbackInfo<v8::Value>& info) {
  v8::Isolate* isolate = info.GetIsolate();
  auto view = info[1].As<v8::ArrayBufferView>();
  std::shared_ptr<v8::BackingStore> store;
  uint8_t* bytes = BytesOf(view, &store);
  int room = static_cast<int>(std::min<size_t>(view->ByteLength(), INT32_MAX));
  int read = 0, written = 0;
  if (room) {
    written = info[0].As<v8::String>()->WriteUtf8(
        isolate, reinterpret_cast<char*>(bytes), room, &read,
        v8::String::NO_NULL_TERMINATION | v8::String::REPLACE_INVALID_UTF8);
  }
  v8::Local<v8::Value> counts[] = {v8::Integer::New(isolate, read), v8::Integer::New(isolate, written)};
  info.GetReturnValue().Set(v8::Array::New(isolate, counts, 2));
}

void ThrowTooLong(v8::Isolate* isolate) {
  isolate->ThrowException(v8::Exception::RangeError(Text(isolate, "a text beyond V8's longest", 26)));
}

// The text of bytes of a kind (`js/web/encoding.js`): UTF-8, one byte per character, or UTF-16.
void TextOfBytes(const v8::FunctionCallbackInfo<v8::Value>& info) {
  v8::Isolate* isolate = info.GetIsolate();
  auto view = info[0].As<v8::ArrayBufferView>();
  std::shared_ptr<v8::BackingStore> store;
  uint8_t* bytes = BytesOf(view, &store);
  size_t length = view->ByteLength();
  auto kind = v8::NewStringType::kNormal;
  v8::MaybeLocal<v8::String> text;
  if (length <= INT32_MAX) {
    int size = static_cast<int>(length);
    switch (info[1].As<v8::Int32>()->Value()) {
      case 0:
        text = v8::String::NewFromUtf8(isolate, reinterpret_cast<const char*>(bytes), kind, size);
        break;
      case 1:
        text = v8::String::NewFromOneByte(isolate, bytes, kind, size);
        break;
      default:
        text = v8::String::NewFromTwoByte(isolate, reinterpret_cast<const uint16_t*>(bytes), kind, size / 2);
    }
  }
  v8::Local<v8::String> made;
  if (text.ToLocal(&made)) {
    info.GetReturnValue().Set(made);
  } else {
    ThrowTooLong(isolate);
  }
}

// Notes types of modules of WebAssembly: the bytes of a module's types, or a tag's type as a text. V8 keeps
// each type until the process ends, and ends the process at a million. A type takes two bytes or more.
// Returns false if there are too many. The same types count once.
void NoteTypes(const v8::FunctionCallbackInfo<v8::Value>& info) {
  constexpr size_t kMost = 1'900'000;
  static std::mutex mutex;
  static auto* noted = new std::set<std::string>;
  static size_t size = 0;
  v8::Local<v8::String> given = info[0].As<v8::String>();
  size_t length = given->Length();
  if (length > kMost) {
    info.GetReturnValue().Set(false);
    return;
  }
  std::string text = ToString(info.GetIsolate(), given);
  std::lock_guard<std::mutex> lock(mutex);
  bool is_known = noted->count(text) > 0;
  bool fits = is_known || length <= kMost - size;
  if (fits && !is_known) {
    size += length;
    noted->insert(std::move(text));
  }
  info.GetReturnValue().Set(fits);
}

extern const intptr_t external_references[];

// ---- outcomes

void Begin(ClIsolate* self, ClOutcome* outcome) {
  *outcome = {};
  self->results.Reset();
  self->detached.clear();
  self->result = Encoded();
  self->interrupted_at.clear();
  self->asked = false;
  self->unheard_since = 0;
  self->excess = false;
  if (self->look_at == SIZE_MAX) self->look_at = self->memory_limit;
  self->unwinding = false;
}

v8::MaybeLocal<v8::Value> Method(ClIsolate* self, v8::Local<v8::Context> context, const char* name, int count,
                                 v8::Local<v8::Value>* arguments) {
  v8::Isolate* isolate = self->isolate;
  v8::Local<v8::Object> guest = self->guest.Get(isolate);
  v8::Global<v8::Function>& method = self->methods[name];
  if (method.IsEmpty()) {
    v8::Local<v8::Value> found;
    if (!guest->Get(context, Text(isolate, name, strlen(name))).ToLocal(&found) || !found->IsFunction()) {
      FatalError(name, "no such method of the prelude");
    }
    method.Reset(isolate, found.As<v8::Function>());
  }
  return method.Get(isolate)->Call(context, guest, count, arguments);
}

// The place that V8 blames, and its source line with a mark below.
std::string Blame(ClIsolate* self, v8::Local<v8::Context> context, v8::Local<v8::Message> message) {
  v8::Isolate* isolate = self->isolate;
  std::string script = ToString(isolate, message->GetScriptResourceName());
  if (script.empty() || script == "undefined") return "";
  int column = message->GetStartColumn(context).FromMaybe(0);
  int line = message->GetLineNumber(context).FromMaybe(0);
  std::string text =
      "    at " + script + ":" + std::to_string(line) + ":" + std::to_string(column + 1) + "\n";
  v8::Local<v8::String> source;
  if (message->GetSourceLine(context).ToLocal(&source) && source->Length() <= 200) {
    int end = message->GetEndColumn(context).FromMaybe(column + 1);
    text += "      " + ToString(isolate, source) + "\n      " + std::string(column, ' ') +
            std::string(std::max(1, end - column), '^') + "\n";
  }
  return text;
}

// Whether V8 throws a RangeError with this message when an array buffer or a memory of WebAssembly is
// refused.
bool IsRefusal(std::string_view message) {
  return message == kRefused || message.find("could not allocate memory") != std::string_view::npos ||
         message.find("Cannot allocate Wasm memory") != std::string_view::npos;
}

void Ended(ClIsolate* self, ClOutcome* outcome) {
  self->isolate->CancelTerminateExecution();
  outcome->status = CL_TERMINATED;
  outcome->reason = self->reason.exchange(0);
  self->stack = self->interrupted_at;
  outcome->stack = View(self->stack);
}

void Failed(ClIsolate* self, v8::Local<v8::Context> context, v8::TryCatch& caught, ClOutcome* outcome) {
  v8::Isolate* isolate = self->isolate;
  self->name.clear();
  self->message.clear();
  self->stack.clear();
  bool terminated = caught.HasTerminated() || isolate->IsExecutionTerminating();
  v8::Local<v8::Value> exception = caught.Exception();
  v8::Local<v8::Message> message = caught.Message();
  caught.Reset();
  if (terminated) {
    return Ended(self, outcome);
  }
  outcome->status = CL_EXCEPTION;
  v8::TryCatch describing(isolate);
  v8::Local<v8::Value> described;
  if (!self->guest.IsEmpty() && Method(self, context, "describe", 1, &exception).ToLocal(&described) &&
      described->IsArray()) {
    v8::Local<v8::Array> parts = described.As<v8::Array>();
    std::string* targets[] = {&self->name, &self->message, &self->stack};
    for (uint32_t index = 0; index < 3; index++) {
      v8::Local<v8::Value> part;
      if (parts->Get(context, index).ToLocal(&part)) *targets[index] = ToString(isolate, part);
    }
  } else if (describing.HasTerminated()) {
    // The call was ended while the exception was described.
    return Ended(self, outcome);
  } else {
    self->name = "Error";
    self->message = ToString(isolate, exception);
  }
  // Syntax errors, and thrown values that are no errors, have no stack; V8 knows their place.
  if (self->stack.empty() && !message.IsEmpty()) {
    v8::Local<v8::StackTrace> trace = message->GetStackTrace();
    if (trace.IsEmpty() || trace->GetFrameCount() == 0) {
      self->stack = Blame(self, context, message);
    } else {
      self->stack = Frames(isolate, trace);
    }
  }
  if (!exception.IsEmpty() && exception == self->failed_with) outcome->reason = CL_PROGRAM;
  // JavaScript may have caught the allocator's error, and thrown another one.
  if (self->account->refused && self->name == "RangeError" && IsRefusal(self->message)) {
    outcome->reason = CL_MEMORY;
  }
  // `memory.grow` has returned -1, and the code could not go on without the memory.
  if (self->account->refused && self->name == "RuntimeError") {
    self->message += ", after memory_limit has refused memory to WebAssembly";
  }
  outcome->name = View(self->name);
  outcome->message = View(self->message);
  outcome->stack = View(self->stack);
}

// Gives an error an own property, whatever the user's code made of the prototypes of errors.
void Define(v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value> error,
            const char* name, v8::Local<v8::String> value) {
  // This fails only if the call is being ended.
  error.As<v8::Object>()
      ->CreateDataProperty(context, Text(isolate, name, strlen(name)), value)
      .FromMaybe(false);
}

}  // namespace
