// SPDX-License-Identifier: Apache-2.0
//
// GraceRing: a queue of records that wait, as long as the most that ever waited.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gpuprof::join {

// The owner bounds it: pop() before push() where size() is the limit.
template <class Record>
class GraceRing {
 public:
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] const Record& front() const { return records_[head_]; }

  // `limit` ≥ 1, and size() is below it.
  void push(const Record& record, size_t limit) {
    if (count_ == records_.size()) {
      std::rotate(records_.begin(), records_.begin() + static_cast<ptrdiff_t>(head_),
                  records_.end());
      head_ = 0;
      records_.resize(std::min(std::max<size_t>(records_.size() * 2, 1024), limit));
    }
    size_t at = head_ + count_;
    if (at >= records_.size()) at -= records_.size();
    records_[at] = record;
    ++count_;
  }
  Record pop() {
    const Record record = records_[head_];
    if (++head_ == records_.size()) head_ = 0;
    --count_;
    return record;
  }

 private:
  std::vector<Record> records_;
  size_t head_ = 0;
  size_t count_ = 0;
};

}  // namespace gpuprof::join
