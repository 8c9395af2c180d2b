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
  // Compressed (zstd takes a cubin to a fifth or so). ADR 0016.
  uint64_t max_bytes = 64ull << 20;
  // Parsed images that the store keeps, with their bytes and line tables; one that is larger than
  // that by itself is kept alone.
  uint64_t max_parsed_bytes = 16ull << 20;
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
//
// Whoever puts an image in owns it, maybe with others, and each is charged its size. Where there is
// no room an owner of more than an equal share loses its oldest image: one that no sample named, if
// any such owner has some, else one of the owner with the most. So nobody is evicted by another's
// flood who stays within an equal share, and an image goes when nobody owns it any more.
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
    // `owner`: who is charged. `named`: a sample named it.
    Result<std::string> finish(uint64_t owner = 0, bool named = true);

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

  // Parses anew what is asked for next.
  void release_parsed();

  // A sample named this image of `owner`.
  void name(const std::string& sha256, uint64_t owner);
  // It owns nothing any more. What nobody else owns goes; that is no eviction.
  void forget(uint64_t owner);

  [[nodiscard]] StoreStats stats() const;

 private:
  struct Entry;
  struct Owner {
    uint64_t bytes = 0;
    // Oldest first.
    std::list<Entry*> unnamed, named;
  };
  struct Claim {
    uint64_t owner = 0;
    bool named = false;
    std::list<Entry*>::iterator at;  // in its owner's list
  };
  Result<std::string> put(std::string sha256, std::vector<std::byte> compressed, uint64_t raw_bytes,
                          uint64_t owner, bool named);
  // All under the lock. find() makes it the newest.
  std::shared_ptr<Entry> find(const std::string& sha256);
  void claim(Entry& entry, uint64_t owner, bool named);
  void touch(Entry& entry);
  void make_room(const Entry& newest);
  bool evict_one(const Entry& newest);
  void drop_claim(uint64_t owner, Entry& entry);
  void make_parsed_room(const Entry& newest);

  const StoreLimits limits_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // least recently used first
  std::unordered_map<std::string, std::list<std::shared_ptr<Entry>>::iterator> by_hash_;
  std::unordered_map<uint64_t, Owner> owners_;  // with images
  StoreStats stats_;
};

// Lower-case hexadecimal.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace gpuprof::cubin
