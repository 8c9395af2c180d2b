// SPDX-License-Identifier: Apache-2.0
//
// What is tested is what was named: GPU_PROFILED_TEST_DAEMON and GPU_PROFILED_TEST_SHIM where they
// are set, seen in the running processes and not in what the tests believe.
#include <signal.h>

#include <cstdlib>
#include <filesystem>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

namespace fs = std::filesystem;

class CliProducts : public CliTest {};

std::string hex(const uint8_t* bytes, size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) {
    out += "0123456789abcdef"[bytes[i] >> 4];
    out += "0123456789abcdef"[bytes[i] & 15];
  }
  return out;
}

TEST_F(CliProducts, AreTheNamedOnes) {
  const char* daemon = std::getenv("GPU_PROFILED_TEST_DAEMON");
  const char* shim = std::getenv("GPU_PROFILED_TEST_SHIM");
  const fs::path want_daemon = fs::canonical(daemon != nullptr ? daemon : daemon_path());
  const fs::path want_shim = fs::canonical(shim != nullptr ? shim : shim_path());

  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz"}, setup());
  wait_until_traced(workload.pid());
  EXPECT_EQ(fs::read_symlink("/proc/" + std::to_string(attach.pid()) + "/exe"), want_daemon);
  const std::string maps = read_file("/proc/" + std::to_string(workload.pid()) + "/maps");
  EXPECT_NE(maps.find(want_shim.string() + "\n"), std::string::npos) << maps;
  const auto page = shim_page(workload.pid());
  ASSERT_TRUE(page);
  const Outcome notes = Child({"/usr/bin/readelf", "-n", want_shim.string()}, setup()).finish();
  EXPECT_NE(notes.out.find("Build ID: " + hex(page->build_id, sizeof page->build_id) + "\n"),
            std::string::npos)
      << notes.out;
  attach.send(SIGINT);
  EXPECT_EQ(attach.finish().status, 0);
}

}  // namespace
}  // namespace gpuprof::e2e
