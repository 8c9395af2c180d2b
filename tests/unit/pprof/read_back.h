// SPDX-License-Identifier: Apache-2.0
//
// Reads a written profile with zlib and protobuf.
#pragma once

#include <zlib.h>

#include <string>

#include "proto/profile.pb.h"

namespace gpuprof::pprof::testing {

// Empty on any damage: a whole gzip member and nothing behind it.
inline std::string gunzip(const std::string& bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return "";
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  int status = Z_OK;
  while (status == Z_OK) {
    char chunk[65536];
    stream.next_out = reinterpret_cast<Bytef*>(chunk);
    stream.avail_out = sizeof(chunk);
    status = inflate(&stream, Z_NO_FLUSH);
    out.append(chunk, sizeof(chunk) - stream.avail_out);
  }
  const bool whole = status == Z_STREAM_END && stream.avail_in == 0;
  inflateEnd(&stream);
  return whole ? out : "";
}

inline bool parse(const std::string& bytes, perftools::profiles::Profile* profile) {
  const std::string raw = gunzip(bytes);
  return !raw.empty() && profile->ParseFromString(raw);
}

}  // namespace gpuprof::pprof::testing
