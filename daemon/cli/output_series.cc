// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/output_series.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpuprof::cli {

Result<OutputSeries> OutputSeries::open(const std::string& directory, const std::string& probe_name,
                                        OutputFile::Existing existing, const Invoker& owner,
                                        const std::string& option) {
  // Says what is wrong with the directory, and that a file can be made there.
  auto probe =
      OutputFile::open(directory + probe_name, OutputFile::Existing::kReplace, owner, option);
  if (!probe) return tl::unexpected<Error>(probe.error());
  OutputSeries out;
  out.directory_ = directory;
  out.option_ = option;
  out.existing_ = existing;
  out.owner_ = owner;
  out.directory_fd_.reset(
      ::open(directory.empty() ? "." : directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!out.directory_fd_.valid()) return fail_errno(Code::kIo, errno, "cannot open " + directory);
  return out;
}

Result<std::string> OutputSeries::write(const std::string& name, std::string_view bytes) {
  auto file = OutputFile::open_in(directory_fd_, directory_ + name, existing_, owner_, option_);
  if (!file) return tl::unexpected<Error>(file.error());
  const bool keeps = existing_ == OutputFile::Existing::kKeep;
  if (keeps && name == last_name_) file->set_number(last_number_ + 1);
  auto path = file->commit(bytes);
  if (path) {
    last_name_ = name;
    last_number_ = file->number();
  }
  return path;
}

bool OutputSeries::gives_away() const { return owner_.uid != ::geteuid(); }

bool OutputSeries::is_same_directory(const OutputSeries& other) const {
  struct stat ours = {}, theirs = {};
  return ::fstat(directory_fd_.get(), &ours) == 0 &&
         ::fstat(other.directory_fd_.get(), &theirs) == 0 && ours.st_dev == theirs.st_dev &&
         ours.st_ino == theirs.st_ino;
}

}  // namespace gpuprof::cli
