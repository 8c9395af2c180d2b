// SPDX-License-Identifier: Apache-2.0
#include "daemon/pprof/gzip_stream.h"

#include <algorithm>
#include <climits>

namespace gpuprof::pprof {
namespace {

constexpr int kGzipWindowBits = 15 + 16;  // zlib.h: 16 more asks for a gzip header
constexpr int kMemLevel = 8;
constexpr size_t kStepBytes = 65536;

}  // namespace

GzipStream::GzipStream() {
  is_ok_ = is_open_ = deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindowBits,
                                   kMemLevel, Z_DEFAULT_STRATEGY) == Z_OK;
}

GzipStream::~GzipStream() {
  if (is_open_) deflateEnd(&stream_);
}

void GzipStream::deflate_into(int flush) {
  int status = Z_OK;
  do {
    const size_t used = out_.size();
    out_.resize(used + kStepBytes);
    stream_.next_out = reinterpret_cast<Bytef*>(out_.data() + used);
    stream_.avail_out = kStepBytes;
    status = deflate(&stream_, flush);
    out_.resize(used + kStepBytes - stream_.avail_out);
    // Z_BUF_ERROR: nothing left to do, which ends a plain write.
    is_ok_ = is_ok_ && (status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR);
  } while (is_ok_ && (flush == Z_FINISH ? status != Z_STREAM_END : stream_.avail_out == 0));
}

void GzipStream::write(std::string_view bytes) {
  while (is_ok_ && !bytes.empty()) {
    const size_t step = std::min<size_t>(bytes.size(), UINT_MAX);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib only reads
    stream_.avail_in = static_cast<uInt>(step);
    deflate_into(Z_NO_FLUSH);
    bytes.remove_prefix(step);
  }
}

std::string GzipStream::finish() {
  stream_.next_in = nullptr;
  stream_.avail_in = 0;
  if (is_ok_) deflate_into(Z_FINISH);
  if (!is_ok_) out_.clear();
  return std::move(out_);
}

}  // namespace gpuprof::pprof
