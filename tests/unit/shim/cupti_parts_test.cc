// SPDX-License-Identifier: Apache-2.0
// The adapter's parts that need no driver.
#include <cupti.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "shim/core/name_table.h"
#include "shim/core/owner.h"
#include "shim/cupti/buffer_pool.h"
#include "shim/cupti/callback_ids.h"
#include "shim/cupti/capture_tracker.h"
#include "shim/cupti/launch_key.h"
#include "shim/cupti/launch_names.h"
#include "shim/cupti/launch_rule.h"
#include "shim/cupti/loader.h"
#include "shim/cupti/mapped_objects.h"
#include "shim/cupti/quirks.h"
#include "shim/cupti/records.h"

namespace gpuprof::cupti {
namespace {

// --- callback ids against the headers
// -------------------------------------------------------------

std::map<int, std::string> header_ids(const char* file, const char* prefix) {
  std::map<int, std::string> ids;
  std::istringstream directories(CUPTI_INCLUDE_DIRS);
  for (std::string directory; std::getline(directories, directory, ';');) {
    std::ifstream header(directory + "/" + file);
    const std::regex line(std::string(prefix) + R"((\w+)\s*=\s*(\d+))");
    for (std::string text; std::getline(header, text);) {
      std::smatch match;
      if (std::regex_search(text, match, line)) ids.emplace(std::stoi(match[2]), match[1]);
    }
  }
  return ids;
}

/// Names as in callback_ids.inc.
std::map<std::pair<Domain, int>, std::string> table_names() {
  return {
#define X(domain, id, name, call) {{Domain::domain, id}, #name},
#include "shim/cupti/callback_ids.inc"
#undef X
  };
}

TEST(CallbackIds, TableHasEveryCopyFillAndLaunchOfTheHeaders) {
  const auto driver = header_ids("cupti_driver_cbid.h", "CUPTI_DRIVER_TRACE_CBID_");
  const auto runtime = header_ids("cupti_runtime_cbid.h", "CUPTI_RUNTIME_TRACE_CBID_");
  ASSERT_GT(driver.size(), 500u) << CUPTI_INCLUDE_DIRS;
  ASSERT_GT(runtime.size(), 300u);
  // cuMemSetAccess and the like set attributes; LaunchHostFunc runs on the CPU; cu64... are the
  // pre-4.0 twins of 64-bit calls, which no library calls any more.
  const std::regex driver_wanted(
      "cu(Memcpy|Memset|Launch(Kernel|Grid|Cooperative|$)|GraphLaunch).*|cuLaunch|"
      "cuStream(Begin(Re)?|End)Capture.*");
  for (const auto& [id, name] : driver) {
    if (!std::regex_match(name, driver_wanted)) continue;
    EXPECT_NE(call_of(Domain::kDriver, static_cast<uint32_t>(id)), Call::kOther)
        << name << " " << id;
  }
  const std::regex runtime_wanted(
      "(__)?cuda(Memcpy|Memset|Launch(_|Kernel|Cooperative)|GraphLaunch).*");
  for (const auto& [id, name] : runtime) {
    if (!std::regex_match(name, runtime_wanted)) continue;
    EXPECT_NE(call_of(Domain::kRuntime, static_cast<uint32_t>(id)), Call::kOther)
        << name << " " << id;
  }
}

TEST(CallbackIds, NumbersAreTheHeaders) {
  const auto driver = header_ids("cupti_driver_cbid.h", "CUPTI_DRIVER_TRACE_CBID_");
  const auto runtime = header_ids("cupti_runtime_cbid.h", "CUPTI_RUNTIME_TRACE_CBID_");
  const std::regex renamed("cuda\\d+|cuStreamCreateForCaptureToCig");
  for (const auto& [key, name] : table_names()) {
    const auto& header = key.first == Domain::kDriver ? driver : runtime;
    const auto found = header.find(key.second);
    if (found == header.end()) continue;  // newer than the headers
    if (std::regex_match(found->second, renamed)) continue;
    EXPECT_EQ(found->second, name) << key.second;
  }
}

// --- launch keys
// ----------------------------------------------------------------------------------

TEST(LaunchKey, IsTheFunctionOrTheGraphOfTheParameters) {
  static_assert(offsetof(cuLaunchKernel_params, f) == 0);
  static_assert(offsetof(cuLaunchKernelEx_params, f) == 8);
  static_assert(offsetof(cuLaunchKernelEx_ptsz_params, f) == 8);
  static_assert(offsetof(cuLaunchCooperativeKernel_params, f) == 0);
  static_assert(offsetof(cuGraphLaunch_params, hGraph) == 0);
  static_assert(offsetof(cudaLaunchKernel_v7000_params, func) == 0);
  static_assert(offsetof(cudaLaunchKernelExC_v11060_params, func) == 8);
  static_assert(offsetof(cudaGraphLaunch_v10000_params, graphExec) == 0);
  const uint64_t words[] = {0x1000, 0x2000};
  for (const uint32_t id : {307, 442, 477, 478, 514, 515}) {
    const Call call = call_of(Domain::kDriver, id);
    EXPECT_EQ(launched_work(Domain::kDriver, id, call, words), 0x1000u) << id;
  }
  for (const uint32_t id : {652, 653}) {
    EXPECT_EQ(launched_work(Domain::kDriver, id, Call::kKernel, words), 0x2000u) << id;
  }
  for (const uint32_t id : {430, 431}) {
    EXPECT_EQ(launched_work(Domain::kRuntime, id, Call::kKernel, words), 0x2000u) << id;
  }
  EXPECT_EQ(launched_work(Domain::kRuntime, 211, Call::kKernel, words), 0x1000u);
  // Copies by their API function; without parameters likewise.
  EXPECT_NE(launched_work(Domain::kDriver, 43, Call::kMemcpy, words),
            launched_work(Domain::kDriver, 45, Call::kMemcpy, words));
  EXPECT_EQ(launched_work(Domain::kDriver, 307, Call::kKernel, nullptr),
            launched_work(Domain::kDriver, 307, Call::kKernel, nullptr));
  EXPECT_NE(launch_key(Call::kKernel, 1, 0x1000), launch_key(Call::kKernel, 2, 0x1000));
  EXPECT_NE(launch_key(Call::kKernel, 1, 0x1000), launch_key(Call::kKernel, 1, 0x2000));
}

// --- names at the launch
// ----------------------------------------------------------------------------------

shim::WideCorrelation launch_number(uint32_t id, uint32_t epoch = 1) { return {id, epoch, false}; }

class LaunchNamesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    (void)shim::own_process();
    (void)shim::names().create();
  }
};

