// SPDX-License-Identifier: Apache-2.0
// CUDA graphs: stream capture, instantiation, launch. A launch's nodes share its correlation id.
#include <cstdlib>

#include "tests/fake_cuda/driver/state.h"

namespace fakecuda {
namespace {

void resource(uint32_t cbid, CUgraph graph, CUgraphExec exec) {
  const CuptiHooks* hooks = interface().hooks.load();
  if (hooks == nullptr) return;
  CUpti_GraphData data{};
  data.graph = graph;
  data.graphExec = exec;
  const Inside before = thread_state().inside;
  thread_state().inside = Inside::kResource;
  hooks->resource(cbid, thread_state().context, &data);
  thread_state().inside = before;
}

CUresult begin_capture(uint32_t cbid, const char* name, CUstream stream, CUstreamCaptureMode mode,
                       bool per_thread) {
  cuStreamBeginCapture_v2_params params{stream, mode};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, cbid, name, &params);
  if (!api.allowed()) return static_cast<CUresult>(api.finish(0));
  Stream* on = stream_of(current_context(), stream, per_thread);
  // The legacy default stream cannot be captured.
  if (on == &current_context()->default_stream) {
    return static_cast<CUresult>(api.finish(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  }
  if (api.announced() && interface().switching.load() != 0) {
    interface().violation("capture-begins",
                          "%s while another thread switches activity or PC sampling", name);
  }
  auto* graph = new Graph;
  graph->id = driver().next_graph.fetch_add(1);
  {
    std::lock_guard lock(on->mutex);
    on->capture = graph;
  }
  resource(CUPTI_CBID_RESOURCE_GRAPH_CREATED, reinterpret_cast<CUgraph>(graph), nullptr);
  return static_cast<CUresult>(api.finish(0));
}

CUresult end_capture(uint32_t cbid, const char* name, CUstream stream, CUgraph* graph,
                     bool per_thread) {
  cuStreamEndCapture_params params{stream, graph};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, cbid, name, &params);
  if (!api.allowed()) return static_cast<CUresult>(api.finish(0));
  Stream* on = stream_of(current_context(), stream, per_thread);
  std::unique_lock lock(on->mutex);
  *graph = reinterpret_cast<CUgraph>(on->capture);
  on->capture = nullptr;
  lock.unlock();
  return static_cast<CUresult>(api.finish(*graph ? 0 : CUDA_ERROR_ILLEGAL_STATE));
}

CUresult graph_launch(uint32_t cbid, const char* name, CUgraphExec exec, CUstream stream,
                      bool per_thread) {
  cuGraphLaunch_params params{exec, stream};
  Context* context = interface().forked() ? nullptr : current_context();
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, cbid, name, &params, nullptr, true);
  if (!api.allowed() || context == nullptr)
    return static_cast<CUresult>(api.finish(CUDA_ERROR_NOT_INITIALIZED));
  Stream* on = stream_of(context, stream, per_thread);
  const auto* graph = reinterpret_cast<const Graph*>(exec);
  for (const Node& node : graph->nodes) {
    Execution work = node.work;
    work.correlation = api.correlation();
    work.graph_id = graph->id;
    work.graph_node = node.id;
    execute(context, on, work, node.function, node.duration_ns, true);
  }
  return static_cast<CUresult>(api.finish(0));
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2, "cuStreamBeginCapture_v2",
                       stream, mode, false);
}
FAKE_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2_ptsz,
                       "cuStreamBeginCapture_v2_ptsz", stream, mode, true);
}
FAKE_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture(CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture, "cuStreamEndCapture", stream,
                     graph, false);
}
FAKE_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture_ptsz, "cuStreamEndCapture_ptsz",
                     stream, graph, true);
}

FAKE_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamIsCapturing,
          "cuStreamIsCapturing", nullptr);
  if (api.allowed()) {
    Stream* on = stream_of(current_context(), stream, false);
    std::lock_guard lock(on->mutex);
    *status = on->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  }
  return static_cast<CUresult>(api.finish(0));
}

/// The executable graph is a copy with its own id; nodes keep theirs.
FAKE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                                 unsigned long long flags) {
  cuGraphInstantiateWithFlags_params params{exec, graph, flags};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags,
          "cuGraphInstantiateWithFlags", &params);
  if (!api.allowed()) return static_cast<CUresult>(api.finish(0));
  auto* copy = new Graph(*reinterpret_cast<Graph*>(graph));
  copy->id = driver().next_graph.fetch_add(1);
  *exec = reinterpret_cast<CUgraphExec>(copy);
  resource(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED, graph, *exec);
  return static_cast<CUresult>(api.finish(0));
}

FAKE_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  cuGraphDestroy_params params{graph};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuGraphDestroy, "cuGraphDestroy",
          &params);
  if (api.allowed()) delete reinterpret_cast<Graph*>(graph);
  return static_cast<CUresult>(api.finish(0));
}

FAKE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  cuGraphExecDestroy_params params{exec};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuGraphExecDestroy,
          "cuGraphExecDestroy", &params);
  if (api.allowed()) delete reinterpret_cast<Graph*>(exec);
  return static_cast<CUresult>(api.finish(0));
}

FAKE_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return graph_launch(CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, "cuGraphLaunch", exec, stream, false);
}
FAKE_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return graph_launch(CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz, "cuGraphLaunch_ptsz", exec,
                      stream, true);
}
