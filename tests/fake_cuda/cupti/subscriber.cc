// SPDX-License-Identifier: Apache-2.0
// Subscriber, callbacks, and the rules about who may call CUPTI when.
#include <dlfcn.h>
#include <unistd.h>

#include <ctime>

#include "tests/fake_cuda/cupti/pc_hooks.h"
#include "tests/fake_cuda/cupti/pc_truth.h"
#include "tests/fake_cuda/cupti/state.h"

#ifndef FAKE_CUPTI_API
#define FAKE_CUPTI_API 130001
#endif

namespace fakecuda {
namespace {

constexpr CUpti_CallbackId kModuleProfiled = 8;  // fires once per launch: nobody may want it

/// Largest callback ids that a CUPTI of this age knows (driver, runtime); for the old versions they
/// are those of the last function that came with that CUDA release.
void known_ids(uint32_t version, uint32_t& driver_ids, uint32_t& runtime_ids) {
  if (version >= 130000) {
    driver_ids = CUPTI_DRIVER_TRACE_CBID_SIZE;
    runtime_ids = CUPTI_RUNTIME_TRACE_CBID_SIZE;
  } else if (version >= 26) {
    driver_ids = 780;
    runtime_ids = 480;
  } else if (version >= 21) {
    driver_ids = 710;
    runtime_ids = 460;
  } else {
    driver_ids = 675;
    runtime_ids = 440;
  }
}

bool known(uint32_t domain, uint32_t cbid) {
  uint32_t driver_ids = 0;
  uint32_t runtime_ids = 0;
  known_ids(api_version(), driver_ids, runtime_ids);
  switch (domain) {
    case CUPTI_CB_DOMAIN_DRIVER_API:
      return cbid > 0 && cbid < driver_ids;
    case CUPTI_CB_DOMAIN_RUNTIME_API:
      return cbid > 0 && cbid < runtime_ids;
    case CUPTI_CB_DOMAIN_RESOURCE:
      return cbid > 0 && cbid <= (api_version() >= 130000 ? 23u : 21u);
    case CUPTI_CB_DOMAIN_SYNCHRONIZE:
      return cbid > 0 && cbid <= 2;
    case CUPTI_CB_DOMAIN_STATE:
      return api_version() >= 20 && cbid > 0 && cbid <= 3;
    default:
      return false;
  }
}

void invoke(uint32_t domain, uint32_t cbid, const void* data) {
  CUpti_Subscriber_st* subscriber = cupti().subscriber.load(std::memory_order_acquire);
  if (subscriber == nullptr || cupti().deaf.load()) return;
  cupti().callbacks_started.fetch_add(1);
  driver_interface()->totals.callbacks.fetch_add(1, std::memory_order_relaxed);
  subscriber->callback(subscriber->userdata, static_cast<CUpti_CallbackDomain>(domain), cbid, data);
  cupti().callbacks_returned.fetch_add(1);
}

/// CUPTI 11.8 on a CUDA 13 driver made no driver launch callbacks, and with their ids on all that
/// the thread launched had the id of the first (measured).
bool confused_by(const ApiCall& call) {
  return api_version() == 18 && driver_interface()->setting(Key::kDriver) >= 13000 && call.launch &&
         call.domain == CUPTI_CB_DOMAIN_DRIVER_API;
}

bool quirk_swallows(const ApiCall& call) {
  if (!call.launch || call.domain != CUPTI_CB_DOMAIN_DRIVER_API) return false;
  return driver_interface()->setting(Key::kNoDriverLaunch) != 0 || confused_by(call);
}

/// From 12.2 on CUPTI reports an error that it does not survive, and is gone afterwards.
void report_fatal_error() {
  if (!driver_interface()->consume(Key::kFatalError)) return;
  cupti().dead.store(true);
  if (!callback_enabled(CUPTI_CB_DOMAIN_STATE, CUPTI_CBID_STATE_FATAL_ERROR)) return;
  CUpti_StateData data{};
  data.notification.result = CUPTI_ERROR_UNKNOWN;
  data.notification.message = "the fake was told to die";
  invoke(CUPTI_CB_DOMAIN_STATE, CUPTI_CBID_STATE_FATAL_ERROR, &data);
}

/// What 13.0 does to a thread whose callback id is switched off while it is in the call (measured):
/// runtime ids always, driver ids as long as no activity was on.
void stick(const ApiCall& call) {
  if (api_version() < 130000) return;
  if (call.domain == CUPTI_CB_DOMAIN_DRIVER_API && cupti().was_active.load()) return;
  driver_interface()->thread().stuck = call.correlation;
  driver_interface()->violation("stuck-correlation", "the callback of %s went off inside the call",
                                call.name);
}

void on_api(ApiCall& call, CUpti_ApiCallbackSite site) {
  report_fatal_error();
  if (call.launch && site == CUPTI_API_EXIT) pc_launched(call.context);
  const bool wanted = callback_enabled(call.domain, call.cbid);
  const bool enabled = wanted && !quirk_swallows(call);
  if (wanted && confused_by(call)) {
    driver_interface()->thread().stuck = call.correlation;
    driver_interface()->violation("stuck-correlation", "driver launch ids on, CUPTI 11.8");
  }
  if (site == CUPTI_API_ENTER) call.entered = enabled;
  if (site == CUPTI_API_EXIT && call.entered && !enabled) stick(call);
  if (!enabled) return;
  CUpti_CallbackData data{};
  data.callbackSite = site;
  data.functionName = call.name;
  data.functionParams = call.params;
  data.functionReturnValue = site == CUPTI_API_EXIT ? call.result : nullptr;
  data.symbolName = call.symbol;
  data.context = call.context;
  data.contextUid = call.context_id;
  data.correlationData = &call.data;
  data.correlationId = call.correlation;
  invoke(call.domain, call.cbid, &data);
}

void on_resource(uint32_t cbid, CUcontext context, void* descriptor) {
  if (!callback_enabled(CUPTI_CB_DOMAIN_RESOURCE, cbid)) return;
  CUpti_ResourceData data{};
  data.context = context;
  data.resourceDescriptor = descriptor;
  invoke(CUPTI_CB_DOMAIN_RESOURCE, cbid, &data);
}

uint64_t run_hash(const char* image, size_t size, bool temporary) {
  auto* hash = cupti().hash.load();
  if (hash == nullptr) return own_crc(image, size);
  // Another tool registered its own callback, which replaces the first one.
  if (driver_interface()->setting(Key::kHashReplaced) != 0) return ~own_crc(image, size);
  ThreadState& thread = driver_interface()->thread();
  const Inside before = thread.inside;
  thread.inside = Inside::kHash;
  uint64_t key = 0;
  if (temporary) {  // some of the real buffers are gone a moment later
    std::vector<char> copy(image, image + size);
    hash(copy.data(), size, &key);
    for (char& byte : copy) byte = 0x5a;
  } else {
    hash(image, size, &key);
  }
  thread.inside = before;
  return key;
}

void module_resource(uint32_t cbid, CUcontext context, uint32_t id, const char* image,
                     size_t size) {
  CUpti_ModuleResourceData module{};
  module.moduleId = id;
  module.cubinSize = size;
  module.pCubin = image;
  ThreadState& thread = driver_interface()->thread();
  const Inside before = thread.inside;
  thread.inside = Inside::kResource;
  on_resource(cbid, context, &module);
  thread.inside = before;
}

uint64_t on_module_loaded(CUcontext context, uint32_t id, const char* image, size_t size,
                          bool temporary) {
  const uint64_t crc = run_hash(image, size, temporary);
  module_resource(CUPTI_CBID_RESOURCE_MODULE_LOADED, context, id, image, size);
  pc_module_loaded(id, crc);
  return crc;
}

void on_module_unloading(CUcontext context, uint32_t id, const char* image, size_t size) {
  module_resource(CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, context, id, image, size);
  pc_module_unloading(id);
}

bool on_execution(const Execution& work) {
  pc_execution(work);
  return queue_record(work);
}

const CuptiHooks kHooks = {on_api,           on_execution,        on_resource,
                           on_module_loaded, on_module_unloading, pc_context_destroyed,
                           write_pc_truth};

int thread_id(ThreadState& thread) {
  if (thread.tid == 0) thread.tid = gettid();
  return thread.tid;
}

}  // namespace

Cupti& cupti() {
  static auto* instance = [] {
    auto* fresh = new Cupti;
    fresh->producers.push_back(&fresh->shared);
    fresh->per_thread.store(api_version() >= 130000);  // the default since 13.0
    return fresh;
  }();
  return *instance;
}

Interface* driver_interface() {
  static std::atomic<Interface*> known_interface{nullptr};
  Interface* found = known_interface.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  void* libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (libcuda == nullptr) return nullptr;
  auto* get = reinterpret_cast<Interface* (*)()>(dlsym(libcuda, "fake_cuda_interface"));
  if (get == nullptr) return nullptr;
  found = get();
  const CuptiHooks* none = nullptr;
  if (!found->hooks.compare_exchange_strong(none, &kHooks) && none != &kHooks) {
    found->violation("second-cupti", "a second copy of libcupti is in use");
  }
  known_interface.store(found, std::memory_order_release);
  return found;
}

uint32_t api_version() {
  static const uint32_t version = [] {
    void* libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto* get = libcuda ? reinterpret_cast<Interface* (*)()>(dlsym(libcuda, "fake_cuda_interface"))
                        : nullptr;
    const auto asked = get ? static_cast<uint32_t>(get()->setting(Key::kApi)) : 0u;
    return asked != 0 ? asked : static_cast<uint32_t>(FAKE_CUPTI_API);
  }();
  return version;
}

bool callback_enabled(uint32_t domain, uint32_t cbid) {
  return (cupti().enabled[domain][cbid / 64].load(std::memory_order_relaxed) >> (cbid % 64) & 1) !=
         0;
}

CUptiResult fail(CUptiResult result) {
  cupti().last_error.store(result);
  return result;
}

Entry::Entry(const char* name) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return;
  if (driver->forked()) driver->violation("after-fork", "%s in a forked child", name);
  if (cupti().dead.load()) driver->violation("after-fatal", "%s after a fatal error", name);
  if (cupti().deaf.load())
    driver->violation("after-busy-start", "%s: CUPTI is not to be used", name);
  ThreadState& thread = driver->thread();
  if (thread.inside == Inside::kHash || thread.inside == Inside::kBufferRequested) {
    driver->violation("cupti-in-callback", "%s called from a hash or bufferRequested callback",
                      name);
  }
  if (thread.cupti_depth++ != 0) return;
  int nobody = 0;
  owner_ = cupti().inside_tid.compare_exchange_strong(nobody, thread_id(thread));
  if (!owner_) {
    driver->violation("two-threads", "%s entered while thread %d is inside CUPTI", name, nobody);
  }
}

