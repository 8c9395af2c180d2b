// SPDX-License-Identifier: Apache-2.0
//
// AddressSpace: what is mapped where in one process, with the files behind it held open.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::unwind {

class ElfFile;
class FileCache;
struct MapsLine;

enum class MappingKind : uint8_t {
  kFile,     // an ELF file that could be opened: `file` is set
  kVdso,     // the kernel's vdso, read from memory: `file` is set
  kJit,      // executable memory without a file
  kUnknown,  // a file that could not be opened or is no ELF file
};

// One executable mapping. pc - bias is the ELF virtual address (kFile and kVdso).
struct Mapping {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t file_offset = 0;
  uint64_t bias = 0;
  uint64_t dev = 0, inode = 0;  // as /proc/PID/maps has them
  MappingKind kind = MappingKind::kUnknown;
  std::shared_ptr<ElfFile> file;
  std::string path;  // as the target sees it, sanitised; "[vdso]", "[jit]" for the rest
};

// Purpose: every file that a pc of the process can lie in is opened at first sight of the process,
// so stacks are unwound and symbolised also after it exited. `find` re-reads /proc/PID/maps when a
// pc is unknown and the process still lives, within a time budget (5 % of wall time), since a
// hostile process can produce unknown pcs at will. Mappings that disappeared stay known, since
// samples taken before are still to be symbolised. So a space never forgets: when another file
// appears where one was (dlclose, dlopen), `replaced` tells that a new space has to be opened for
// the samples to come, and exec ends it.
// Threads: one at a time. Failure: `open` fails if the process is gone; later nothing fails, the
// last good state is kept.
class AddressSpace {
 public:
  // `files` must outlive the address space. Fails with kNotFound (no such process, or another one
  // got its number: start_ticks differs; 0 skips that check) or kPermission.
  static Result<std::shared_ptr<AddressSpace>> open(ProcessId process, FileCache& files);
  // The space of a process that is over and had these mappings: nothing is looked up anew, no
  // memory can be read, and its root has no files.
  static std::shared_ptr<AddressSpace> of_mappings(std::vector<Mapping> mappings, FileCache& files);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // The mapping that holds `pc`, or null. The pointer is valid until the next find() or refresh().
  const Mapping* find(uint64_t pc);
  // Reads the maps again. False if the process is gone or runs another program, or if a mapping was
  // replaced (the old state is kept).
  bool refresh();
  // A file lies where another one lay: what is mapped now needs a space of its own.
  [[nodiscard]] bool replaced() const { return replaced_; }
  // The process is gone for good, or what it was when this was read: gives back the descriptors
  // that only a living one can use. What was known stays; its root stays open.
  void process_exited();
  [[nodiscard]] std::span<const Mapping> mappings() const { return mappings_; }
  [[nodiscard]] ProcessId process() const { return process_; }
  // The process's number in its own pid namespace (last NSpid of /proc/PID/status): names its perf
  // map. Equal to pid if unknown.
  [[nodiscard]] uint32_t namespace_pid() const { return namespace_pid_; }
  // The process's effective user when it was first seen.
  [[nodiscard]] uint32_t uid() const { return uid_; }
  // Changes whenever the set of mappings did.
  [[nodiscard]] uint64_t generation() const { return generation_; }

  // Opens a regular file by its path in the target's root (symbolic links are resolved inside that
  // root, never outside). Works after the process exited: the root is held open.
  [[nodiscard]] Result<UniqueFd> open_in_root(const std::string& path) const;
  // The directory that open_in_root() starts from.
  [[nodiscard]] const UniqueFd& root() const { return *root_; }
  // Reads the process's memory; short or 0 if it is unreadable or the process is gone.
  size_t read_memory(uint64_t address, std::span<uint8_t> out) const;

 private:
  AddressSpace(ProcessId process, FileCache& files);
  bool load();
  Mapping open_mapping(const MapsLine& line);
  [[nodiscard]] UniqueFd open_mapped_file(const MapsLine& line) const;
  [[nodiscard]] bool is_same_program();
  [[nodiscard]] bool would_replace(const std::vector<Mapping>& fresh) const;
  void merge(std::vector<Mapping> fresh);
  [[nodiscard]] const Mapping* lookup(uint64_t pc) const;
  bool take_refresh_budget();

  ProcessId process_;
  FileCache& files_;
  UniqueFd proc_dir_;  // /proc/PID: stays bound to this process, never to a later one
  std::shared_ptr<const UniqueFd> root_;
  UniqueFd mem_;
  uint32_t namespace_pid_ = 0;
  uint32_t uid_ = 0;
  uint64_t exe_dev_ = 0, exe_inode_ = 0;
  std::vector<Mapping> mappings_;  // sorted by start, disjoint
  mutable size_t last_hit_ = 0;
  uint64_t generation_ = 0;
  bool alive_ = true;
  bool replaced_ = false;
  int64_t refresh_credit_ns_ = 0;
  int64_t last_credit_ns_ = 0;
};

}  // namespace gpuprof::unwind
