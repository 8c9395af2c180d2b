// SPDX-License-Identifier: Apache-2.0
//
// Labels: what is said of a row beside its stack, each set once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "daemon/cubin/image.h"
#include "daemon/join/assemble.h"
#include "daemon/join/flat_index.h"
#include "daemon/join/model.h"

namespace gpuprof::join {

// Of one model, whose label_sets it fills. A value beyond max_label_values of its key is left out.
class Labels {
 public:
  Labels(const JoinResult& result, FrameSource& source, const AssembleOptions& options,
         Model& model)
      : result_(result), source_(source), options_(options), model_(model) {}

  uint32_t set_of(const Row& row);
  // Of a sampled instruction; `missing`: why its module is, empty: nothing to say. `has_code`
  // false: it was folded, of which instruction is not known.
  uint32_t code_set_of(const PcRow& pc, bool has_code, cubin::SourceStatus status,
                       const std::string& missing);
  // Samples that were given a set with a label left out.
  [[nodiscard]] uint64_t suppressed() const { return suppressed_; }

 private:
  // Everything that a row's labels are made of.
  struct Key {
    uint32_t process, tid, device_id, context_id, stream_id, graph_id, match, reason, serialized;
  };

  std::vector<ModelLabel> make(const Row& row);
  void put(std::vector<ModelLabel>& labels, const char* key, std::string text);
  uint32_t intern(std::vector<ModelLabel> labels);

  const JoinResult& result_;
  FrameSource& source_;
  const AssembleOptions& options_;
  Model& model_;
  FlatIndex<Key, uint32_t> sets_;
  std::map<std::string, uint32_t> code_sets_;
  std::map<std::string, uint32_t> by_text_;
  std::map<std::string, std::unordered_set<std::string>> values_;
  std::vector<uint64_t> suppressed_by_set_;
  uint64_t dropped_ = 0;
  uint64_t suppressed_ = 0;
};

}  // namespace gpuprof::join
