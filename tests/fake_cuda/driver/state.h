// SPDX-License-Identifier: Apache-2.0
// The state of the fake driver. One instance for ever, never destroyed: threads of the application
// and of the fake CUPTI may outlive static destructors.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/hooks.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fakecuda {

struct Module;

/// A CUfunction. Never freed: activity records point at the name.
struct Function {
  std::string name;
  std::string told;  // the name where callbacks and records point: overwritten when the module's
                     // memory is used again
  uint32_t module_id = 0;
  uint32_t registers = 32;
  uint32_t static_shared = 0;
  uint32_t text_bytes = 0;  // of its code in a real cubin, else 0
  std::atomic<const KernelCode*> code{nullptr};
};

/// A CUmodule.
struct Module {
  uint32_t id = 0;
  uint64_t crc = 0;  // of its PC records: the hash callback's, or CUPTI's own
  std::vector<char> image;
  std::mutex mutex;
  std::vector<Function*> functions;
};

/// A node of a captured or built graph.
struct Node {
  uint64_t id = 0;
  Execution work{};
  const Function* function = nullptr;
  uint64_t duration_ns = 0;
};

struct Graph {
  uint32_t id = 0;
  std::vector<Node> nodes;
};

/// A CUstream; work on it runs in order.
struct Stream {
  uint32_t id = 0;
  std::mutex mutex;
  uint64_t last_end_ns = 0;
  Graph* capture = nullptr;
};

/// A CUcontext.
struct Context {
  uint32_t id = 0;
  uint32_t device = 0;
  Stream default_stream;
  Stream per_thread_stream;  // one for all threads is enough for a model
  std::mutex serial_mutex;
  uint64_t serial_end_ns = 0;  // while kernels run one at a time
};

/// What the driver knows. `mutex` guards the lists only.
struct Driver {
  std::mutex mutex;
  std::vector<Function*> gone;  // of unloaded modules, until the next module is loaded
  std::atomic<bool> initialised{false};
  std::atomic<bool> in_init{false};
  std::atomic<int> owner_pid{0};
  std::vector<Context*> contexts;
  std::vector<Context*> primary;
  std::atomic<uint32_t> correlation{0};
  std::atomic<uint32_t> next_module{1};
  std::atomic<uint32_t> next_stream{20};
  std::atomic<uint32_t> next_graph{1};
  std::atomic<uint64_t> next_node{1};
  std::atomic<uint32_t> launches_in_progress{0};
  std::atomic<uint64_t> last_launch_ns{0};
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> captured{0};
  std::atomic<uint64_t> last_gpu_end_ns{0};
};

Driver& driver();
Interface& interface();
ThreadState& thread_state();

// settings.cc
uint64_t setting(Key key);
bool consume(Key key);
uint32_t failure(Key key, uint32_t domain, uint32_t id);
bool set_setting(const char* key, const char* value);
uint64_t fake_now();
uint64_t monotonic_now();

// visible.cc
uint64_t device_count();
uint64_t gpu_of(uint32_t device);

// report.cc
void violation(const char* rule, const char* format, ...) __attribute__((format(printf, 2, 3)));
void fatal(const char* rule, const char* format, ...) __attribute__((format(printf, 2, 3)));
uint64_t violations();

// truth.cc
void count_truth(const Execution& execution, const Function* function, bool recorded);
bool write_truth(const char* path);

// code.cc
/// The samples that kernels of `function` yield, until fake_cuda_pcs says otherwise.
void give_code(Function& function, const Module& module);

// gpu.cc
Context* current_context();
Stream* stream_of(Context* context, CUstream stream, bool per_thread);
/// Puts `work` on the stream, and its record into libcupti's queue if the kind is enabled.
void execute(Context* context, Stream* stream, Execution work, const Function* function,
             uint64_t duration_ns, bool in_graph);
void wait_gpu(uint64_t until_ns);

/// One traced API call: the outermost one takes a correlation id, nested ones share it. The
/// constructor makes the ENTER callback, finish() the EXIT callback.
class Api {
 public:
  Api(CUpti_CallbackDomain domain, uint32_t cbid, const char* name, const void* params,
      const char* symbol = nullptr, bool launch = false, bool capturing = false);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  /// False: the call is refused (not initialised, forked child, injected failure); see result().
  bool allowed() const { return result_ == 0; }
  int result() const { return result_; }
  uint32_t correlation() const { return call_.correlation; }
  /// The client has been told of it.
  bool announced() const { return call_.entered; }
  int finish(int result);

 private:
  void callback(CUpti_ApiCallbackSite site);

  ApiCall call_{};
  const CuptiHooks* hooks_ = nullptr;
  int result_ = 0;
  bool finished_ = false;
};

}  // namespace fakecuda
