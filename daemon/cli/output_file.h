// SPDX-License-Identifier: Apache-2.0
//
// OutputFile: a file that appears whole or not at all.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/invoker.h"

namespace gpuprof::cli {

class Deputy;

// Opened before profiling starts, so that a target is not profiled for an hour into a directory
// that cannot be written. The bytes go to an unnamed file (O_TMPFILE, so even kill -9 leaves
// nothing behind; a hidden temporary where the file system has none), are synced, and get their
// name last. Mode 0600, owned by the invoking user. One thread.
class OutputFile {
 public:
  enum class Existing {
    kReplace,  // the user named the file
    kKeep,     // we named it: a free "-2", "-3", … before the extension is taken instead
  };

  // Errors: kIo, with what to do: the `option` that names the file. An existing special file
  // (/dev/null, a FIFO) is written in place, and so are /dev/stdout, /dev/fd/N and whatever else
  // leads into /proc or is a link of /dev.
  static Result<OutputFile> open(const std::string& path, Existing existing, const Invoker& owner,
                                 const std::string& option = "-o");

  // A new file `name` in `directory`, which is `path` less the name; never in place.
  static Result<OutputFile> open_in(const UniqueFd& directory, const std::string& path,
                                    Existing existing, const Invoker& owner,
                                    const std::string& option);

  // Writes and publishes; returns the path it got. On failure nothing is left. Call once.
  Result<std::string> commit(std::string_view bytes);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  [[nodiscard]] const std::string& path() const { return path_; }

  // kKeep: the first number to try, and afterwards the one that it got; 1 is the plain name.
  void set_number(int number) { number_ = number; }
  [[nodiscard]] int number() const { return number_; }

  // Whether both would get one name, or be mixed in one pipe or file that is written in place.
  [[nodiscard]] bool is_same_place(const OutputFile& other) const;

  // From now on commit() has the deputy give the name, as its file `index`.
  void delegate(Deputy& deputy, uint32_t index);
  // The deputy's part of commit(), in its process.
  Result<std::string> publish();
  void remove_temporary();
  void forget_temporary() { temporary_.clear(); }
  void add_descriptors(std::vector<int>& out) const;

 private:
  OutputFile() = default;
  // No directory is opened yet.
  static Result<OutputFile> named(const std::string& path, Existing existing,
                                  const std::string& option);
  Status create_temporary(const Invoker& owner);
  Status open_in_place(int own_descriptor);
  [[nodiscard]] std::string temporary_name() const;
  Status give_name(const std::string& name, bool replace);

  std::string path_;       // as the user will see it
  std::string option_;     // that named it
  std::string directory_;  // of path_
  std::string name_;       // in the directory
  Existing existing_ = Existing::kReplace;
  int number_ = 1;
  UniqueFd directory_fd_;
  UniqueFd file_;
  std::string temporary_;    // its name in the directory; empty: O_TMPFILE
  bool in_place_ = false;    // a special file or a descriptor
  bool overwrites_ = false;  // in_place_: a regular file that we opened
  Deputy* deputy_ = nullptr;
  uint32_t deputy_index_ = 0;
};

// gpu-<comm>-<pid>-<time>.pb.gz; characters of comm that are awkward in a file name become '_'.
std::string default_output_name(std::string_view comm, uint32_t pid, time_t when);

}  // namespace gpuprof::cli
