// Limits of memory and time, and what happens where V8 cannot go on.
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to compile.
#pragma once

#include "isolate.h"

namespace {

size_t Used(ClIsolate* self) {
  v8::HeapStatistics statistics;
  self->isolate->GetHeapStatistics(&statistics);
  // A builder's array buffers come from V8's own allocator.
  size_t buffers = self->creator ? statistics.external_memory() : self->allocator.used();
  return statistics.used_heap_size() + buffers;
}

std::string Frames(v8::Isolate* isolate, v8::Local<v8::StackTrace> trace) {
  std::string text;
  for (int index = 0; index < trace->GetFrameCount(); index++) {
    v8::Local<v8::StackFrame> frame = trace->GetFrame(isolate, index);
    std::string script = ToString(isolate, frame->GetScriptNameOrSourceURL());
    // Ours, between the host and the user's function.
    if (script.rfind("crosslane:", 0) == 0) continue;
    std::string function = ToString(isolate, frame->GetFunctionName());
    std::string place = (script.empty() ? "<anonymous>" : script) + ":" +
                        std::to_string(frame->GetLineNumber()) + ":" + std::to_string(frame->GetColumn());
    text += "    at " + (function.empty() ? place : function + " (" + place + ")") + "\n";
  }
  return text;
}

void Terminate(ClIsolate* self, uint32_t reason) {
  uint32_t none = 0;
  self->reason.compare_exchange_strong(none, reason);
  self->isolate->TerminateExecution();
}

// What was meant for the last call must not hit the one that begins. That call may have taken the reason
// along before the thread that gave it came to V8: so V8 forgets the end in any case.
void Spare(ClIsolate* self) {
  self->reason = 0;
  self->allocator.refused = false;
  self->isolate->CancelTerminateExecution();
}

int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// For how long the thread of an isolate has run. Where the machine has more to do than it can, code that
// comes to a check at once has to wait for a processor.
int64_t Worked() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// How long code may run and not come to a check while it uses more memory than it may.
constexpr int64_t kPatience = 200'000'000;

void GiveUp(ClIsolate* self, uint32_t reason);

// To be called where the program was at work inside of a call. What it did may have been a call that was
// given up, and this isolate with it: nothing else ends these frames.
void LeaveIfGivenUp(ClIsolate* self) {
  if (uint32_t reason = self->given_up) GiveUp(self, reason);
}

void Heard(v8::Isolate* isolate, void*) {
  ClIsolate* self = Self(isolate);
  self->unheard_since = 0;
  self->excess = false;
}

void AskForSign(ClIsolate* self) {
  self->unheard_since = Now();
  self->isolate->RequestInterrupt(Heard, nullptr);
}

// What V8's own limit is for code that comes to no check between two collections. There V8 collects all that
// it can, and beyond it ends the process, or the isolate (`GiveUp`): such code fills no more than this,
// however fast it is. Else V8's limit is far higher, since V8 collects the more often the lower it is.
size_t HardLimit(ClIsolate* self) { return self->memory_limit + self->memory_limit / 2; }

// What V8's own limit gets on top, once in a call: room to unwind in, and for an array that was grown just
// now.
constexpr size_t kRoom = 64u << 20;

// More than V8 asks the system for at once (`LARGEST_OBJECTS` in src/isolate.rs is twice its largest object).
constexpr size_t kLargest = (1u << 30) + (1u << 20);

// Whether the system gives the process so many bytes of the address space.
bool IsThere(size_t length, int protection) {
  void* probe = mmap(nullptr, length, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return probe != MAP_FAILED && munmap(probe, length) == 0;
}

// Whether V8's own limit refuses it memory for its heap, and not the system: V8 does not say.
bool IsAtLimit(ClIsolate* self) {
  v8::HeapStatistics heap;
  self->isolate->GetHeapStatistics(&heap);
  size_t limit = heap.heap_size_limit();
  size_t left = limit - std::min(limit, heap.total_heap_size());
  if (left >= kLargest) return false;
  // If the system gives all that V8 may still take, then V8 has asked for more than that.
  return IsThere(left + (1u << 20), PROT_READ | PROT_WRITE);
}

// V8 calls this near its limit, and where it would end the process for want of memory, whatever the reason.
size_t NearHardLimit(void* data, size_t current, size_t) {
  auto* self = static_cast<ClIsolate*>(data);
  // It was lowered for another function.
  if (current < HardLimit(self)) return HardLimit(self);
  if (!self->unwinding && !IsAtLimit(self)) {
    Terminate(self, CL_NO_HEAP);
    return current;
  }
  Terminate(self, CL_MEMORY);
  if (self->unwinding) return current;
  self->unwinding = true;
  return current + self->memory_limit + kRoom;
}

// V8 lowers its limit in no other way, and raises it when it asks.
void LowerHardLimit(ClIsolate* self) {
  self->isolate->RemoveNearHeapLimitCallback(NearHardLimit, HardLimit(self));
  self->isolate->AddNearHeapLimitCallback(NearHardLimit, self);
}

// Builtins that fill a table or a list come to no check, so that nothing can end them: they are found here,
// and given up, or ended with their process by whoever sees `excess`.
void LookForExcess(ClIsolate* self, size_t used, bool all_alive) {
  if (used / 4 <= self->memory_limit / 16) return;
  bool asks = self->unheard_since == 0;
  if (asks) AskForSign(self);
  // The one who asked may have been another thread, whose time says nothing.
  if (self->unheard_since != self->counted_for) {
    self->counted_for = self->unheard_since;
    self->worked_before = Worked();
  }
  if (asks) return;
  if (!self->unwinding) LowerHardLimit(self);
  if (used > self->memory_limit && Worked() - self->worked_before > kPatience) {
    self->excess = true;
    // Beyond 1.5 times the limit V8 has collected by itself, so that nothing of this is dead.
    if (all_alive || used > HardLimit(self)) GiveUp(self, CL_MEMORY);
  }
}

void RememberPlace(v8::Isolate* isolate) {
  v8::HandleScope scope(isolate);
  if (!isolate->InContext()) return;
  Self(isolate)->interrupted_at = Frames(isolate, v8::StackTrace::CurrentStackTrace(isolate, 10));
}

void EndForMemory(v8::Isolate* isolate, void*) {
  ClIsolate* self = Self(isolate);
  // A call may have come to its end before this came to it.
  if (!self->asked) return;
  RememberPlace(isolate);
  Terminate(self, CL_MEMORY);
}

// A collection of the young generation says little of what is alive: a full one decides.
void CheckMemory(v8::Isolate* isolate, void*) {
  ClIsolate* self = Self(isolate);
  isolate->LowMemoryNotification();
  size_t used = Used(self);
  if (used <= self->memory_limit) {
    self->look_at = std::max(self->memory_limit, used + self->memory_limit / 8);
  }
}

void AfterCollection(v8::Isolate* isolate, v8::GCType type, v8::GCCallbackFlags, void*) {
  ClIsolate* self = Self(isolate);
  size_t used = Used(self);
  bool full = type == v8::kGCTypeMarkSweepCompact;
  LookForExcess(self, used, full);
  if (full) {
    if (used <= self->memory_limit) return;
    // At the next check the place can be told, if there comes one before the next collection.
    if (self->asked) Terminate(self, CL_MEMORY);
    self->asked = true;
    isolate->RequestInterrupt(EndForMemory, nullptr);
  } else if (used / 3 > self->memory_limit) {
    // So much is never all dead; the code may be where no interrupt comes.
    Terminate(self, CL_MEMORY);
  } else if (used > self->look_at) {
    self->look_at = SIZE_MAX;
    isolate->RequestInterrupt(CheckMemory, nullptr);
  }
}

// V8 cannot go on. Gives up the call by a program; if there is none, the host is told, and the process is to
// end. Takes no memory: there may be none.
void CannotGoOn(ClIsolate* self, uint32_t reason, const char* what) {
  GiveUp(self, reason);
  ClText text{reinterpret_cast<const uint8_t*>(what), strlen(what)};
  if (self->host.fatal) self->host.fatal(self->host.host, reason, text);
}

// V8 gives no pointer to these, so the isolate of the thread is asked.
[[noreturn]] void Fatal(const char* location, const char* message, uint32_t reason) {
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  char what[1000];
  snprintf(what, sizeof what, "%s (%s)", message ? message : "", location ? location : "?");
  if (isolate && Self(isolate)) CannotGoOn(Self(isolate), reason, what);
  fprintf(stderr, "crosslane: V8 ends the process: %s\n", what);
  abort();
}

void FatalError(const char* location, const char* message) { Fatal(location, message, CL_STUCK); }

void OutOfMemory(const char* location, bool is_heap) {
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  ClIsolate* self = isolate ? Self(isolate) : nullptr;
  // Where V8's limit is the reason, `NearHardLimit` was asked before.
  if (is_heap && self && (self->unwinding || self->reason == CL_MEMORY)) {
    Fatal(location, "a call used up its memory and could not be ended", CL_MEMORY);
  }
  Fatal(location, "the system gives the process no more memory", CL_NO_HEAP);
}

// What `new` is asked for while V8 holds a lock of the whole process is smaller than this: a task for the
// platform's threads, or a place in one of its queues.
constexpr size_t kList = 256u << 10;

// The frames on top of which the handler of `new` runs, as far as they are those of `new` itself.
struct News {
  int left = 4;
  bool nothrow = false;
};

_Unwind_Reason_Code LookAtNew(_Unwind_Context* frame, void* data) {
  using Nothrow = void* (*)(size_t, const std::nothrow_t&);
  auto* news = static_cast<News*>(data);
  uintptr_t start = _Unwind_GetRegionStart(frame);
  news->nothrow = start == reinterpret_cast<uintptr_t>(static_cast<Nothrow>(operator new)) ||
                  start == reinterpret_cast<uintptr_t>(static_cast<Nothrow>(operator new[]));
  return news->nothrow || --news->left == 0 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

// Whether V8 may be left where `new` finds no memory. (Its own threads have no isolate, so this is the one
// that makes the call.)
bool MayLeave(ClIsolate* self) {
  if (self->outside) return false;
  // `new (std::nothrow)` turns the exception into null. V8 then frees memory and tries again, and asks
  // `OutOfMemory` if that does not help.
  News news;
  _Unwind_Backtrace(LookAtNew, &news);
  if (news.nothrow) return false;
  // A call that is given up keeps its locks for ever, and each isolate would wait for one of the whole
  // process. If there is memory for something small, then a list that belongs to the isolate was to grow.
  // Where no call can be given up, the process ends in any case.
  return !self->entry || IsThere(kList, PROT_READ | PROT_WRITE);
}

std::new_handler handler_before = nullptr;

// V8 asks no handler of its own where C++ finds no memory for a list or a table, and cannot be left by an
// exception. Code of others in this process gets the exception that it expects.
void NoMemory() {
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  if (isolate && Self(isolate) && MayLeave(Self(isolate))) {
    Fatal("operator new", "the system gives the process no more memory", CL_NO_HEAP);
  }
  if (!handler_before) std::__throw_bad_alloc();
  handler_before();
}

// V8 ends the process without asking the handlers above if an array is beyond its longest. All that tells
// this from a check that failed is the message, which V8 leaves on the stack behind a mark, to be found in
// dumps.
[[gnu::no_sanitize("address")]] void CheckFailed() {
  constexpr uintptr_t kMark = 0xdecade10;
  constexpr char kTooLong[] = "Fatal JavaScript invalid size error";
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  if (!isolate || !Self(isolate)) return;
  auto* at = static_cast<const uintptr_t*>(__builtin_frame_address(0));
  for (int word = 0; word < 512; word++, at++) {
    if (*at == kMark && memcmp(at + 1, kTooLong, sizeof kTooLong - 1) == 0) {
      return CannotGoOn(Self(isolate), CL_STUCK, "a value exceeds V8's largest size");
    }
  }
}

// V8 counts with atomic additions, and where nobody wants to know, all isolates add to one place: a tenth of
// the time of two threads that run regular expressions. So each isolate gets a place of its own.
int* Counter(const char*) {
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  return isolate && Self(isolate) ? &Self(isolate)->counter : nullptr;
}

void Guard(ClIsolate* self, size_t memory_limit) {
  self->memory_limit = self->look_at = memory_limit;
  self->allocator.limit = memory_limit;
  self->isolate->SetFatalErrorHandler(FatalError);
  self->isolate->SetOOMErrorHandler(OutOfMemory);
  self->isolate->AddGCEpilogueCallback(AfterCollection, nullptr, v8::kGCTypeAll);
  self->isolate->AddNearHeapLimitCallback(NearHardLimit, self);
  self->isolate->SetMicrotasksPolicy(v8::MicrotasksPolicy::kExplicit);
  self->isolate->SetCaptureStackTraceForUncaughtExceptions(true, 10);
}

}  // namespace
