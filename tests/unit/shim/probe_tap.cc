// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/shim/probe_tap.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>

namespace gpuprof::testing {
namespace {

constexpr const char* kNames[GPUPROF_PROBE_COUNT] = {
    "",          "process_v1", "launch_v1", "exec_v1", "pc_sample_v1", "name_v1",
    "module_v1", "device_v1",  "window_v1", "drop_v1", "autoarm"};
constexpr size_t kSizes[GPUPROF_PROBE_COUNT] = {0,
                                                sizeof(gpuprof_process_v1),
                                                sizeof(gpuprof_launch_v1),
                                                sizeof(gpuprof_exec_v1),
                                                sizeof(gpuprof_pc_sample_v1),
                                                sizeof(gpuprof_name_v1),
                                                sizeof(gpuprof_module_v1),
                                                sizeof(gpuprof_device_v1),
                                                sizeof(gpuprof_window_v1),
                                                sizeof(gpuprof_drop_v1),
                                                0};

struct Tap {
  std::mutex mutex;
  std::vector<Firing> firings;
  uint16_t* semaphores[GPUPROF_PROBE_COUNT] = {};
};

Tap& tap() {
  static auto* instance = new Tap;
  return *instance;
}

[[noreturn]] void die(const char* why) {
  fprintf(stderr, "ProbeTap: %s\n", why);
  _exit(70);
}

template <int kProbe>
void record(const void* records, uint32_t count, uint64_t seq) {
  Firing firing{static_cast<gpuprof_probe>(kProbe), count, seq, gettid(), {}};
  const auto* bytes = static_cast<const char*>(records);
  firing.bytes.assign(bytes, bytes + count * kSizes[kProbe]);
  const std::lock_guard lock(tap().mutex);
  tap().firings.push_back(std::move(firing));
}

using Recorder = void (*)(const void*, uint32_t, uint64_t);
constexpr Recorder kRecorders[GPUPROF_PROBE_COUNT] = {nullptr,   record<1>, record<2>, record<3>,
                                                      record<4>, record<5>, record<6>, record<7>,
                                                      record<8>, record<9>, record<10>};

/// The sites are 16 bytes apart (usdt_sites.S): room for a jump to an absolute address.
void patch(uintptr_t site, Recorder recorder) {
  unsigned char code[16];
#if defined(__x86_64__)
  memcpy(code, "\x48\xb8", 2);  // movabs rax
  memcpy(code + 2, &recorder, 8);
  memcpy(code + 10, "\xff\xe0", 2);  // jmp rax
  constexpr size_t kBytes = 12;
#else
  memcpy(code, "\x50\x00\x00\x58\x00\x02\x1f\xd6", 8);  // ldr x16, .+8; br x16
  memcpy(code + 8, &recorder, 8);
  constexpr size_t kBytes = 16;
#endif
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* start = reinterpret_cast<void*>(site & ~(page - 1));
  if (mprotect(start, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) die("mprotect");
  memcpy(reinterpret_cast<void*>(site), code, kBytes);
  __builtin___clear_cache(reinterpret_cast<char*>(site), reinterpret_cast<char*>(site + kBytes));
}

void use_note(const char* data, uintptr_t bias) {
  uint64_t addresses[3];  // site, base, semaphore
  memcpy(addresses, data, sizeof addresses);
  const std::string provider = data + 24;
  const std::string name = data + 24 + provider.size() + 1;
  if (provider != GPUPROF_USDT_PROVIDER) return;
  for (int probe = 1; probe < GPUPROF_PROBE_COUNT; ++probe) {
    if (name != kNames[probe]) continue;
    tap().semaphores[probe] = reinterpret_cast<uint16_t*>(bias + addresses[2]);
    patch(bias + addresses[0], kRecorders[probe]);
  }
}

}  // namespace

void ProbeTap::install(const char* path) {
  void* handle = dlopen(path, RTLD_NOW);
  if (handle == nullptr) die(dlerror());
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) die("dlinfo");
  std::ifstream file(path, std::ios::binary);
  const std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image.data() + header->e_shoff);
  const char* strings = image.data() + sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (strcmp(strings + sections[i].sh_name, ".note.stapsdt") != 0) continue;
    const char* at = image.data() + sections[i].sh_offset;
    const char* end = at + sections[i].sh_size;
    while (at < end) {
      Elf64_Nhdr note;
      memcpy(&note, at, sizeof note);
      at += sizeof note + (note.n_namesz + 3) / 4 * 4;
      use_note(at, map->l_addr);
      at += (note.n_descsz + 3) / 4 * 4;
    }
  }
  for (int probe = 1; probe < GPUPROF_PROBE_COUNT; ++probe) {
    if (tap().semaphores[probe] == nullptr) die("a probe has no note");
  }
}

void ProbeTap::attach(uint16_t value) {
  for (int probe = 1; probe < GPUPROF_PROBE_AUTOARM; ++probe) {
    set_semaphore(static_cast<gpuprof_probe>(probe), value);
  }
}

void ProbeTap::set_semaphore(gpuprof_probe probe, uint16_t value) {
  __atomic_store_n(tap().semaphores[probe], value, __ATOMIC_SEQ_CST);
}

std::vector<Firing> ProbeTap::firings() {
  const std::lock_guard lock(tap().mutex);
  return tap().firings;
}

void ProbeTap::clear() {
  const std::lock_guard lock(tap().mutex);
  tap().firings.clear();
}

uint64_t ProbeTap::drop(gpuprof_drop_class drop_class) {
  uint64_t total = 0;
  for (const auto& record : records<gpuprof_drop_v1>(GPUPROF_PROBE_DROP)) {
    if (record.drop_class == static_cast<uint32_t>(drop_class)) total = record.total;
  }
  return total;
}

}  // namespace gpuprof::testing
