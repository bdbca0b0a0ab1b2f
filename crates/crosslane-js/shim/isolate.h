// An isolate with its array buffers, and texts that pass between V8 and the program.
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to compile.
#pragma once

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shim.h"
#include "versions.h"

namespace {

v8::Platform* platform = nullptr;

// The message of the RangeError that V8 throws when the allocator refuses memory.
constexpr char kRefused[] = "Array buffer allocation failed";

}  // namespace

// Types of the fields of ClIsolate: an anonymous namespace in a header would make the compiler warn.
struct Entry;

// Counts the bytes that an isolate has outside of V8's heap, and refuses those beyond its limit.
class Account {
 public:
  // Counts bytes. Refuses those beyond the limit.
  bool Take(size_t length) {
    size_t before = used_.fetch_add(length, std::memory_order_relaxed);
    size_t most = limit.load(std::memory_order_relaxed);
    if (before <= most && length <= most - before) return true;
    Give(length);
    refused.store(true, std::memory_order_relaxed);
    return false;
  }
  // Counts bytes that the limit does not refuse.
  void Add(size_t length) { used_.fetch_add(length, std::memory_order_relaxed); }
  void Give(size_t length) { used_.fetch_sub(length, std::memory_order_relaxed); }
  size_t used() const { return used_.load(std::memory_order_relaxed); }
  std::atomic<size_t> limit{SIZE_MAX};
  // Whether memory was refused since the call at work began.
  std::atomic<bool> refused{false};

 private:
  std::atomic<size_t> used_{0};
};

// Allocates array buffers, and counts their bytes.
class CappedAllocator final : public v8::ArrayBuffer::Allocator {
 public:
  explicit CappedAllocator(Account& account) : account_(account) {}
  void* Allocate(size_t length) override {
    return account_.Take(length) ? Checked(calloc(length, 1), length) : nullptr;
  }
  void* AllocateUninitialized(size_t length) override {
    return account_.Take(length) ? Checked(malloc(length), length) : nullptr;
  }
  void Free(void* data, size_t length) override {
    free(data);
    account_.Give(length);
  }
  // Memory for a value that the host passes. It counts, but the limit does not refuse it.
  std::unique_ptr<v8::BackingStore> Room(size_t length) {
    void* data = malloc(std::max<size_t>(length, 1));
    if (data == nullptr) return nullptr;
    account_.Add(length);
    auto release = [](void* data, size_t length, void* self) {
      static_cast<CappedAllocator*>(self)->Free(data, length);
    };
    return v8::ArrayBuffer::NewBackingStore(data, length, release, this);
  }

 private:
  void* Checked(void* data, size_t length) {
    if (data == nullptr) account_.Give(length);
    return data;
  }
  Account& account_;
};

struct Freed {
  void operator()(void* data) const { free(data); }
};
// A list, or null if there is no memory for it. (C++'s own `new` calls `NoMemory` first.)
template <typename T>
using List = std::unique_ptr<T[], Freed>;
template <typename T>
List<T> ListOf(uint32_t count) {
  return List<T>(static_cast<T*>(calloc(std::max(count, 1u), sizeof(T))));
}

// Bytes for the program, appended one after the other. If there is no memory for some, they are
// left out, and `lacks` is set.
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
  // Whether bytes are left out.
  bool lacks() const { return lacks_; }
  ClText View() const { return {data_, size_}; }
  // Appends so many bytes. Returns their place, or null.
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
    // Takes twice the size if there is memory for that, else the least size.
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

namespace {

std::string ToString(v8::Isolate* isolate, v8::Local<v8::Value> value) {
  v8::String::Utf8Value text(isolate, value);
  return *text ? std::string(*text, text.length()) : std::string();
}

ClText View(const std::string& text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

// Empty if the text is longer than V8's longest string.
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
  // WebAssembly's code can outlive its isolate, and then this.
  std::shared_ptr<Account> account = std::make_shared<Account>();
  CappedAllocator allocator{*account};
  std::unique_ptr<v8::SnapshotCreator> creator;
  v8::Isolate* isolate = nullptr;
  v8::Global<v8::Context> context;
  // The prelude's methods.
  v8::Global<v8::Object> guest;
  std::map<std::string, v8::Global<v8::Function>> methods;
  v8::Global<v8::Array> results;
  // Buffers that JavaScript has during the call at work only (CL_BYTES).
  std::vector<v8::Global<v8::ArrayBuffer>> call_buffers;
  // Buffers that only the prelude sees, which each call fills again (CL_REUSED); and the host's
  // word.
  std::map<size_t, v8::Global<v8::ArrayBuffer>> reused;
  v8::Global<v8::Uint32Array> word;
  const uint8_t* word_at = nullptr;
  // The detached memory of the last call, in which its results may lie.
  std::vector<std::shared_ptr<v8::BackingStore>> detached;
  // The modules of a load by their paths.
  std::map<std::string, v8::Global<v8::Module>> modules;

  // Whether several threads use the isolate, one at a time.
  bool shared = false;
  // Whether the isolate was booted to compile functions for a snapshot.
  bool warming = false;
  // Whether the call at work is to end at the next check because of its memory.
  bool asked = false;
  // Whether V8's own limit was raised so that the call can unwind.
  bool unwinding = false;
  size_t memory_limit = SIZE_MAX;
  // How many bytes may be used until the memory is checked again.
  size_t look_at = SIZE_MAX;
  std::atomic<uint32_t> reason{0};
  // When V8 was asked to show that it comes to checks, in nanoseconds of the steady clock; 0 if V8
  // has done so since.
  std::atomic<int64_t> unheard_since{0};
  // The last such request that the isolate's thread knows, and how long the thread had run then.
  int64_t counted_for = 0;
  int64_t time_before = 0;
  // Whether a method of the prelude runs.
  std::atomic<bool> at_work{false};
  // Whether the call uses more memory than its limit in code that comes to no check.
  std::atomic<bool> excess{false};
  // Whether code of the host runs, rather than code of V8 or of this library.
  bool outside = false;
  // How many calls of the program are at work, one inside of the other, and the innermost one.
  int depth = 0;
  Entry* entry = nullptr;
  // Why a call was given up (`GiveUp`), or 0. The isolate cannot be used after that.
  std::atomic<uint32_t> given_up{0};
  // The last error that a function of the program failed with.
  v8::Global<v8::Value> failed_with;
  // How many values were encoded, and the result of the last call.
  uint32_t encoded = 0;
  Encoded result;
  // V8's counters, which no code reads.
  alignas(64) int counter = 0;
  std::string name, message, stack, value, interrupted_at;
};

namespace {

ClIsolate* Self(v8::Isolate* isolate) { return static_cast<ClIsolate*>(isolate->GetData(0)); }

// Marks the time in which the host's code runs.
struct OutsideV8 {
  explicit OutsideV8(ClIsolate* self) : self(self) { self->outside = true; }
  ~OutsideV8() { self->outside = false; }
  ClIsolate* self;
};

}  // namespace
