// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cubin_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <utility>

#include "daemon/base/unique_fd.h"
#include "daemon/cli/command_line.h"
#include "daemon/cli/exit_code.h"
#include "daemon/cli/json_writer.h"
#include "daemon/cubin/store.h"
#include "daemon/symbolize/demangle.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {
namespace {

constexpr uint64_t kMaxFileBytes = 1ull << 30;

Result<std::vector<std::byte>> read_whole(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return fail_errno(Code::kIo, errno, path);
  if (!S_ISREG(info.st_mode)) return fail(Code::kIo, path + ": not a regular file");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > kMaxFileBytes) return fail(Code::kIo, path + ": larger than 1 GiB");
  // A large file of another kind is not read for its first four bytes' sake.
  char magic[4] = {};
  if (::pread(fd.get(), magic, sizeof magic, 0) != 4 || std::string_view(magic, 4) !=
                                                            "\x7f"
                                                            "ELF")
    return fail(Code::kCorrupt, path +
                                    ": no cubin: not an ELF file (cuobjdump -xelf all takes "
                                    "cubins out of programs and fatbins)");
  std::vector<std::byte> out(size);
  for (size_t at = 0; at < out.size();) {
    const ssize_t got = ::read(fd.get(), out.data() + at, out.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(Code::kIo, errno, path);
    if (got == 0) return fail(Code::kIo, path + ": it became shorter while it was read");
    at += static_cast<size_t>(got);
  }
  return out;
}

Result<uint64_t> parse_hex(std::string_view text) {
  const std::string shown = target::printable(text, 64);
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 16);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(Code::kInvalidArgument, "--pc: '" + shown + "' is no hexadecimal number");
  return out;
}

std::string hex(uint64_t value) {
  char out[24];
  std::snprintf(out, sizeof out, "0x%llx", static_cast<unsigned long long>(value));
  return out;
}

// What the file says may hold anything.
std::string clean(std::string_view text) { return target::printable(text, SIZE_MAX); }

std::string readable(std::string_view mangled) {
  if (mangled.empty()) return "[unknown]";
  return clean(symbolize::demangle(std::string(mangled)));
}

