// Calls that a program makes into V8, and calls that JavaScript makes into the program.
#pragma once

#include "encoding.h"

namespace {

// Throws the error of a function of the program: an error of a class of JavaScript, or an `Error`
// with the given name.
void Fail(ClIsolate* self, v8::Local<v8::Context> context, ClText text) {
  static const std::map<std::string_view, v8::Local<v8::Value> (*)(v8::Local<v8::String>)> classes = {
      {"RangeError", MakeError<v8::Exception::RangeError>},
      {"ReferenceError", MakeError<v8::Exception::ReferenceError>},
      {"SyntaxError", MakeError<v8::Exception::SyntaxError>},
      {"TypeError", MakeError<v8::Exception::TypeError>}};
  v8::Isolate* isolate = self->isolate;
  std::string_view message(reinterpret_cast<const char*>(text.data), text.length);
  std::string_view name = message.substr(0, message.find('\n'));
  message.remove_prefix(std::min(name.size() + 1, message.size()));
  auto known = classes.find(name);
  v8::Local<v8::Value> error =
      (known == classes.end() ? MakeError<v8::Exception::Error> : known->second)(Text(isolate, message));
  self->failed_with.Reset(isolate, error);
  if (known == classes.end() && name != "Error") Define(isolate, context, error, "name", Text(isolate, name));
  isolate->ThrowException(error);
}

// A function of the program. The function's data is its number.
void CallProgram(const v8::FunctionCallbackInfo<v8::Value>& info) {
  v8::Isolate* isolate = info.GetIsolate();
  v8::Local<v8::Context> context = isolate->GetCurrentContext();
  ClIsolate* self = Self(isolate);
  if (!Poll(self, context)) return;
  Encoded arguments;
  arguments.Put<uint32_t>(info.Length());
  for (int index = 0; index < info.Length(); index++) {
    if (!Encode(isolate, context, info[index], &arguments)) return;
  }
  ClText result{};
  uint32_t number = info.Data().As<v8::Uint32>()->Value();
  bool called;
  {
    OutsideV8 outside_v8(self);
    called = self->host.call(self->host.host, number, arguments.View(), &result);
  }
  arguments = Encoded();
  LeaveIfGivenUp(self);
  if (!called) {
    Fail(self, context, result);
    return;
  }
  v8::Local<v8::Value> value;
  if (Decoder(isolate, context, result).Value().ToLocal(&value)) info.GetReturnValue().Set(value);
}

const intptr_t external_references[] = {reinterpret_cast<intptr_t>(Print),
                                        reinterpret_cast<intptr_t>(CallProgram),
                                        reinterpret_cast<intptr_t>(IsError),
                                        reinterpret_cast<intptr_t>(UrlParts),
                                        reinterpret_cast<intptr_t>(Utf8Size),
                                        reinterpret_cast<intptr_t>(WriteUtf8),
                                        reinterpret_cast<intptr_t>(TextOfBytes),
                                        reinterpret_cast<intptr_t>(NoteTypes),
                                        0};

// Releases all handles that calls made.
void Forget(ClIsolate* self) {
  self->results.Reset();
  self->failed_with.Reset();
  self->call_buffers.clear();
  self->detached.clear();
  self->reused.clear();
  self->word.Reset();
  self->word_at = nullptr;
  self->methods.clear();
  self->modules.clear();
}

}  // namespace

