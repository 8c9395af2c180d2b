// SPDX-License-Identifier: Apache-2.0
//
// Window: what one output window has collected, by class of execution and by stack.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "daemon/join/flat_index.h"
#include "daemon/join/joiner.h"
#include "daemon/join/spread.h"

namespace gpuprof::join {

// What ran where. Equal classes differ in their stack only.
struct ClassKey {
  uint64_t name_id = 0;
  uint32_t process = 0;  // slot of the joiner's process table
  uint32_t device_id = 0;
  uint32_t context_id = 0;
  uint32_t stream_id = 0;
  uint32_t graph_id = 0;
  uint8_t kind = 0;  // GPUPROF_KIND_INVALID: [other]
  uint8_t copy_kind = 0;
  Serialized serialized = Serialized::kUnknown;
  uint8_t reserved = 0;

  friend bool operator==(const ClassKey&, const ClassKey&) = default;
};

struct Tally {
  uint64_t executions = 0;
  uint64_t time_ns = 0;
  void add(uint64_t n, uint64_t ns) {
    executions += n;
    time_ns += ns;
  }
};

struct Spread {
  std::vector<Row> rows;           // Row::process is the process slot
  std::vector<uint32_t> class_of;  // by row
  uint64_t stacks_trimmed = 0;     // (key, stack) pairs left out

  void push(uint32_t class_id, const Row& row) {
    rows.push_back(row);
    class_of.push_back(class_id);
  }
};

// Bounded by the class and row limits. One thread.
class Window {
 public:
  explicit Window(const JoinerLimits& limits) : limits_(limits) {}

  // The class of `key`, folded where a bound says so: key_of() tells. `used` is the number of
  // classes that the process has, kept up to date.
  uint32_t classify(const ClassKey& key, uint32_t& used);
  // The key (process, context, kernel) or (process, context, graph) by which a class is spread.
  [[nodiscard]] uint32_t group_of(uint32_t class_id) const {
    return classes_[class_id].value.group;
  }
  [[nodiscard]] const ClassKey& key_of(uint32_t class_id) const { return classes_[class_id].key; }

  // False if there is no room for a new row: count it as without a stack then. `used` as above.
  bool add_exact(uint32_t class_id, StackId stack, uint32_t tid, uint64_t time_ns, uint32_t& used);
  void add_without_stack(uint32_t class_id, Unmatched reason, uint64_t time_ns);
  // A sampled launch of this group executed for `time_ns`; `is_first`: its first execution of this
  // group. False: no room.
  bool add_weight(uint32_t group, StackId stack, uint32_t tid, uint64_t weight_q32,
                  uint64_t time_ns, bool is_first);

  // A row of this class, without executions.
  [[nodiscard]] Row row_of(uint32_t class_id) const;
  [[nodiscard]] uint32_t class_count() const { return static_cast<uint32_t>(classes_.size()); }

  // Every execution as rows. `only_loss_explains(process slot)`: the process took every launch and
  // lost some, so that an execution without a launch means a lost one.
  template <class OnlyLossExplains>
  Spread rows(OnlyLossExplains only_loss_explains) const {
    std::vector<bool> lost;
    for (const auto& entry : classes_.entries()) {
      const uint32_t slot = entry.key.process;
      if (slot >= lost.size()) lost.resize(slot + 1);
      lost[slot] = only_loss_explains(slot);
    }
    return make_rows(lost);
  }
  void clear();

 private:
  struct Class {
    uint32_t group = 0;
    std::array<Tally, kUnmatchedCount> without_stack{};  // by reason
  };
  struct RowKey {
    uint32_t class_id, stack, tid;
  };
  struct WeightKey {
    uint32_t group, stack, tid;
  };
  // Classes and weights of one group as index ranges.
  struct Groups {
    std::vector<uint32_t> class_begin, classes, weight_begin, weights;
  };
  struct Candidates {
    std::vector<uint32_t> entries;  // of weights_, heaviest first
    std::vector<uint64_t> execution_weights;
    std::vector<uint64_t> time_weights;

    void resize(size_t size) {
      entries.resize(size);
      execution_weights.resize(size);
      time_weights.resize(size);
    }
  };

  [[nodiscard]] static ClassKey group_key(const ClassKey& key);
  uint32_t insert_class(const ClassKey& key);
  [[nodiscard]] Spread make_rows(const std::vector<bool>& launches_lost) const;
  [[nodiscard]] Groups index_groups() const;
  [[nodiscard]] Candidates candidates(const Groups& groups, uint32_t group) const;
  void spread_class(uint32_t class_id, const Candidates& from, std::vector<double>& carry,
                    Spread& out) const;
  void unmatched_rows(uint32_t class_id, bool has_samples, bool launches_lost, Spread& out) const;

  const JoinerLimits& limits_;
  FlatIndex<ClassKey, Class> classes_;
  FlatIndex<ClassKey, uint8_t> groups_;
  FlatIndex<RowKey, Tally> rows_;
  FlatIndex<WeightKey, WeightSum> weights_;
};

}  // namespace gpuprof::join
