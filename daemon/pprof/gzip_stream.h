// SPDX-License-Identifier: Apache-2.0
//
// GzipStream compresses what it is fed into one gzip member in memory.
#pragma once

#include <zlib.h>

#include <string>
#include <string_view>

namespace gpuprof::pprof {

// Failure (zlib has no memory) sticks: finish() tells. One thread.
class GzipStream {
 public:
  GzipStream();
  ~GzipStream();
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  void write(std::string_view bytes);
  // The whole member; empty on failure. Nothing may be written after it.
  std::string finish();

 private:
  void deflate_into(int flush);

  z_stream stream_{};
  bool is_open_ = false;
  bool is_ok_ = false;
  std::string out_;
};

}  // namespace gpuprof::pprof
