// Modules: imports, CommonJS scripts, evaluation.
// A part of shim.cc, which includes all parts in one translation unit: V8's headers are slow to compile.
#pragma once

#include "outcomes.h"

namespace {

bool Resolve(ClIsolate* self, v8::Local<v8::String> specifier, const std::string& referrer, std::string* path,
             std::string* source) {
  std::string text = ToString(self->isolate, specifier);
  ClText found{}, content{};
  bool exists;
  {
    OutsideV8 outside_v8(self);
    exists = self->host.resolve(self->host.host, View(text), View(referrer), &found, &content);
  }
  *path = std::string(reinterpret_cast<const char*>(found.data), found.length);
  if (exists) *source = std::string(reinterpret_cast<const char*>(content.data), content.length);
  return exists;
}

// Whether a text is a script and no module: it has neither import nor export.
bool IsScript(v8::Isolate* isolate, v8::Local<v8::Context> context, const std::string& text) {
  v8::TryCatch caught(isolate);
  v8::ScriptCompiler::Source source(Text(isolate, "(function () {" + text + "\n})"));
  return !v8::ScriptCompiler::Compile(context, &source).IsEmpty();
}

// Makes a module of an imported CommonJS script. Its default export is what the script puts into
// `module.exports`. The lines of the text stay where they are.
std::string FromCommonJs(const std::string& text) {
  return "const module = { exports: {} }; (function (module, exports) { " + text +
         "\n}).call(module.exports, module, module.exports); export default module.exports;";
}

v8::MaybeLocal<v8::Module> Compile(ClIsolate* self, v8::Local<v8::Context> context, const std::string& path,
                                   v8::Local<v8::String> source) {
  v8::Isolate* isolate = self->isolate;
  v8::ScriptOrigin origin = Origin(isolate, Text(isolate, path), true);
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

}  // namespace