TEST_F(LaunchNamesTest, NamesWhatRanBeforeItsModuleWent) {
  auto names = std::make_unique<LaunchNames>();
  auto memory = std::make_unique<LaunchNames::Memory>();
  const uint64_t alpha = shim::intern("alpha"), beta = shim::intern("beta");
  ASSERT_NE(alpha, 0u);
  names->note(launch_number(1), 0x100000, "alpha", *memory);
  EXPECT_EQ(names->of(launch_number(1)), 0u) << "no module has gone: the record's own name";
  names->names_going();
  EXPECT_EQ(names->of(launch_number(1)), alpha);
  EXPECT_EQ(names->of(launch_number(2)), 0u) << "was never launched here";
  EXPECT_EQ(names->of(launch_number(1, 2)), 0u) << "another epoch";
  EXPECT_EQ(names->of({1, 1, true}), 0u) << "before the arm";
  names->begin_arm();
  EXPECT_EQ(names->of(launch_number(1)), 0u) << "no module has gone in this arm";
  names->names_going();
  // The handle is another function's now.
  names->note(launch_number(3), 0x100000, "beta", *memory);
  EXPECT_EQ(names->of(launch_number(3)), beta);
}

TEST_F(LaunchNamesTest, AHandleIsLookedUpAnewWhenModulesChange) {
  auto names = std::make_unique<LaunchNames>();
  auto memory = std::make_unique<LaunchNames::Memory>();
  const auto name_of = [&](uint32_t id) { return names->of(launch_number(id)); };
  const auto launch = [&](uint32_t id, const char* name) {
    names->note(launch_number(id), 0x100000, name, *memory);
  };
  names->names_going();
  launch(1, "alpha");
  launch(2, "beta");  // unchanged modules: the name is not read again
  EXPECT_EQ(name_of(2), name_of(1));
  names->module_loaded();
  launch(3, "beta");
  EXPECT_EQ(name_of(3), shim::intern("beta"));
  names->begin_arm();
  names->names_going();
  launch(4, "gamma");
  EXPECT_EQ(name_of(4), shim::intern("gamma"));
  // Calls that do not say which function: by the name, each time.
  names->note(launch_number(5), 480 << 4, "alpha", *memory);
  names->note(launch_number(6), 480 << 4, "beta", *memory);
  EXPECT_EQ(name_of(5), shim::intern("alpha"));
  EXPECT_EQ(name_of(6), shim::intern("beta"));
}

