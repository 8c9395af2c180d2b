// SPDX-License-Identifier: Apache-2.0
// Modules, devices and names, and the end of CUPTI itself, through the whole shim.
#include <cuda.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "shim/core/module_table.h"
#include "tests/unit/shim/driver_calls.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

namespace gpuprof::testing {
namespace {

const Environment kArmed = armed_with();

/// An ELF image of `bytes` bytes whose contents depend on `seed`.
std::vector<char> make_image(size_t bytes, char seed) {
  std::vector<char> image(bytes, seed);
  auto* header = reinterpret_cast<Elf64_Ehdr*>(image.data());
  memset(header, 0, sizeof *header);
  memcpy(header->e_ident, ELFMAG, SELFMAG);
  header->e_shoff = bytes - sizeof(Elf64_Shdr);
  header->e_shentsize = sizeof(Elf64_Shdr);
  header->e_shnum = 1;
  return image;
}

uint64_t hash_of(const std::vector<char>& image) {
  return shim::hash_image(image.data(), image.size());
}

TEST(CuptiModules, IdleShimHasEveryModuleInItsTable) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    const ShimView shim;
    const auto small = make_image(4096, 1);
    const auto large = make_image(300'000, 2);
    CUmodule modules[2];
    ASSERT_EQ(cuModuleLoadData(&modules[0], small.data()), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleLoadData(&modules[1], large.data()), CUDA_SUCCESS);
    EXPECT_EQ(shim.module(0).hash, hash_of(small));
    EXPECT_EQ(shim.module(0).size_bytes, small.size());
    EXPECT_EQ(shim.module(0).state, GPUPROF_MODULE_COPIED);
    EXPECT_EQ(shim.module(1).hash, hash_of(large));
    EXPECT_EQ(shim.module(1).state, GPUPROF_MODULE_PRESENT);
    EXPECT_EQ(memcmp(reinterpret_cast<void*>(shim.module(1).address), large.data(), large.size()),
              0);
    EXPECT_EQ(totals().subscribes.load(), 0u);
  }));
}

TEST(CuptiModules, ModulesOffRegistersNothing) {
  EXPECT_CLEAN(run_target({{"GPU_PROFILED_MODULES", "off"}}, [] {
    start_driver();
    const ShimView shim;
    load_function("k");
    usleep(300'000);
    EXPECT_EQ(shim.module(0).state, GPUPROF_MODULE_EMPTY);
  }));
}

TEST(CuptiModules, ArmedFiresAtLoadAndUnload) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    start_driver();
    const ShimView shim;
    const auto image = make_image(300'000, 3);
    shim.wait_for_round();  // which makes room for copies
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
    auto events = ProbeTap::records<gpuprof_module_v1>(GPUPROF_PROBE_MODULE);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].event, static_cast<uint32_t>(GPUPROF_MODULE_LOADED));
    EXPECT_EQ(events[0].hash, hash_of(image));
    ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
    events = ProbeTap::records<gpuprof_module_v1>(GPUPROF_PROBE_MODULE);
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[1].event, static_cast<uint32_t>(GPUPROF_MODULE_UNLOADING));
    EXPECT_EQ(events[1].table_index, events[0].table_index);
    // Nobody samples: nobody has a use for the image.
    EXPECT_EQ(shim.module(events[1].table_index).state, GPUPROF_MODULE_GONE);
  }));
}

// Eager mode holds the subscriber while idle: modules are seen then, and nobody asked for them.
TEST(CuptiModules, NoModuleFiresWhileIdle) {
  EXPECT_CLEAN(run_target({{"GPU_PROFILED_SUBSCRIBE", "eager"}}, [] {
    start_driver();
    ShimView shim;
    const auto image = make_image(300'000, 9);
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
    EXPECT_TRUE(ProbeTap::records<gpuprof_module_v1>(GPUPROF_PROBE_MODULE).empty());
    EXPECT_EQ(shim.module(0).hash, hash_of(image));
    EXPECT_EQ(shim.module(0).state, GPUPROF_MODULE_GONE);
  }));
}

TEST(CuptiModules, TemporaryImageGetsTheLastingAddressToo) {
  Environment environment = kArmed;
  environment["FAKE_CUDA_TEMPORARY_MODULES"] = "1";
  EXPECT_CLEAN(run_target(environment, [] {
    start_driver();
    const ShimView shim;
    const auto image = make_image(300'000, 4);
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
    const auto events = ProbeTap::records<gpuprof_module_v1>(GPUPROF_PROBE_MODULE);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].hash, hash_of(image));
    EXPECT_EQ(memcmp(reinterpret_cast<void*>(events[0].address), image.data(), image.size()), 0);
  }));
}

TEST(CuptiModules, WithoutTheHashCallbackModulesComeFromTheSubscriber) {
  const std::string directory = cupti_without({"cuptiRegisterComputeCrcCallback"});
  EXPECT_CLEAN(run_target({{"GPU_PROFILED_CUPTI_PATH", directory}}, [] {
    start_driver();
    const ShimView shim;
    EXPECT_EQ(totals().subscribes.load(), 1u);
    const auto image = make_image(4096, 5);
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
    EXPECT_EQ(shim.module(0).hash, hash_of(image));
  }));
  std::filesystem::remove_all(directory);
}

