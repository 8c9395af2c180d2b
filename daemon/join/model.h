// SPDX-License-Identifier: Apache-2.0
//
// The joined profile as plain data: what join makes and pprof writes. No handles, no process state.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gpuprof::join {

// Sample values, in the order of the pprof sample types.
enum ValueIndex : size_t {
  kGpuTimeNs = 0,
  kGpuExecutions,
  kGpuPcSamples,
  kGpuStallSamples,
  kValueCount
};

struct ModelFunction {
  std::string name;         // shown
  std::string system_name;  // mangled or full name
  std::string file;
  int64_t start_line = 0;
};

struct ModelLine {
  uint32_t function = 0;  // index into Model::functions
  int64_t line = 0;
};

// An object with its own address space: an ELF file of one process, a cubin, or a synthetic object
// that holds frames without code ([cuda graph], [memcpy HtoD], kernels without a cubin).
struct ModelModule {
  std::string path;
  std::string build_id;
  uint64_t start = 0;  // addresses of its locations lie in [start, limit)
  uint64_t limit = 0;
  bool is_device_code = false;
  bool has_functions = true;
  bool has_filenames = false;
  bool has_line_numbers = false;
  bool has_inline_frames = false;
};

struct ModelLocation {
  uint32_t module = 0;
  uint64_t address = 0;          // in the module's own address space
  std::vector<ModelLine> lines;  // innermost first; never empty
};

struct ModelLabel {
  std::string key;
  std::string text;    // text label where not empty
  int64_t number = 0;  // else a number
  std::string unit;
};

// Stacks and label sets are shared between samples: a long window has far more samples than either.
struct ModelSample {
  uint32_t stack = 0;      // index into Model::stacks
  uint32_t label_set = 0;  // index into Model::label_sets
  int64_t values[kValueCount] = {};
  uint32_t code_labels = UINT32_MAX;  // likewise, further ones of device code; UINT32_MAX: none
};

struct Model {
  std::vector<ModelModule> modules;
  std::vector<ModelFunction> functions;
  std::vector<ModelLocation> locations;
  std::vector<std::vector<uint32_t>> stacks;  // of locations, leaf first
  std::vector<std::vector<ModelLabel>> label_sets;
  std::vector<ModelSample> samples;
  std::vector<std::string> comments;
  int64_t time_unix_ns = 0;
  int64_t duration_ns = 0;
  int64_t pc_period_cycles = 0;  // 0: no PC sampling
};

}  // namespace gpuprof::join