TEST_F(LaunchNamesTest, TheLatestLaunchesStay) {
  auto names = std::make_unique<LaunchNames>();
  auto memory = std::make_unique<LaunchNames::Memory>();
  names->names_going();
  for (uint32_t id = 1; id <= LaunchNames::kSlots + 1; ++id) {
    names->note(launch_number(id), 0x100000, "alpha", *memory);
  }
  EXPECT_EQ(names->of(launch_number(1)), 0u) << "the last one has its place";
  EXPECT_EQ(names->of(launch_number(2)), shim::intern("alpha"));
  EXPECT_EQ(names->of(launch_number(LaunchNames::kSlots + 1)), shim::intern("alpha"));
}

// --- capture
// --------------------------------------------------------------------------------------

const void* stream(uintptr_t handle) { return reinterpret_cast<const void*>(handle); }

TEST(CaptureTracker, InProgressFromBeginToEnd) {
  CaptureTracker tracker;
  int thread = 0;
  EXPECT_FALSE(tracker.in_progress(100));
  tracker.begin(stream(4096), &thread, 100);
  tracker.begin(stream(8192), &thread, 110);
  EXPECT_TRUE(tracker.in_progress(120));
  tracker.end(stream(4096), &thread);
  EXPECT_TRUE(tracker.in_progress(130));
  tracker.end(stream(8192), &thread);
  EXPECT_FALSE(tracker.in_progress(140));
}

TEST(CaptureTracker, InProgressWhileAThreadIsAboutToBeginOne) {
  CaptureTracker tracker;
  const uint64_t thread = 0;
  tracker.begin(stream(4096), &thread, 100);
  tracker.entering(&thread, 200);
  EXPECT_TRUE(tracker.in_progress(150)) << "the clock was read before";
  tracker.entered(&thread);  // it failed
  EXPECT_TRUE(tracker.in_progress(200)) << "the one before goes on";
  tracker.end(stream(4096), &thread);
  EXPECT_FALSE(tracker.in_progress(200));
  tracker.entering(&thread, 300);
  EXPECT_TRUE(tracker.in_progress(300));
  tracker.entered(&thread);
  EXPECT_FALSE(tracker.in_progress(300));
}

TEST(CaptureTracker, PerThreadStreamsOfTwoThreadsAreApart) {
  CaptureTracker tracker;
  int one = 0, other = 0;
  tracker.begin(stream(2), &one, 100);
  tracker.begin(stream(2), &other, 100);
  tracker.end(stream(2), &one);
  EXPECT_TRUE(tracker.in_progress(120));
  tracker.end(stream(2), &other);
  EXPECT_FALSE(tracker.in_progress(120));
}

TEST(CaptureTracker, CapturedLaunchTellsOfACaptureBegunBefore) {
  CaptureTracker tracker;
  int thread = 0;
  tracker.saw_captured_launch(100);
  EXPECT_TRUE(tracker.in_progress(200));
  tracker.end(stream(4096), &thread);
  EXPECT_FALSE(tracker.in_progress(200));
}

TEST(CaptureTracker, NeverEndedCaptureAgesOut) {
  CaptureTracker tracker;
  int thread = 0;
  tracker.begin(stream(4096), &thread, 100);
  EXPECT_TRUE(tracker.in_progress(CaptureTracker::kMaxAgeNs));
  EXPECT_FALSE(tracker.in_progress(100 + CaptureTracker::kMaxAgeNs));
}

TEST(CaptureTracker, UnknownCaptureEndsWithItsLaunches) {
  CaptureTracker tracker;
  tracker.saw_captured_launch(100);
  EXPECT_TRUE(tracker.in_progress(CaptureTracker::kMaxUnknownAgeNs));
  tracker.saw_captured_launch(200);
  EXPECT_TRUE(tracker.in_progress(100 + CaptureTracker::kMaxUnknownAgeNs));
  EXPECT_FALSE(tracker.in_progress(200 + CaptureTracker::kMaxUnknownAgeNs));
}

