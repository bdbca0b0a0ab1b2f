#include "shim.h"

#include <libplatform/libplatform.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unwind.h>
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

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Not in V8's headers: sets what is called before V8 ends the process where a check failed.
namespace v8::base {
void SetPrintStackTrace(void (*)());
}

namespace {

struct Entry;

v8::Platform* platform = nullptr;

// Counts the bytes of array buffers, and refuses what exceeds the isolate's limit.
class CappedAllocator final : public v8::ArrayBuffer::Allocator {
 public:
  void* Allocate(size_t length) override {
    return Take(length) ? Checked(calloc(length, 1), length) : nullptr;
  }
  void* AllocateUninitialized(size_t length) override {
    return Take(length) ? Checked(malloc(length), length) : nullptr;
  }
  void Free(void* data, size_t length) override {
    free(data);
    used_.fetch_sub(length, std::memory_order_relaxed);
  }
  // Memory for what the host passes. It counts, but is not refused for the limit's sake.
  std::unique_ptr<v8::BackingStore> Room(size_t length) {
    void* data = malloc(std::max<size_t>(length, 1));
    if (data == nullptr) return nullptr;
    used_.fetch_add(length, std::memory_order_relaxed);
    auto release = [](void* data, size_t length, void* self) {
      static_cast<CappedAllocator*>(self)->Free(data, length);
    };
    return v8::ArrayBuffer::NewBackingStore(data, length, release, this);
  }
  size_t used() const { return used_.load(std::memory_order_relaxed); }
  std::atomic<size_t> limit{SIZE_MAX};
  // Whether anything was refused since the call at work began.
  std::atomic<bool> refused{false};

 private:
  bool Take(size_t length) {
    size_t before = used_.fetch_add(length, std::memory_order_relaxed);
    size_t most = limit.load(std::memory_order_relaxed);
    if (before <= most && length <= most - before) return true;
    used_.fetch_sub(length, std::memory_order_relaxed);
    refused.store(true, std::memory_order_relaxed);
    return false;
  }
  void* Checked(void* data, size_t length) {
    if (data == nullptr) used_.fetch_sub(length, std::memory_order_relaxed);
    return data;
  }
  std::atomic<size_t> used_{0};
};

// What V8 throws, as a RangeError, where that refuses memory.
constexpr char kRefused[] = "Array buffer allocation failed";

struct Freed {
  void operator()(void* data) const { free(data); }
};
// A list, or nothing if there is no memory for it. (C++'s own `new` asks `NoMemory` first.)
template <typename T>
using List = std::unique_ptr<T[], Freed>;
template <typename T>
List<T> ListOf(uint32_t count) {
  return List<T>(static_cast<T*>(calloc(std::max(count, 1u), sizeof(T))));
}

// Bytes for the program, written one after the other. What there is no memory for is left out, and noted.
class Encoded {
 public:
  Encoded() = default;
  Encoded(Encoded&& other) { *this = std::move(other); }
  Encoded& operator=(Encoded&& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
    std::swap(lacks_, other.lacks_);
    return *this;
  }
  ~Encoded() { free(data_); }
  size_t size() const { return size_; }
  // Whether something is left out.
  bool lacks() const { return lacks_; }
  ClText View() const { return {data_, size_}; }
  // The place of as many more bytes, or null.
  uint8_t* Add(size_t length) {
    if (length > room_ - size_ && !Grow(size_ + length)) return nullptr;
    size_ += length;
    return data_ + size_ - length;
  }
  template <typename T>
  void Put(T value) {
    if (uint8_t* place = Add(sizeof value)) memcpy(place, &value, sizeof value);
  }

 private:
  bool Grow(size_t least) {
    // Twice as much as there was, if there is memory for that.
    for (size_t room : {std::max(least, 2 * room_), least}) {
      if (void* data = realloc(data_, room)) {
        data_ = static_cast<uint8_t*>(data);
        room_ = room;
        return true;
      }
    }
    lacks_ = true;
    return false;
  }
  uint8_t* data_ = nullptr;
  size_t size_ = 0, room_ = 0;
  bool lacks_ = false;
};

std::string ToString(v8::Isolate* isolate, v8::Local<v8::Value> value) {
  v8::String::Utf8Value text(isolate, value);
  return *text ? std::string(*text, text.length()) : std::string();
}

ClText View(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

// Empty if it is beyond V8's longest.
v8::MaybeLocal<v8::String> MaybeText(v8::Isolate* isolate, const char* data, size_t length) {
  if (length > INT32_MAX) return {};
  return v8::String::NewFromUtf8(isolate, data, v8::NewStringType::kNormal, static_cast<int>(length));
}

v8::Local<v8::String> Text(v8::Isolate* isolate, const char* data, size_t length) {
  v8::Local<v8::String> text;
  return MaybeText(isolate, data, length).ToLocal(&text) ? text : v8::String::Empty(isolate);
}

v8::Local<v8::String> Text(v8::Isolate* isolate, ClText text) {
  return Text(isolate, reinterpret_cast<const char*>(text.data), text.length);
}

v8::Local<v8::String> Text(v8::Isolate* isolate, std::string_view text) {
  return Text(isolate, text.data(), text.size());
}

}  // namespace

struct ClIsolate {
  ClHost host{};
  // V8 keeps a pointer to this.
  v8::StartupData blob{nullptr, 0};
  CappedAllocator allocator;
  std::unique_ptr<v8::SnapshotCreator> creator;
  v8::Isolate* isolate = nullptr;
  v8::Global<v8::Context> context;
  // The prelude's methods.
  v8::Global<v8::Object> guest;
  std::map<std::string, v8::Global<v8::Function>> methods;
  v8::Global<v8::Array> results;
  // The memory that the call at work was lent, and that of the last one, in which its results may lie.
  std::vector<v8::Global<v8::ArrayBuffer>> lent;
  // What one call after the other is passed in, if only the prelude sees it; and the host's word.
  std::map<size_t, v8::Global<v8::ArrayBuffer>> reused;
  v8::Global<v8::Uint32Array> word;
  const uint8_t* word_at = nullptr;
  std::vector<std::shared_ptr<v8::BackingStore>> kept;
  // Modules of a load by their paths.
  std::map<std::string, v8::Global<v8::Module>> modules;

