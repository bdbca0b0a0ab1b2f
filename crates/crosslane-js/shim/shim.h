// A small C interface to V8 for `src/isolate/ffi.rs`. V8's own types are not visible here.
#ifndef CROSSLANE_SHIM_H
#define CROSSLANE_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ClIsolate ClIsolate;

typedef struct {
  const uint8_t* data;
  size_t length;
} ClText;

// The functions that V8 calls. `host` is passed to each of them.
typedef struct {
  void* host;
  void (*print)(void* host, uint32_t level, ClText text);
  // Sets the path of `specifier`, seen from the module `referrer`, and its source. Both must live
  // until the next call. False if there is no such module: `path` is then the reason.
  bool (*resolve)(void* host, ClText specifier, ClText referrer, ClText* path, ClText* source);
  // Whether the call that was to end is still the one that runs. Called at the check at which a
  // call is ended with its stack.
  bool (*confirm)(void* host, uint32_t reason);
  // V8 cannot go on, because of CL_MEMORY, CL_NO_HEAP or CL_STUCK. The process ends when this
  // returns.
  void (*fatal)(void* host, uint32_t reason, ClText what);
  // Calls function `number` of the program with an encoded array (`cl_invoke`). Sets the encoded
  // result. If it returns false, it sets the name and the message of an error to throw, separated
  // by a line end. Either must live until the next call.
  bool (*call)(void* host, uint32_t number, ClText arguments, ClText* result);
  // Parses or changes a URL, or a text of its query (`src/isolate/url.rs`). Sets the parts, with the byte
  // 0xFF between them, which must live until the next call. False if there is no such URL.
  bool (*url)(void* host, ClText operation, ClText first, ClText second, ClText* result);
} ClHost;

enum { CL_OK = 0, CL_EXCEPTION = 1, CL_TERMINATED = 2 };

// How a call into V8 ended. The texts live until the next call into this isolate.
typedef struct {
  uint32_t status;
  // Of a call that was terminated, why: the reason given to `cl_terminate`, CL_MEMORY,
  // CL_NO_MEMORY, CL_NO_HEAP or CL_STUCK. Of an exception: CL_PROGRAM if a function of the program
  // failed with it.
  uint32_t reason;
  ClText name;
  ClText message;
  ClText stack;
  ClText value;   // the result, if it is a text
  double number;  // the result, if it is a number
} ClOutcome;

// CL_MEMORY: the isolate uses more memory than its limit. CL_NO_MEMORY: the process has no memory
// for a value that is passed. CL_NO_HEAP: the system has no memory for V8. CL_STUCK: V8 cannot go
// on, most likely because of a value beyond its largest size.
enum { CL_MEMORY = 1, CL_PROGRAM = 4, CL_NO_MEMORY = 5, CL_NO_HEAP = 6, CL_STUCK = 7 };

enum {
  CL_NONE = 0,
  CL_BYTES = 1,
  CL_ASCII = 2,
  CL_UTF8 = 3,
  CL_NUMBER = 4,
  CL_LATIN1 = 5,
  CL_UTF16 = 6,
  CL_WORD = 7,
  CL_REUSED = 8,
  CL_TEXT = 9
};

// A value that goes into a call or comes out of it.
typedef struct {
  uint32_t kind;
  const uint8_t* data;
  size_t length;           // bytes; for CL_UTF16, units
  const int32_t* offsets;  // the bounds of the strings in `data`
  size_t count;            // strings; for a result of kind CL_LATIN1, its size in UTF-8
  double number;           // for strings, the least size in bytes of those that are made
} ClValue;

void cl_initialize(ClText flags);
// Reads the system's time zone, once. V8 reads it when it first needs it otherwise.
void cl_know_time_zone(void);
const char* cl_version(void);
// The version of V8 that this was compiled for, without its last two numbers.
const char* cl_built_for(void);

// A builder boots without a library (or from `blob`), loads one, and becomes a snapshot. Null, with
// CL_NO_HEAP, if the process has no room for an isolate.
ClIsolate* cl_builder(ClText blob, ClText prelude, const ClHost* host, size_t memory_limit, ClOutcome*);
void cl_load(ClIsolate*, ClText path, ClText source, ClOutcome*);
// Consumes the builder. `cl_free_blob` frees the blob.
ClText cl_snapshot(ClIsolate*);
void cl_free_blob(ClText blob);