TEST(CaptureTracker, MoreCapturesThanSlotsAreStillInProgress) {
  CaptureTracker tracker;
  int thread = 0;
  for (uintptr_t i = 0; i <= CaptureTracker::kSlots; ++i) {
    tracker.begin(stream(4096 + 8 * i), &thread, 100);
  }
  for (uintptr_t i = 0; i < CaptureTracker::kSlots; ++i) tracker.end(stream(4096 + 8 * i), &thread);
  EXPECT_TRUE(tracker.in_progress(200));
}

// --- the launch rule
// ------------------------------------------------------------------------------

TEST(LaunchRule, HoldsAfterEnoughNestedLaunches) {
  LaunchRule rule;
  uint32_t last = 0;
  for (uint32_t id = 1; id <= LaunchRule::kAgreed; ++id) {
    EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kChecking);
    LaunchRule::observe_driver(id, &last);
    EXPECT_FALSE(rule.observe_runtime(id, true, &last));
  }
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kDriverOnly);
  // The runtime ids go off a little later; a launch in between counts once, by its driver callback.
  EXPECT_FALSE(rule.observe_runtime(1000, true, &last));
}

TEST(LaunchRule, OneLaunchWithoutItsDriverCallbackKeepsBoth) {
  LaunchRule rule;
  uint32_t last = 0;
  LaunchRule::observe_driver(1, &last);
  EXPECT_FALSE(rule.observe_runtime(1, true, &last));
  EXPECT_TRUE(rule.observe_runtime(2, true, &last));
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kBothDomains);
  LaunchRule::observe_driver(3, &last);
  EXPECT_FALSE(rule.observe_runtime(3, true, &last));
  EXPECT_TRUE(rule.observe_runtime(4, true, &last));
  EXPECT_FALSE(rule.observe_runtime(4, true, &last)) << "an outer runtime call of the same launch";
}

TEST(LaunchRule, KernelsWithoutADriverLaunchContradictTheAssumption) {
  LaunchRule rule;
  rule.assume(LaunchRule::Verdict::kDriverOnly);
  for (uint32_t i = 1; i < LaunchRule::kUnexplained; ++i) rule.observe_execution();
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kDriverOnly);
  rule.observe_execution();
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kBothDomains);
}

TEST(LaunchRule, OneDriverLaunchExplainsAllKernels) {
  LaunchRule rule;
  rule.assume(LaunchRule::Verdict::kDriverOnly);
  rule.saw_driver_launch();
  for (uint32_t i = 0; i < 2 * LaunchRule::kUnexplained; ++i) rule.observe_execution();
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kDriverOnly);
}

// Ids are switched on while calls are under way: one of those may lack its driver callback.
TEST(LaunchRule, ACallWhoseEnterWasNotSeenDecidesNothing) {
  LaunchRule rule;
  uint32_t last = 0;
  EXPECT_TRUE(rule.observe_runtime(7, false, &last)) << "counted all the same";
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kChecking);
  for (uint32_t id = 8; id < 8 + LaunchRule::kAgreed; ++id) {
    LaunchRule::observe_driver(id, &last);
    EXPECT_FALSE(rule.observe_runtime(id, false, &last));
  }
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kChecking);
  EXPECT_TRUE(rule.observe_runtime(1000, true, &last));
  EXPECT_EQ(rule.verdict(), LaunchRule::Verdict::kBothDomains);
}

// --- buffers
// --------------------------------------------------------------------------------------

TEST(BufferPool, HandsOutEachBufferOnceAndTakesItBack) {
  auto pool = std::make_unique<BufferPool>();
  ASSERT_EQ(pool->create(), shim::Status::kOk);
  std::set<uint8_t*> seen;
  for (uint32_t i = 0; i < BufferPool::kBuffers; ++i) {
    const auto buffer = pool->take();
    ASSERT_NE(buffer.data, nullptr);
    EXPECT_EQ(buffer.size_bytes, BufferPool::kBufferBytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data) % 8, 0u);
    EXPECT_EQ(pool->origin_of(buffer.data), BufferPool::Origin::kPool);
    EXPECT_TRUE(seen.insert(buffer.data).second);
    memset(buffer.data, 0xff, buffer.size_bytes);
  }
  EXPECT_EQ(pool->take().data, nullptr);
  EXPECT_EQ(pool->outstanding(), BufferPool::kBuffers);
  for (uint8_t* data : seen) pool->give_back(data);
  EXPECT_EQ(pool->outstanding(), 0u);
  EXPECT_NE(pool->take().data, nullptr);
}