std::string xxh3(std::span<const std::byte> bytes) {
  char out[24];
  std::snprintf(out, sizeof out, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return out;
}

void write_functions(JsonWriter& json, const cubin::Image& image, bool kernels) {
  json.key(kernels ? "kernels" : "functions");
  json.begin_array();
  for (const cubin::Function& function : image.functions()) {
    if (function.is_kernel != kernels) continue;
    json.begin_object();
    json.field("function", readable(function.mangled));
    json.field("mangled", clean(function.mangled));
    json.field("size_bytes", function.size_bytes);
    json.end_object();
  }
  json.end_array();
}

constexpr size_t kNearNames = 3;
constexpr size_t kComparedChars = 256;  // of each name; mangled ones may have thousands

// Levenshtein's distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kComparedChars);
  b = b.substr(0, kComparedChars);
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> near_functions(const cubin::Image& image, const std::string& wanted) {
  std::vector<std::pair<size_t, std::string>> found;
  for (const cubin::Function& function : image.functions()) {
    const std::string shown = readable(function.mangled);
    const bool holds = !wanted.empty() && (shown.find(wanted) != std::string::npos ||
                                           function.mangled.find(wanted) != std::string::npos);
    const size_t distance =
        std::min(edit_distance(wanted, function.mangled), edit_distance(wanted, shown));
    const bool alike = wanted.size() <= kComparedChars && distance <= (wanted.size() + 2) / 3;
    if (holds || alike) found.emplace_back(distance, clean(function.mangled));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (size_t i = 0; i < found.size() && out.size() < kNearNames; ++i) {
    if (std::find(out.begin(), out.end(), found[i].second) == out.end())
      out.push_back(std::move(found[i].second));
  }
  return out;
}

Result<std::vector<uint64_t>> parse_pcs(const std::string& text) {
  std::string list = text;
  const bool from_file = text.starts_with('@');
  if (from_file) {
    const std::string path = text.substr(1);
    FILE* const file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return fail_errno(Code::kIo, errno, path);
    list.clear();
    char buffer[65536];
    size_t got = 0;
    while ((got = std::fread(buffer, 1, sizeof buffer, file)) > 0 && list.size() < kMaxFileBytes)
      list.append(buffer, got);
    const bool failed = std::ferror(file) != 0;
    const int error = errno;
    std::fclose(file);
    if (failed) return fail_errno(Code::kIo, error, path);
  }
  std::vector<uint64_t> out;
  std::string_view rest = list;
  for (bool more = true; more;) {
    const size_t end = rest.find(from_file ? '\n' : ',');
    more = end != std::string_view::npos;
    std::string_view one = rest.substr(0, end);
    rest.remove_prefix(more ? end + 1 : rest.size());
    while (from_file && !one.empty() &&
           std::string_view(" \t\r").find(one.back()) != std::string_view::npos)
      one.remove_suffix(1);
    if (from_file && one.empty()) continue;
    auto pc = parse_hex(one);
    if (!pc) return tl::unexpected<Error>(pc.error());
    out.push_back(*pc);
  }
  if (out.empty()) return fail(Code::kInvalidArgument, "--pc: no numbers in " + text.substr(1));
  return out;
}

std::string resolve_json(const cubin::Image& image, const CubinQuery& query,
                         const std::vector<uint64_t>& pcs) {
  JsonWriter json;
  json.begin_array();
  for (const uint64_t pc : pcs) {
    const cubin::Resolution found = image.resolve(query.function, pc);
    json.begin_object();
    json.field("pc", pc);
    json.field("status", cubin::source_status_name(found.status));
    json.key("frames");
    json.begin_array();
    for (const cubin::SourceFrame& frame : found.frames) {
      json.begin_object();
      json.field("function", readable(frame.mangled));
      json.field("mangled", clean(frame.mangled));
      json.field("file", clean(frame.file));
      json.field("line", frame.line);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  return json.take();
}

std::string resolve_text(const cubin::Image& image, const CubinQuery& query,
                         const std::vector<uint64_t>& pcs) {
  std::string out;
  for (const uint64_t pc : pcs) {
    const cubin::Resolution found = image.resolve(query.function, pc);
    out += hex(pc) + "  " + cubin::source_status_name(found.status) + "\n";
    for (const cubin::SourceFrame& frame : found.frames) {
      out += "    " + readable(frame.mangled);
      if (!frame.file.empty()) out += "  " + clean(frame.file) + ":" + std::to_string(frame.line);
      out += "\n";
    }
  }
  return out;
}

std::string info_json(const cubin::Image& image, const std::string& file) {
  JsonWriter json;
  json.begin_object();
  json.field("file", clean(file));
  json.field("arch", "sm_" + std::to_string(image.sm()));
  json.field("abi_version", image.abi_version());
  json.field("line_info", image.has_line_info());
  json.field("size_bytes", static_cast<uint64_t>(image.bytes().size()));
  json.field("line_table_bytes", image.line_table_bytes());
  json.field("sha256", cubin::sha256_hex(image.bytes()));
  json.field("xxh3_64", xxh3(image.bytes()));  // what PC samples carry as the cubin's key
  write_functions(json, image, true);
  write_functions(json, image, false);
  json.end_object();
  return json.take();
}

std::string info_text(const cubin::Image& image, const std::string& file) {
  std::string out = clean(file) + "\n  arch         sm_" + std::to_string(image.sm()) +
                    "\n  ABI          " + std::to_string(image.abi_version()) +
                    "\n  line info    " + (image.has_line_info() ? "yes" : "no") +
                    "\n  size         " + std::to_string(image.bytes().size()) +
                    " bytes, of these line table " + std::to_string(image.line_table_bytes()) +
                    "\n  SHA-256      " + cubin::sha256_hex(image.bytes()) + "\n  key          " +
                    xxh3(image.bytes()) + " (XXH3-64)\n";
  for (const cubin::Function& function : image.functions())
    out += std::string(function.is_kernel ? "  kernel       " : "  function     ") +
           readable(function.mangled) + "  " + std::to_string(function.size_bytes) + " bytes\n";
  return out;
}

int cubin_command(const Options& options, Console& console) {
  const CubinQuery& query = options.cubin;
  const bool resolves = options.action == Options::Action::kCubinResolve;
  std::vector<uint64_t> pcs;
  if (resolves) {
    auto parsed = parse_pcs(query.pcs);
    if (!parsed) {
      console.line(parsed.error().message);
      return parsed.error().code == Code::kInvalidArgument ? kExitUsage : kExitFailure;
    }
    pcs = std::move(*parsed);
  }
  auto bytes = read_whole(query.file);
  if (!bytes) {
    console.line(bytes.error().message);
    return kExitFailure;
  }
  auto parsed = cubin::Image::parse(std::move(*bytes));
  if (!parsed) {
    console.line(query.file + ": " + parsed.error().message);
    return kExitFailure;
  }
  const cubin::Image& image = **parsed;
  if (resolves && image.find(query.function) == nullptr) {
    std::string near;
    for (const std::string& name : near_functions(image, query.function))
      near += (near.empty() ? "; did you mean " : " or ") + name;
    console.line(query.file + " has no function " + query.function + near +
                 (near.empty() ? ": " : "? ") + "gpu-profiled cubin info --json " + query.file +
                 " lists the mangled names");
    return kExitFailure;
  }
  const std::string text =
      resolves ? (query.json ? resolve_json(image, query, pcs) : resolve_text(image, query, pcs))
               : (query.json ? info_json(image, query.file) : info_text(image, query.file));
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return 0;
  console.line("cannot write to stdout");
  return kExitFailure;
}

}  // namespace gpuprof::cli
