// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/json_writer.h"

#include <gtest/gtest.h>

namespace gpuprof::cli {
namespace {

TEST(JsonWriter, NestsAndSeparates) {
  JsonWriter json;
  json.begin_object();
  json.field("big", UINT64_MAX);
  json.field("yes", true);
  json.key("list");
  json.begin_array();
  json.value(uint32_t{1});
  json.begin_object();
  json.end_object();
  json.end_array();
  json.key("none");
  json.null();
  json.end_object();
  EXPECT_EQ(
      json.take(),
      "{\n  \"big\": 18446744073709551615,\n  \"yes\": true,\n  \"list\": [\n    1,\n    {}\n  ],\n"
      "  \"none\": null\n}\n");
}

TEST(JsonWriter, Escapes) {
  JsonWriter json;
  json.value("a\"b\\c\n\x01ü");
  EXPECT_EQ(json.take(), "\"a\\\"b\\\\c\\u000a\\u0001ü\"\n");
}

}  // namespace
}  // namespace gpuprof::cli
