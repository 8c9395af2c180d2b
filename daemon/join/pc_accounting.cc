// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/pc_accounting.h"

#include <numeric>
#include <string_view>

namespace gpuprof::join {
namespace {

template <size_t N>
uint64_t sum(const std::array<uint64_t, N>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

std::string unequal(const char* left_name, uint64_t left, const char* right_name, uint64_t right) {
  return std::string(left_name) + " " + std::to_string(left) + " is not " + right_name + " " +
         std::to_string(right);
}

}  // namespace

const char* pc_attrib_name(PcAttrib attrib) {
  switch (attrib) {
    case PcAttrib::kNone:
      return "";
    case PcAttrib::kExact:
      return "exact";
    case PcAttrib::kKernel:
      return "kernel";
    case PcAttrib::kKernelAmbiguous:
      return "kernel-ambiguous";
    case PcAttrib::kKernelMultidevice:
      return "kernel-multidevice";
    case PcAttrib::kGraphRefused:
      return "graph-refused";
    case PcAttrib::kUnattributed:
      return "unattributed";
  }
  return "";
}

StallName parse_stall_name(const std::string& name) {
  constexpr std::string_view kPrefix = "smsp__pcsamp_warps_issue_stalled_";
  constexpr std::string_view kSuffix = "_not_issued";
  if (name.empty()) return {};
  std::string_view rest = name;
  if (!rest.starts_with(kPrefix)) return {StallKind::kOther, {}};
  rest.remove_prefix(kPrefix.size());
  StallKind kind = StallKind::kStalled;
  if (rest.ends_with(kSuffix)) {
    rest.remove_suffix(kSuffix.size());
    kind = StallKind::kNotIssued;
  }
  if (rest.empty()) return {StallKind::kOther, {}};
  return {kind, std::string(rest)};
}

std::string PcAccounting::check() const {
  if (emitted && *emitted != records + sum(lost_ring)) {
    return unequal("PC records emitted", *emitted, "received and lost in the ring",
                   records + sum(lost_ring));
  }
  const uint64_t parts = samples + not_issued + other + unnamed + refused + pending;
  if (counts != parts) return unequal("PC counts", counts, "the sum of their kinds", parts);
  if (samples != sum(attrib)) {
    return unequal("PC samples", samples, "the sum of their attributions", sum(attrib));
  }
  return {};
}

PcAccounting& PcAccounting::operator+=(const PcAccounting& from) {
  records += from.records;
  if (from.emitted) emitted = emitted.value_or(0) + *from.emitted;
  for (size_t i = 0; i < kPcLossSlots; ++i) lost_ring[i] += from.lost_ring[i];
  counts += from.counts;
  samples += from.samples;
  not_issued += from.not_issued;
  other += from.other;
  unnamed += from.unnamed;
  refused += from.refused;
  pending += from.pending;
  for (size_t i = 0; i < kPcAttribCount; ++i) attrib[i] += from.attrib[i];
  return *this;
}

std::string WindowCounts::check() const {
  const uint64_t told = sum(opened) + closed + duplicates + refused;
  if (records != told) return unequal("window records", records, "the sum of their kinds", told);
  const uint64_t begun = sum(opened) + opens_lost;
  const uint64_t ended = closed + closes_lost + open;
  if (begun != ended) return unequal("windows begun", begun, "ended or open", ended);
  return {};
}

}  // namespace gpuprof::join