Entry::~Entry() {
  Interface* driver = driver_interface();
  if (driver == nullptr) return;
  ThreadState& thread = driver->thread();
  if (thread.cupti_depth != 0) --thread.cupti_depth;
  if (owner_) cupti().inside_tid.store(0);
}

bool require_subscriber(const char* name) {
  Interface* driver = driver_interface();
  if (driver->setting(Key::kOtherClient) != 0 && cupti().subscriber.load() == nullptr) {
    driver->violation("foreign-client", "%s while another client holds the subscriber", name);
    return false;
  }
  if (cupti().subscriber.load() == nullptr) {
    driver->violation("no-subscriber", "%s without a live subscriber", name);
    return false;
  }
  return true;
}

Switching::Switching() { driver_interface()->switching.fetch_add(1); }
Switching::~Switching() { driver_interface()->switching.fetch_sub(1); }

bool safe_place(bool allow_injection) {
  const Interface* driver = driver_interface();
  const ThreadState& thread = driver->thread();
  if (thread.inside == Inside::kLaunchExit) return true;
  if (allow_injection && thread.inside == Inside::kInjection) return true;
  return thread.inside == Inside::kNothing && !driver->launching();
}

}  // namespace fakecuda

using namespace fakecuda;

static bool stale(CUpti_SubscriberHandle subscriber, const char* name) {
  if (subscriber != nullptr && subscriber == cupti().subscriber.load()) return false;
  driver_interface()->violation("after-unsubscribe", "%s with a handle that is not live", name);
  return true;
}

