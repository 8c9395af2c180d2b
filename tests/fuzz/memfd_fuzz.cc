// SPDX-License-Identifier: Apache-2.0
//
// The pages that a target keeps for us: the status page, the module table, the copies.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "daemon/target/cuda_driver.h"
#include "daemon/target/module_reader.h"
#include "daemon/target/shim_status.h"
#include "proto/memfd_layout.h"

namespace {

using namespace gpuprof;

bool is_printable(const std::string& text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

class CountingSink : public target::ImageSink {
 public:
  void restart() override { bytes_ = 0; }
  bool add(std::span<const std::byte> bytes) override {
    bytes_ += bytes.size();
    return bytes_ <= kMaxBytes;
  }
  static constexpr uint64_t kMaxBytes = 1 << 20;

 private:
  uint64_t bytes_ = 0;
};

}  // namespace

// Input: the status page, then what lies from GPUPROF_MODULES_OFFSET on.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpuprof_status_page page{};
  const size_t page_bytes = std::min(size, sizeof(page));
  std::memcpy(&page, data, page_bytes);
  const target::ShimStatus status = target::decode_status(page);
  for (const std::string& text : {status.reason_text, status.cupti_path, status.libcuda_path,
                                  status.kernel_driver_version, status.unknown_knobs}) {
    if (!is_printable(text)) std::abort();
  }
  const target::CudaDriver driver = target::cuda_driver_of(status, "");
  if (!is_printable(target::describe(driver)) || driver.kind >= GPUPROF_LIBCUDA_KIND_COUNT ||
      !is_printable(target::explain_failure(driver).value_or("")))
    std::abort();
  if (status.state >= GPUPROF_STATE_COUNT || status.reason >= GPUPROF_REASON_COUNT) std::abort();

  UniqueFd memfd(::memfd_create("fuzz", MFD_CLOEXEC));
  const std::span<const uint8_t> modules(data + page_bytes, size - page_bytes);
  if (::pwrite(memfd.get(), &page, sizeof(page), 0) != sizeof(page) ||
      ::pwrite(memfd.get(), modules.data(), modules.size(), GPUPROF_MODULES_OFFSET) !=
          static_cast<ssize_t>(modules.size())) {
    std::abort();
  }
  // Addresses in the table are read from this very process: some lie in it.
  target::ModuleReader reader(std::move(memfd), {static_cast<uint32_t>(::getpid()), 0},
                              {CountingSink::kMaxBytes, 4 * CountingSink::kMaxBytes});
  CountingSink sink;
  for (size_t at = 0;
       at + sizeof(gpuprof_module_entry) <= modules.size() && at < 8 * sizeof(gpuprof_module_entry);
       at += sizeof(gpuprof_module_entry)) {
    gpuprof_module_entry entry;
    std::memcpy(&entry, modules.data() + at, sizeof(entry));
    (void)reader.lies_in_process_only(entry.hash);
    (void)reader.read(entry.hash, sink);
  }
  if (reader.bytes_read() > 4 * CountingSink::kMaxBytes) std::abort();
  return 0;
}
