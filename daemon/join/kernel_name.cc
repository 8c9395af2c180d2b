// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/kernel_name.h"

#include <csetjmp>
#include <utility>

#include "proto/usdt_abi.h"

// libsupc++'s demangler with a callback instead of a buffer. The shared libstdc++ does not export
// it, so that object comes from libsupc++.a (see CMakeLists.txt). 0: success.
extern "C" int __gcclibcxx_demangle_callback(const char* mangled,
                                             void (*callback)(const char*, size_t, void*),
                                             void* opaque);

namespace gpuprof::join {
namespace {

constexpr size_t kMaxDemangledBytes = 65536;

// Filled by a C callback that leaves by longjmp when full: nothing here may need a destructor.
struct DemangleOutput {
  std::jmp_buf full;
  size_t size;
  char bytes[kMaxDemangledBytes];
};

void append(const char* text, size_t size, void* opaque) {
  auto* output = static_cast<DemangleOutput*>(opaque);
  if (size > kMaxDemangledBytes - output->size) std::longjmp(output->full, 1);
  __builtin_memcpy(output->bytes + output->size, text, size);
  output->size += size;
}

// The demangler has only automatic storage (alloca), so a jump over it leaks nothing.
[[gnu::noinline]] bool demangle_into(const char* mangled, DemangleOutput* output) {
  output->size = 0;
  if (setjmp(output->full) != 0) return false;
  return __gcclibcxx_demangle_callback(mangled, append, output) == 0;
}

// Position of the "(" that opens the parameter list at the end of `name`, or npos.
size_t parameters_begin(std::string_view name) {
  size_t end = name.rfind(')');
  // After the parameters come at most qualifiers and "[clone ...]".
  if (end == std::string_view::npos || name.find('>', end) != std::string_view::npos) {
    return std::string_view::npos;
  }
  int depth = 0;
  for (size_t i = end + 1; i-- > 0;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) {
      const bool is_namespace = name.substr(i, 21) == "(anonymous namespace)";
      return is_namespace || i == 0 ? std::string_view::npos : i;
    }
  }
  return std::string_view::npos;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// `name` with what lies in more than `max_depth` template argument lists left out.
std::string limit_templates(std::string_view name, int max_depth) {
  std::string out;
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool is_operator = c == '<' || c == '>' ? ends_with(name.substr(0, i), "operator") ||
                                                        ends_with(name.substr(0, i), "operator<") ||
                                                        ends_with(name.substr(0, i), "operator>") ||
                                                        ends_with(name.substr(0, i), "operator-") ||
                                                        ends_with(name.substr(0, i), "-")
                                                  : false;
    if (c == '>' && !is_operator && depth > 0) {
      if (--depth == max_depth)
        out += "...>";
      else if (depth < max_depth)
        out += c;
      continue;
    }
    if (depth <= max_depth) out += c;
    if (c == '<' && !is_operator) ++depth;
  }
  return out;
}

// One <source-name> ("5saxpy") off the front of `mangled`; empty if there is none.
std::string_view take_source_name(std::string_view& mangled) {
  size_t length = 0;
  size_t digits = 0;
  while (digits < mangled.size() && digits < 5 && mangled[digits] >= '0' &&
         mangled[digits] <= '9') {
    length = length * 10 + static_cast<size_t>(mangled[digits++] - '0');
  }
  if (length == 0 || mangled.size() - digits < length) return {};
  const std::string_view name = mangled.substr(digits, length);
  mangled.remove_prefix(digits + length);
  return name;
}

// "ns::kernel<...>" of a name that is too long to demangle: enough of the Itanium ABI (5.1.2) to
// read plain and nested identifiers up to the first template argument list. Empty if it starts
// otherwise.
std::string leading_identifiers(std::string_view mangled) {
  mangled.remove_prefix(2);  // _Z
  const bool is_nested = mangled.starts_with('N');
  if (is_nested) mangled.remove_prefix(1);
  if (!is_nested && mangled.starts_with('L')) mangled.remove_prefix(1);  // internal linkage
  std::string out;
  for (std::string_view name = take_source_name(mangled); !name.empty();
       name = take_source_name(mangled)) {
    if (!out.empty()) out += "::";
    // Compilers name anonymous namespaces like this, nvcc with a hash behind it.
    out += name.starts_with("_GLOBAL__N") ? "(anonymous namespace)" : name;
    if (!is_nested) break;
  }
  if (!out.empty() && mangled.starts_with('I')) out += "<...>";
  return out;
}

std::string cut(std::string text) {
  constexpr std::string_view kMark = "...";
  if (text.size() <= kShortNameBytes) return text;
  size_t end = kShortNameBytes - kMark.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text.append(kMark);
}

}  // namespace

std::string demangle(const std::string& mangled) {
  if (!mangled.starts_with("_Z") || mangled.size() > GPUPROF_NAME_MAX_BYTES) return mangled;
  static thread_local DemangleOutput output;
  if (!demangle_into(mangled.c_str(), &output) || output.size == 0) return mangled;
  return std::string(output.bytes, output.size);
}

std::string short_kernel_name(std::string_view demangled) {
  std::string_view name = demangled;
  if (name.starts_with("_Z")) {
    std::string identifiers = leading_identifiers(name);
    return cut(identifiers.empty() ? std::string(name) : std::move(identifiers));
  }
  const size_t parameters = parameters_begin(name);
  if (parameters != std::string_view::npos) name = name.substr(0, parameters);
  // A kernel returns void; only templates say so.
  if (name.starts_with("void ")) name.remove_prefix(5);
  if (name.empty()) name = demangled;
  if (name.size() <= kShortNameBytes) return std::string(name);
  for (int depth = 4; depth >= 0; --depth) {
    std::string limited = limit_templates(name, depth);
    if (limited.size() <= kShortNameBytes) return limited;
  }
  return cut(limit_templates(name, 0));
}

std::string_view copy_frame_name(uint32_t copy_kind) {
  switch (copy_kind) {
    case GPUPROF_COPY_HTOD:
      return "[memcpy HtoD]";
    case GPUPROF_COPY_DTOH:
      return "[memcpy DtoH]";
    case GPUPROF_COPY_HTOA:
      return "[memcpy HtoA]";
    case GPUPROF_COPY_ATOH:
      return "[memcpy AtoH]";
    case GPUPROF_COPY_ATOA:
      return "[memcpy AtoA]";
    case GPUPROF_COPY_ATOD:
      return "[memcpy AtoD]";
    case GPUPROF_COPY_DTOA:
      return "[memcpy DtoA]";
    case GPUPROF_COPY_DTOD:
      return "[memcpy DtoD]";
    case GPUPROF_COPY_HTOH:
      return "[memcpy HtoH]";
    case GPUPROF_COPY_PTOP:
      return "[memcpy PtoP]";
    default:
      return "[memcpy]";
  }
}

}  // namespace gpuprof::join
