// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/store.h"

#include <nettle/sha2.h>
#include <zstd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/base/hex.h"

namespace gpuprof::cubin {
namespace {

// Level 1: 400 MB/s and more, on the thread that reads targets; higher ones save a tenth.
constexpr int kLevel = 1;

std::string digest_of(sha256_ctx& context) {
  uint8_t digest[SHA256_DIGEST_SIZE];
  sha256_digest(&context, sizeof digest, digest);
  return hex(digest);
}

const uint8_t* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

uint64_t parsed_size(const Image& image) {
  return image.bytes().size() + image.line_index_bytes() +
         image.functions().size() * (sizeof(Function) + Image::kCallerBytes);
}

}  // namespace

struct Store::Entry {
  std::string sha256;
  std::vector<std::byte> compressed;
  uint64_t raw_bytes = 0;
  std::shared_ptr<const Image> parsed;
  uint64_t parsed_bytes = 0;
  std::optional<Error> malformed;
  std::vector<Claim> claims;
};

struct Store::Writer::State {
  struct FreeContext {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, FreeContext> zstd{ZSTD_createCCtx()};
  sha256_ctx sha = {};
  std::vector<std::byte> compressed;
  std::vector<std::byte> block = std::vector<std::byte>(ZSTD_CStreamOutSize());
  uint64_t raw_bytes = 0;
};

Store::Store(const StoreLimits& limits) : limits_(limits) {}
Store::~Store() = default;

Store::Writer::Writer(Store& store) : store_(store), state_(std::make_unique<State>()) {
  ZSTD_CCtx_setParameter(state_->zstd.get(), ZSTD_c_compressionLevel, kLevel);
  restart();
}
Store::Writer::~Writer() = default;

void Store::Writer::restart() {
  ZSTD_CCtx_reset(state_->zstd.get(), ZSTD_reset_session_only);
  sha256_init(&state_->sha);
  state_->compressed = {};
  state_->raw_bytes = 0;
}

Status Store::Writer::compress(std::span<const std::byte> bytes, bool last) {
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  size_t left = 1;
  while (in.pos < in.size || (last && left != 0)) {
    ZSTD_outBuffer out = {state_->block.data(), state_->block.size(), 0};
    left = ZSTD_compressStream2(state_->zstd.get(), &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0)
      return fail(Code::kInternal, std::string("zstd: ") + ZSTD_getErrorName(left));
    if (state_->compressed.size() + out.pos > store_.limits_.max_bytes)
      return fail(Code::kUnavailable, "the image is larger than the store of cubins");
    state_->compressed.insert(state_->compressed.end(), state_->block.begin(),
                              state_->block.begin() + static_cast<std::ptrdiff_t>(out.pos));
  }
  return {};
}

Status Store::Writer::add(std::span<const std::byte> bytes) {
  sha256_update(&state_->sha, bytes.size(), data_of(bytes));
  state_->raw_bytes += bytes.size();
  return compress(bytes, false);
}

Result<std::string> Store::Writer::finish(uint64_t owner, bool named) {
  if (auto ok = compress({}, true); !ok) return tl::unexpected<Error>(ok.error());
  state_->compressed.shrink_to_fit();
  return store_.put(digest_of(state_->sha), std::move(state_->compressed), state_->raw_bytes, owner,
                    named);
}

Result<std::string> Store::put(std::string sha256, std::vector<std::byte> compressed,
                               uint64_t raw_bytes, uint64_t owner, bool named) {
  const std::lock_guard lock(mutex_);
  if (const auto known = find(sha256)) {
    claim(*known, owner, named);
    return sha256;
  }
  auto entry = std::make_shared<Entry>();
  entry->sha256 = sha256;
  entry->compressed = std::move(compressed);
  entry->raw_bytes = raw_bytes;
  stats_.images += 1;
  stats_.bytes += entry->compressed.size();
  stats_.raw_bytes += raw_bytes;
  Entry& newest = *entry;
  by_hash_[sha256] = entries_.insert(entries_.end(), std::move(entry));
  claim(newest, owner, named);
  make_room(newest);
  return sha256;
}

void Store::claim(Entry& entry, uint64_t id, bool named) {
  Owner& owner = owners_[id];
  const auto known = std::ranges::find(entry.claims, id, &Claim::owner);
  if (known == entry.claims.end()) {
    std::list<Entry*>& list = named ? owner.named : owner.unnamed;
    owner.bytes += entry.compressed.size();
    entry.claims.push_back({id, named, list.insert(list.end(), &entry)});
  } else if (named && !known->named) {
    known->named = true;
    owner.named.splice(owner.named.end(), owner.unnamed, known->at);
  }
}

void Store::name(const std::string& sha256, uint64_t owner) {
  const std::lock_guard lock(mutex_);
  const auto it = by_hash_.find(sha256);
  if (it == by_hash_.end()) return;
  Entry& entry = **it->second;
  if (std::ranges::find(entry.claims, owner, &Claim::owner) != entry.claims.end())
    claim(entry, owner, true);
}

void Store::touch(Entry& entry) {
  for (const Claim& claim : entry.claims) {
    Owner& owner = owners_[claim.owner];
    std::list<Entry*>& list = claim.named ? owner.named : owner.unnamed;
    list.splice(list.end(), list, claim.at);
  }
}

std::shared_ptr<Store::Entry> Store::find(const std::string& sha256) {
  const auto it = by_hash_.find(sha256);
  if (it == by_hash_.end()) return nullptr;
  entries_.splice(entries_.end(), entries_, it->second);
  return *it->second;
}

void Store::make_room(const Entry& newest) {
  while (stats_.bytes > limits_.max_bytes && evict_one(newest)) {
  }
}

// Takes an image from an owner: not always from the store.
bool Store::evict_one(const Entry& newest) {
  const uint64_t share = limits_.max_bytes / owners_.size();
  const auto oldest_of = [&](const std::list<Entry*>& list) -> Entry* {
    if (list.empty()) return nullptr;
    if (list.front() != &newest) return list.front();
    return list.size() > 1 ? *std::next(list.begin()) : nullptr;
  };
  struct Victim {
    uint64_t owner = 0, bytes = 0;
    Entry* entry = nullptr;
  } unnamed, any;
  for (const auto& [id, owner] : owners_) {
    Entry* const first = oldest_of(owner.unnamed);
    Entry* const oldest = first != nullptr ? first : oldest_of(owner.named);
    if (first != nullptr && owner.bytes > share && owner.bytes > unnamed.bytes)
      unnamed = {id, owner.bytes, first};
    if (oldest != nullptr && owner.bytes > any.bytes) any = {id, owner.bytes, oldest};
  }
  const Victim& victim = unnamed.entry != nullptr ? unnamed : any;
  if (victim.entry == nullptr) return false;
  const uint64_t images = stats_.images;
  drop_claim(victim.owner, *victim.entry);
  stats_.evicted += images - stats_.images;
  return true;
}

void Store::forget(uint64_t owner) {
  const std::lock_guard lock(mutex_);
  for (auto it = owners_.find(owner); it != owners_.end(); it = owners_.find(owner)) {
    const std::list<Entry*>& list =
        it->second.named.empty() ? it->second.unnamed : it->second.named;
    drop_claim(owner, *list.front());
  }
}

void Store::drop_claim(uint64_t id, Entry& entry) {
  const auto claim = std::ranges::find(entry.claims, id, &Claim::owner);
  Owner& owner = owners_[id];
  (claim->named ? owner.named : owner.unnamed).erase(claim->at);
  owner.bytes -= entry.compressed.size();
  if (owner.named.empty() && owner.unnamed.empty()) owners_.erase(id);
  entry.claims.erase(claim);
  if (!entry.claims.empty()) return;
  stats_.images -= 1;
  stats_.bytes -= entry.compressed.size();
  stats_.raw_bytes -= entry.raw_bytes;
  stats_.parsed_bytes -= entry.parsed_bytes;
  const auto it = by_hash_.find(entry.sha256);
  const auto at = it->second;
  by_hash_.erase(it);
  entries_.erase(at);
}

void Store::make_parsed_room(const Entry& newest) {
  for (const auto& entry : entries_) {
    if (stats_.parsed_bytes <= limits_.max_parsed_bytes) return;
    if (entry.get() == &newest || !entry->parsed) continue;
    stats_.parsed_bytes -= std::exchange(entry->parsed_bytes, 0);
    entry->parsed.reset();
  }
}

void Store::release_parsed() {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) {
    entry->parsed.reset();
    entry->parsed_bytes = 0;
  }
  stats_.parsed_bytes = 0;
}

Result<std::vector<std::byte>> Store::bytes(const std::string& sha256) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    entry = find(sha256);
    if (entry != nullptr) touch(*entry);
  }
  if (entry == nullptr) return fail(Code::kNotFound, "the cubin is not in the store any more");
  std::vector<std::byte> out(entry->raw_bytes);
  const size_t got =
      ZSTD_decompress(out.data(), out.size(), entry->compressed.data(), entry->compressed.size());
  if (ZSTD_isError(got) != 0 || got != out.size())
    return fail(Code::kInternal, "zstd: a stored cubin cannot be read back");
  return out;
}

Result<std::shared_ptr<const Image>> Store::image(const std::string& sha256) {
  {
    const std::lock_guard lock(mutex_);
    const auto entry = find(sha256);
    if (entry != nullptr && entry->parsed) return entry->parsed;
    if (entry != nullptr && entry->malformed) return tl::unexpected<Error>(*entry->malformed);
  }
  auto raw = bytes(sha256);
  if (!raw) return tl::unexpected<Error>(raw.error());
  auto image = Image::parse(std::move(*raw));
  const std::lock_guard lock(mutex_);
  ++stats_.parsed;
  const auto entry = find(sha256);
  if (entry == nullptr || entry->parsed) return image;  // evicted or parsed meanwhile
  if (!image) {
    if (!entry->malformed) ++stats_.malformed;
    entry->malformed = image.error();
    return image;
  }
  entry->parsed = *image;
  entry->parsed_bytes = parsed_size(**image);
  stats_.parsed_bytes += entry->parsed_bytes;
  make_parsed_room(*entry);
  return image;
}

StoreStats Store::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  sha256_ctx context;
  sha256_init(&context);
  sha256_update(&context, bytes.size(), data_of(bytes));
  return digest_of(context);
}

}  // namespace gpuprof::cubin
