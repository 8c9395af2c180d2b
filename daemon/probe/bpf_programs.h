// SPDX-License-Identifier: Apache-2.0
//
// BpfPrograms owns the loaded eBPF object: its maps, its programs and the links that attach them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/probe/decoder.h"
#include "daemon/probe/kernel_features.h"
#include "daemon/probe/probe_session.h"
#include "daemon/probe/usdt_notes.h"

struct bpf_link;
struct bpf_map;
struct bpf_program;
struct probes_bpf;

namespace gpuprof::probe {

struct LinkDestroyer {
  void operator()(bpf_link* link) const;
};
using Link = std::unique_ptr<bpf_link, LinkDestroyer>;

// Links and maps are descriptors: the process's end, however it comes, undoes all of it.
class BpfPrograms : public LossSource {
 public:
  // `features` is what to use: the kernel's, less the forced fallbacks.
  static Result<std::unique_ptr<BpfPrograms>> load(const ProbeOptions& options,
                                                   const KernelFeatures& features,
                                                   int64_t boottime_offset_ns);
  ~BpfPrograms() override;
  BpfPrograms(const BpfPrograms&) = delete;
  BpfPrograms& operator=(const BpfPrograms&) = delete;

  // Attaches to sites of the file behind `fd`; `file_number` comes back in every ring header.
  Result<std::vector<Link>> attach(int fd, std::span<const ProbeSite> sites, uint64_t file_number);

  Status watch(ProcessId process);
  void unwatch(uint32_t pid);
  void watch_all(bool on);
  // kUnavailable: GPUPROF_CGROUPS_MAX have rules already.
  Status set_cgroup(uint64_t id, gpuprof_cgroup_rule rule);
  Status exclude(ProcessId process, uint32_t exec_id);
  // From now on sightings_fd() tells of processes that have just made a shim's memfd.
  Status watch_memfds();
  // How to walk the Python frames of the process's threads; null: it runs none.
  void set_python(uint32_t pid, const gpuprof_python* python);

  [[nodiscard]] int events_fd() const;
  [[nodiscard]] int stacks_fd() const;
  [[nodiscard]] int sightings_fd() const;
  [[nodiscard]] std::array<uint64_t, GPUPROF_BPF_COUNTER_COUNT> counters() const;
  [[nodiscard]] const KernelFeatures& features() const { return features_; }

  std::optional<gpuprof_stream_losses> losses(const gpuprof_stream_key& key) override;
  std::vector<gpuprof_stream_key> lossy_streams() override;
  void forget(const gpuprof_stream_key& key) override;

 private:
  struct SkeletonDestroyer {
    void operator()(probes_bpf* skeleton) const;
  };

  explicit BpfPrograms(const KernelFeatures& features) : features_(features) {}
  Status configure(const ProbeOptions& options, int64_t boottime_offset_ns);
  Status follow_processes();
  Result<Link> attach_multi(const bpf_program* program, const char* path,
                            std::span<const ProbeSite> sites, uint64_t file_number);
  Result<Link> attach_one(const bpf_program* program, const char* path, const ProbeSite& site,
                          uint64_t file_number);
  [[nodiscard]] unsigned long attach_offset(const ProbeSite& site) const;

  KernelFeatures features_;
  std::unique_ptr<probes_bpf, SkeletonDestroyer> skeleton_;
  Link fork_;
  Link exit_;
  Link memfds_;
};

}  // namespace gpuprof::probe
