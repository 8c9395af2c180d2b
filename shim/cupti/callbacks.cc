// SPDX-License-Identifier: Apache-2.0
// The subscriber's callback. It runs on the application's thread at every enabled API call, so the
// usual path (a launch that is not drawn) is two table look-ups, a few loads and the sampler's
// decrement.
#include "shim/core/clock.h"
#include "shim/core/correlation.h"
#include "shim/core/knobs.h"
#include "shim/core/name_table.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/sampler.h"
#include "shim/core/self.h"
#include "shim/core/status.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/callback_ids.h"
#include "shim/cupti/callback_scope.h"
#include "shim/cupti/launch_key.h"
#include "shim/cupti/launch_names.h"
#include "shim/cupti/modules.h"
#include "shim/cupti/pc_sampling.h"
#include "shim/cupti/service.h"

namespace gpuprof::cupti {
namespace {

/// Plain data without a destructor: the shim needs no static TLS and threads may end at any time.
struct ThreadState {
  uint32_t last_correlation;  // of the launch that was counted last, while two domains are on
  uint32_t entered;           // runtime call that the thread is in, while the rule is checked
  uint32_t calls;             // that the thread is in, seen while no activity is on
  bool node_created;          // a graph node since the last API entry: the launch is being captured
  PcThreadState pc;
  LaunchNames::Memory names;
};
__thread ThreadState thread_state;

gpuprof_kind kind_of(Call call) noexcept {
  switch (call) {
    case Call::kGraph:
      return GPUPROF_KIND_GRAPH;
    case Call::kMemcpy:
      return GPUPROF_KIND_MEMCPY;
    case Call::kMemset:
      return GPUPROF_KIND_MEMSET;
    default:
      return GPUPROF_KIND_KERNEL;
  }
}

/// CUresult and cudaError_t are both ints with 0 for success.
bool succeeded(const CUpti_CallbackData& data) noexcept {
  return data.functionReturnValue == nullptr ||
         *static_cast<const int*>(data.functionReturnValue) == 0;
}

/// Fires launch_v1 from here, on the launching thread, because the stack is taken in the probe.
void emit_launch(Domain domain, CUpti_CallbackId id, Call call, const CUpti_CallbackData& data,
                 const shim::WideCorrelation& wide, uint64_t weight_q32) noexcept {
  if (!shim::enabled(GPUPROF_PROBE_LAUNCH)) return;
  const CallbackScope scope;
  if (!shim::charge_stack_bytes(shim::stack_copy_bytes())) {
    shim::count_drop(GPUPROF_DROP_STACK_BUDGET);
    return;
  }
  gpuprof_launch_v1 launch = {};
  launch.time_ns = shim::monotonic_ns();
  launch.correlation = wide.id;
  launch.epoch = wide.epoch;
  launch.name_id = call == Call::kKernel ? shim::intern(data.symbolName) : 0;
  launch.weight_q32 = weight_q32;
  launch.kind = kind_of(call);
  launch.context_id = data.contextUid;
  launch.api_domain = static_cast<uint32_t>(domain);
  launch.api_id = id;
  launch.tid = shim::thread_id();
  shim::emit(GPUPROF_PROBE_LAUNCH, &launch, 1);
}

void on_capture_call(Call call, const CUpti_CallbackData& data) noexcept {
  CaptureTracker& captures = arming().captures();
  if (data.functionParams == nullptr) {
    captures.entered(&thread_state);
    return;
  }
  // All of these calls have the stream as their first parameter (generated_cuda_meta.h).
  const void* stream = *static_cast<void* const*>(data.functionParams);
  if (call == Call::kCaptureEnd) {
    captures.end(stream, &thread_state);
    return;
  }
  if (succeeded(data)) captures.begin(stream, &thread_state, shim::monotonic_ns());
  captures.entered(&thread_state);
}

/// True if this EXIT is the launch's first, by the rule of LaunchRule.
bool first_callback_of(Domain domain, uint32_t correlation) noexcept {
  LaunchRule& rule = arming().rule();
  if (domain == Domain::kRuntime) {
    const bool entered = thread_state.entered == correlation;
    return rule.observe_runtime(correlation, entered, &thread_state.last_correlation);
  }
  if (rule.verdict() != LaunchRule::Verdict::kDriverOnly) {
    LaunchRule::observe_driver(correlation, &thread_state.last_correlation);
  }
  return true;
}

void on_api(Phase phase, Domain domain, CUpti_CallbackId id,
            const CUpti_CallbackData& data) noexcept {
  const Call call = call_of(domain, id);
  if (!arming().was_on_once())
    arming().note_call(data.callbackSite == CUPTI_API_ENTER, &thread_state.calls);
  if (data.callbackSite == CUPTI_API_ENTER) {
    // In every phase: a launch may enter while tracing and leave while disarming, and a node that
    // an earlier capture made must not pass for its own.
    thread_state.node_created = false;
    if (domain == Domain::kRuntime) thread_state.entered = data.correlationId;
    if (domain == Domain::kDriver && is_launch(call)) arming().rule().saw_driver_launch();
    if (call == Call::kCaptureBegin) arming().before_capture(&thread_state);
    if (pc_sampling().watching()) pc_sampling().on_launch_enter(domain, id, call, data);
    return;
  }
  if (is_capture(call)) {
    on_capture_call(call, data);
    return;
  }
  // A call that failed put nothing on the GPU.
  if (call == Call::kOther || !succeeded(data)) return;
  if (!first_callback_of(domain, data.correlationId)) return;
  if (phase == Phase::kTracing) {
    note_launch();
    const shim::WideCorrelation wide = shim::correlations().launch(data.correlationId);
    uint64_t weight_q32 = 0;
    const uint64_t work = launched_work(domain, id, call, data.functionParams);
    if (call == Call::kKernel) {
      launch_names().note(wide, work, data.symbolName, thread_state.names);
    }
    if (shim::draw_launch(launch_key(call, data.contextUid, work), &weight_q32)) {
      emit_launch(domain, id, call, data, wide, weight_q32);
    }
    if (pc_sampling().attention() && is_launch(call)) {
      pc_sampling().on_launch_exit(data.context, data.contextUid, thread_state.node_created,
                                   &thread_state.pc);
    }
  } else if (is_launch(call) && (phase == Phase::kArming || phase == Phase::kDisarming)) {
    const CallbackScope scope;
    arming().on_launch_exit(data, thread_state.node_created);
  }
}

void on_resource(CUpti_CallbackId id, const CUpti_ResourceData& data) noexcept {
  switch (static_cast<ResourceId>(id)) {
    case ResourceId::kModuleLoaded:
    case ResourceId::kModuleUnloadStarting: {
      if (static_cast<ResourceId>(id) == ResourceId::kModuleLoaded) {
        launch_names().module_loaded();
      } else {
        launch_names().names_going();
      }
      pc_sampling().on_module_change(data.context);
      const auto* module = static_cast<const CUpti_ModuleResourceData*>(data.resourceDescriptor);
      if (module == nullptr || !shim::knobs().modules) return;
      const bool armed = arming().phase() == Phase::kTracing;
      if (static_cast<ResourceId>(id) == ResourceId::kModuleLoaded) {
        on_module_loaded(module->pCubin, module->cubinSize, armed);
      } else {
        on_module_unloading(module->pCubin, module->cubinSize, armed, pc_sampling().wanted());
      }
      break;
    }
    case ResourceId::kGraphNodeCreated:
      thread_state.node_created = true;
      break;
    case ResourceId::kContextCreated:
      note_launch();  // as good a sign that cuInit has returned
      pc_sampling().on_context_created(data.context);
      break;
    case ResourceId::kContextDestroyStarting:
      launch_names().names_going();
      pc_sampling().on_context_destroying(data.context);
      break;
  }
}

/// CUPTI has met an error that it does not survive, and tears itself down after this callback.
void on_fatal_error() noexcept {
  const CallbackScope scope;
  arming().lose(GPUPROF_REASON_FATAL_ERROR, "CUPTI reported a fatal error");
}

}  // namespace

void on_callback(void* /*user*/, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                 const void* data) noexcept {
  if (data == nullptr || !shim::owned()) return;
  const Phase phase = arming().phase();
  if (phase == Phase::kInert) return;
  switch (static_cast<Domain>(domain)) {
    case Domain::kDriver:
    case Domain::kRuntime:
      on_api(phase, static_cast<Domain>(domain), id, *static_cast<const CUpti_CallbackData*>(data));
      break;
    case Domain::kResource:
      on_resource(id, *static_cast<const CUpti_ResourceData*>(data));
      break;
    case Domain::kState:
      if (id == kStateFatalError) on_fatal_error();
      break;
  }
}

}  // namespace gpuprof::cupti
