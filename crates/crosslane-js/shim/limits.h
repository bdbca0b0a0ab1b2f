// Limits of memory and time, and handlers for the case that V8 cannot go on.
//
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to
// compile.
#pragma once

#include "isolate.h"

namespace {

// What V8 estimates that objects of its heap have outside of it, other than array buffers: compiled modules
// of WebAssembly, and objects of Intl.
size_t Managed(ClIsolate* self, v8::HeapStatistics& statistics) {
  int64_t all = self->isolate->AdjustAmountOfExternalAllocatedMemory(0);
  return std::max<int64_t>(all - static_cast<int64_t>(statistics.external_memory()), 0);
}

size_t Used(ClIsolate* self) {
  v8::HeapStatistics statistics;
  self->isolate->GetHeapStatistics(&statistics);
  // A builder's array buffers come from V8's own allocator.
  size_t outside = self->creator ? statistics.external_memory() : self->account->used();
  return statistics.used_heap_size() + outside + Managed(self, statistics);
}

std::string Frames(v8::Isolate* isolate, v8::Local<v8::StackTrace> trace) {
  std::string text;
  for (int index = 0; index < trace->GetFrameCount(); index++) {
    v8::Local<v8::StackFrame> frame = trace->GetFrame(isolate, index);
    std::string script = ToString(isolate, frame->GetScriptNameOrSourceURL());
    // Frames of the prelude are between the host and the user's function.
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

// Forgets a reason that was meant for the last call: it must not end the call that begins. Another
// thread may have set the reason and not yet have called V8, so V8 forgets the termination in any
// case.
void ForgetTermination(ClIsolate* self) {
  self->reason = 0;
  self->account->refused = false;
  self->isolate->CancelTerminateExecution();
}

int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// How long the isolate's thread has run. Time in which the thread waits for a processor does not
// count.
int64_t ThreadTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// How long code that uses too much memory may run without a check, in nanoseconds.
constexpr int64_t kLongestExcess = 200'000'000;

void GiveUp(ClIsolate* self, uint32_t reason);

// Must be called after code of the program ran inside of a call. That code may have made a call
// that was given up, and with it this isolate: nothing else ends the frames of the outer call.
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

// V8's own limit for code that comes to no check between two collections. At this limit V8 collects
// all garbage, and beyond it V8 ends the process, or the call is given up (`GiveUp`). So such code
// fills no more memory than this, however fast it is. For all other code V8's limit is far higher,
// because V8 collects more often near its limit.
size_t HardLimit(ClIsolate* self) { return self->memory_limit + self->memory_limit / 2; }

// How much V8's own limit grows, once in a call: room to unwind in, and for an array that has just
// grown.
constexpr size_t kRoom = 64u << 20;

// More than V8 ever requests from the system at once (`LARGEST_OBJECTS` in src/isolate/engine.rs is
// twice its largest object).
constexpr size_t kLargest = (1u << 30) + (1u << 20);

// Whether the system gives the process `length` bytes of address space.
bool IsThere(size_t length, int protection) {
  void* probe = mmap(nullptr, length, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return probe != MAP_FAILED && munmap(probe, length) == 0;
}

// Whether V8's own limit, rather than the system, refuses memory for V8's heap. V8 does not say
// which.
bool IsAtLimit(ClIsolate* self) {
  v8::HeapStatistics heap;
  self->isolate->GetHeapStatistics(&heap);
  size_t limit = heap.heap_size_limit();
  size_t left = limit - std::min(limit, heap.total_heap_size());
  if (left >= kLargest) return false;
  // If the system has all the memory that V8 may still take, then V8 has requested more than that.
  return IsThere(left + (1u << 20), PROT_READ | PROT_WRITE);
}

// V8 calls this near its limit, and before it ends the process because it has no memory for its
// heap.
size_t NearHardLimit(void* data, size_t current, size_t) {
  auto* self = static_cast<ClIsolate*>(data);
  // The limit was lowered for another function.
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

// V8 has no other way to lower its limit. V8 raises the limit again when it calls `NearHardLimit`.
void LowerHardLimit(ClIsolate* self) {
  self->isolate->RemoveNearHeapLimitCallback(NearHardLimit, HardLimit(self));
  self->isolate->AddNearHeapLimitCallback(NearHardLimit, self);
}

// Finds builtins that fill a table or a list: they come to no check, so that nothing can end them.
// The call is given up here, or the host sees `excess` and ends the process.
void LookForExcess(ClIsolate* self, size_t used, bool all_alive) {
  if (used / 4 <= self->memory_limit / 16) return;
  bool asks = self->unheard_since == 0;
  if (asks) AskForSign(self);
  // Another thread may have made the request; that thread's time says nothing.
  if (self->unheard_since != self->counted_for) {
    self->counted_for = self->unheard_since;
    self->time_before = ThreadTime();
  }
  if (asks) return;
  if (!self->unwinding) LowerHardLimit(self);
  if (used > self->memory_limit && ThreadTime() - self->time_before > kLongestExcess) {
    self->excess = true;
    // Beyond 1.5 times the limit V8 has collected all garbage, so that all of this memory is in
    // use.
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
  // The call may have ended before this runs.
  if (!self->asked) return;
  RememberPlace(isolate);
  Terminate(self, CL_MEMORY);
}

// A collection of the young generation says little about what is alive, so a full one decides.
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
    // At the next check the stack can be noted, if that check comes before the next collection.
    if (self->asked) Terminate(self, CL_MEMORY);
    self->asked = true;
    isolate->RequestInterrupt(EndForMemory, nullptr);
  } else if (used / 3 > self->memory_limit) {
    // So much memory is never all garbage, and the code may come to no interrupt.
    Terminate(self, CL_MEMORY);
  } else if (used > self->look_at) {
    self->look_at = SIZE_MAX;
    isolate->RequestInterrupt(CheckMemory, nullptr);
  }
}

// V8 cannot go on. Gives up the call of the program. In a lane there is none: the host is told, and
// the process must end. This allocates nothing, because there may be no memory.
void CannotGoOn(ClIsolate* self, uint32_t reason, const char* what) {
  GiveUp(self, reason);
  ClText text{reinterpret_cast<const uint8_t*>(what), strlen(what)};
  if (self->host.fatal) self->host.fatal(self->host.host, reason, text);
}

// V8 passes no pointer to these handlers, so they use the thread's isolate.
[[noreturn]] void Fatal(const char* location, const char* message, uint32_t reason) {
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  char what[1000];
  snprintf(what, sizeof what, "%s (%s)", message ? message : "", location ? location : "?");
  if (isolate && Self(isolate)) CannotGoOn(Self(isolate), reason, what);
  fprintf(stderr, "crosslane: V8 ends the process: %s\n", what);
  abort();
}

void FatalError(const char* location, const char* message) { Fatal(location, message, CL_STUCK); }

void OutOfMemory(const char* location, OutOfMemoryDetails details) {
  bool is_heap = IsHeap(details);
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  ClIsolate* self = isolate ? Self(isolate) : nullptr;
  // If V8's own limit is the reason, V8 has called `NearHardLimit` before.
  if (is_heap && self && (self->unwinding || self->reason == CL_MEMORY)) {
    Fatal(location, "a call used up its memory and could not be ended", CL_MEMORY);
  }
  Fatal(location, "the system gives the process no more memory", CL_NO_HEAP);
}

// While V8 holds a lock of the whole process, it requests less than this from `new`: a task for the
// platform's threads, or a place in one of its queues.
constexpr size_t kList = 256u << 10;

// State of the walk through the frames of `new` that are below its handler.
struct NewFrames {
  int left = 4;
  bool nothrow = false;
};

_Unwind_Reason_Code VisitFrameOfNew(_Unwind_Context* frame, void* data) {
  using Nothrow = void* (*)(size_t, const std::nothrow_t&);
  auto* frames = static_cast<NewFrames*>(data);
  uintptr_t start = _Unwind_GetRegionStart(frame);
  frames->nothrow = start == reinterpret_cast<uintptr_t>(static_cast<Nothrow>(operator new)) ||
                    start == reinterpret_cast<uintptr_t>(static_cast<Nothrow>(operator new[]));
  return frames->nothrow || --frames->left == 0 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

// Whether a call may be given up when `new` finds no memory. (V8's own threads have no isolate, so
// this is the thread that makes the call.)
bool MayLeave(ClIsolate* self) {
  if (self->outside) return false;
  // `new (std::nothrow)` turns the exception into null. V8 then frees memory, tries again, and
  // calls `OutOfMemory` if that fails, too.
  NewFrames frames;
  _Unwind_Backtrace(VisitFrameOfNew, &frames);
  if (frames.nothrow) return false;
  // A call that is given up keeps its locks for ever, and each isolate would wait for a lock of the
  // whole process. If there is memory for something small, then a list that belongs to the isolate
  // was growing. If no call can be given up, the process ends in any case.
  return !self->entry || IsThere(kList, PROT_READ | PROT_WRITE);
}

std::new_handler handler_before = nullptr;

// V8 calls no handler of its own if C++ finds no memory for a list or a table, and an exception
// cannot pass through V8. Other code of this process gets the exception that it expects.
void NoMemory() {
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  if (isolate && Self(isolate) && MayLeave(Self(isolate))) {
    Fatal("operator new", "the system gives the process no more memory", CL_NO_HEAP);
  }
  if (!handler_before) std::__throw_bad_alloc();
  handler_before();
}

// V8 calls none of the handlers above before it ends the process because of an array beyond its
// largest size. Only the message tells this case from a check that failed. V8 leaves the message on
// the stack after a mark, for dumps.
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

// V8 counts with atomic additions. Without a place of their own all isolates add to one place,
// which costs two threads that run regular expressions a tenth of their time. So each isolate gets
// a place of its own.
int* Counter(const char*) {
  v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
  return isolate && Self(isolate) ? &Self(isolate)->counter : nullptr;
}

// Whether the setting `wasm` lets V8 compile WebAssembly (`has_wasm` in src/isolate/prelude.rs).
bool MayCompile(v8::Local<v8::Context>, v8::Local<v8::String>) {
  const char* set = getenv("CROSSLANE_JS_WASM");
  return !set || strcmp(set, "off") != 0;
}

void Guard(ClIsolate* self, size_t memory_limit) {
  self->memory_limit = self->look_at = memory_limit;
  self->account->limit = memory_limit;
  self->isolate->SetFatalErrorHandler(FatalError);
  self->isolate->SetOOMErrorHandler(OutOfMemory);
  self->isolate->AddGCEpilogueCallback(AfterCollection, nullptr, v8::kGCTypeAll);
  self->isolate->AddNearHeapLimitCallback(NearHardLimit, self);
  // Nothing would end a wait for another thread, and there is none.
  self->isolate->SetAllowAtomicsWait(false);
  self->isolate->SetAllowWasmCodeGenerationCallback(MayCompile);
  self->isolate->SetMicrotasksPolicy(v8::MicrotasksPolicy::kExplicit);
  self->isolate->SetCaptureStackTraceForUncaughtExceptions(true, 10);
}

#if V8_MAJOR_VERSION >= 12
// V8's pages. Counts those of WebAssembly for the isolate that runs, because V8 asks no other allocator for
// them.
class CountedPages final : public v8::PageAllocator {
 public:
  explicit CountedPages(v8::PageAllocator* pages) : pages_(pages) {}
  // V8 reserves the most that a memory may grow to. Without a maximum, that is 4 GiB of address space.
  void* AllocatePages(void* address, size_t length, size_t alignment, Permission permissions) override {
    v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
    ClIsolate* self = isolate ? Self(isolate) : nullptr;
    bool is_memory = permissions == kNoAccess && alignment == kWasmPage && AllocatePageSize() < kWasmPage;
    bool is_code = permissions == kNoAccessWillJitLater && alignment < kWasmPage;
    // An isolate that boots reserves room for all code of JavaScript.
    if (!self || self->context.IsEmpty() || !(is_memory || is_code)) {
      return pages_->AllocatePages(address, length, alignment, permissions);
    }
    std::shared_ptr<Account> account = self->account;
    if (is_memory && !account->Take(kPlace)) return nullptr;
    void* start = pages_->AllocatePages(address, length, alignment, permissions);
    if (!start) {
      if (is_memory) account->Give(kPlace);
      return nullptr;
    }
    if (is_code) {
      // V8 would end the process if there was no room for code.
      account->Add(length);
      if (account->used() > account->limit) Terminate(self, CL_MEMORY);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    counted_[start] = {account, is_memory ? kPlace : 0, is_memory ? 0 : length};
    entries_ = counted_.size();
    return start;
  }
  bool FreePages(void* address, size_t length) override {
    Forget(address);
    return pages_->FreePages(address, length);
  }
  // V8 makes the pages of a memory usable when the memory is made, and when it grows. If this fails, the
  // memory is not made, or does not grow.
  bool SetPermissions(void* address, size_t length, Permission permissions) override {
    auto [account, place, usable] = permissions == kReadWrite ? Find(address) : Counted{};
    if (!account || length <= usable) return pages_->SetPermissions(address, length, permissions);
    size_t more = length - usable;
    // V8 collects garbage before it makes no memory, and not before a memory does not grow.
    if (!account->Take(more) && (usable == 0 || !TakeAfterCollection(*account, more))) return false;
    if (!pages_->SetPermissions(address, length, permissions)) {
      account->Give(more);
      return false;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    counted_[address].usable = length;
    return true;
  }
  size_t AllocatePageSize() override { return pages_->AllocatePageSize(); }
  size_t CommitPageSize() override { return pages_->CommitPageSize(); }
  void SetRandomMmapSeed(int64_t seed) override { pages_->SetRandomMmapSeed(seed); }
  void* GetRandomMmapAddr() override { return pages_->GetRandomMmapAddr(); }
  bool ReleasePages(void* address, size_t length, size_t new_length) override {
    return pages_->ReleasePages(address, length, new_length);
  }
  bool RecommitPages(void* address, size_t length, Permission permissions) override {
    return pages_->RecommitPages(address, length, permissions);
  }
  bool DiscardSystemPages(void* address, size_t size) override {
    return pages_->DiscardSystemPages(address, size);
  }
  bool DecommitPages(void* address, size_t size) override { return pages_->DecommitPages(address, size); }
  bool SealPages(void* address, size_t length) override { return pages_->SealPages(address, length); }

 private:
  // The size of a page of WebAssembly. V8 aligns memories to it, and nothing else if the system's pages are
  // smaller. If not, functions have no WebAssembly (`has_wasm` in src/isolate/prelude.rs).
  static constexpr size_t kWasmPage = 64u << 10;
  // What each memory counts in addition, for its place in the address space.
  static constexpr size_t kPlace = 1u << 20;
  // What is counted for pages: for their place, and for those that are usable.
  struct Counted {
    std::shared_ptr<Account> account;
    size_t place = 0, usable = 0;
  };
  // Without an account if nothing is counted for these pages.
  Counted Find(void* address) {
    if (entries_ == 0) return {};
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = counted_.find(address);
    return found == counted_.end() ? Counted{} : found->second;
  }
  static bool TakeAfterCollection(Account& account, size_t length) {
    v8::Isolate* isolate = v8::Isolate::TryGetCurrent();
    if (!isolate) return false;
    isolate->LowMemoryNotification();
    if (!account.Take(length)) return false;
    account.refused = false;
    return true;
  }
  void Forget(void* address) {
    if (entries_ == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = counted_.find(address);
    if (found == counted_.end()) return;
    found->second.account->Give(found->second.place + found->second.usable);
    counted_.erase(found);
    entries_ = counted_.size();
  }
  v8::PageAllocator* pages_;
  std::mutex mutex_;
  // By their first pages.
  std::map<void*, Counted> counted_;
  // The size of `counted_`. Isolates without WebAssembly do not wait for each other.
  std::atomic<size_t> entries_{0};
};

// V8's own platform with `CountedPages`.
class CountedPlatform final : public v8::Platform {
 public:
  explicit CountedPlatform(v8::Platform* usual) : usual_(usual), pages_(usual->GetPageAllocator()) {}
  v8::PageAllocator* GetPageAllocator() override { return &pages_; }
  v8::ThreadIsolatedAllocator* GetThreadIsolatedAllocator() override {
    return usual_->GetThreadIsolatedAllocator();
  }
  int NumberOfWorkerThreads() override { return usual_->NumberOfWorkerThreads(); }
  std::shared_ptr<v8::TaskRunner> GetForegroundTaskRunner(v8::Isolate* isolate,
                                                          v8::TaskPriority priority) override {
    return usual_->GetForegroundTaskRunner(isolate, priority);
  }
  double MonotonicallyIncreasingTime() override { return usual_->MonotonicallyIncreasingTime(); }
  double CurrentClockTimeMillis() override { return usual_->CurrentClockTimeMillis(); }
  StackTracePrinter GetStackTracePrinter() override { return usual_->GetStackTracePrinter(); }
  v8::TracingController* GetTracingController() override { return usual_->GetTracingController(); }

 protected:
  std::unique_ptr<v8::JobHandle> CreateJobImpl(v8::TaskPriority priority, std::unique_ptr<v8::JobTask> task,
                                               const v8::SourceLocation& place) override {
    return usual_->CreateJob(priority, std::move(task), place);
  }
  void PostTaskOnWorkerThreadImpl(v8::TaskPriority priority, std::unique_ptr<v8::Task> task,
                                  const v8::SourceLocation& place) override {
    usual_->PostTaskOnWorkerThread(priority, std::move(task), place);
  }
  void PostDelayedTaskOnWorkerThreadImpl(v8::TaskPriority priority, std::unique_ptr<v8::Task> task,
                                         double delay, const v8::SourceLocation& place) override {
    usual_->PostDelayedTaskOnWorkerThread(priority, std::move(task), delay, place);
  }

 private:
  v8::Platform* usual_;
  CountedPages pages_;
};
#endif

}  // namespace
