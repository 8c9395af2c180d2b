// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/play/player.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/play/call_path.h"

namespace fakecuda {
namespace {

void check(CUresult result, const char* what, int line = 0) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "session line %d: %s: CUDA error %d\n", line, what, static_cast<int>(result));
}

void require(CUresult result, const char* what) {
  check(result, what);
  if (result != CUDA_SUCCESS) exit(1);
}

/// Synthetic bytes that start like an ELF image of the size asked for, different for each module.
std::vector<char> synthetic(const std::string& name, uint64_t bytes) {
  std::vector<char> image(bytes < 128 ? 128 : bytes, 0);
  std::mt19937_64 random(std::hash<std::string>{}(name));
  for (char& byte : image) byte = static_cast<char>(random());
  const char header[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
  std::copy(std::begin(header), std::end(header), image.begin());
  // e_shoff and e_shnum are what the driver takes the size from: one section header of 64 bytes at
  // the end.
  const uint64_t section_offset = image.size() - 64;
  for (size_t i = 0; i < 8; ++i) image[40 + i] = static_cast<char>(section_offset >> (8 * i));
  image[58] = 64;
  image[60] = 1;
  return image;
}

std::vector<char> read_image(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    fprintf(stderr, "session: cannot read module %s\n", file.c_str());
    exit(2);
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

std::atomic<bool> stopping{false};

/// ASan keeps what it knew of frames that a cancelled thread leaves, and trips over it (GCC 12).
void forget_frames(void*) {
#ifdef __SANITIZE_ADDRESS__
  __asan_handle_no_return();
#endif
}

/// In pieces, so that a session can be stopped.
void sleep_ns(uint64_t ns) {
  constexpr uint64_t kPieceNs = 50'000'000;
  while (ns != 0 && !stopping) {
    const uint64_t piece = ns < kPieceNs ? ns : kPieceNs;
    const timespec pause{0, static_cast<long>(piece)};
    pthread_cleanup_push(forget_frames, nullptr);
    nanosleep(&pause, nullptr);
    pthread_cleanup_pop(0);
    ns -= piece;
  }
}

CUstream new_stream() {
  CUstream stream = nullptr;
  check(cuStreamCreate(&stream, 0), "cuStreamCreate");
  return stream;
}

struct LaunchCall {
  CUfunction function;
  uint64_t duration_ns;
  CUstream stream;
  CUgraphExec graph;
  CUresult result;
  bool cooperative;
};

void launch_body(void* argument) {
  auto* call = static_cast<LaunchCall*>(argument);
  if (call->graph != nullptr) {
    call->result = cuGraphLaunch(call->graph, call->stream);
    return;
  }
  void* parameters[] = {&call->duration_ns};
  if (call->cooperative) {
    call->result =
        cuLaunchCooperativeKernel(call->function, 1, 1, 1, 32, 1, 1, 0, call->stream, parameters);
    return;
  }
  call->result =
      cuLaunchKernel(call->function, 1, 1, 1, 32, 1, 1, 0, call->stream, parameters, nullptr);
}

struct CopyCall {
  const Op* op;
  CUstream stream;
  CUresult result;
};

void copy_body(void* argument) {
  auto* call = static_cast<CopyCall*>(argument);
  constexpr CUdeviceptr kDevice = 0x1000;
  void* const host = call;
  if (call->op->verb == Verb::kMemset) {
    call->result = cuMemsetD8Async(kDevice, 0, call->op->number, call->stream);
  } else if (call->op->name == "htod") {
    call->result = cuMemcpyHtoDAsync(kDevice, host, call->op->number, call->stream);
  } else if (call->op->name == "dtoh") {
    call->result = cuMemcpyDtoHAsync(host, kDevice, call->op->number, call->stream);
  } else {
    call->result = cuMemcpyDtoDAsync(kDevice, kDevice, call->op->number, call->stream);
  }
}

CUgraphExec make_graph(const Stage& stage, const GraphSpec& spec) {
  CUstream stream = new_stream();
  require(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  for (const std::string& name : spec.nodes) {
    const LoadedKernel& kernel = stage.kernels.at(name);
    LaunchCall call{
        kernel.function, kernel.spec.duration.low_ns, stream, nullptr, CUDA_SUCCESS, false};
    launch_body(&call);
  }
  CUgraph graph = nullptr;
  require(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CUgraphExec exec = nullptr;
  require(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  return exec;
}

CUfunction get_function(CUmodule module, const KernelSpec& spec) {
  CUfunction function = nullptr;
  require(cuModuleGetFunction(&function, module, spec.function.c_str()), "cuModuleGetFunction");
  if (!spec.pcs.empty() && fake_cuda_pcs(function, spec.pcs.c_str()) != 0) exit(2);
  return function;
}

CUresult load_module(const ModuleSpec& spec, const std::vector<char>& image, CUmodule* module) {
  if (spec.foreign) fake_cuda_set("hash_replaced", "1");
  const CUresult result = cuModuleLoadData(module, image.data());
  if (spec.foreign) fake_cuda_set("hash_replaced", "0");
  return result;
}

}  // namespace

void stop_playing() { stopping.store(true); }

Stage* set_stage(const char* path, const std::map<std::string, std::string>& set) {
  auto* stage = new Stage{read_session(path, set), {}, {}, {}};
  for (const auto& [key, value] : stage->session.settings) {
    if (fake_cuda_set(key.c_str(), value.c_str()) != 0) {
      fprintf(stderr, "%s: unknown setting %s\n", path, key.c_str());
      exit(2);
    }
  }
  require(cuInit(0), "cuInit");
  std::map<std::string, CUmodule> modules;
  if (stage->session.modules.try_emplace("default").second)
    stage->session.module_order.insert(stage->session.module_order.begin(), "default");
  for (const std::string& name : stage->session.module_order) {
    const ModuleSpec& spec = stage->session.modules[name];
    std::vector<char>& image = stage->images[name];
    image = spec.file.empty() ? synthetic(name, spec.bytes) : read_image(spec.file);
    if (!spec.later) require(load_module(spec, image, &modules[name]), "cuModuleLoadData");
  }
  for (const auto& [name, spec] : stage->session.kernels) {
    LoadedKernel& kernel = stage->kernels[name];
    kernel.spec = spec;
    if (CUmodule module = modules[spec.module]) kernel.function = get_function(module, spec);
  }
  for (const auto& [name, spec] : stage->session.graphs)
    stage->graphs[name] = make_graph(*stage, spec);
  return stage;
}

Player::Player(Stage& stage, const ThreadSpec& thread, const char* root)
    : stage_(stage),
      thread_(thread),
      root_(root),
      random_(stage.session.seed + std::hash<std::string>{}(thread.name)),
      loop_left_(thread.ops.size(), 0) {
  CUcontext context = nullptr;
  require(cuDevicePrimaryCtxRetain(&context, thread.device), "cuDevicePrimaryCtxRetain");
  require(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  stream_ = new_stream();
  labels_[0] = new std::string(root_);
  fake_cuda_label(labels_[0]->c_str());
}

void Player::play() {
  for (size_t at = 0; at < thread_.ops.size() && !stopping;) step(thread_.ops[at], at);
}

void Player::below_path(void (*body)(void*), void* argument) {
  PathCursor cursor{path_ ? path_->data() : nullptr, path_ ? path_->size() : 0, body, argument};
  run_below(&cursor);
}

void Player::pace() {
  if (rate_ == 0) return;
  const uint64_t now = now_ns();
  if (due_ns_ == 0) due_ns_ = now;
  if (due_ns_ > now + 1'000'000) sleep_ns(due_ns_ - now);
  due_ns_ += 1'000'000'000 / rate_;
}

uint64_t Player::duration_of(LoadedKernel& kernel) {
  const Duration& duration = kernel.spec.duration;
  if (duration.count != 0) {
    const uint64_t turn = kernel.launched.fetch_add(1) % duration.count;
    const auto until = [&](uint64_t n) {
      return static_cast<uint64_t>(static_cast<unsigned __int128>(duration.sum_ns) * n /
                                   duration.count);
    };
    return until(turn + 1) - until(turn);
  }
  const uint64_t spread = duration.high_ns - duration.low_ns;
  return duration.low_ns + (spread == 0 ? 0 : random_() % (spread + 1));
}

CUfunction Player::function_of(const Op& op) {
  const LoadedKernel& kernel = stage_.kernels.at(op.name);
  const auto loaded = loaded_.find(kernel.spec.module);
  if (loaded != loaded_.end()) {
    CUfunction& function = functions_[op.name];
    if (function == nullptr) function = get_function(loaded->second, kernel.spec);
    return function;
  }
  if (kernel.function == nullptr) {
    fprintf(stderr, "session line %d: the module of %s is not loaded\n", op.line, op.name.c_str());
    exit(2);
  }
  return kernel.function;
}

void Player::launch(const Op& op, CUstream stream) {
  for (uint64_t i = 0; i < op.count && !stopping; ++i) {
    pace();
    LaunchCall call{nullptr, 0, stream, nullptr, CUDA_SUCCESS, op.verb == Verb::kCooperate};
    if (op.verb == Verb::kGraph) {
      call.graph = stage_.graphs.at(op.name);
    } else {
      call.function = function_of(op);
      call.duration_ns = duration_of(stage_.kernels.at(op.name));
    }
    below_path(launch_body, &call);
    check(call.result, "launch", op.line);
  }
}

void Player::copy(const Op& op) {
  for (uint64_t i = 0; i < op.count; ++i) {
    pace();
    CopyCall call{&op, stream_, CUDA_SUCCESS};
    below_path(copy_body, &call);
    check(call.result, "copy", op.line);
  }
}

/// The child leaves at once by _exit; the parent waits for it.
void Player::fork_child() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status = 0;
  if (pid > 0) waitpid(pid, &status, 0);
}

void Player::load(const Op& op) {
  unload(op.name);
  check(
      load_module(stage_.session.modules.at(op.name), stage_.images.at(op.name), &loaded_[op.name]),
      "cuModuleLoadData", op.line);
}

void Player::unload(const std::string& name) {
  functions_.clear();
  const auto found = loaded_.find(name);
  if (found == loaded_.end()) return;
  check(cuModuleUnload(found->second), "cuModuleUnload");
  loaded_.erase(found);
}

void Player::step(const Op& op, size_t& at) {
  ++at;
  switch (op.verb) {
    case Verb::kLaunch:
    case Verb::kCooperate:
    case Verb::kGraph:
      return launch(op, capture_stream_ && op.verb == Verb::kLaunch ? capture_stream_ : stream_);
    case Verb::kCapture: {  // captured, thrown away, never executed
      CUstream stream = new_stream();
      check(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture",
            op.line);
      launch(op, stream);
      CUgraph graph = nullptr;
      check(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture", op.line);
      check(cuGraphDestroy(graph), "cuGraphDestroy", op.line);
      return;
    }
    case Verb::kCaptureBegin:
      capture_stream_ = new_stream();
      return check(cuStreamBeginCapture(capture_stream_, CU_STREAM_CAPTURE_MODE_GLOBAL),
                   "cuStreamBeginCapture", op.line);
    case Verb::kCaptureEnd: {
      CUgraph graph = nullptr;
      check(cuStreamEndCapture(capture_stream_, &graph), "cuStreamEndCapture", op.line);
      capture_stream_ = nullptr;
      return;
    }
    case Verb::kMemcpy:
    case Verb::kMemset:
      return copy(op);
    case Verb::kSleep:
      due_ns_ = 0;
      return sleep_ns(op.number);
    case Verb::kLoop:
      if (loop_left_[at - 1] == 0) loop_left_[at - 1] = op.number + 1;
      if (--loop_left_[at - 1] == 0) at = op.jump;
      return;
    case Verb::kEnd:
      at = op.jump;
      return;
    case Verb::kRate:
      rate_ = op.number;
      due_ns_ = 0;
      return;
    case Verb::kPath: {
      path_ = &stage_.session.paths[op.number - 1];
      std::string*& label = labels_[op.number];
      if (label == nullptr) {
        label = new std::string(root_);
        for (char letter : *path_) *label += std::string(";path_") + letter;
      }
      return fake_cuda_label(label->c_str());
    }
    case Verb::kSet:
      if (fake_cuda_set(op.name.c_str(), op.value.c_str()) != 0)
        fprintf(stderr, "session line %d: unknown setting\n", op.line);
      return;
    case Verb::kStep:
      fake_cuda_set("clock_step_ns", op.value.c_str());
      return;
    case Verb::kLoad:
      return load(op);
    case Verb::kUnload:
      return unload(op.name);
    case Verb::kFork:
      for (uint64_t i = 0; i < op.count; ++i) fork_child();
      return;
    case Verb::kExit:
      exit(static_cast<int>(op.number));
    case Verb::kExitNow:
      _exit(static_cast<int>(op.number));
    case Verb::kKill:
      kill(getpid(), SIGKILL);
      return;
    case Verb::kTerminate:
      kill(getpid(), SIGTERM);
      return;
    case Verb::kCancel:
      pthread_cancel(pthread_self());
      return;
    case Verb::kAwaitWindow:
      while (fake_cuda_serialized() < op.number && !stopping) sleep_ns(100'000);
      return;
    case Verb::kDrain:
      return fake_cuda_drain();
  }
}

}  // namespace fakecuda
