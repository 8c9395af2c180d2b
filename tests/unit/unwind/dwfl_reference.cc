// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/unwind/dwfl_reference.h"

#include <elfutils/libdwfl.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "daemon/unwind/frame_rule.h"

namespace gpuprof::unwind::test {

struct DwflReference::State {
  Dwfl* dwfl = nullptr;
  pid_t pid = 0;
  Machine machine = Machine::kX86_64;
  const Sample* sample = nullptr;
  std::vector<uint64_t> pcs;
};

namespace {

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, dwfl_errmsg(-1));
  std::abort();
}

int no_debuginfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word,
                 char**) {
  return -1;
}

const Dwfl_Callbacks kCallbacks = {.find_elf = dwfl_linux_proc_find_elf,
                                   .find_debuginfo = no_debuginfo,
                                   .section_address = nullptr,
                                   .debuginfo_path = nullptr};

// A descriptor, which libdwfl closes.
int in_memory(const RecordedModule& module) {
  const int fd = memfd_create("module", MFD_CLOEXEC);
  const auto size = static_cast<ssize_t>(module.image.size());
  if (fd < 0 || write(fd, module.image.data(), module.image.size()) != size) die("memfd");
  return fd;
}

}  // namespace

DwflReference::DwflReference(pid_t pid) : state_(std::make_unique<State>()) {
  state_->pid = pid;
  state_->dwfl = dwfl_begin(&kCallbacks);
  if (state_->dwfl == nullptr) die("dwfl_begin");
  report();
  attach();
}

DwflReference::DwflReference(const std::vector<RecordedModule>& modules, Machine machine)
    : state_(std::make_unique<State>()) {
  state_->machine = machine;
  state_->pid = 1;  // a number that libdwfl hands back; the process itself is never looked at
  state_->dwfl = dwfl_begin(&kCallbacks);
  if (state_->dwfl == nullptr) die("dwfl_begin");
  dwfl_report_begin(state_->dwfl);
  for (const RecordedModule& module : modules) {
    const char* const name = module.name.c_str();
    if (!dwfl_report_elf(state_->dwfl, name, name, in_memory(module), module.bias, true)) die(name);
  }
  if (dwfl_report_end(state_->dwfl, nullptr, nullptr) != 0) die("report_end");
  attach();
}

void DwflReference::attach() {
  static const Dwfl_Thread_Callbacks threads = {
      .next_thread = [](Dwfl*, void* arg, void** thread_arg) -> pid_t {
        if (*thread_arg != nullptr) return 0;
        *thread_arg = arg;
        return static_cast<State*>(arg)->pid;
      },
      .get_thread = nullptr,
      .memory_read =
          [](Dwfl*, Dwarf_Addr at, Dwarf_Word* result, void* arg) {
            const Sample& s = *static_cast<State*>(arg)->sample;
            const StackView view{s.stack_address, s.bytes};
            const auto v = view.read(at);
            if (v) *result = *v;
            return v.has_value();
          },
      .set_initial_registers =
          [](Dwfl_Thread* thread, void* arg) {
            const Sample& s = *static_cast<State*>(arg)->sample;
            if (static_cast<State*>(arg)->machine == Machine::kAarch64) {
              // The bits of a return address that a signature may take: all above 48 (regno -2).
              const Dwarf_Word signature = 0xffff'0000'0000'0000;
              if (!dwfl_thread_state_registers(thread, -2, 1, &signature)) return false;
              dwfl_thread_state_register_pc(thread, s.regs[32]);
              return dwfl_thread_state_registers(thread, 0, 32, s.regs.data());
            }
            dwfl_thread_state_register_pc(thread, s.regs[16]);
            return dwfl_thread_state_registers(thread, 0, 17, s.regs.data());
          },
      .detach = nullptr,
      .thread_detach = nullptr};
  if (!dwfl_attach_state(state_->dwfl, nullptr, state_->pid, &threads, state_.get()))
    die("attach_state");
}

void DwflReference::report() {
  dwfl_report_begin_add(state_->dwfl);
  if (dwfl_linux_proc_report(state_->dwfl, state_->pid) != 0) die("proc_report");
  if (dwfl_report_end(state_->dwfl, nullptr, nullptr) != 0) die("report_end");
}

DwflReference::~DwflReference() { dwfl_end(state_->dwfl); }

std::vector<uint64_t> DwflReference::unwind(const Sample& sample) {
  state_->sample = &sample;
  state_->pcs.clear();
  (void)dwfl_getthread_frames(
      state_->dwfl, state_->pid,
      [](Dwfl_Frame* frame, void* arg) -> int {
        auto* self = static_cast<State*>(arg);
        Dwarf_Addr pc = 0;
        bool activation = false;
        if (!dwfl_frame_pc(frame, &pc, &activation)) return DWARF_CB_ABORT;
        self->pcs.push_back(activation ? pc : pc - 1);
        return self->pcs.size() < 512 ? DWARF_CB_OK : DWARF_CB_ABORT;
      },
      state_.get());
  return state_->pcs;
}

}  // namespace gpuprof::unwind::test
