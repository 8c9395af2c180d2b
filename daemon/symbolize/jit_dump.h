// SPDX-License-Identifier: Apache-2.0
//
// JitDump: names and lines of generated code from jit-NSPID.dump.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/symbolize/code_ranges.h"
#include "daemon/symbolize/growing_file.h"

namespace gpuprof::unwind {
class AddressSpace;
}

namespace gpuprof::symbolize {

struct JitCode {
  std::string name;
  std::string file;   // empty if unknown
  uint32_t line = 0;  // 0 if unknown
};

// Format (Linux tools/perf/Documentation/jitdump-specification.txt, version 1): a header, then
// records of code that was loaded or moved and of its lines; a later one replaces what it overlaps.
// V8, CPython (-X perf_jit) and Java's perf agents write it, and map it as executable memory to be
// found. Opened in the target's root by that mapping's path. Byte order of this machine.
// Memory: at most kMaxBytes of the file are looked at, kMaxCodes, kMaxLines and kMaxNames bytes of
// names kept; records of debug information longer than kMaxRecordBytes are passed over.
class JitDump {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  static constexpr uint64_t kMaxBytesALook = uint64_t{64} << 20;  // read
  static constexpr size_t kMaxRecordBytes = size_t{1} << 20;
  static constexpr size_t kMaxCodes = 262144;
  static constexpr size_t kMaxLines = size_t{1} << 20;
  static constexpr size_t kMaxNames = size_t{32} << 20;
  static constexpr size_t kMaxNameBytes = 1024;

  explicit JitDump(const unwind::AddressSpace& space) : space_(space), file_(space, kMaxBytes) {}

  // Looks whether the file grew if pc is unknown.
  std::optional<JitCode> find(uint64_t pc);

  // Takes in what can be told from `bytes`, which follow on those taken before. Returns how many
  // are done with: more than there are where the rest of a record is not needed, 0 where a record
  // is cut or this is no such file. For find() and for tests.
  uint64_t parse(std::span<const std::byte> bytes);
  [[nodiscard]] size_t size() const { return codes_.size(); }

 private:
  struct Line {
    uint64_t offset = 0;  // from the code's start
    uint32_t line = 0;
    uint32_t file = 0;  // in names_
  };
  struct Code {
    uint64_t start = 0;
    uint64_t index = 0;  // the file's number for it
    uint32_t name = 0;   // in names_
    uint32_t first_line = 0, lines = 0;
  };
  uint64_t parse_record(std::span<const std::byte> bytes);
  void load(std::span<const std::byte> body);
  void move(std::span<const std::byte> body);
  void debug_info(std::span<const std::byte> body);
  void add(const Code& code, uint64_t size);
  uint32_t intern(std::string_view name);
  [[nodiscard]] std::string path() const;
  bool read_more();
  void clear();

  const unwind::AddressSpace& space_;
  GrowingFile file_;
  bool has_header_ = false;
  bool is_bad_ = false;
  CodeRanges ranges_;
  std::vector<Code> codes_;  // by the number of their range
  std::map<uint64_t, uint32_t> by_index_;
  std::vector<Line> lines_;
  uint64_t debug_address_ = 0;  // of the code that the lines since debug_first_ are of
  size_t debug_first_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, uint32_t, std::less<>> name_numbers_;
  size_t name_bytes_ = 0;
};

}  // namespace gpuprof::symbolize
