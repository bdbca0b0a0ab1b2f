// The functions of shim.h, on V8's C++ interface.

#include "entries.h"

extern "C" {

void cl_initialize(ClText flags) {
  v8::V8::SetFlagsFromString(reinterpret_cast<const char*>(flags.data), flags.length);
  v8::V8::SetEntropySource(Random);
  platform = v8::platform::NewDefaultPlatform().release();
#if V8_MAJOR_VERSION < 12
  v8::V8::InitializePlatform(platform);
#else
  v8::V8::InitializePlatform(new CountedPlatform(platform));
#endif
  v8::V8::Initialize();
  v8::base::SetPrintStackTrace(CheckFailed);
  handler_before = std::set_new_handler(NoMemory);
}

void cl_know_time_zone() {
  std::unique_ptr<v8::ArrayBuffer::Allocator> allocator(v8::ArrayBuffer::Allocator::NewDefaultAllocator());
  v8::Isolate::CreateParams parameters;
  parameters.array_buffer_allocator = allocator.get();
  v8::Isolate* isolate = v8::Isolate::New(parameters);
  isolate->DateTimeConfigurationChangeNotification(v8::Isolate::TimeZoneDetection::kRedetect);
  isolate->Dispose();
}

const char* cl_version() { return v8::V8::GetVersion(); }

#define CL_TEXT_OF(value) #value
#define CL_VERSION(major, minor) CL_TEXT_OF(major) "." CL_TEXT_OF(minor)
const char* cl_built_for() { return CL_VERSION(V8_MAJOR_VERSION, V8_MINOR_VERSION); }

ClIsolate* cl_builder(ClText blob, ClText prelude, const ClHost* host, size_t memory_limit,
                      ClOutcome* outcome) {
  std::lock_guard<std::mutex> boots(one_boots);
  if (!IsRoomToBoot(kBuilderCode, outcome)) return nullptr;
  ClIsolate* self = Allocate(blob, host);
  self->creator = std::make_unique<v8::SnapshotCreator>(self->isolate, external_references,
                                                        blob.length ? &self->blob : nullptr);
  self->warming = blob.length > 0;
  Guard(self, memory_limit);
  return MakeContext(self, prelude, outcome);
}

void cl_load(ClIsolate* self, ClText path, ClText source, ClOutcome* outcome) {
  Scopes scopes(self);
  Begin(self, outcome);
  v8::TryCatch caught(self->isolate);
  std::string file(reinterpret_cast<const char*>(path.data), path.length);
  if (!Evaluate(self, scopes.context, file, Text(self->isolate, source))) {
    Failed(self, scopes.context, caught, outcome);
  }
  self->modules.clear();
}

ClText cl_snapshot(ClIsolate* self) {
  v8::Isolate* isolate = self->isolate;
  Forget(self);
  {
    v8::HandleScope scope(isolate);
    v8::Local<v8::Context> context = self->context.Get(isolate);
    v8::Local<v8::Object> guest = self->guest.Get(isolate);
    if (self->warming) {
      // A fresh context has none of the warm-up's changes; the compiled code belongs to the
      // isolate.
      self->guest.Reset();
      self->context.Reset();
      isolate->ContextDisposedNotification(false);
      context = v8::Context::New(isolate);
      guest = context->GetDataFromSnapshotOnce<v8::Object>(0).ToLocalChecked();
    } else {
      v8::Context::Scope context_scope(context);
      // This runs none of the user's code (`js/language/boot.js`).
      v8::TryCatch caught(isolate);
      (void)Method(self, context, "beforeSnapshot", 0, nullptr);
      self->methods.clear();
    }
    self->creator->AddData(context, guest);
    self->creator->SetDefaultContext(context);
  }
  isolate->RemoveGCEpilogueCallback(AfterCollection, nullptr);
  self->guest.Reset();
  self->context.Reset();
  v8::StartupData blob = self->creator->CreateBlob(v8::SnapshotCreator::FunctionCodeHandling::kKeep);
  self->creator.reset();
  delete self;
  return {reinterpret_cast<const uint8_t*>(blob.data), static_cast<size_t>(blob.raw_size)};
}

void cl_free_blob(ClText blob) { delete[] blob.data; }

ClIsolate* cl_boot(bool shared, ClText blob, ClText prelude, const ClHost* host, size_t memory_limit,
                   size_t hard_limit, size_t stack, ClOutcome* outcome) {
  v8::Isolate::CreateParams parameters;
  parameters.constraints.ConfigureDefaultsFromHeapSize(0, hard_limit);
  parameters.constraints.set_max_young_generation_size_in_bytes(kYoung);
  parameters.constraints.set_code_range_size_in_bytes(kCode);
  std::lock_guard<std::mutex> boots(one_boots);
  if (!IsRoomToBoot(kCode, outcome)) return nullptr;
  ClIsolate* self = Allocate(blob, host);
  self->shared = shared;
  if (blob.length) parameters.snapshot_blob = &self->blob;
  parameters.array_buffer_allocator = &self->allocator;
  parameters.external_references = external_references;
  parameters.counter_lookup_callback = Counter;
  std::optional<v8::Locker> lock;
  if (shared) lock.emplace(self->isolate);
  v8::Isolate::Initialize(self->isolate, parameters);
  Guard(self, memory_limit);
  v8::Isolate::Scope scope(self->isolate);
  self->isolate->SetStackLimit(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) - stack);
  return MakeContext(self, prelude, outcome);
}

