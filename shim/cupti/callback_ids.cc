// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/callback_ids.h"

namespace gpuprof::cupti {
namespace {

constexpr CallbackId kIds[] = {
#define X(domain, id, name, call) {Domain::domain, id, Call::call},
#include "shim/cupti/callback_ids.inc"
#undef X
};

constexpr uint32_t kMaxId = 1024;

struct Lookup {
  Call driver[kMaxId];
  Call runtime[kMaxId];
};

constexpr Lookup make_lookup() {
  Lookup lookup{};
  for (const CallbackId& entry : kIds) {
    (entry.domain == Domain::kDriver ? lookup.driver : lookup.runtime)[entry.id] = entry.call;
  }
  return lookup;
}
constexpr Lookup kLookup = make_lookup();

}  // namespace

const CallbackId* callback_ids(size_t* count) noexcept {
  *count = sizeof kIds / sizeof kIds[0];
  return kIds;
}

Call call_of(Domain domain, uint32_t id) noexcept {
  if (id >= kMaxId) return Call::kOther;
  if (domain == Domain::kDriver) return kLookup.driver[id];
  return domain == Domain::kRuntime ? kLookup.runtime[id] : Call::kOther;
}

}  // namespace gpuprof::cupti
