// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/file_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "daemon/unwind/elf_file.h"

namespace gpuprof::unwind {

FileCache::FileCache() = default;
FileCache::~FileCache() = default;

Result<std::shared_ptr<ElfFile>> FileCache::hit(Entry& entry) {
  order_.splice(order_.end(), order_, entry.used);
  if (entry.file) return entry.file;
  return fail(Code::kCorrupt, entry.why);
}

Result<std::shared_ptr<ElfFile>> FileCache::insert(std::string key,
                                                   Result<std::shared_ptr<ElfFile>> file) {
  evict();
  order_.push_back(key);
  Entry entry;
  if (file) {
    entry.file = *file;
  } else {
    entry.why = file.error().message;
  }
  entry.used = std::prev(order_.end());
  entries_[std::move(key)] = std::move(entry);
  return file;
}

Result<std::shared_ptr<ElfFile>> FileCache::open(const UniqueFd& fd) {
  struct stat st = {};
  if (fstat(fd.get(), &st) != 0) return fail_errno(Code::kIo, errno, "fstat of a mapped file");
  std::string key = "f";
  for (const uint64_t part :
       {static_cast<uint64_t>(st.st_dev), static_cast<uint64_t>(st.st_ino),
        static_cast<uint64_t>(st.st_size), static_cast<uint64_t>(st.st_mtim.tv_sec),
        static_cast<uint64_t>(st.st_mtim.tv_nsec)}) {
    key.append(reinterpret_cast<const char*>(&part), sizeof part);
  }
  if (auto it = entries_.find(key); it != entries_.end()) return hit(it->second);
  auto mapped = MappedFile::map(fd.get());
  // Out of slots or memory: not a property of the file, so it is not remembered.
  if (!mapped && mapped.error().code != Code::kCorrupt) return tl::unexpected(mapped.error());
  if (!mapped) return insert(std::move(key), tl::unexpected(mapped.error()));
  return insert(std::move(key), ElfFile::from_file(std::move(*mapped)));
}

Result<std::shared_ptr<ElfFile>> FileCache::from_memory(std::span<const uint8_t> image) {
  std::string key = "m";
  key.append(reinterpret_cast<const char*>(image.data()), image.size());
  if (auto it = entries_.find(key); it != entries_.end()) return hit(it->second);
  return insert(std::move(key), ElfFile::from_memory({image.begin(), image.end()}));
}

std::shared_ptr<const UniqueFd> FileCache::root(UniqueFd fd) {
  struct statx info = {};
  constexpr unsigned kWanted = STATX_INO | STATX_MNT_ID;
  const bool known = fd.valid() && statx(fd.get(), "", AT_EMPTY_PATH, kWanted, &info) == 0 &&
                     (info.stx_mask & kWanted) == kWanted;
  if (!known) return std::make_shared<const UniqueFd>(std::move(fd));
  std::erase_if(roots_, [](const auto& entry) { return entry.second.expired(); });
  const uint64_t device = uint64_t{info.stx_dev_major} << 32 | info.stx_dev_minor;
  std::weak_ptr<const UniqueFd>& held = roots_[{info.stx_mnt_id, device, info.stx_ino}];
  std::shared_ptr<const UniqueFd> root = held.lock();
  if (!root) held = root = std::make_shared<const UniqueFd>(std::move(fd));
  return root;
}

// Entries in use are left alone, so `order_` may be longer than the bound while processes live.
void FileCache::evict() {
  if (entries_.size() < kMaxUnusedFiles) return;
  size_t unused = 0;
  for (const auto& [key, entry] : entries_) unused += entry.file.use_count() <= 1;
  for (auto it = order_.begin(); it != order_.end() && unused >= kMaxUnusedFiles;) {
    const auto entry = entries_.find(*it);
    if (entry->second.file.use_count() > 1) {
      ++it;
      continue;
    }
    entries_.erase(entry);
    it = order_.erase(it);
    --unused;
  }
}

}  // namespace gpuprof::unwind