TEST(CuptiModules, BothSourcesMakeOneEntry) {
  EXPECT_CLEAN(run_target({{"GPU_PROFILED_SUBSCRIBE", "eager"}}, [] {
    start_driver();
    const ShimView shim;
    const auto image = make_image(4096, 5);
    CUmodule module = nullptr;
    ASSERT_EQ(cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
    EXPECT_EQ(shim.module(0).hash, hash_of(image));
    EXPECT_EQ(shim.module(1).state, GPUPROF_MODULE_EMPTY);
  }));
}

TEST(CuptiModules, EveryOptionalFunctionMayBeMissing) {
  const std::string directory = cupti_without({
#ifndef GPUPROF_SANITIZED  // there the fake's own use of it goes through the symbol
      "cuptiGetResultString",
#endif
      "cuptiActivitySetAttribute", "cuptiRegisterComputeCrcCallback"});
  Environment environment = kArmed;
  environment["GPU_PROFILED_CUPTI_PATH"] = directory;
  EXPECT_CLEAN(run_target(environment, [] {
    start_driver();
    const ShimView shim;
    launch(load_function("k"));
    fake_cuda_drain();
    EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 1; }));
  }));
  std::filesystem::remove_all(directory);
}

TEST(CuptiDevices, EveryDeviceOnceALaunchWasSeen) {
  Environment environment = kArmed;
  environment["FAKE_CUDA_DEVICES"] = "3";
  EXPECT_CLEAN(run_target(environment, [] {
    start_driver();
    const ShimView shim;
    usleep(300'000);
    const auto devices = [] { return ProbeTap::records<gpuprof_device_v1>(GPUPROF_PROBE_DEVICE); };
    EXPECT_TRUE(devices().empty()) << "CUDA calls before a launch";
    launch(load_function("k"));
    EXPECT_TRUE(shim.wait_until([&] { return devices().size() >= 3; }));
    std::set<uint32_t> ids;
    for (const auto& device : devices()) {
      ids.insert(device.device_id);
      EXPECT_STREQ(device.name, "NVIDIA Fake H200");
      EXPECT_GT(device.sm_count, 0u);
      EXPECT_GT(device.memory_bytes, 0u);
    }
    EXPECT_EQ(ids, (std::set<uint32_t>{0, 1, 2}));
  }));
}

TEST(CuptiDevices, MetadataIsReplayedToALaterReader) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    start_driver();
    const ShimView shim;
    launch(load_function("kernel_with_a_name"));
    fake_cuda_drain();
    ASSERT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 1; }));
    shim.wait_for_round();
    ProbeTap::attach(0);
    shim.wait_for_round();
    ProbeTap::clear();
    ProbeTap::attach(1);
    EXPECT_TRUE(shim.wait_until([] {
      return !ProbeTap::records<gpuprof_name_v1>(GPUPROF_PROBE_NAME).empty() &&
             !ProbeTap::records<gpuprof_device_v1>(GPUPROF_PROBE_DEVICE).empty();
    }));
    const auto names = ProbeTap::records<gpuprof_name_v1>(GPUPROF_PROBE_NAME);
    EXPECT_EQ(std::string(names[0].bytes, names[0].chunk_bytes), "kernel_with_a_name");
  }));
}

TEST(CuptiEnd, FatalErrorMakesTheShimInert) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    start_driver();
    const ShimView shim;
    CUfunction function = load_function("k");
    launch(function);
    fake_cuda_set("fatal_error", "1");
    launch(function);
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_INERT);
    EXPECT_EQ(shim.status().reason, GPUPROF_REASON_FATAL_ERROR);
    const size_t launches = ProbeTap::launches().size();
    for (int i = 0; i < 10; ++i) launch(function);
    usleep(300'000);  // no flush either: the fake's rule `after-fatal`
    EXPECT_EQ(ProbeTap::launches().size(), launches);
  }));
}

/// A child that no atfork handler has seen: a raw clone.
TEST(CuptiEnd, RawCloneEmitsNothing) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    start_driver();
    CUfunction function = load_function("k");
    launch(function);
    const uint32_t state = ShimView().status().state;
    const long pid = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    if (pid == 0) {
      ProbeTap::clear();
      cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
      _exit(ProbeTap::firings().empty() ? 5 : 6);
    }
    int status = 0;
    ASSERT_EQ(waitpid(static_cast<pid_t>(pid), &status, 0), pid);
    EXPECT_EQ(WEXITSTATUS(status), 5);
    EXPECT_EQ(ShimView().status().state, state);
  }));
}

TEST(CuptiEnd, ExitStatusAndTimeAreTheApplications) {
  for (const int status : {0, 7}) {
    EXPECT_TRUE(takes_less(1.0 + kSanitizerExitSeconds, [status] {
      const Outcome outcome = run_target(kArmed, [status] {
        start_driver();
        launch(load_function("k"));
        exit(status);
      });
      EXPECT_EQ(outcome.status, status) << outcome.error;
      return outcome;
    }));
  }
}

TEST(CuptiEnd, ExitFromAThreadWhileOthersLaunch) {
  EXPECT_TRUE(takes_less(3.0, [] {
    const Outcome outcome = run_target(kArmed, [] {
      start_driver();
      CUfunction function = load_function("k");
      static std::atomic<int> launching{0};
      for (int i = 0; i < 3; ++i) {
        std::thread([function] {
          launch(function, 100);
          for (++launching;;) launch(function, 100);
        }).detach();
      }
      EXPECT_TRUE(ShimView().wait_until([] { return launching == 3; }));
      exit(9);
    });
    EXPECT_EQ(outcome.status, 9) << outcome.error;
    return outcome;
  }));
}

}  // namespace
}  // namespace gpuprof::testing
