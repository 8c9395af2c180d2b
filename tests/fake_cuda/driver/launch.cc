// SPDX-License-Identifier: Apache-2.0
// Kernel launches and modules. kernelParams[0], where given, points at a uint64_t: how long the
// kernel runs on the fake GPU, in ns.
#include <elf.h>

#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {

/// Appends to the graph under capture. The work never executes by itself.
void capture(Stream* stream, const Execution& work, const Function* function,
             uint64_t duration_ns) {
  {
    std::lock_guard lock(stream->mutex);
    if (stream->capture == nullptr) return;
    stream->capture->nodes.push_back(
        Node{driver().next_node.fetch_add(1), work, function, duration_ns});
  }
  driver().captured.fetch_add(1);
  if (const CuptiHooks* hooks = interface().hooks.load()) {
    CUpti_GraphData data{};
    const Inside before = thread_state().inside;
    thread_state().inside = Inside::kResource;
    hooks->resource(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, thread_state().context, &data);
    thread_state().inside = before;
  }
}

bool is_capturing(Stream* stream) {
  std::lock_guard lock(stream->mutex);
  return stream->capture != nullptr;
}

namespace {

struct Shape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
};

uint64_t duration_of(void** params) {
  if (params != nullptr && params[0] != nullptr) return *static_cast<uint64_t*>(params[0]);
  return setting(Key::kDefaultDurationNs);
}

/// Kernels that wait for each other, run one at a time, never end.
void check_deadlock(const Context* context, const Function& function, bool cooperative) {
  const uint64_t serialized = interface().serialized.load(std::memory_order_relaxed);
  if ((serialized >> (context->id % 64) & 1) == 0) return;
  const bool collective = function.name.rfind("nccl", 0) == 0 ||
                          function.name.find("ncclDevKernel") != std::string::npos ||
                          function.name.find("nvshmem") != std::string::npos;
  if (!collective && !cooperative) return;
  fatal("serialized-deadlock", "%s launched while kernels run one at a time",
        function.name.c_str());
}

CUresult launch(uint32_t cbid, const char* name, const void* api_params, CUfunction f,
                const Shape& shape, CUstream stream, void** params, bool per_thread,
                bool cooperative = false) {
  auto* function = reinterpret_cast<Function*>(f);
  Context* context = interface().forked() ? nullptr : current_context();
  Stream* on = context ? stream_of(context, stream, per_thread) : nullptr;
  const bool capturing = on && is_capturing(on);
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, cbid, name, api_params,
          function ? function->told.c_str() : nullptr, true, capturing);
  if (!api.allowed() || on == nullptr)
    return static_cast<CUresult>(api.finish(CUDA_ERROR_NOT_INITIALIZED));
  if (function == nullptr) return static_cast<CUresult>(api.finish(CUDA_ERROR_INVALID_HANDLE));
  Execution work{};
  work.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  work.correlation = api.correlation();
  work.name = function->told.c_str();
  memcpy(work.grid, shape.grid, sizeof work.grid);
  memcpy(work.block, shape.block, sizeof work.block);
  work.dynamic_shared = shape.shared;
  work.static_shared = function->static_shared;
  work.registers = function->registers;
  work.code = function->code.load(std::memory_order_acquire);
  if (capturing) {
    capture(on, work, function, duration_of(params));
  } else {
    check_deadlock(context, *function, cooperative);
    execute(context, on, work, function, duration_of(params), false);
  }
  return static_cast<CUresult>(api.finish(0));
}

/// Bytes of the ELF image at `image`; text (PTX) counts as what a compiler made of it.
size_t image_bytes(const void* image) {
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
    return strlen(static_cast<const char*>(image)) + 1;
  uint64_t end = header->e_shoff + static_cast<uint64_t>(header->e_shnum) * header->e_shentsize;
  const uint64_t segments =
      header->e_phoff + static_cast<uint64_t>(header->e_phnum) * header->e_phentsize;
  if (segments > end) end = segments;
  return end > sizeof *header ? end : sizeof *header;
}

/// On an H200 the names in records of an unloaded module were those of the next one that was
/// loaded.
void use_memory_again() {
  std::lock_guard lock(driver().mutex);
  for (Function* function : driver().gone) {
    for (char& letter : function->told) letter = '~';
  }
  driver().gone.clear();
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

#define FAKE_LAUNCH(name, suffix, per_thread)                                                   \
  FAKE_EXPORT CUresult name##suffix(CUfunction f, unsigned gx, unsigned gy, unsigned gz,        \
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,     \
                                    CUstream stream, void** params, void** extra) {             \
    cuLaunchKernel_params api_params{f, gx, gy, gz, bx, by, bz, shared, stream, params, extra}; \
    return launch(CUPTI_DRIVER_TRACE_CBID_##name##suffix, #name #suffix, &api_params, f,        \
                  Shape{{gx, gy, gz}, {bx, by, bz}, shared}, stream, params, per_thread);       \
  }