// Boots from a snapshot, which must outlive the isolate, or without a library. If the isolate is
// `shared` by threads, this and all other calls take V8's lock. Null as above.
ClIsolate* cl_boot(bool shared, ClText blob, ClText prelude, const ClHost* host, size_t memory_limit,
                   size_t hard_limit, size_t stack, ClOutcome*);
// Frees an isolate, or a builder of which no snapshot is wanted. False if the isolate was given up:
// it then stays.
bool cl_dispose(ClIsolate*);

void cl_set_memory_limit(ClIsolate*, size_t bytes);
size_t cl_memory_used(ClIsolate*);
// The bytes in use after a full collection. Not within a call.
size_t cl_memory_kept(ClIsolate*);

// Calls a method of the prelude with numbers and values. A value of kind CL_WORD is four bytes that
// the method may write as long as the isolate lives. All other values are copied and passed as an
// array. Those of kind CL_REUSED are copied to the start of a buffer that the next call gets again.
// Returns the number of elements of the result, if it is an array.
size_t cl_call(ClIsolate*, const char* method, const double* numbers, size_t number_count,
               const ClValue* values, size_t value_count, ClOutcome*);
// The elements of the last result. The memory that they point to lives until the next call into
// this isolate.
void cl_results(ClIsolate*, ClValue* results, size_t count);
// Detaches the buffers (CL_BYTES) of the last call from JavaScript. Results in their memory stay.
void cl_detach(ClIsolate*);
// The characters of a result of kind CL_LATIN1 or CL_UTF16.
void cl_read_string(ClIsolate*, size_t result, uint8_t* latin1, uint16_t* utf16);

// ---- isolates of a program, which any of its threads may call, one at a time. Each call takes
// V8's lock, and may use `stack` bytes of its thread's stack. Values are encoded depth first, as a
// tag and its content. All numbers are little-endian.
enum {
  CL_VALUE_UNDEFINED = 0,
  CL_VALUE_TRUE = 1,
  CL_VALUE_FALSE = 2,
  CL_VALUE_INT = 3,       // i32
  CL_VALUE_NUMBER = 4,    // f64
  CL_VALUE_TEXT = 5,      // u32 bytes of UTF-8
  CL_VALUE_ARRAY = 6,     // u32 elements
  CL_VALUE_OBJECT = 7,    // u32 pairs of a text without its tag and a value
  CL_VALUE_DATE = 8,      // f64 milliseconds since 1970
  CL_VALUE_BIGINT = 9,    // u8 negative, u32 words, u64 each, the lowest first
  CL_VALUE_BYTES = 10,    // u32 bytes
  CL_VALUE_PENDING = 11,  // out: a promise that nothing has settled
};
// A call is given up if it uses too much memory in code that comes to no check, if the system has
// no memory for it, or if V8 would end the process because of its values. It ends with CL_MEMORY,
// CL_NO_HEAP or CL_STUCK, as do all later calls, and the isolate's memory is never freed.
//
// Runs a script. The outcome's value is encoded.
void cl_eval(ClIsolate*, ClText source, ClText name, size_t stack, ClOutcome*);
// Calls a function by its path from the global object (`a.b.c`) with an encoded array.
void cl_invoke(ClIsolate*, ClText path, ClText arguments, size_t stack, ClOutcome*);
// Makes a function at a path. It calls the host's function `number`.
void cl_attach(ClIsolate*, ClText path, uint32_t number, size_t stack, ClOutcome*);
// Frees all garbage.
void cl_collect(ClIsolate*, size_t stack, ClOutcome*);
// V8's statistics of its heap: an object of numbers.
void cl_heap_stats(ClIsolate*, size_t stack, ClOutcome*);

// Ends the call at work. Any thread may call this. `stack` asks for the stack at that place, which
// takes until the next check.
void cl_terminate(ClIsolate*, uint32_t reason, bool stack);
// Why the call that runs now is to end, or 0. Also CL_MEMORY if the call uses too much memory in
// code that comes to no check. Any thread may call this.
uint32_t cl_pending(ClIsolate*);
// Whether the running method of the prelude has come to a check since the last request, and
// requests it again. Any thread may call this.
enum { CL_IDLE = 0, CL_HEARD = 1, CL_UNHEARD = 2 };
uint32_t cl_sign(ClIsolate*);

#ifdef __cplusplus
}
#endif
#endif
