// SPDX-License-Identifier: Apache-2.0
// Arming's subscriber and its callback ids, which only the service thread and init switch. Ids are
// enabled one by one: an id that this CUPTI refuses is left out, and nothing else changes.
#include "shim/core/clock.h"
#include "shim/core/log.h"
#include "shim/cupti/arming.h"

namespace gpuprof::cupti {

bool Arming::subscribe(const Guard& guard, uint64_t now_ns) noexcept {
  if (subscribed_) return true;
  const CUptiResult result = guard.subscribe(&subscriber_, on_callback, nullptr);
  if (result != CUPTI_SUCCESS) {
    fail(guard, now_ns, "cuptiSubscribe", result);
    return false;
  }
  subscribed_ = true;
  captures_.reset();
  const auto resource = [&](ResourceId id) {
    const CUptiResult answer = guard.enable_callback(
        true, subscriber_, static_cast<uint32_t>(Domain::kResource), static_cast<uint32_t>(id));
    if (answer != CUPTI_SUCCESS) {
      shim::log_line("resource callback %u refused: %d", static_cast<unsigned>(id), answer);
    }
  };
  resource(ResourceId::kContextCreated);
  resource(ResourceId::kContextDestroyStarting);
  // With modules off too: PC sampling is drained there.
  resource(ResourceId::kModuleLoaded);
  resource(ResourceId::kModuleUnloadStarting);
  resource(ResourceId::kGraphNodeCreated);
  if (quirks_.state_domain) {
    (void)guard.enable_callback(true, subscriber_, static_cast<uint32_t>(Domain::kState),
                                kStateFatalError);
  }
  return true;
}

bool Arming::enable_launch_ids(const Guard& guard) noexcept {
  const LaunchRule::Verdict verdict = rule_.verdict();
  const bool driver = verdict != LaunchRule::Verdict::kRuntimeOnly;
  const bool runtime_launches = verdict != LaunchRule::Verdict::kDriverOnly;
  const bool runtime_copies = runtime_launches && verdict != LaunchRule::Verdict::kChecking;
  uint32_t launches = 0;
  size_t count = 0;
  const CallbackId* ids = callback_ids(&count);
  for (size_t i = 0; i < count; ++i) {
    const CallbackId& id = ids[i];
    const bool wanted = id.domain == Domain::kDriver
                            ? driver
                            : (is_copy(id.call) ? runtime_copies : runtime_launches);
    if (!wanted) continue;
    // An id that this CUPTI does not know is refused: others carry the same launches there.
    const CUptiResult result =
        guard.enable_callback(true, subscriber_, static_cast<uint32_t>(id.domain), id.id);
    if (result == CUPTI_SUCCESS && is_launch(id.call)) ++launches;
  }
  driver_ids_on_ = driver;
  runtime_launch_ids_on_ = runtime_launches;
  runtime_copy_ids_on_ = runtime_copies;
  return launches > 0;
}

void Arming::note_call(bool entered, uint32_t* inside) noexcept {
  last_call_ns_.store(shim::monotonic_ns(), std::memory_order_relaxed);
  if (entered) {
    ++*inside;
    calls_.fetch_add(1, std::memory_order_relaxed);
  } else if (*inside != 0) {  // else it entered before the ids were on
    --*inside;
    calls_.fetch_sub(1, std::memory_order_relaxed);
  }
}

/// Whether a switched off id could stick (quirks.h) to a thread that is in a call now.
bool Arming::ids_must_stay(uint64_t now_ns) const noexcept {
  if (!quirks_.ids_stick || was_on_once()) return false;
  if (calls_.load(std::memory_order_relaxed) != 0) return true;
  const uint64_t last_ns = last_call_ns_.load(std::memory_order_relaxed);
  return last_ns != 0 && (now_ns < last_ns || now_ns - last_ns < kQuietNs);
}

/// All but runtime ids that would stick.
void Arming::disable_launch_ids(const Guard& guard) noexcept {
  const bool keep_runtime = quirks_.ids_stick;
  size_t count = 0;
  const CallbackId* ids = callback_ids(&count);
  // Last to first: no runtime call may come out after its driver callback was switched off.
  for (size_t i = count; i-- > 0;) {
    const CallbackId& id = ids[i];
    const bool on = id.domain == Domain::kDriver
                        ? driver_ids_on_
                        : (is_copy(id.call) ? runtime_copy_ids_on_ : runtime_launch_ids_on_);
    if (!on || (id.domain == Domain::kRuntime && keep_runtime)) continue;
    (void)guard.enable_callback(false, subscriber_, static_cast<uint32_t>(id.domain), id.id);
  }
  driver_ids_on_ = false;
  if (!keep_runtime) runtime_launch_ids_on_ = runtime_copy_ids_on_ = false;
}

void Arming::switch_runtime_ids(const Guard& guard, bool copies, bool on) noexcept {
  size_t count = 0;
  const CallbackId* ids = callback_ids(&count);
  for (size_t i = 0; i < count; ++i) {
    if (ids[i].domain != Domain::kRuntime || is_copy(ids[i].call) != copies) continue;
    (void)guard.enable_callback(on, subscriber_, static_cast<uint32_t>(Domain::kRuntime),
                                ids[i].id);
  }
  (copies ? runtime_copy_ids_on_ : runtime_launch_ids_on_) = on;
}

/// Switches the runtime ids to what the rule's verdict needs. The one that both domains are needed
/// may follow the one that the driver's suffice: a launch that proves it can be late.
void Arming::follow_rule(const Guard& guard) noexcept {
  if (!driver_ids_on_) return;  // at rest under the no_disarm quirk, or the runtime's alone
  const LaunchRule::Verdict verdict = rule_.verdict();
  if (verdict == LaunchRule::Verdict::kDriverOnly && runtime_launch_ids_on_) {
    switch_runtime_ids(guard, false, false);
    shim::log_line("driver launch callbacks suffice");
  }
  if (verdict != LaunchRule::Verdict::kBothDomains) return;
  const bool news = !runtime_launch_ids_on_ || !runtime_copy_ids_on_;
  if (!runtime_launch_ids_on_) switch_runtime_ids(guard, false, true);
  if (!runtime_copy_ids_on_) switch_runtime_ids(guard, true, true);
  if (news) shim::log_line("driver launch callbacks are missing: both domains are used");
}

}  // namespace gpuprof::cupti
