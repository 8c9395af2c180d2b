// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/play/player.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>

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

void sleep_ns(uint64_t ns) {
  timespec pause{static_cast<time_t>(ns / 1'000'000'000u), static_cast<long>(ns % 1'000'000'000u)};
  nanosleep(&pause, nullptr);
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
};

void launch_body(void* argument) {
  auto* call = static_cast<LaunchCall*>(argument);
  if (call->graph != nullptr) {
    call->result = cuGraphLaunch(call->graph, call->stream);
    return;
  }
  void* parameters[] = {&call->duration_ns};
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
    LaunchCall call{kernel.function, kernel.duration.low_ns, stream, nullptr, CUDA_SUCCESS};
    launch_body(&call);
  }
  CUgraph graph = nullptr;
  require(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CUgraphExec exec = nullptr;
  require(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  return exec;
}

}  // namespace

Stage* set_stage(const char* path) {
  auto* stage = new Stage{read_session(path), {}, {}, {}};
  for (const auto& [key, value] : stage->session.settings) {
    if (fake_cuda_set(key.c_str(), value.c_str()) != 0) {
      fprintf(stderr, "%s: unknown setting %s\n", path, key.c_str());
      exit(2);
    }
  }
  require(cuInit(0), "cuInit");
  std::map<std::string, CUmodule> modules;
  stage->session.modules.try_emplace("default", "");
  stage->session.module_bytes.try_emplace("default", 4096);
  for (const auto& [name, file] : stage->session.modules) {
    stage->images[name] =
        file.empty() ? synthetic(name, stage->session.module_bytes[name]) : read_image(file);
    require(cuModuleLoadData(&modules[name], stage->images[name].data()), "cuModuleLoadData");
  }
  for (const auto& [name, spec] : stage->session.kernels) {
    LoadedKernel& kernel = stage->kernels[name];
    kernel.duration = spec.duration;
    require(cuModuleGetFunction(&kernel.function, modules[spec.module], spec.function.c_str()),
            "cuModuleGetFunction");
    if (!spec.pcs.empty() && fake_cuda_pcs(kernel.function, spec.pcs.c_str()) != 0) exit(2);
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
      stream_(new_stream()),
      loop_left_(thread.ops.size(), 0) {
  labels_[0] = new std::string(root_);
  fake_cuda_label(labels_[0]->c_str());
}

void Player::play() {
  for (size_t at = 0; at < thread_.ops.size();) step(thread_.ops[at], at);
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

void Player::launch(const Op& op, CUstream stream) {
  for (uint64_t i = 0; i < op.count; ++i) {
    pace();
    LaunchCall call{nullptr, 0, stream, nullptr, CUDA_SUCCESS};
    if (op.verb == Verb::kGraph) {
      call.graph = stage_.graphs.at(op.name);
    } else {
      const LoadedKernel& kernel = stage_.kernels.at(op.name);
      call.function = kernel.function;
      const uint64_t spread = kernel.duration.high_ns - kernel.duration.low_ns;
      call.duration_ns = kernel.duration.low_ns + (spread == 0 ? 0 : random_() % (spread + 1));
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

void Player::unload(const std::string& name) {
  const auto found = loaded_.find(name);
  if (found == loaded_.end()) return;
  check(cuModuleUnload(found->second), "cuModuleUnload");
  loaded_.erase(found);
}

void Player::step(const Op& op, size_t& at) {
  ++at;
  switch (op.verb) {
    case Verb::kLaunch:
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
      unload(op.name);
      return check(cuModuleLoadData(&loaded_[op.name], stage_.images.at(op.name).data()),
                   "cuModuleLoadData", op.line);
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
    case Verb::kCancel:
      pthread_cancel(pthread_self());
      return;
    case Verb::kDrain:
      return fake_cuda_drain();
  }
}

}  // namespace fakecuda
