// SPDX-License-Identifier: Apache-2.0
//
// An InitializeInjection that reaches all of shim/core, to see how it links.
#include <unistd.h>

#include "shim/core/clock.h"
#include "shim/core/correlation.h"
#include "shim/core/exec_batch.h"
#include "shim/core/knobs.h"
#include "shim/core/lease.h"
#include "shim/core/log.h"
#include "shim/core/memfd.h"
#include "shim/core/metadata.h"
#include "shim/core/name_table.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/sampler.h"
#include "shim/core/status.h"
#include "shim/core/thread.h"

using namespace gpuprof::shim;

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  load_knobs(environ);
  open_log(knobs().log);
  if (own_process() != Status::kOk || channel().create(knobs().module_bytes) != Status::kOk ||
      names().create() != Status::kOk || install_fork_handler() != Status::kOk) {
    complain("declined");
    return 1;
  }
  if (start_service_thread([](void*) { replay_on_edges(); }, nullptr) != Status::kOk) return 1;
  uint64_t weight = 0;
  configure_sampler({});
  if (draw_launch(stratum_key(GPUPROF_KIND_KERNEL, 1, 64), &weight) && charge_stack_bytes(1)) {
    ExecBatch().next().name_id = intern("kernel");
  }
  clock_converter().sample();
  correlations().launch(correlations().begin_arm_at_init());
  (void)channel().modules().append(1, &weight, sizeof weight, monotonic_ns());
  Lease lease;
  ControlRequest request;
  (void)lease.update(channel().read(&request), request, monotonic_ns());
  set_state(GPUPROF_STATE_IDLE, GPUPROF_REASON_NONE, nullptr);
  emit_drops(true);
  (void)emit_process(channel().fd());
  return 1;
}
