// SPDX-License-Identifier: Apache-2.0
#include "daemon/pprof/address_plan.h"

#include <algorithm>

namespace gpuprof::pprof {
namespace {

constexpr uint64_t kPage = 4096;
// Zero would be "no address" to readers, and low addresses look like offsets.
constexpr uint64_t kFirst = 0x1000000;
constexpr uint64_t kMaxSpan = uint64_t{1} << 40;
constexpr uint64_t kNumberedStep = 16;

uint64_t page_down(uint64_t value) { return value & ~(kPage - 1); }
uint64_t page_up(uint64_t value) { return page_down(value + kPage - 1); }

struct Extent {
  uint64_t low = UINT64_MAX;  // of the locations
  uint64_t high = 0;
  uint64_t count = 0;
};

}  // namespace

AddressPlan::AddressPlan(const join::Model& model) : addresses_(model.locations.size()) {
  std::vector<Extent> extents(model.modules.size());
  std::vector<std::vector<uint32_t>> numbered(model.modules.size());
  for (const join::ModelLocation& location : model.locations) {
    Extent& extent = extents[location.module];
    extent.low = std::min(extent.low, location.address);
    extent.high = std::max(extent.high, location.address);
    ++extent.count;
  }
  uint64_t next = kFirst;
  std::vector<bool> is_numbered(model.modules.size());
  for (size_t i = 0; i < model.modules.size(); ++i) {
    const join::ModelModule& module = model.modules[i];
    Extent extent = extents[i];
    // The module's own extent too, so that the same object has the same mapping in every profile.
    const bool has_extent = module.start < module.limit && module.limit - module.start <= kMaxSpan;
    uint64_t low = extent.count != 0 ? extent.low : 0;
    uint64_t high = extent.count != 0 ? extent.high : 0;
    if (has_extent) {
      low = extent.count != 0 ? std::min(low, module.start) : module.start;
      high = std::max(high, module.limit - 1);
    }
    MappingRange range;
    range.start = next;
    is_numbered[i] = high - low >= kMaxSpan || high > UINT64_MAX - 2 * kPage;
    if (is_numbered[i]) {
      range.limit = next + page_up(extent.count * kNumberedStep + 1);
    } else {
      range.file_offset = page_down(low);
      range.limit = next + page_up(high + 1 - range.file_offset);
    }
    ranges_.push_back(range);
    next = range.limit + kPage;
  }
  for (uint32_t i = 0; i < addresses_.size(); ++i) {
    const join::ModelLocation& location = model.locations[i];
    const MappingRange& range = ranges_[location.module];
    if (is_numbered[location.module]) {
      numbered[location.module].push_back(i);
    } else {
      addresses_[i] = range.start + (location.address - range.file_offset);
    }
  }
  for (size_t module = 0; module < numbered.size(); ++module) {
    std::vector<uint32_t>& locations = numbered[module];
    std::stable_sort(locations.begin(), locations.end(), [&](uint32_t a, uint32_t b) {
      return model.locations[a].address < model.locations[b].address;
    });
    for (size_t rank = 0; rank < locations.size(); ++rank) {
      addresses_[locations[rank]] = ranges_[module].start + rank * kNumberedStep;
    }
  }
}

}  // namespace gpuprof::pprof
