// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/bpf_programs.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "probes.skel.h"

namespace gpuprof::probe {
namespace {

constexpr auto kTraceUprobeMulti = static_cast<bpf_attach_type>(48);  // since 6.6

// libbpf explains failures only by printing. The first warning of a call names the cause; the rest
// is what followed from it.
thread_local std::string libbpf_warning;

int keep_warning(libbpf_print_level level, const char* format, va_list args) {
  if (level != LIBBPF_WARN || !libbpf_warning.empty()) return 0;
  char text[256];
  vsnprintf(text, sizeof(text), format, args);
  libbpf_warning = text;
  const size_t line_end = libbpf_warning.find('\n');
  if (line_end != std::string::npos) libbpf_warning.resize(line_end);
  return 0;
}

tl::unexpected<Error> fail_libbpf(int err, std::string message) {
  err = err < 0 ? -err : err;
  if (!libbpf_warning.empty()) message += " (" + std::exchange(libbpf_warning, {}) + ")";
  const Code code = err == EPERM || err == EACCES        ? Code::kPermission
                    : err == EINVAL || err == EOPNOTSUPP ? Code::kUnsupported
                                                         : Code::kIo;
  return fail_errno(code, err, std::move(message));
}

tl::unexpected<Error> explain_load(int err) {
  if (err == -EPERM) {
    return fail_libbpf(
        err,
        "eBPF programs were not loaded: raise RLIMIT_MEMLOCK (ulimit -l unlimited) on "
        "kernels before 5.11, or see kernel.unprivileged_bpf_disabled");
  }
  return fail_libbpf(err, "eBPF programs were not loaded");
}

uint64_t cookie_of(uint64_t file_number, gpuprof_probe probe) {
  return file_number << GPUPROF_COOKIE_PROBE_BITS | probe;
}

}  // namespace

void LinkDestroyer::operator()(bpf_link* link) const { bpf_link__destroy(link); }

void BpfPrograms::SkeletonDestroyer::operator()(probes_bpf* skeleton) const {
  probes_bpf__destroy(skeleton);
}

BpfPrograms::~BpfPrograms() = default;

Result<std::unique_ptr<BpfPrograms>> BpfPrograms::load(const ProbeOptions& options,
                                                       const KernelFeatures& features,
                                                       int64_t boottime_offset_ns) {
  libbpf_set_print(keep_warning);
  libbpf_warning.clear();
  std::unique_ptr<BpfPrograms> programs(new BpfPrograms(features));
  programs->skeleton_.reset(probes_bpf__open());
  if (!programs->skeleton_) return fail_libbpf(errno, "eBPF object");
  if (Status set = programs->configure(options, boottime_offset_ns); !set) {
    return tl::unexpected(set.error());
  }
  const int err = options.pretend == ProbeOptions::Pretend::kMemlock
                      ? -EPERM
                      : probes_bpf__load(programs->skeleton_.get());
  if (err != 0) return explain_load(err);
  if (Status followed = programs->follow_processes(); !followed) {
    return tl::unexpected(followed.error());
  }
  return programs;
}

Status BpfPrograms::configure(const ProbeOptions& options, int64_t boottime_offset_ns) {
  struct stat pid_ns;
  if (stat("/proc/self/ns/pid", &pid_ns) != 0) {
    return fail_errno(Code::kIo, errno, "/proc/self/ns/pid (is /proc mounted?)");
  }
  auto* settings = skeleton_->rodata;
  settings->daemon_pid_ns_inum = static_cast<uint32_t>(pid_ns.st_ino);
  settings->daemon_boottime_offset = boottime_offset_ns;
  settings->sleepable = features_.sleepable;
  settings->has_find_vma = features_.find_vma;
  settings->process_bytes_per_s = options.process_bytes_per_s;
  settings->user_bytes_per_s = options.user_bytes_per_s;
  settings->events_wake_bytes = options.events_ring_bytes / 4;
  settings->stacks_wake_bytes = options.stacks_ring_bytes / 4;

  int err = bpf_map__set_max_entries(skeleton_->maps.events, options.events_ring_bytes);
  if (!err) err = bpf_map__set_max_entries(skeleton_->maps.stacks, options.stacks_ring_bytes);
  if (!err) err = bpf_map__set_max_entries(skeleton_->maps.watched, options.max_processes);
  if (!err) {
    err = bpf_map__set_max_entries(skeleton_->maps.sightings,
                                   static_cast<uint32_t>(sysconf(_SC_PAGESIZE)));
  }
  for (bpf_program* program : {skeleton_->progs.batch_probe, skeleton_->progs.launch_probe}) {
    if (features_.uprobe_multi && !err) {
      err = bpf_program__set_expected_attach_type(program, kTraceUprobeMulti);
    }
    if (features_.sleepable && !err) {
      err = bpf_program__set_flags(program, bpf_program__flags(program) | BPF_F_SLEEPABLE);
    }
  }
  if (err) return fail_libbpf(err, "eBPF object");
  return {};
}

Status BpfPrograms::follow_processes() {
  fork_.reset(bpf_program__attach(skeleton_->progs.on_fork));
  if (!fork_) return fail_libbpf(errno, "raw tracepoint sched_process_fork (needs CAP_PERFMON)");
  exit_.reset(bpf_program__attach(skeleton_->progs.on_exit));
  if (!exit_) return fail_libbpf(errno, "raw tracepoint sched_process_exit (needs CAP_PERFMON)");
  return {};
}

// The 5-byte nop only where it is one of ours: on any other function, 6.18's optimised call
// destroys the red zone; ours are built with -mno-red-zone.
unsigned long BpfPrograms::attach_offset(const ProbeSite& site) const {
  return features_.nop5 && site.has_nop5 ? site.offset + 1 : site.offset;
}

Result<std::vector<Link>> BpfPrograms::attach(int fd, std::span<const ProbeSite> sites,
                                              uint64_t file_number) {
  libbpf_warning.clear();
  // By descriptor: the path that led to the file may lead elsewhere by now.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  std::vector<Link> links;
  std::vector<ProbeSite> batches;
  std::vector<ProbeSite> launches;
  for (const ProbeSite& site : sites) {
    (site.probe == GPUPROF_PROBE_LAUNCH ? launches : batches).push_back(site);
  }
  for (const auto& group : {batches, launches}) {
    if (group.empty()) continue;
    const bpf_program* program = group[0].probe == GPUPROF_PROBE_LAUNCH
                                     ? skeleton_->progs.launch_probe
                                     : skeleton_->progs.batch_probe;
    if (features_.uprobe_multi) {
      auto link = attach_multi(program, path.c_str(), group, file_number);
      if (!link) return tl::unexpected(link.error());
      links.push_back(std::move(*link));
      continue;
    }
    for (const ProbeSite& site : group) {
      auto link = attach_one(program, path.c_str(), site, file_number);
      if (!link) return tl::unexpected(link.error());
      links.push_back(std::move(*link));
    }
  }
  return links;
}

Result<Link> BpfPrograms::attach_multi(const bpf_program* program, const char* path,
                                       std::span<const ProbeSite> sites, uint64_t file_number) {
  std::vector<unsigned long> offsets;
  std::vector<unsigned long> semaphores;
  std::vector<__u64> cookies;
  for (const ProbeSite& site : sites) {
    offsets.push_back(attach_offset(site));
    semaphores.push_back(site.semaphore_offset);
    cookies.push_back(cookie_of(file_number, site.probe));
  }
  LIBBPF_OPTS(bpf_uprobe_multi_opts, options);
  options.offsets = offsets.data();
  options.ref_ctr_offsets = semaphores.data();
  options.cookies = cookies.data();
  options.cnt = sites.size();
  Link link(bpf_program__attach_uprobe_multi(program, -1, path, nullptr, &options));
  if (!link)
    return fail_libbpf(errno, "uprobe_multi was not attached (needs CAP_BPF and CAP_PERFMON)");
  return link;
}

Result<Link> BpfPrograms::attach_one(const bpf_program* program, const char* path,
                                     const ProbeSite& site, uint64_t file_number) {
  LIBBPF_OPTS(bpf_uprobe_opts, options);
  options.ref_ctr_offset = site.semaphore_offset;
  options.bpf_cookie = cookie_of(file_number, site.probe);
  Link link(bpf_program__attach_uprobe_opts(program, -1, path, attach_offset(site), &options));
  if (!link) {
    const int err = errno;
    return fail_libbpf(err, "perf uprobe on " + std::string(probe_name(site.probe)) +
                                " was not attached (this kernel has no uprobe_multi, so "
                                "CAP_SYS_ADMIN is needed)");
  }
  return link;
}

Status BpfPrograms::watch(ProcessId process) {
  const gpuprof_watch value{.start_ticks = process.start_ticks, .excluded = 0, .exec_id = 0};
  if (bpf_map__update_elem(skeleton_->maps.watched, &process.pid, sizeof(process.pid), &value,
                           sizeof(value), BPF_ANY) != 0) {
    const int err = errno;
    return fail_errno(err == E2BIG ? Code::kUnavailable : Code::kIo, err,
                      "cannot watch process " + std::to_string(process.pid));
  }
  return {};
}

Status BpfPrograms::set_cgroup(uint64_t id, gpuprof_cgroup_rule rule) {
  const uint32_t value = rule;
  if (bpf_map__update_elem(skeleton_->maps.cgroups, &id, sizeof id, &value, sizeof value,
                           BPF_ANY) != 0) {
    const int err = errno;
    return fail_errno(err == E2BIG ? Code::kUnavailable : Code::kIo, err,
                      "more than " + std::to_string(GPUPROF_CGROUPS_MAX) +
                          " cgroups cannot be told apart: name one that holds them");
  }
  ++skeleton_->bss->cgroup_rules;
  return {};
}

Status BpfPrograms::exclude(ProcessId process, uint32_t exec_id) {
  const gpuprof_watch value{.start_ticks = process.start_ticks, .excluded = 1, .exec_id = exec_id};
  if (bpf_map__update_elem(skeleton_->maps.watched, &process.pid, sizeof(process.pid), &value,
                           sizeof(value), BPF_ANY) != 0)
    return fail_errno(Code::kUnavailable, errno, "process " + std::to_string(process.pid));
  return {};
}

Status BpfPrograms::watch_memfds() {
  libbpf_warning.clear();
  memfds_.reset(bpf_program__attach(skeleton_->progs.on_rename));
  if (!memfds_) return fail_libbpf(errno, "raw tracepoint task_rename (needs CAP_PERFMON)");
  return {};
}

void BpfPrograms::unwatch(uint32_t pid) {
  bpf_map__delete_elem(skeleton_->maps.watched, &pid, sizeof(pid), 0);
}

void BpfPrograms::set_python(uint32_t pid, const gpuprof_python* python) {
  // A full table leaves the process without Python frames, as its counts will show.
  if (python != nullptr) {
    bpf_map__update_elem(skeleton_->maps.pythons, &pid, sizeof pid, python, sizeof *python,
                         BPF_ANY);
  } else {
    bpf_map__delete_elem(skeleton_->maps.pythons, &pid, sizeof pid, 0);
  }
}

void BpfPrograms::watch_all(bool on) { skeleton_->bss->watch_all = on; }

int BpfPrograms::events_fd() const { return bpf_map__fd(skeleton_->maps.events); }
int BpfPrograms::stacks_fd() const { return bpf_map__fd(skeleton_->maps.stacks); }
int BpfPrograms::sightings_fd() const { return bpf_map__fd(skeleton_->maps.sightings); }

std::array<uint64_t, GPUPROF_BPF_COUNTER_COUNT> BpfPrograms::counters() const {
  std::array<uint64_t, GPUPROF_BPF_COUNTER_COUNT> totals{};
  const int cpus = libbpf_num_possible_cpus();
  if (cpus <= 0) return totals;
  std::vector<uint64_t> values(static_cast<size_t>(cpus));
  for (uint32_t i = 0; i < totals.size(); i++) {
    if (bpf_map__lookup_elem(skeleton_->maps.counters, &i, sizeof(i), values.data(),
                             values.size() * sizeof(uint64_t), 0) != 0) {
      continue;
    }
    for (const uint64_t value : values) totals[i] += value;
  }
  return totals;
}

std::optional<gpuprof_stream_losses> BpfPrograms::losses(const gpuprof_stream_key& key) {
  gpuprof_stream_losses value;
  if (bpf_map__lookup_elem(skeleton_->maps.stream_losses, &key, sizeof(key), &value, sizeof(value),
                           0) != 0) {
    return std::nullopt;
  }
  return value;
}

std::vector<gpuprof_stream_key> BpfPrograms::lossy_streams() {
  std::vector<gpuprof_stream_key> keys;
  gpuprof_stream_key key;
  const gpuprof_stream_key* previous = nullptr;
  // Bounded: the walk starts over when the key it stands on is evicted meanwhile.
  const size_t limit = 4 * bpf_map__max_entries(skeleton_->maps.stream_losses);
  while (keys.size() < limit &&
         bpf_map__get_next_key(skeleton_->maps.stream_losses, previous, &key, sizeof(key)) == 0) {
    keys.push_back(key);
    previous = &keys.back();
    if (keys.size() == keys.capacity()) keys.reserve(2 * keys.size());
    previous = &keys.back();
  }
  return keys;
}

void BpfPrograms::forget(const gpuprof_stream_key& key) {
  bpf_map__delete_elem(skeleton_->maps.stream_losses, &key, sizeof(key), 0);
}

}  // namespace gpuprof::probe