void cl_eval(ClIsolate* self, ClText source, ClText name, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome,
      [&](v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value>* value) {
        v8::ScriptOrigin origin = Origin(isolate, Text(isolate, name));
        v8::Local<v8::String> text;
        v8::Local<v8::Script> script;
        return TextOrError(isolate, source).ToLocal(&text) &&
               v8::Script::Compile(context, text, &origin).ToLocal(&script) &&
               script->Run(context).ToLocal(value);
      });
}

void cl_invoke(ClIsolate* self, ClText path, ClText arguments, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome,
      [&](v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value>* value) {
        v8::Local<v8::Object> holder;
        v8::Local<v8::String> name;
        v8::Local<v8::Value> function;
        if (!Holder(isolate, context, path, false, &holder, &name) ||
            !holder->Get(context, name).ToLocal(&function)) {
          return false;
        }
        if (!function->IsFunction()) {
          Throw(isolate, (ToString(isolate, name) + " is no function").c_str());
          return false;
        }
        uint32_t count;
        memcpy(&count, arguments.data, sizeof count);
        Decoder decoder(isolate, context, {arguments.data + sizeof count, arguments.length - sizeof count});
        Handles values = decoder.Values(count);
        return values && function.As<v8::Function>()
                             ->Call(context, holder, static_cast<int>(count), values.get())
                             .ToLocal(value);
      });
}

void cl_attach(ClIsolate* self, ClText path, uint32_t number, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome,
      [&](v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value>* value) {
        v8::Local<v8::Object> holder;
        v8::Local<v8::String> name;
        v8::Local<v8::Function> function;
        auto data = v8::Integer::NewFromUnsigned(isolate, number);
        *value = v8::Undefined(isolate);
        return Holder(isolate, context, path, true, &holder, &name) &&
               v8::Function::New(context, CallProgram, data).ToLocal(&function) &&
               holder->Set(context, name, function).FromMaybe(false);
      });
}

void cl_collect(ClIsolate* self, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome, [&](v8::Isolate* isolate, v8::Local<v8::Context>, v8::Local<v8::Value>* value) {
    isolate->LowMemoryNotification();
    *value = v8::Undefined(isolate);
    return true;
  });
}

void cl_heap_stats(ClIsolate* self, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome,
      [&](v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value>* value) {
        v8::HeapStatistics heap;
        isolate->GetHeapStatistics(&heap);
        const std::pair<const char*, size_t> counts[] = {
            {"total_heap_size", heap.total_heap_size()},
            {"total_heap_size_executable", heap.total_heap_size_executable()},
            {"total_physical_size", heap.total_physical_size()},
            {"total_available_size", heap.total_available_size()},
            {"total_global_handles_size", heap.total_global_handles_size()},
            {"used_global_handles_size", heap.used_global_handles_size()},
            {"used_heap_size", heap.used_heap_size()},
            {"heap_size_limit", heap.heap_size_limit()},
            {"malloced_memory", heap.malloced_memory()},
            {"peak_malloced_memory", heap.peak_malloced_memory()},
            {"external_memory", heap.external_memory()},
            {"number_of_native_contexts", heap.number_of_native_contexts()},
            {"number_of_detached_contexts", heap.number_of_detached_contexts()}};
        v8::Local<v8::Object> object = v8::Object::New(isolate);
        bool done = true;
        for (auto [name, count] : counts) {
          auto number = v8::Number::New(isolate, static_cast<double>(count));
          done =
              done &&
              object->CreateDataProperty(context, Text(isolate, name, strlen(name)), number).FromMaybe(false);
        }
        *value = object;
        return done;
      });
}

bool cl_dispose(ClIsolate* self) {
  // V8 is still inside of a call there.
  if (self->given_up) return false;
  std::optional<v8::Locker> lock;
  if (self->shared) lock.emplace(self->isolate);
  self->isolate->RemoveGCEpilogueCallback(AfterCollection, nullptr);
  Forget(self);
  self->guest.Reset();
  if (self->creator) {
    // Each creator must make a blob; one without a context is the cheapest.
    self->context.Reset();
    {
      v8::HandleScope scope(self->isolate);
      self->creator->SetDefaultContext(v8::Context::New(self->isolate));
    }
    v8::StartupData blob = self->creator->CreateBlob(v8::SnapshotCreator::FunctionCodeHandling::kClear);
    delete[] blob.data;
    self->creator.reset();
  } else {
    self->context.Reset();
    lock.reset();
    v8::platform::NotifyIsolateShutdown(platform, self->isolate);
    self->isolate->Dispose();
  }
  delete self;
  return true;
}

void cl_set_memory_limit(ClIsolate* self, size_t bytes) {
  self->memory_limit = self->look_at = bytes;
  self->account->limit = bytes;
}