  // Whether several threads use it, in turns.
  bool shared = false;
  // Whether it was booted to run functions whose code a snapshot is to keep.
  bool warming = false;
  // Whether the call at work is to end for its memory at the next check.
  bool asked = false;
  // Whether V8 was given more than its hard limit.
  bool unwinding = false;
  size_t memory_limit = SIZE_MAX;
  // What the heap may hold until it is looked at again.
  size_t look_at = SIZE_MAX;
  std::atomic<uint32_t> reason{0};
  // When V8 was asked for a sign that it comes to checks, in nanoseconds of the steady clock; 0 if it has
  // given it.
  std::atomic<int64_t> unheard_since{0};
  // The last sign that was asked for as far as the isolate's thread knows, and for how long it had run then.
  int64_t counted_for = 0;
  int64_t worked_before = 0;
  // Whether a method of the prelude runs.
  std::atomic<bool> at_work{false};
  // Whether more memory is in use than may be, where V8 does not come to a check.
  std::atomic<bool> greedy{false};
  // Whether the host's code runs, and not V8's or this.
  bool away = false;
  // Calls by the program that are under way, one inside of the other, and the innermost.
  int depth = 0;
  Entry* entry = nullptr;
  // Why a call was left where it was (`GiveUp`), or 0: nothing can be done with the isolate any more.
  std::atomic<uint32_t> given_up{0};
  // The last error that a function of the program failed with.
  v8::Global<v8::Value> failed_with;
  // Values that were encoded, and what the last call has given.
  uint32_t encoded = 0;
  Encoded given;
  // All that V8 counts without anybody reading it.
  alignas(64) int counter = 0;
  std::string name, message, stack, value, interrupted_at;
};

namespace {

ClIsolate* Self(v8::Isolate* isolate) { return static_cast<ClIsolate*>(isolate->GetData(0)); }

// What the host does, it does outside of V8.
struct Away {
  explicit Away(ClIsolate* self) : self(self) { self->away = true; }
  ~Away() { self->away = false; }
  ClIsolate* self;
};

// ---- limits

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
  self->greedy = false;
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
// and given up, or ended with their process by whoever sees `greedy`.
void LookForGreed(ClIsolate* self, size_t used, bool all_alive) {
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
    self->greedy = true;
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
  LookForGreed(self, used, full);
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
  if (self->away) return false;
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

// ---- what the prelude can call

void Print(const v8::FunctionCallbackInfo<v8::Value>& info) {
  ClIsolate* self = Self(info.GetIsolate());
  {
    v8::String::Utf8Value text(info.GetIsolate(), info[1]);
    ClText view{reinterpret_cast<const uint8_t*>(*text), static_cast<size_t>(text.length())};
    Away away(self);
    self->host.print(self->host.host, info[0].As<v8::Int32>()->Value(), view);
  }
  LeaveIfGivenUp(self);
}

// Gives the list of a URL's parts, or undefined.
void UrlParts(const v8::FunctionCallbackInfo<v8::Value>& info) {
  v8::Isolate* isolate = info.GetIsolate();
  ClIsolate* self = Self(isolate);
  std::string operation = ToString(isolate, info[0]);
  std::string first = ToString(isolate, info[1]);
  std::string second = ToString(isolate, info[2]);
  ClText result;
  {
    Away away(self);
    if (!self->host.url(self->host.host, View(operation), View(first), View(second), &result)) return;
  }
  std::vector<v8::Local<v8::Value>> parts;
  auto* data = reinterpret_cast<const char*>(result.data);
  const char* end = data + result.length;
  for (;;) {
    auto* line = static_cast<const char*>(memchr(data, '\n', end - data));
    parts.push_back(Text(isolate, data, (line ? line : end) - data));
    if (!line) break;
    data = line + 1;
  }
  info.GetReturnValue().Set(v8::Array::New(isolate, parts.data(), parts.size()));
}

extern const intptr_t external_references[];

// ---- outcomes

void Begin(ClIsolate* self, ClOutcome* outcome) {
  *outcome = {};
  self->results.Reset();
  self->kept.clear();
  self->given = Encoded();
  self->interrupted_at.clear();
  self->asked = false;
  self->unheard_since = 0;
  self->greedy = false;
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

// The place and the line of the source that V8 blames, with a mark below.
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
    // The end came while the exception was looked at.
    return Ended(self, outcome);
  } else {
    self->name = "Error";
    self->message = ToString(isolate, exception);
  }
  // Syntax errors and thrown values that are no errors know no stack; V8 knows the place.
  if (self->stack.empty() && !message.IsEmpty()) {
    v8::Local<v8::StackTrace> trace = message->GetStackTrace();
    if (trace.IsEmpty() || trace->GetFrameCount() == 0) {
      self->stack = Blame(self, context, message);
    } else {
      self->stack = Frames(isolate, trace);
    }
  }
  if (!exception.IsEmpty() && exception == self->failed_with) outcome->reason = CL_PROGRAM;
  // JavaScript may have caught that, and thrown something else.
  if (self->allocator.refused && self->name == "RangeError" && self->message == kRefused) {
    outcome->reason = CL_MEMORY;
  }
  outcome->name = View(self->name);
  outcome->message = View(self->message);
  outcome->stack = View(self->stack);
}

// Gives an error a property of its own. What the user's code made of errors does not matter.
void Define(v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value> error,
            const char* name, v8::Local<v8::String> value) {
  // That fails only if the call is being ended.
  error.As<v8::Object>()
      ->CreateDataProperty(context, Text(isolate, name, strlen(name)), value)
      .FromMaybe(false);
}

// ---- modules

bool Resolve(ClIsolate* self, v8::Local<v8::String> specifier, const std::string& referrer, std::string* path,
             std::string* source) {
  std::string text = ToString(self->isolate, specifier);
  ClText found{}, content{};
  bool exists;
  {
    Away away(self);
    exists = self->host.resolve(self->host.host, View(text), View(referrer), &found, &content);
  }
  *path = std::string(reinterpret_cast<const char*>(found.data), found.length);
  if (exists) *source = std::string(reinterpret_cast<const char*>(content.data), content.length);
  return exists;
}

// Whether a text is a script rather than a module: it has neither import nor export.
bool IsScript(v8::Isolate* isolate, v8::Local<v8::Context> context, const std::string& text) {
  v8::TryCatch caught(isolate);
  v8::ScriptCompiler::Source source(Text(isolate, "(function () {" + text + "\n})"));
  return !v8::ScriptCompiler::Compile(context, &source).IsEmpty();
}

// Makes a module of an imported script, as most packages publish them: what it puts into `module.exports` is
// its default export. The text stays in its lines.
std::string FromCommonJs(const std::string& text) {
  return "const module = { exports: {} }; (function (module, exports) { " + text +
         "\n}).call(module.exports, module, module.exports); export default module.exports;";
}

v8::MaybeLocal<v8::Module> Compile(ClIsolate* self, v8::Local<v8::Context> context, const std::string& path,
                                   v8::Local<v8::String> source) {
  v8::Isolate* isolate = self->isolate;
  v8::ScriptOrigin origin(isolate, Text(isolate, path), 0, 0, false, -1, v8::Local<v8::Value>(), false, false,
                          true);
  v8::ScriptCompiler::Source script(source, origin);
  v8::Local<v8::Module> module;
  if (!v8::ScriptCompiler::CompileModule(isolate, &script).ToLocal(&module)) return {};
  self->modules[path].Reset(isolate, module);
  v8::Local<v8::FixedArray> requests = module->GetModuleRequests();
  for (int index = 0; index < requests->Length(); index++) {
    auto request = requests->Get(context, index).As<v8::ModuleRequest>();
    std::string imported, text;
    if (!Resolve(self, request->GetSpecifier(), path, &imported, &text)) {
      v8::Location at = module->SourceOffsetToLocation(request->GetSourceOffset());
      std::string place = "\n    at " + path + ":" + std::to_string(at.GetLineNumber() + 1) + ":" +
                          std::to_string(at.GetColumnNumber() + 1);
      v8::Local<v8::Value> error = v8::Exception::Error(Text(isolate, imported));
      Define(isolate, context, error, "stack", Text(isolate, "Error: " + imported + place));
      isolate->ThrowException(error);
      return {};
    }
    if (self->modules.count(imported)) continue;
    if (IsScript(isolate, context, text)) text = FromCommonJs(text);
    if (Compile(self, context, imported, Text(isolate, text)).IsEmpty()) return {};
  }
  return module;
}

v8::MaybeLocal<v8::Module> Link(v8::Local<v8::Context> context, v8::Local<v8::String> specifier,
                                v8::Local<v8::FixedArray>, v8::Local<v8::Module> referrer) {
  ClIsolate* self = Self(context->GetIsolate());
  for (auto& [path, module] : self->modules) {
    if (module != referrer) continue;
    std::string imported, source;
    if (Resolve(self, specifier, path, &imported, &source)) {
      return self->modules[imported].Get(self->isolate);
    }
  }
  self->isolate->ThrowError("a module that was there is gone");
  return {};
}

bool Evaluate(ClIsolate* self, v8::Local<v8::Context> context, const std::string& path,
              v8::Local<v8::String> source) {
  v8::Isolate* isolate = self->isolate;
  v8::Local<v8::Module> module;
  v8::Local<v8::Value> value;
  if (!Compile(self, context, path, source).ToLocal(&module) ||
      !module->InstantiateModule(context, Link).FromMaybe(false) ||
      !module->Evaluate(context).ToLocal(&value)) {
    return false;
  }
  isolate->PerformMicrotaskCheckpoint();
  if (isolate->IsExecutionTerminating()) return false;
  auto promise = value.As<v8::Promise>();
  if (promise->State() == v8::Promise::kRejected) {
    isolate->ThrowException(promise->Result());
    return false;
  }
  if (promise->State() == v8::Promise::kPending) {
    isolate->ThrowError("a top-level await waits for something that nothing can settle");
    return false;
  }
  return true;
}

// ---- values

// Whether all bytes are ASCII, eight at a time.
bool IsAscii(const uint8_t* data, int length) {
  uint64_t all = 0, word;
  int index = 0;
  for (; index + 8 <= length; index += 8) {
    memcpy(&word, data + index, 8);
    all |= word;
  }
  for (; index < length; index++) all |= data[index];
  return (all & 0x8080808080808080) == 0;
}

// The most memory that is kept to be used again, for one value.
constexpr size_t kMostReused = 1 << 20;

// A buffer of at least this length that begins with a copy of `value`.
v8::MaybeLocal<v8::ArrayBuffer> Copied(ClIsolate* self, const ClValue& value, size_t length) {
  auto store = self->allocator.Room(length);
  if (!store) return {};
  if (value.length) memcpy(store->Data(), value.data, value.length);
  return v8::ArrayBuffer::New(self->isolate, std::move(store));
}

// What is passed at `place`. Empty if there is no memory for it.
v8::MaybeLocal<v8::Value> ToJs(ClIsolate* self, const ClValue& value, size_t place) {
  v8::Isolate* isolate = self->isolate;
  v8::Local<v8::ArrayBuffer> buffer;
  switch (value.kind) {
    case CL_REUSED:
      // A detached buffer makes V8 look at each access to any: so these are not detached, and not made anew.
      if (value.length <= kMostReused) {
        v8::Global<v8::ArrayBuffer>& reused = self->reused[place];
        if (!reused.IsEmpty() && reused.Get(isolate)->ByteLength() >= value.length) {
          buffer = reused.Get(isolate);
          if (value.length) memcpy(buffer->GetBackingStore()->Data(), value.data, value.length);
          return buffer;
        }
        size_t length = 1 << 10;
        while (length < value.length) length *= 2;
        if (!Copied(self, value, length).ToLocal(&buffer)) return {};
        reused.Reset(isolate, buffer);
        return buffer;
      }
      [[fallthrough]];
    case CL_BYTES:
      if (!Copied(self, value, value.length).ToLocal(&buffer)) return {};
      self->lent.emplace_back(isolate, buffer);
      return buffer;
    case CL_WORD:
      // The only memory that is shared with the host.
      if (self->word_at != value.data) {
        auto store = v8::ArrayBuffer::NewBackingStore(
            const_cast<uint8_t*>(value.data), sizeof(uint32_t), [](void*, size_t, void*) {}, nullptr);
        buffer = v8::ArrayBuffer::New(isolate, std::move(store));
        self->word.Reset(isolate, v8::Uint32Array::New(buffer, 0, 1));
        self->word_at = value.data;
      }
      return self->word.Get(isolate);
    case CL_ASCII:
    case CL_UTF8: {
      std::vector<v8::Local<v8::Value>> strings;
      strings.reserve(value.count);
      for (size_t index = 0; index < value.count; index++) {
        const uint8_t* data = value.data + value.offsets[index];
        int length = value.offsets[index + 1] - value.offsets[index];
        if (length < value.number) {
          strings.push_back(v8::Undefined(isolate));
          continue;
        }
        v8::Local<v8::String> text;
        // V8 takes ASCII at four times the speed of UTF-8.
        bool ascii = value.kind == CL_ASCII || IsAscii(data, length);
        auto kind = v8::NewStringType::kNormal;
        bool made =
            (ascii ? v8::String::NewFromOneByte(isolate, data, kind, length)
                   : v8::String::NewFromUtf8(isolate, reinterpret_cast<const char*>(data), kind, length))
                .ToLocal(&text);
        if (made) {
          strings.push_back(text);
        } else {
          // Too long for V8: the prelude says so for the row.
          strings.push_back(v8::Undefined(isolate));
        }
      }
      return v8::Array::New(isolate, strings.data(), strings.size());
    }
    case CL_NUMBER:
      return v8::Number::New(isolate, value.number);
    case CL_LATIN1: {
      v8::Local<v8::String> text;
      auto kind = v8::NewStringType::kNormal;
      if (!v8::String::NewFromOneByte(isolate, value.data, kind, static_cast<int>(value.length))
               .ToLocal(&text))
        return {};
      return text;
    }
    case CL_TEXT:
      return Text(isolate, reinterpret_cast<const char*>(value.data), value.length);
    default:
      return v8::Undefined(isolate);
  }
}

void FromJs(v8::Isolate* isolate, v8::Local<v8::Value> value, ClValue* result) {
  *result = {};
  if (value->IsArrayBufferView()) {
    auto view = value.As<v8::ArrayBufferView>();
    result->kind = CL_BYTES;
    // Makes the memory of a small array, which lies in the heap, stay where it is.
    auto store = view->Buffer()->GetBackingStore();
    result->data = static_cast<uint8_t*>(store->Data()) + view->ByteOffset();
    result->length = view->ByteLength();
  } else if (value->IsString()) {
    auto text = value.As<v8::String>();
    result->kind = text->IsOneByte() ? CL_LATIN1 : CL_UTF16;
    result->length = text->Length();
    if (text->IsOneByte()) result->count = text->Utf8Length(isolate);
  } else if (value->IsNumber()) {
    result->kind = CL_NUMBER;
    result->number = value.As<v8::Number>()->Value();
  }
}

// What V8 reserves for the code of an isolate, if its constraints name no other size; and what more an
// isolate takes of the address space until it has booted.
constexpr size_t kCode = 128u << 20;
constexpr size_t kBoot = 24u << 20;

// Held from the look for room until the isolate has booted: else the boot of another thread finds the same
// room.
std::mutex one_boots;

// Whether there is room for one more isolate. V8 ends the process where it finds none.
bool IsRoomToBoot(size_t code, ClOutcome* outcome) {
  *outcome = {};
  if (IsThere((code ? code : kCode) + kBoot, PROT_NONE)) return true;
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

// Makes the context: the snapshot's, or a new one in which the prelude is run.
ClIsolate* Furnish(ClIsolate* self, ClText prelude, ClOutcome* outcome) {
  v8::Isolate* isolate = self->isolate;
  Begin(self, outcome);
  v8::HandleScope scope(isolate);
  v8::Local<v8::Context> context = v8::Context::New(isolate);
  v8::Context::Scope context_scope(context);
  self->context.Reset(isolate, context);
  if (self->blob.raw_size) {
    self->guest.Reset(isolate, context->GetDataFromSnapshotOnce<v8::Object>(0).ToLocalChecked());
    return self;
  }
  v8::TryCatch caught(isolate);
  v8::ScriptOrigin origin(isolate, Text(isolate, "crosslane:guest", 15));
  v8::Local<v8::Script> script;
  v8::Local<v8::Value> make, guest;
  v8::Local<v8::Value> arguments[] = {v8::Function::New(context, Print).ToLocalChecked(),
                                      v8::Function::New(context, UrlParts).ToLocalChecked()};
  if (!v8::Script::Compile(context, Text(isolate, prelude), &origin).ToLocal(&script) ||
      !script->Run(context).ToLocal(&make) ||
      !make.As<v8::Function>()->Call(context, context->Global(), 2, arguments).ToLocal(&guest)) {
    Failed(self, context, caught, outcome);
    guest = v8::Object::New(isolate);
  }
  self->guest.Reset(isolate, guest.As<v8::Object>());
  return self;
}

// The lanes' isolates are entered for a call only, so that several can be used on one thread.
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

// ---- values of a program

constexpr int kDeepest = 100;

void PutText(Encoded* out, v8::Isolate* isolate, v8::Local<v8::String> text) {
  int length = text->Utf8Length(isolate);
  out->Put<uint32_t>(length);
  if (auto* place = reinterpret_cast<char*>(out->Add(length))) {
    text->WriteUtf8(isolate, place, length, nullptr,
                    v8::String::NO_NULL_TERMINATION | v8::String::REPLACE_INVALID_UTF8);
  }
}

void Throw(v8::Isolate* isolate, const char* message) {
  isolate->ThrowException(v8::Exception::TypeError(Text(isolate, message, strlen(message))));
}

// Empty, with an exception, if it is beyond V8's longest.
v8::MaybeLocal<v8::String> TextOrError(v8::Isolate* isolate, ClText text) {
  v8::MaybeLocal<v8::String> made = MaybeText(isolate, reinterpret_cast<const char*>(text.data), text.length);
  if (made.IsEmpty()) {
    isolate->ThrowException(v8::Exception::RangeError(Text(isolate, "a text beyond V8's longest", 26)));
  }
  return made;
}

// Comes to a check if there is something to be ended. False if it was.
bool Poll(ClIsolate* self, v8::Local<v8::Context> context) {
  if (self->reason.load(std::memory_order_relaxed) == 0) return true;
  v8::Local<v8::Script> script;
  v8::Local<v8::Value> value;
  return v8::Script::Compile(context, Text(self->isolate, "for (let i = 0; i < 1; i++);", 28))
             .ToLocal(&script) &&
         script->Run(context).ToLocal(&value);
}

// Ends the call that passes a value which there is no memory for.
void EndForLack(ClIsolate* self, v8::Local<v8::Context> context) {
  Terminate(self, CL_NO_MEMORY);
  Poll(self, context);
}

// Whether `more` bytes may be added to an encoded value.
bool HasRoom(v8::Isolate* isolate, v8::Local<v8::Context> context, const Encoded& out, size_t more) {
  ClIsolate* self = Self(isolate);
  if (out.lacks()) {
    Terminate(self, CL_NO_MEMORY);
  } else if (out.size() > self->memory_limit || more > self->memory_limit - out.size() || more > UINT32_MAX) {
    Terminate(self, CL_MEMORY);
  } else if (++self->encoded % 1024) {
    return true;
  }
  return Poll(self, context);
}

bool EncodeObject(v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Object> object,
                  int depth, Encoded* out);

// Appends a value; false with an exception if it cannot travel.
bool EncodeValue(v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value> value, int depth,
                 Encoded* out) {
  if (depth > kDeepest) {
    Throw(isolate, "a value that contains itself, or is nested more than 100 deep, cannot be passed");
    return false;
  }
  size_t size = 0;
  if (value->IsString()) size = value.As<v8::String>()->Utf8Length(isolate);
  if (value->IsArrayBufferView()) size = value.As<v8::ArrayBufferView>()->ByteLength();
  if (value->IsBigInt()) size = value.As<v8::BigInt>()->WordCount() * sizeof(uint64_t);
  if (!HasRoom(isolate, context, *out, size)) return false;
  if (value->IsInt32()) {
    out->Put<uint8_t>(CL_VALUE_INT);
    out->Put<int32_t>(value.As<v8::Int32>()->Value());
  } else if (value->IsNumber()) {
    out->Put<uint8_t>(CL_VALUE_NUMBER);
    out->Put<double>(value.As<v8::Number>()->Value());
  } else if (value->IsString()) {
    out->Put<uint8_t>(CL_VALUE_TEXT);
    PutText(out, isolate, value.As<v8::String>());
  } else if (value->IsBoolean()) {
    out->Put<uint8_t>(value->IsTrue() ? CL_VALUE_TRUE : CL_VALUE_FALSE);
  } else if (value->IsNullOrUndefined()) {
    out->Put<uint8_t>(CL_VALUE_UNDEFINED);
  } else if (value->IsBigInt()) {
    // In words: decimal digits take V8 time that grows faster than their number.
    auto number = value.As<v8::BigInt>();
    int negative = 0, words = number->WordCount();
    List<uint64_t> digits = ListOf<uint64_t>(words);
    if (!digits) {
      Terminate(Self(isolate), CL_NO_MEMORY);
      return Poll(Self(isolate), context);
    }
    number->ToWordsArray(&negative, &words, digits.get());
    out->Put<uint8_t>(CL_VALUE_BIGINT);
    out->Put<uint8_t>(negative != 0);
    out->Put<uint32_t>(words);
    size_t bytes = words * sizeof(uint64_t);
    if (uint8_t* place = out->Add(bytes)) memcpy(place, digits.get(), bytes);
  } else if (value->IsDate()) {
    out->Put<uint8_t>(CL_VALUE_DATE);
    out->Put<double>(value.As<v8::Date>()->ValueOf());
  } else if (value->IsArrayBufferView()) {
    auto view = value.As<v8::ArrayBufferView>();
    out->Put<uint8_t>(CL_VALUE_BYTES);
    out->Put<uint32_t>(view->ByteLength());
    if (uint8_t* place = out->Add(view->ByteLength())) view->CopyContents(place, view->ByteLength());
  } else if (value->IsPromise() && value.As<v8::Promise>()->State() == v8::Promise::kPending) {
    out->Put<uint8_t>(CL_VALUE_PENDING);
  } else if (value->IsFunction() || value->IsSymbol()) {
    // As JSON leaves them out.
    out->Put<uint8_t>(CL_VALUE_UNDEFINED);
  } else {
    return EncodeObject(isolate, context, value.As<v8::Object>(), depth, out);
  }
  return true;
}

bool EncodeObject(v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Object> object,
                  int depth, Encoded* out) {
  if (object->IsSet()) object = object.As<v8::Set>()->AsArray();
  if (object->IsArray()) {
    auto array = object.As<v8::Array>();
    uint32_t length = array->Length();
    // Each element, hole or not, becomes a word of the program's.
    if (!HasRoom(isolate, context, *out, size_t{length} * sizeof(void*))) return false;
    out->Put<uint8_t>(CL_VALUE_ARRAY);
    out->Put<uint32_t>(length);
    for (uint32_t index = 0; index < length; index++) {
      v8::HandleScope scope(isolate);
      v8::Local<v8::Value> element;
      if (!array->Get(context, index).ToLocal(&element)) return false;
      if (!EncodeValue(isolate, context, element, depth + 1, out)) return false;
    }
    return true;
  }
  out->Put<uint8_t>(CL_VALUE_OBJECT);
  if (object->IsMap()) {
    v8::Local<v8::Array> entries = object.As<v8::Map>()->AsArray();
    out->Put<uint32_t>(entries->Length() / 2);
    for (uint32_t index = 0; index < entries->Length(); index += 2) {
      v8::HandleScope scope(isolate);
      v8::Local<v8::Value> key, value;
      v8::Local<v8::String> text;
      if (!entries->Get(context, index).ToLocal(&key) || !key->ToString(context).ToLocal(&text)) return false;
      PutText(out, isolate, text);
      if (!entries->Get(context, index + 1).ToLocal(&value)) return false;
      if (!EncodeValue(isolate, context, value, depth + 1, out)) return false;
    }
    return true;
  }
  v8::Local<v8::Array> names;
  if (!object->GetOwnPropertyNames(context).ToLocal(&names)) return false;
  out->Put<uint32_t>(names->Length());
  for (uint32_t index = 0; index < names->Length(); index++) {
    v8::HandleScope scope(isolate);
    v8::Local<v8::Value> name, value;
    v8::Local<v8::String> text;
    if (!names->Get(context, index).ToLocal(&name) || !name->ToString(context).ToLocal(&text)) return false;
    PutText(out, isolate, text);
    if (!object->Get(context, name).ToLocal(&value)) return false;
    if (!EncodeValue(isolate, context, value, depth + 1, out)) return false;
  }
  return true;
}

// Appends a whole value, as `EncodeValue`.
bool Encode(v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value> value, Encoded* out) {
  if (!EncodeValue(isolate, context, value, 0, out)) return false;
  if (out->lacks()) EndForLack(Self(isolate), context);
  return !out->lacks();
}

using Handles = List<v8::Local<v8::Value>>;

// Reads what the program encoded, which it is trusted to have done right.
class Decoder {
 public:
  Decoder(v8::Isolate* isolate, v8::Local<v8::Context> context, ClText text)
      : isolate_(isolate), context_(context), at_(text.data) {}

  // Empty, with an exception, if V8 cannot hold it.
  v8::MaybeLocal<v8::Value> Value() {
    switch (Take<uint8_t>()) {
      case CL_VALUE_TRUE:
        return v8::True(isolate_).As<v8::Value>();
      case CL_VALUE_FALSE:
        return v8::False(isolate_).As<v8::Value>();
      case CL_VALUE_INT:
        return v8::Integer::New(isolate_, Take<int32_t>()).As<v8::Value>();
      case CL_VALUE_NUMBER:
        return v8::Number::New(isolate_, Take<double>()).As<v8::Value>();
      case CL_VALUE_TEXT: {
        v8::Local<v8::String> text;
        if (!String().ToLocal(&text)) return {};
        return text.As<v8::Value>();
      }
      case CL_VALUE_ARRAY: {
        uint32_t count = Take<uint32_t>();
        Handles elements = Values(count);
        if (!elements) return {};
        return v8::Array::New(isolate_, elements.get(), count).As<v8::Value>();
      }
      case CL_VALUE_OBJECT: {
        v8::Local<v8::Object> object = v8::Object::New(isolate_);
        for (uint32_t left = Take<uint32_t>(); left > 0; left--) {
          v8::Local<v8::String> name;
          v8::Local<v8::Value> value;
          if (!String().ToLocal(&name) || !Value().ToLocal(&value)) return {};
          if (!object->CreateDataProperty(context_, name, value).FromMaybe(false)) return {};
        }
        return object.As<v8::Value>();
      }
      case CL_VALUE_DATE:
        return v8::Date::New(context_, Take<double>());
      case CL_VALUE_BIGINT: {
        bool negative = Take<uint8_t>() != 0;
        uint32_t words = Take<uint32_t>();
        List<uint64_t> digits = ListOf<uint64_t>(words);
        if (!digits) return Lack();
        if (words) memcpy(digits.get(), at_, words * sizeof(uint64_t));
        at_ += words * sizeof(uint64_t);
        v8::Local<v8::BigInt> number;
        if (!v8::BigInt::NewFromWords(context_, negative, static_cast<int>(words), digits.get())
                 .ToLocal(&number)) {
          return {};
        }
        return number.As<v8::Value>();
      }
      case CL_VALUE_BYTES: {
        ClValue bytes{CL_BYTES, nullptr, Take<uint32_t>(), nullptr, 0, 0};
        bytes.data = at_;
        at_ += bytes.length;
        v8::Local<v8::ArrayBuffer> buffer;
        if (!Copied(Self(isolate_), bytes, bytes.length).ToLocal(&buffer)) return Lack();
        return v8::Uint8Array::New(buffer, 0, bytes.length).As<v8::Value>();
      }
      default:
        return v8::Undefined(isolate_).As<v8::Value>();
    }
  }

  // So many values; none, with an exception, if V8 cannot hold one.
  Handles Values(uint32_t count) {
    Handles values = ListOf<v8::Local<v8::Value>>(count);
    if (!values) Lack();
    for (uint32_t index = 0; values && index < count; index++) {
      if (!Value().ToLocal(&values[index])) values.reset();
    }
    return values;
  }

 private:
  template <typename T>
  T Take() {
    T value;
    memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  v8::MaybeLocal<v8::String> String() {
    uint32_t length = Take<uint32_t>();
    const uint8_t* data = at_;
    at_ += length;
    return TextOrError(isolate_, {data, length});
  }

  v8::MaybeLocal<v8::Value> Lack() {
    EndForLack(Self(isolate_), context_);
    return {};
  }

  v8::Isolate* isolate_;
  v8::Local<v8::Context> context_;
  const uint8_t* at_;
};

// Has V8 come to a check, where it does what it was asked to. Its loops come to one after thousands of rounds
// only, and each may wait for the program. False if the call at work is to end.
bool Check(v8::Isolate* isolate, v8::Local<v8::Context> context) {
  v8::Local<v8::Script> nothing;
  return v8::Script::Compile(context, v8::String::Empty(isolate)).ToLocal(&nothing) &&
         !nothing->Run(context).IsEmpty();
}

// Throws what a function of the program failed with: an error of one of JavaScript's classes, or one that has
// this name.
void Fail(ClIsolate* self, v8::Local<v8::Context> context, ClText text) {
  static const std::map<std::string_view, v8::Local<v8::Value> (*)(v8::Local<v8::String>)> classes = {
      {"RangeError", v8::Exception::RangeError},
      {"ReferenceError", v8::Exception::ReferenceError},
      {"SyntaxError", v8::Exception::SyntaxError},
      {"TypeError", v8::Exception::TypeError}};
  v8::Isolate* isolate = self->isolate;
  std::string_view message(reinterpret_cast<const char*>(text.data), text.length);
  std::string_view name = message.substr(0, message.find('\n'));
  message.remove_prefix(std::min(name.size() + 1, message.size()));
  auto known = classes.find(name);
  v8::Local<v8::Value> error =
      (known == classes.end() ? v8::Exception::Error : known->second)(Text(isolate, message));
  self->failed_with.Reset(isolate, error);
  if (known == classes.end() && name != "Error") Define(isolate, context, error, "name", Text(isolate, name));
  isolate->ThrowException(error);
}

// A function of the program: its number is the function's data.
void CallProgram(const v8::FunctionCallbackInfo<v8::Value>& info) {
  v8::Isolate* isolate = info.GetIsolate();
  v8::Local<v8::Context> context = isolate->GetCurrentContext();
  ClIsolate* self = Self(isolate);
  // At the first check it is asked whether the call is to end, and at the second it ends.
  for (int check = 0; check < 2 && self->reason != 0; check++) {
    if (!Check(isolate, context)) return;
  }
  Encoded arguments;
  arguments.Put<uint32_t>(info.Length());
  for (int index = 0; index < info.Length(); index++) {
    if (!Encode(isolate, context, info[index], &arguments)) return;
  }
  ClText result{};
  uint32_t number = info.Data().As<v8::Uint32>()->Value();
  bool called;
  {
    Away away(self);
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
                                        reinterpret_cast<intptr_t>(UrlParts), 0};

// Lets go of what was made for calls.
void Forget(ClIsolate* self) {
  self->results.Reset();
  self->failed_with.Reset();
  self->lent.clear();
  self->kept.clear();
  self->reused.clear();
  self->word.Reset();
  self->word_at = nullptr;
  self->methods.clear();
  self->modules.clear();
}

// What a call by the program needs around it.
struct Entry {
  Entry(ClIsolate* self, size_t stack, ClOutcome* outcome)
      : scopes(self), caught(self->isolate), outer(self->entry), away(std::exchange(self->away, false)) {
    self->entry = this;
    self->isolate->SetStackLimit(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) - stack);
    Begin(self, outcome);
    // An inner call ends with the outer one.
    if (self->depth++ == 0) Spare(self);
  }

  void Leave(ClIsolate* self, bool done, v8::Local<v8::Value> value, ClOutcome* outcome) {
    v8::Isolate* isolate = self->isolate;
    self->depth--;
    Encoded encoded;
    if (done && self->depth == 0) {
      isolate->PerformMicrotaskCheckpoint();
      done = !isolate->IsExecutionTerminating() && !caught.HasCaught();
    }
    // A promise that is settled is its value: nothing else will happen to it before the next call.
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
    self->given = std::move(encoded);
    outcome->value = self->given.View();
  }

  Scopes scopes;
  v8::TryCatch caught;
  Entry* outer;
  // Whether the host makes the call.
  bool away;
  // Where a call continues that is given up.
  jmp_buf exit;
};

// Leaves what the isolate does where it is, for ever: its frames are left behind with the isolate and its
// memory. The call that is under way ends, and then those around it, of which none may touch the isolate.
// What no call by a program is under way for (a lane's) goes on instead.
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

// Makes a call by the program.
template <typename Work>
[[gnu::noinline]] void Run(ClIsolate* self, size_t stack, ClOutcome* outcome, Work work) {
  std::optional<v8::Locker> lock;
  if (self->shared) lock.emplace(self->isolate);
  if (self->given_up) return GivenUp(self, outcome);
  // Not destroyed if the call is given up.
  alignas(Entry) char room[sizeof(Entry)];
  auto* entry = new (room) Entry(self, stack, outcome);
  if (setjmp(entry->exit) == 0) {
    work(*entry);
    self->entry = entry->outer;
    self->away = entry->away;
    entry->~Entry();
  } else {
    self->entry = entry->outer;
    self->away = entry->away;
    self->isolate->Exit();
    GivenUp(self, outcome);
  }
}

// The object that holds the last name of a path (`a.b.c`), and that name. With `make`, objects that are
// missing on the way are made.
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
      // A long one is cut: there may be no memory for it.
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

extern "C" {

void cl_initialize(ClText flags) {
  v8::V8::SetFlagsFromString(reinterpret_cast<const char*>(flags.data), flags.length);
  platform = v8::platform::NewDefaultPlatform().release();
  v8::V8::InitializePlatform(platform);
  v8::V8::Initialize();
  v8::base::SetPrintStackTrace(CheckFailed);
  handler_before = std::set_new_handler(NoMemory);
}

const char* cl_version() { return v8::V8::GetVersion(); }

ClIsolate* cl_builder(ClText blob, ClText prelude, const ClHost* host, size_t memory_limit,
                      ClOutcome* outcome) {
  std::lock_guard<std::mutex> boots(one_boots);
  if (!IsRoomToBoot(0, outcome)) return nullptr;
  ClIsolate* self = Allocate(blob, host);
  self->creator = std::make_unique<v8::SnapshotCreator>(self->isolate, external_references,
                                                        blob.length ? &self->blob : nullptr);
  self->warming = blob.length > 0;
  Guard(self, memory_limit);
  return Furnish(self, prelude, outcome);
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
      // A fresh context: what the warm-up changed stays behind, what it compiled belongs to the isolate.
      self->guest.Reset();
      self->context.Reset();
      isolate->ContextDisposedNotification(false);
      context = v8::Context::New(isolate);
      guest = context->GetDataFromSnapshotOnce<v8::Object>(0).ToLocalChecked();
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
  std::lock_guard<std::mutex> boots(one_boots);
  if (!IsRoomToBoot(parameters.constraints.code_range_size_in_bytes(), outcome)) return nullptr;
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
  return Furnish(self, prelude, outcome);
}

void cl_eval(ClIsolate* self, ClText source, ClText name, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome, [&](Entry& entry) {
    v8::Isolate* isolate = self->isolate;
    v8::Local<v8::Context> context = entry.scopes.context;
    v8::ScriptOrigin origin(isolate, Text(isolate, name));
    v8::Local<v8::String> text;
    v8::Local<v8::Script> script;
    v8::Local<v8::Value> value;
    bool done = TextOrError(isolate, source).ToLocal(&text) &&
                v8::Script::Compile(context, text, &origin).ToLocal(&script) &&
                script->Run(context).ToLocal(&value);
    entry.Leave(self, done, value, outcome);
  });
}

void cl_invoke(ClIsolate* self, ClText path, ClText arguments, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome, [&](Entry& entry) {
    v8::Isolate* isolate = self->isolate;
    v8::Local<v8::Context> context = entry.scopes.context;
    v8::Local<v8::Object> holder;
    v8::Local<v8::String> name;
    v8::Local<v8::Value> function, value;
    bool done = Holder(isolate, context, path, false, &holder, &name) &&
                holder->Get(context, name).ToLocal(&function);
    if (done && !function->IsFunction()) {
      Throw(isolate, (ToString(isolate, name) + " is no function").c_str());
      done = false;
    }
    if (done) {
      uint32_t count;
      memcpy(&count, arguments.data, sizeof count);
      Decoder decoder(isolate, context, {arguments.data + sizeof count, arguments.length - sizeof count});
      Handles values = decoder.Values(count);
      done = values && function.As<v8::Function>()
                           ->Call(context, holder, static_cast<int>(count), values.get())
                           .ToLocal(&value);
    }
    entry.Leave(self, done, value, outcome);
  });
}

void cl_attach(ClIsolate* self, ClText path, uint32_t number, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome, [&](Entry& entry) {
    v8::Isolate* isolate = self->isolate;
    v8::Local<v8::Context> context = entry.scopes.context;
    v8::Local<v8::Object> holder;
    v8::Local<v8::String> name;
    v8::Local<v8::Function> function;
    auto data = v8::Integer::NewFromUnsigned(isolate, number);
    bool done = Holder(isolate, context, path, true, &holder, &name) &&
                v8::Function::New(context, CallProgram, data).ToLocal(&function) &&
                holder->Set(context, name, function).FromMaybe(false);
    entry.Leave(self, done, v8::Undefined(isolate), outcome);
  });
}

void cl_collect(ClIsolate* self, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome, [&](Entry& entry) {
    self->isolate->LowMemoryNotification();
    entry.Leave(self, true, v8::Undefined(self->isolate), outcome);
  });
}

void cl_heap_stats(ClIsolate* self, size_t stack, ClOutcome* outcome) {
  Run(self, stack, outcome, [&](Entry& entry) {
    v8::Isolate* isolate = self->isolate;
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
          done && object->CreateDataProperty(entry.scopes.context, Text(isolate, name, strlen(name)), number)
                      .FromMaybe(false);
    }
    entry.Leave(self, done, object, outcome);
  });
}

bool cl_dispose(ClIsolate* self) {
  // V8 is still in the middle of something there.
  if (self->given_up) return false;
  std::optional<v8::Locker> lock;
  if (self->shared) lock.emplace(self->isolate);
  self->isolate->RemoveGCEpilogueCallback(AfterCollection, nullptr);
  Forget(self);
  self->guest.Reset();
  if (self->creator) {
    // V8 demands a blob of every creator; one without a context is the cheapest.
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
  self->allocator.limit = bytes;
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
  Spare(self);
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
  // What was to end this call came too late.
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
  if (self->lent.empty()) return;
  Scopes scopes(self);
  for (auto& lent : self->lent) {
    v8::Local<v8::ArrayBuffer> buffer = lent.Get(self->isolate);
    self->kept.push_back(buffer->GetBackingStore());
    buffer->Detach();
  }
  self->lent.clear();
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
  return reason == 0 && self->greedy ? static_cast<uint32_t>(CL_MEMORY) : reason;
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
          // A call may have come to its end before this came to it.
          ClIsolate* self = Self(isolate);
          uint32_t reason = self->reason.load();
          if (reason == 0) return;
          bool confirmed;
          {
            Away away(self);
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