FAKE_LAUNCH(cuLaunchKernel, , false)
FAKE_LAUNCH(cuLaunchKernel, _ptsz, true)

#define FAKE_COOPERATIVE(name, suffix, per_thread)                                              \
  FAKE_EXPORT CUresult name##suffix(CUfunction f, unsigned gx, unsigned gy, unsigned gz,        \
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,     \
                                    CUstream stream, void** params) {                           \
    cuLaunchCooperativeKernel_params api_params{                                                \
        f, gx, gy, gz, bx, by, bz, shared, stream, params};                                     \
    return launch(CUPTI_DRIVER_TRACE_CBID_##name##suffix, #name #suffix, &api_params, f,        \
                  Shape{{gx, gy, gz}, {bx, by, bz}, shared}, stream, params, per_thread, true); \
  }
FAKE_COOPERATIVE(cuLaunchCooperativeKernel, , false)
FAKE_COOPERATIVE(cuLaunchCooperativeKernel, _ptsz, true)

#define FAKE_LAUNCH_EX(name, suffix, per_thread)                                          \
  FAKE_EXPORT CUresult name##suffix(const CUlaunchConfig* c, CUfunction f, void** params, \
                                    void** extra) {                                       \
    cuLaunchKernelEx_params api_params{c, f, params, extra};                              \
    return launch(CUPTI_DRIVER_TRACE_CBID_##name##suffix, #name #suffix, &api_params, f,  \
                  Shape{{c->gridDimX, c->gridDimY, c->gridDimZ},                          \
                        {c->blockDimX, c->blockDimY, c->blockDimZ},                       \
                        c->sharedMemBytes},                                               \
                  c->hStream, params, per_thread);                                        \
  }
FAKE_LAUNCH_EX(cuLaunchKernelEx, , false)
FAKE_LAUNCH_EX(cuLaunchKernelEx, _ptsz, true)

FAKE_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  cuModuleLoadData_params params{module, image};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData, "cuModuleLoadData",
          &params);
  if (!api.allowed()) return static_cast<CUresult>(api.finish(0));
  current_context();
  use_memory_again();
  auto* fresh = new Module;
  fresh->id = driver().next_module.fetch_add(1);
  const auto* bytes = static_cast<const char*>(image);
  fresh->image.assign(bytes, bytes + image_bytes(image));
  if (const CuptiHooks* hooks = interface().hooks.load()) {
    fresh->crc = hooks->module_loaded(thread_state().context, fresh->id, fresh->image.data(),
                                      fresh->image.size(), setting(Key::kTemporaryModules) != 0);
  }
  *module = reinterpret_cast<CUmodule>(fresh);
  return static_cast<CUresult>(api.finish(0));
}

FAKE_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned,
                                        CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}

FAKE_EXPORT CUresult cuModuleUnload(CUmodule module) {
  cuModuleUnload_params params{module};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuModuleUnload, "cuModuleUnload",
          &params);
  if (!api.allowed()) return static_cast<CUresult>(api.finish(0));
  if (setting(Key::kInstant) == 0) wait_gpu(driver().last_gpu_end_ns.load());
  auto* gone = reinterpret_cast<Module*>(module);
  if (const CuptiHooks* hooks = interface().hooks.load()) {
    hooks->module_unloading(thread_state().context, gone->id, gone->image.data(),
                            gone->image.size());
  }
  // The memory stays readable with changed contents, as measured.
  memset(gone->image.data(), 0xdd, gone->image.size());
  gone->image = {};
  std::scoped_lock lock(gone->mutex, driver().mutex);
  driver().gone.insert(driver().gone.end(), gone->functions.begin(), gone->functions.end());
  return static_cast<CUresult>(api.finish(0));
}

/// Every name exists in every module; two modules give two functions of one name.
FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  auto* in = reinterpret_cast<Module*>(module);
  std::lock_guard lock(in->mutex);
  for (Function* known : in->functions) {
    if (known->name == name) {
      *function = reinterpret_cast<CUfunction>(known);
      return CUDA_SUCCESS;
    }
  }
  auto* fresh = new Function;
  fresh->name = fresh->told = name;
  fresh->module_id = in->id;
  give_code(*fresh, *in);
  in->functions.push_back(fresh);
  *function = reinterpret_cast<CUfunction>(fresh);
  return CUDA_SUCCESS;
}
