// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/growing_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "daemon/base/clock.h"
#include "daemon/unwind/address_space.h"

namespace gpuprof::symbolize {
namespace {

constexpr int64_t kLookPeriodNs = 100'000'000;

}  // namespace

bool GrowingFile::is_due() {
  const int64_t now = signed_monotonic_ns();
  if (now < next_look_ns_) return false;
  next_look_ns_ = now + kLookPeriodNs;
  return true;
}

std::string GrowingFile::read(const std::string& path, uint64_t most, bool& is_another) {
  is_another = false;
  const auto fd = space_.open_in_root(path);
  struct stat st = {};
  if (!fd || fstat(fd->get(), &st) != 0) return {};
  if (st.st_uid != 0 && st.st_uid != space_.uid()) return {};
  const auto size = static_cast<uint64_t>(st.st_size);
  if (st.st_ino != inode_ || size < size_) {  // another, or emptied
    is_another = true;
    taken_ = 0;
    inode_ = st.st_ino;
  }
  size_ = size;
  const uint64_t limit = std::min(size, max_bytes_);
  if (limit <= taken_) return {};
  std::string text(std::min(limit - taken_, most), '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n =
        pread(fd->get(), text.data() + got, text.size() - got, static_cast<off_t>(taken_ + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  return text;
}

}  // namespace gpuprof::symbolize
