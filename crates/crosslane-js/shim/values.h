// Converts the arguments and results of lanes' calls.
//
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to
// compile.
#pragma once

#include "modules.h"

namespace {

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

// The largest buffer that is reused, in bytes.
constexpr size_t kMostReused = 1 << 20;

// A buffer of at least this length that begins with a copy of `value`.
v8::MaybeLocal<v8::ArrayBuffer> Copied(ClIsolate* self, const ClValue& value, size_t length) {
  auto store = self->allocator.Room(length);
  if (!store) return {};
  if (value.length) memcpy(store->Data(), value.data, value.length);
  return v8::ArrayBuffer::New(self->isolate, std::move(store));
}

// The argument at `place` as a value of JavaScript. Empty if there is no memory for it.
v8::MaybeLocal<v8::Value> ToJs(ClIsolate* self, const ClValue& value, size_t place) {
  v8::Isolate* isolate = self->isolate;
  v8::Local<v8::ArrayBuffer> buffer;
  switch (value.kind) {
    case CL_REUSED:
      // If any buffer is detached, V8 checks each access to all buffers. So these buffers are not
      // detached, and reused.
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
      self->call_buffers.emplace_back(isolate, buffer);
      return buffer;
    case CL_WORD:
      // Only this memory is shared with the host.
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
        // V8 reads ASCII four times as fast as UTF-8.
        bool ascii = value.kind == CL_ASCII || IsAscii(data, length);
        auto kind = v8::NewStringType::kNormal;
        bool made =
            (ascii ? v8::String::NewFromOneByte(isolate, data, kind, length)
                   : v8::String::NewFromUtf8(isolate, reinterpret_cast<const char*>(data), kind, length))
                .ToLocal(&text);
        if (made) {
          strings.push_back(text);
        } else {
          // The text is too long for V8. The prelude says so for its row.
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
    std::shared_ptr<v8::BackingStore> store;
    result->data = BytesOf(view, &store);
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

}  // namespace