TEST(BufferPool, ScratchNeverFailsAndOnlyTheLastIsShared) {
  auto pool = std::make_unique<BufferPool>();
  ASSERT_EQ(pool->create(), shim::Status::kOk);
  std::set<uint8_t*> seen;
  for (uint32_t i = 0; i + 1 < BufferPool::kScratchBuffers; ++i) {
    const auto buffer = pool->take_scratch();
    EXPECT_EQ(buffer.origin, BufferPool::Origin::kScratch);
    EXPECT_TRUE(seen.insert(buffer.data).second);
  }
  const auto first = pool->take_scratch();
  const auto second = pool->take_scratch();
  EXPECT_EQ(first.origin, BufferPool::Origin::kSharedScratch);
  EXPECT_EQ(first.data, second.data);
  EXPECT_EQ(pool->origin_of(first.data), BufferPool::Origin::kSharedScratch);
  pool->give_back(first.data);
  pool->give_back(second.data);
  EXPECT_EQ(pool->outstanding(), BufferPool::kScratchBuffers - 1);
}

TEST(BufferPool, ForeignBuffersAreLeftAlone) {
  auto pool = std::make_unique<BufferPool>();
  ASSERT_EQ(pool->create(), shim::Status::kOk);
  uint8_t foreign[64];
  EXPECT_EQ(pool->origin_of(foreign), BufferPool::Origin::kForeign);
  pool->give_back(foreign);
  EXPECT_EQ(pool->outstanding(), 0u);
}