FAKE_EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber,
                                       CUpti_CallbackFunc callback, void* userdata) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);  // what it says with no driver
  Entry entry("cuptiSubscribe");
  if (driver->setting(Key::kDriver) / 1000 < (api_version() >= 130000 ? 13u : 11u)) {
    return fail(CUPTI_ERROR_NOT_INITIALIZED);  // CUPTI newer than the driver
  }
  if (const uint64_t ms = driver->setting(Key::kSubscribeMs)) {
    timespec pause{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000 * 1'000'000)};
    nanosleep(&pause, nullptr);
  }
  if (const uint64_t code = driver->setting(Key::kSubscribeFail))
    return fail(static_cast<CUptiResult>(code));
  if (driver->consume(Key::kSubscribeBusy) || driver->setting(Key::kOtherClient) != 0) {
    return fail(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  }
  auto* fresh =
      new CUpti_Subscriber_st{callback, userdata};  // never freed: a callback may still run
  CUpti_Subscriber_st* none = nullptr;
  if (!cupti().subscriber.compare_exchange_strong(none, fresh)) {
    return fail(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  }
  driver->totals.subscribes.fetch_add(1);
  *subscriber = fresh;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiUnsubscribe");
  if (stale(subscriber, "cuptiUnsubscribe")) return fail(CUPTI_ERROR_INVALID_PARAMETER);
  if (const uint64_t code = driver->setting(Key::kUnsubscribeFail))
    return fail(static_cast<CUptiResult>(code));
  if (cupti().kinds.load() != 0) {
    driver->violation("kinds-left-enabled", "unsubscribed with activity kinds 0x%lx enabled",
                      cupti().kinds.load());
  }
  for (auto& domain : cupti().enabled) {
    for (auto& word : domain) word.store(0);
  }
  cupti().subscriber.store(nullptr);
  driver->totals.unsubscribes.fetch_add(1);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                            CUpti_CallbackDomain domain, CUpti_CallbackId cbid) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiEnableCallback");
  if (stale(subscriber, "cuptiEnableCallback") || !known(domain, cbid)) {
    return fail(CUPTI_ERROR_INVALID_PARAMETER);
  }
  if (const uint32_t code = driver->failure(Key::kCallbackFail, domain, cbid)) {
    return fail(static_cast<CUptiResult>(code));
  }
  if (enable != 0 && domain == CUPTI_CB_DOMAIN_RESOURCE && cbid == kModuleProfiled) {
    driver->violation("resource-domain", "MODULE_PROFILED enabled: it fires once per launch");
  }
  auto& word = cupti().enabled[domain][cbid / 64];
  const uint64_t bit = uint64_t{1} << (cbid % 64);
  enable != 0 ? word.fetch_or(bit) : word.fetch_and(~bit);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                          CUpti_CallbackDomain domain) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiEnableDomain");
  if (stale(subscriber, "cuptiEnableDomain") || domain <= 0 || domain >= CUPTI_CB_DOMAIN_SIZE) {
    return fail(CUPTI_ERROR_INVALID_PARAMETER);
  }
  if (enable != 0 && domain == CUPTI_CB_DOMAIN_RESOURCE) {
    driver->violation("resource-domain", "the whole RESOURCE domain enabled");
  }
  for (uint32_t cbid = 1; cbid < Cupti::kWords * 64; ++cbid) {
    if (!known(domain, cbid)) continue;
    auto& word = cupti().enabled[domain][cbid / 64];
    const uint64_t bit = uint64_t{1} << (cbid % 64);
    enable != 0 ? word.fetch_or(bit) : word.fetch_and(~bit);
  }
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiEnableAllDomains(uint32_t enable, CUpti_SubscriberHandle subscriber) {
  for (int domain = 1; domain < CUPTI_CB_DOMAIN_NVTX; ++domain) {
    const auto result =
        cuptiEnableDomain(enable, subscriber, static_cast<CUpti_CallbackDomain>(domain));
    if (result != CUPTI_SUCCESS) return result;
  }
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiRegisterComputeCrcCallback(CUpti_ComputeCrcCallbackFunc function) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiRegisterComputeCrcCallback");
  cupti().hash.store(function);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiFinalize(void) {
  if (Interface* driver = driver_interface()) driver->violation("finalize", "cuptiFinalize called");
  return CUPTI_SUCCESS;
}
