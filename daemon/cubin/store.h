// SPDX-License-Identifier: Apache-2.0
//
// Store: the cubins that were read from targets, once each, compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cubin/image.h"

namespace gpuprof::cubin {

struct StoreLimits {
  // Compressed (zstd takes a cubin to a fifth or so): least recently used goes first.
  uint64_t max_bytes = 512ull << 20;
  // Parsed images that the store keeps, with their bytes and line tables; one that is larger than
  // that by itself is kept alone.
  uint64_t max_parsed_bytes = 64ull << 20;
};

struct StoreStats {
  uint64_t images = 0;  // in the store now
  uint64_t bytes = 0;   // of them, compressed
  uint64_t raw_bytes = 0;
  uint64_t parsed_bytes = 0;
  uint64_t evicted = 0;    // for want of room, since it was made
  uint64_t malformed = 0;  // images that are no cubins, as far as they were asked for
  uint64_t parsed = 0;     // times that an image was parsed, since it was made
};

// Keyed by SHA-256, since the keys that processes use (XXH3-64) are theirs alone and no defence
// against a neighbour who makes two images collide: many processes share one entry, and who may see
// which is the caller's knowledge. In memory only: no file that somebody could replace.
// Any thread; one lock, which is not held while anything is compressed.
class Store {
 public:
  explicit Store(const StoreLimits& limits = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // One image on its way in, hashed and compressed as it comes: a target's 200 MiB never lie in
  // memory. One thread; the store must outlive it.
  class Writer {
   public:
    explicit Writer(Store& store);
    ~Writer();
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;
    // Forgets what was added.
    void restart();
    Status add(std::span<const std::byte> bytes);
    // Puts it in; returns its SHA-256 as lower-case hexadecimal. kUnavailable: larger than the
    // store. restart() before the next one.
    Result<std::string> finish();

   private:
    struct State;
    Status compress(std::span<const std::byte> bytes, bool last);
    Store& store_;
    std::unique_ptr<State> state_;
  };

  // kNotFound: never stored, or evicted. Else Image::parse's errors, which are kept, so that a bad
  // image is parsed once.
  Result<std::shared_ptr<const Image>> image(const std::string& sha256);
  // As it was stored. kNotFound.
  Result<std::vector<std::byte>> bytes(const std::string& sha256);

  [[nodiscard]] StoreStats stats() const;

 private:
  struct Entry;
  Result<std::string> put(std::string sha256, std::vector<std::byte> compressed,
                          uint64_t raw_bytes);
  std::shared_ptr<Entry> find(const std::string& sha256);  // under the lock; makes it the newest
  void make_room();                                        // under the lock
  void make_parsed_room(const Entry& newest);              // under the lock

  const StoreLimits limits_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // least recently used first
  std::unordered_map<std::string, std::list<std::shared_ptr<Entry>>::iterator> by_hash_;
  StoreStats stats_;
};

// Lower-case hexadecimal.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace gpuprof::cubin