TEST(BufferPool, ConcurrentUseNeverHandsOneOutTwice) {
  auto pool = std::make_unique<BufferPool>();
  ASSERT_EQ(pool->create(), shim::Status::kOk);
  std::atomic<bool> clash{false};
  std::vector<std::thread> threads;
  for (uint8_t mark = 1; mark <= 4; ++mark) {
    threads.emplace_back([&, mark] {
      for (int i = 0; i < 20'000; ++i) {
        const auto buffer = pool->take();
        if (buffer.data == nullptr) continue;
        auto* word = reinterpret_cast<std::atomic<uint8_t>*>(buffer.data);
        if (word->exchange(mark) != 0) clash = true;
        if (word->exchange(0) != mark) clash = true;
        pool->give_back(buffer.data);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(clash);
  EXPECT_EQ(pool->outstanding(), 0u);
}

// --- records
// --------------------------------------------------------------------------------------

TEST(Records, KernelIsReadThroughThePrefix) {
  alignas(8) char bytes[216] = {};
  auto* kernel = reinterpret_cast<KernelRecord*>(bytes);
  kernel->kind = static_cast<uint32_t>(RecordKind::kConcurrentKernel);
  kernel->start = 10;
  kernel->end = 25;
  kernel->device_id = 1;
  kernel->context_id = 2;
  kernel->stream_id = 3;
  kernel->correlation = 4;
  kernel->grid[1] = 5;
  kernel->block[2] = 6;
  kernel->registers_per_thread = 7;
  kernel->static_shared_bytes = 8;
  kernel->dynamic_shared_bytes = 9;
  kernel->graph_id = 10;
  kernel->graph_node_id = 11;
  kernel->name = "name";
  bytes[208] = 1;
  gpuprof_exec_v1 exec = {};
  const char* name = nullptr;
  ASSERT_EQ(read_record(bytes, 130001, &exec, &name), RecordStatus::kExecution);
  EXPECT_EQ(exec.end_ns - exec.start_ns, 15u);
  EXPECT_EQ(exec.device_id, 1u);
  EXPECT_EQ(exec.context_id, 2u);
  EXPECT_EQ(exec.stream_id, 3u);
  EXPECT_EQ(exec.correlation, 4u);
  EXPECT_EQ(exec.grid[1], 5u);
  EXPECT_EQ(exec.block[2], 6u);
  EXPECT_EQ(exec.registers_per_thread, 7u);
  EXPECT_EQ(exec.static_shared_bytes, 8u);
  EXPECT_EQ(exec.dynamic_shared_bytes, 9u);
  EXPECT_EQ(exec.graph_id, 10u);
  EXPECT_EQ(exec.graph_node, 11u);
  EXPECT_EQ(exec.flags, GPUPROF_EXEC_DEVICE_LAUNCHED);
  EXPECT_STREQ(name, "name");
  // Older libraries end their record before that byte: it is the next record's.
  exec = {};
  ASSERT_EQ(read_record(bytes, 28, &exec, &name), RecordStatus::kExecution);
  EXPECT_EQ(exec.flags, 0u);
}

TEST(Records, PeerCopyAndFill) {
  MemcpyPeerRecord copy = {};
  copy.kind = static_cast<uint32_t>(RecordKind::kMemcpyPeer);
  copy.start = 1;
  copy.end = 2;
  copy.bytes = 77;
  copy.correlation = 9;
  gpuprof_exec_v1 exec = {};
  const char* name = "";
  ASSERT_EQ(read_record(&copy, 28, &exec, &name), RecordStatus::kExecution);
  EXPECT_EQ(exec.copy_kind, static_cast<uint32_t>(GPUPROF_COPY_PTOP));
  EXPECT_EQ(exec.bytes, 77u);
  EXPECT_EQ(exec.correlation, 9u);
  EXPECT_EQ(name, nullptr);
  MemsetRecord fill = {};
  fill.kind = static_cast<uint32_t>(RecordKind::kMemset);
  fill.start = 5;
  fill.end = 5;
  fill.bytes = 3;
  exec = {};
  ASSERT_EQ(read_record(&fill, 28, &exec, &name), RecordStatus::kExecution);
  EXPECT_EQ(exec.kind, static_cast<uint32_t>(GPUPROF_KIND_MEMSET));
}

TEST(Records, BadTimesAndUnknownKinds) {
  MemcpyRecord copy = {};
  copy.kind = static_cast<uint32_t>(RecordKind::kMemcpy);
  gpuprof_exec_v1 exec = {};
  const char* name = nullptr;
  EXPECT_EQ(read_record(&copy, 28, &exec, &name), RecordStatus::kInvalidTime);
  copy.start = 5;
  EXPECT_EQ(read_record(&copy, 28, &exec, &name), RecordStatus::kInvalidTime);
  copy.end = 4;
  EXPECT_EQ(read_record(&copy, 28, &exec, &name), RecordStatus::kInvalidTime);
  copy.kind = 3;
  EXPECT_EQ(read_record(&copy, 28, &exec, &name), RecordStatus::kUnknownKind);
}

// --- versions
// -----------------------------------------------------------------------------------------

TEST(Quirks, CudaMajorOfEveryVersionFormat) {
  EXPECT_EQ(cuda_major_of(18), 11u);
  EXPECT_EQ(cuda_major_of(19), 12u);
  EXPECT_EQ(cuda_major_of(28), 12u);
  EXPECT_EQ(cuda_major_of(130001), 13u);
  EXPECT_EQ(cuda_major_of(140200), 14u);
  for (const uint32_t measured : {18u, 26u, 28u, 130000u, 130001u}) {
    EXPECT_FALSE(quirks_of(measured, 13000).no_disarm) << measured;
  }
  for (uint32_t version = 19; version <= 25; ++version) {
    EXPECT_TRUE(quirks_of(version, 13000).no_disarm) << version;
    EXPECT_STREQ(quirks_of(version, 13000).reason, "not measured: stays armed once armed");
  }
  EXPECT_EQ(version_of(18, 12), 19u) << "12.0 and 12.1 answer 11.8's number";
  EXPECT_EQ(version_of(18, 11), 18u);
  EXPECT_EQ(version_of(18, 0), 18u);
  EXPECT_EQ(version_of(130001, 13), 130001u);
  EXPECT_FALSE(quirks_of(26, 13000).null_buffer_ok);
  EXPECT_TRUE(quirks_of(28, 13000).null_buffer_ok);
  EXPECT_FALSE(quirks_of(28, 13000).per_thread_buffers);
  EXPECT_TRUE(quirks_of(130000, 13000).per_thread_buffers);
}

}  // namespace
}  // namespace gpuprof::cupti