// The state around a call that the program makes.
struct Entry {
  Entry(ClIsolate* self, size_t stack, ClOutcome* outcome)
      : scopes(self),
        caught(self->isolate),
        outer(self->entry),
        outside(std::exchange(self->outside, false)) {
    self->entry = this;
    self->isolate->SetStackLimit(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) - stack);
    Begin(self, outcome);
    // An inner call ends together with the outer call.
    if (self->depth++ == 0) ForgetTermination(self);
  }

  void Leave(ClIsolate* self, bool done, v8::Local<v8::Value> value, ClOutcome* outcome) {
    v8::Isolate* isolate = self->isolate;
    self->depth--;
    Encoded encoded;
    if (done && self->depth == 0) {
      isolate->PerformMicrotaskCheckpoint();
      done = !isolate->IsExecutionTerminating() && !caught.HasCaught();
    }
    // The result of a settled promise is the promise's value: nothing else happens to it before the
    // next call.
    if (done && value->IsPromise()) {
      auto promise = value.As<v8::Promise>();
      if (promise->State() == v8::Promise::kRejected) {
        promise->MarkAsHandled();
        isolate->ThrowException(promise->Result());
        done = false;
      } else if (promise->State() == v8::Promise::kFulfilled) {
        value = promise->Result();
      }
    }
    done = done && Encode(isolate, scopes.context, value, &encoded);
    while (v8::platform::PumpMessageLoop(platform, isolate)) {
    }
    if (!done) {
      Failed(self, scopes.context, caught, outcome);
      return;
    }
    if (self->depth == 0 && self->reason.exchange(0)) isolate->CancelTerminateExecution();
    self->result = std::move(encoded);
    outcome->value = self->result.View();
  }

  Scopes scopes;
  v8::TryCatch caught;
  Entry* outer;
  // The value of `ClIsolate::outside` around the call: whether a function of the host makes the
  // call.
  bool outside;
  // Where the thread goes on when the call is given up.
  jmp_buf exit;
};

namespace {

// Gives up the call of the program that is at work. Its frames are never left in order: they stay
// as they are, with the isolate and its memory. The call ends, and then the calls around it, none
// of which may touch the isolate. Does nothing if no call of a program is at work, as in a lane.
void GiveUp(ClIsolate* self, uint32_t reason) {
  if (!self->entry) return;
  self->given_up = reason;
  longjmp(self->entry->exit, 1);
}

void GivenUp(ClIsolate* self, ClOutcome* outcome) {
  *outcome = {};
  outcome->status = CL_TERMINATED;
  outcome->reason = self->given_up;
}

// Makes a call of the program: `work` gets the isolate, the context and a place for the result, and returns
// false if V8 has an exception.
template <typename Work>
[[gnu::noinline]] void Run(ClIsolate* self, size_t stack, ClOutcome* outcome, Work work) {
  std::optional<v8::Locker> lock;
  if (self->shared) lock.emplace(self->isolate);
  if (self->given_up) return GivenUp(self, outcome);
  // This is not destroyed if the call is given up.
  alignas(Entry) char room[sizeof(Entry)];
  auto* entry = new (room) Entry(self, stack, outcome);
  if (setjmp(entry->exit) == 0) {
    v8::Local<v8::Value> value;
    bool done = work(self->isolate, entry->scopes.context, &value);
    entry->Leave(self, done, value, outcome);
    self->entry = entry->outer;
    self->outside = entry->outside;
    entry->~Entry();
  } else {
    self->entry = entry->outer;
    self->outside = entry->outside;
    self->isolate->Exit();
    GivenUp(self, outcome);
  }
}

// Finds the object that holds the last name of a path (`a.b.c`), and that name. With `make`,
// creates objects that are missing in the path.
bool Holder(v8::Isolate* isolate, v8::Local<v8::Context> context, ClText path, bool make,
            v8::Local<v8::Object>* holder, v8::Local<v8::String>* name) {
  std::string_view text(reinterpret_cast<const char*>(path.data), path.length);
  *holder = context->Global();
  size_t start = 0;
  for (size_t dot; (dot = text.find('.', start)) != std::string_view::npos; start = dot + 1) {
    v8::Local<v8::String> key = Text(isolate, text.substr(start, dot - start));
    v8::Local<v8::Value> next;
    if (!(*holder)->Get(context, key).ToLocal(&next)) return false;
    if (make && next->IsNullOrUndefined()) {
      next = v8::Object::New(isolate);
      if (!(*holder)->Set(context, key, next).FromMaybe(false)) return false;
    }
    if (!next->IsObject()) {
      // A long path is cut, because there may be no memory for it.
      std::string shown(text.substr(0, std::min<size_t>(dot, 200)));
      Throw(isolate, (shown + " is no object").c_str());
      return false;
    }
    *holder = next.As<v8::Object>();
  }
  *name = Text(isolate, text.substr(start));
  return true;
}

}  // namespace
