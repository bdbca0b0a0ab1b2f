// Values of a program that embeds V8, encoded and decoded.
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to compile.
#pragma once

#include "boot.h"

namespace {

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

// Makes a string. If the text is longer than V8's longest string, throws and returns an empty
// handle.
v8::MaybeLocal<v8::String> TextOrError(v8::Isolate* isolate, ClText text) {
  v8::MaybeLocal<v8::String> made = MaybeText(isolate, reinterpret_cast<const char*>(text.data), text.length);
  if (made.IsEmpty()) ThrowTooLong(isolate);
  return made;
}

// Comes to V8's checks if the call is to end: V8's own loops come to a check only after thousands of
// rounds, and each round may wait for the program. At the first check V8 asks whether the call is to end; at
// the second check V8 ends it. Each run of an empty script is a check. False if the call was ended.
bool Poll(ClIsolate* self, v8::Local<v8::Context> context) {
  for (int check = 0; check < 2 && self->reason != 0; check++) {
    v8::Local<v8::Script> nothing;
    if (!v8::Script::Compile(context, v8::String::Empty(self->isolate)).ToLocal(&nothing) ||
        nothing->Run(context).IsEmpty()) {
      return false;
    }
  }
  return true;
}

// Ends a call because there is no memory for a value that it passes.
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

// Appends a value. Throws and returns false if the value cannot be encoded.
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
    // The digits go in words, because V8's time for decimal digits grows faster than their number.
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
    // JSON leaves these out, too.
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
    // Each element, also a hole, becomes a word in the program's memory.
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
  bool is_map = object->IsMap();
  v8::Local<v8::Array> keys;
  if (is_map) {
    // Each key is followed by its value.
    keys = object.As<v8::Map>()->AsArray();
  } else if (!object->GetOwnPropertyNames(context).ToLocal(&keys)) {
    return false;
  }
  uint32_t step = is_map ? 2 : 1;
  out->Put<uint32_t>(keys->Length() / step);
  for (uint32_t index = 0; index < keys->Length(); index += step) {
    v8::HandleScope scope(isolate);
    v8::Local<v8::Value> key, value;
    v8::Local<v8::String> text;
    if (!keys->Get(context, index).ToLocal(&key) || !key->ToString(context).ToLocal(&text)) return false;
    PutText(out, isolate, text);
    auto found = is_map ? keys->Get(context, index + 1) : object->Get(context, key);
    if (!found.ToLocal(&value) || !EncodeValue(isolate, context, value, depth + 1, out)) return false;
  }
  return true;
}

// Appends a whole value; throws as `EncodeValue` does.
bool Encode(v8::Isolate* isolate, v8::Local<v8::Context> context, v8::Local<v8::Value> value, Encoded* out) {
  if (!EncodeValue(isolate, context, value, 0, out)) return false;
  if (out->lacks()) EndForLack(Self(isolate), context);
  return !out->lacks();
}

using Handles = List<v8::Local<v8::Value>>;

// Reads values that the program encoded. The program is trusted to have encoded them correctly.
class Decoder {
 public:
  Decoder(v8::Isolate* isolate, v8::Local<v8::Context> context, ClText text)
      : isolate_(isolate), context_(context), at_(text.data) {}

  // Throws and returns an empty handle if V8 cannot hold the value.
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
      case CL_VALUE_TEXT:
        return String().FromMaybe(v8::Local<v8::Value>());
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
        return v8::BigInt::NewFromWords(context_, negative, static_cast<int>(words), digits.get())
            .FromMaybe(v8::Local<v8::Value>());
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

  // Reads `count` values. Throws and returns none if V8 cannot hold one of them.
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

}  // namespace