size_t cl_memory_used(ClIsolate* self) { return self->given_up ? 0 : Used(self); }

size_t cl_memory_kept(ClIsolate* self) {
  if (self->given_up) return 0;
  Scopes scopes(self);
  self->isolate->LowMemoryNotification();
  return Used(self);
}

size_t cl_call(ClIsolate* self, const char* method, const double* numbers, size_t number_count,
               const ClValue* values, size_t value_count, ClOutcome* outcome) {
  Scopes scopes(self);
  v8::Isolate* isolate = self->isolate;
  Begin(self, outcome);
  ForgetTermination(self);
  v8::TryCatch caught(isolate);
  std::vector<v8::Local<v8::Value>> arguments, passed;
  for (size_t index = 0; index < number_count; index++) {
    arguments.push_back(v8::Number::New(isolate, numbers[index]));
  }
  for (size_t index = 0; index < value_count; index++) {
    v8::Local<v8::Value> value;
    if (!ToJs(self, values[index], index).ToLocal(&value)) {
      outcome->status = CL_TERMINATED;
      outcome->reason = CL_NO_MEMORY;
      return 0;
    }
    (values[index].kind == CL_WORD ? arguments : passed).push_back(value);
  }
  if (value_count) arguments.push_back(v8::Array::New(isolate, passed.data(), passed.size()));
  v8::Local<v8::Value> value;
  self->at_work = true;
  bool done = Method(self, scopes.context, method, static_cast<int>(arguments.size()), arguments.data())
                  .ToLocal(&value);
  if (done) {
    isolate->PerformMicrotaskCheckpoint();
    done = !isolate->IsExecutionTerminating() && !caught.HasCaught();
  }
  while (v8::platform::PumpMessageLoop(platform, isolate)) {
  }
  self->at_work = false;
  if (!done) {
    Failed(self, scopes.context, caught, outcome);
    return 0;
  }
  // A request to end this call came too late.
  if (self->reason.exchange(0)) isolate->CancelTerminateExecution();
  if (value->IsString()) {
    self->value = ToString(isolate, value);
    outcome->value = View(self->value);
  }
  if (value->IsNumber()) outcome->number = value.As<v8::Number>()->Value();
  if (!value->IsArray()) return 0;
  auto array = value.As<v8::Array>();
  self->results.Reset(isolate, array);
  return array->Length();
}

void cl_results(ClIsolate* self, ClValue* results, size_t count) {
  Scopes scopes(self);
  v8::Local<v8::Array> array = self->results.Get(self->isolate);
  for (size_t index = 0; index < count; index++) {
    v8::Local<v8::Value> element;
    if (array->Get(scopes.context, index).ToLocal(&element)) FromJs(self->isolate, element, &results[index]);
  }
}

void cl_detach(ClIsolate* self) {
  if (self->call_buffers.empty()) return;
  Scopes scopes(self);
  for (auto& handle : self->call_buffers) {
    v8::Local<v8::ArrayBuffer> buffer = handle.Get(self->isolate);
    self->detached.push_back(buffer->GetBackingStore());
    buffer->Detach();
  }
  self->call_buffers.clear();
}

void cl_read_string(ClIsolate* self, size_t result, uint8_t* latin1, uint16_t* utf16) {
  Scopes scopes(self);
  v8::Local<v8::Value> element;
  if (!self->results.Get(self->isolate)->Get(scopes.context, result).ToLocal(&element)) return;
  auto text = element.As<v8::String>();
  int flags = v8::String::NO_NULL_TERMINATION;
  if (latin1) {
    text->WriteOneByte(self->isolate, latin1, 0, -1, flags);
  } else {
    text->Write(self->isolate, utf16, 0, -1, flags);
  }
}

uint32_t cl_pending(ClIsolate* self) {
  uint32_t reason = self->reason.load();
  return reason == 0 && self->excess ? static_cast<uint32_t>(CL_MEMORY) : reason;
}

uint32_t cl_sign(ClIsolate* self) {
  if (!self->at_work) return CL_IDLE;
  if (self->unheard_since != 0) return CL_UNHEARD;
  AskForSign(self);
  return CL_HEARD;
}

void cl_terminate(ClIsolate* self, uint32_t reason, bool stack) {
  uint32_t none = 0;
  if (self->given_up) return;
  if (!stack) {
    Terminate(self, reason);
  } else if (self->reason.compare_exchange_strong(none, reason)) {
    self->isolate->RequestInterrupt(
        [](v8::Isolate* isolate, void*) {
          // The call may have ended before this runs.
          ClIsolate* self = Self(isolate);
          uint32_t reason = self->reason.load();
          if (reason == 0) return;
          bool confirmed;
          {
            OutsideV8 outside_v8(self);
            confirmed = self->host.confirm(self->host.host, reason);
          }
          LeaveIfGivenUp(self);
          if (!confirmed) {
            self->reason = 0;
            return;
          }
          RememberPlace(isolate);
          isolate->TerminateExecution();
        },
        nullptr);
  }
}

}  // extern "C"
