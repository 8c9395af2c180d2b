// SPDX-License-Identifier: Apache-2.0
//
// The cubins of tests/data/cubin, whose recipe is the script `make` there.
#pragma once

#include <cstddef>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "daemon/cubin/image.h"

namespace gpuprof::cubin::test {

inline std::string fixture_path(const std::string& name) {
  return std::string(CUBIN_FIXTURES) + "/" + name;
}

inline std::vector<std::byte> fixture_bytes(const std::string& name) {
  std::ifstream file(fixture_path(name), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

// "inline_chain.sm_90" for inline_chain.sm_90.cubin; null, with the reason on stderr, if it is
// refused.
inline std::shared_ptr<const Image> fixture_image(const std::string& name) {
  auto image = Image::parse(fixture_bytes(name + ".cubin"));
  if (image) return *image;
  fprintf(stderr, "%s: %s\n", name.c_str(), image.error().message.c_str());
  return nullptr;
}

// "inner a.cu:6 < outer a.cu:13 < kernel a.cu:28": a resolution as one line, without directories.
inline std::string chain_text(const Resolution& resolution) {
  std::string text = source_status_name(resolution.status);
  const char* separator = ": ";
  for (const SourceFrame& frame : resolution.frames) {
    text += separator;
    separator = " < ";
    text += frame.mangled;
    if (frame.file.empty()) continue;
    text += ' ';
    text += frame.file.substr(frame.file.rfind('/') + 1);
    text += ':' + std::to_string(frame.line);
  }
  return text;
}

}  // namespace gpuprof::cubin::test
