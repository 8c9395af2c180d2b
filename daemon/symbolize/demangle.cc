// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/demangle.h"

#include <cxxabi.h>
#include <setjmp.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "daemon/symbolize/rust_demangle.h"

#if defined(GPUPROF_DEMANGLE_CALLBACK)
// libstdc++'s demangler with a callback for each piece of output (libiberty's cp-demangle.c). It
// allocates nothing on the heap, so leaving it by longjmp loses nothing; abi::__cxa_demangle would
// build the whole output first, and a short name can ask for gigabytes.
extern "C" int __gcclibcxx_demangle_callback(const char* mangled,
                                             void (*callback)(const char*, size_t, void*),
                                             void* opaque);
#endif

namespace gpuprof::symbolize {
namespace {

#if defined(GPUPROF_DEMANGLE_CALLBACK)

struct Output {
  jmp_buf too_long;
  size_t used = 0;
  char bytes[kMaxDemangledBytes];
};

void append(const char* piece, size_t length, void* opaque) {
  auto* out = static_cast<Output*>(opaque);
  if (length > sizeof out->bytes - out->used) longjmp(out->too_long, 1);
  std::memcpy(out->bytes + out->used, piece, length);
  out->used += length;
}

// Nothing between setjmp and longjmp has a destructor.
bool demangle_into(const char* name, Output* out) {
  if (setjmp(out->too_long) != 0) return false;
  return __gcclibcxx_demangle_callback(name, append, out) == 0;
}

std::string demangle_cxx(const std::string& name) {
  thread_local Output out;
  out.used = 0;
  return demangle_into(name.c_str(), &out) ? std::string(out.bytes, out.used) : std::string();
}

#else  // a C++ library without that entry: the output is bounded after the fact only

std::string demangle_cxx(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || !text || std::strlen(text.get()) > kMaxDemangledBytes) return {};
  return text.get();
}

#endif

constexpr size_t kRustHash = 19;  // "::h" and 16 hex digits

bool ends_in_rust_hash(std::string_view name) {
  if (name.size() <= kRustHash || name.substr(name.size() - kRustHash, 3) != "::h") return false;
  return name.substr(name.size() - 16).find_first_not_of("0123456789abcdef") ==
         std::string_view::npos;
}

// Rust's legacy mangling is C++'s with a hash as the last component and these escapes
// (rustc's compiler/rustc_symbol_mangling/src/legacy.rs).
std::string undo_rust_escapes(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kEscapes[] = {
      {"$SP$", "@"},  {"$BP$", "*"},  {"$RF$", "&"},   {"$LT$", "<"},  {"$GT$", ">"},
      {"$LP$", "("},  {"$RP$", ")"},  {"$C$", ","},    {"$u7e$", "~"}, {"$u20$", " "},
      {"$u27$", "'"}, {"$u5b$", "["}, {"$u5d$", "]"},  {"$u7b$", "{"}, {"$u7d$", "}"},
      {"$u3b$", ";"}, {"$u2b$", "+"}, {"$u22$", "\""}, {"..", "::"}};
  std::string out;
  bool starts_component = true;
  while (!name.empty()) {
    if (starts_component && name.starts_with("_$")) name.remove_prefix(1);
    bool found = false;
    for (const auto& [escape, text] : kEscapes) {
      if (!name.starts_with(escape)) continue;
      out += text;
      name.remove_prefix(escape.size());
      found = true;
      break;
    }
    if (!found) {
      out += name.front();
      name.remove_prefix(1);
    }
    starts_component = out.ends_with("::");
  }
  return out;
}

}  // namespace

std::string demangle(const std::string& name) {
  if (name.starts_with("_R") && name.size() <= kMaxMangledBytes)
    return demangle_rust_v0(name, kMaxDemangledBytes).value_or(name);
  if (!name.starts_with("_Z") && !name.starts_with("___Z")) return name;
  if (name.size() > kMaxMangledBytes) return name;
  std::string text = demangle_cxx(name);
  if (text.empty()) return name;
  if (!ends_in_rust_hash(text)) return text;
  text.resize(text.size() - kRustHash);
  return undo_rust_escapes(text);
}

}  // namespace gpuprof::symbolize
