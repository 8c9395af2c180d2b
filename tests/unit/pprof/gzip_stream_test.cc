// SPDX-License-Identifier: Apache-2.0
#include "daemon/pprof/gzip_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/pprof/read_back.h"

namespace gpuprof::pprof {
namespace {

TEST(GzipStream, RoundTripsManyWrites) {
  std::mt19937_64 random(1);
  for (const size_t writes : {0u, 1u, 3u, 2000u}) {
    GzipStream stream;
    std::string all;
    for (size_t i = 0; i < writes; ++i) {
      std::string chunk(random() % 3000, '\0');
      for (char& c : chunk) c = static_cast<char>(random() % (i % 2 ? 256 : 4));
      all += chunk;
      stream.write(chunk);
    }
    const std::string packed = stream.finish();
    ASSERT_FALSE(packed.empty());
    EXPECT_EQ(testing::gunzip(packed), all);
  }
}

}  // namespace
}  // namespace gpuprof::pprof
