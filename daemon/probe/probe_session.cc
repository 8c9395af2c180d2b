// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/probe_session.h"

#include <bpf/libbpf.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/unique_fd.h"
#include "daemon/probe/bpf_programs.h"
#include "daemon/probe/decoder.h"
#include "daemon/probe/kernel_features.h"
#include "daemon/probe/usdt_notes.h"

namespace gpuprof::probe {
namespace {

using namespace std::chrono_literals;

// A flood must not keep poll() from returning.
constexpr std::chrono::nanoseconds kDrainBudget = 100ms;

// Of create(), at its peak: programs, maps, BTF, libbpf's probes of the kernel. Asked for
// beforehand: libbpf takes a probe that had no descriptor for a kernel without the feature.
constexpr size_t kDescriptors = 24;

// The kernel's start times count from boot; /proc shows them moved by the reader's time namespace.
int64_t boottime_offset_ns() {
  int64_t offset_ns = 0;
  FILE* file = std::fopen("/proc/self/timens_offsets", "re");
  if (!file) return 0;  // a kernel without time namespaces
  char clock[16];
  long long seconds = 0;
  long long nanoseconds = 0;
  while (std::fscanf(file, "%15s %lld %lld", clock, &seconds, &nanoseconds) == 3) {
    if (std::string_view(clock) == "boottime") offset_ns = seconds * 1'000'000'000 + nanoseconds;
  }
  std::fclose(file);
  return offset_ns;
}

// One ring and where its entries go.
class Ring {
 public:
  using Handler = void (Decoder::*)(std::span<const uint8_t>, int64_t);

  static Result<std::unique_ptr<Ring>> open(int map_fd, Decoder& decoder, Handler handler) {
    std::unique_ptr<Ring> ring(new Ring(decoder, handler));
    ring->ring_.reset(ring_buffer__new(map_fd, on_entry, ring.get(), nullptr));
    if (!ring->ring_) return fail_errno(Code::kIo, errno, "ring buffer");
    return ring;
  }

  // Entries read. Sets `out_of_time` if more may be left at `deadline_ns`.
  uint64_t drain(int64_t now_ns, int64_t deadline_ns, bool& out_of_time) {
    now_ns_ = now_ns;
    deadline_ns_ = deadline_ns;
    entries_ = 0;
    if (ring_buffer__consume(ring_.get()) == -ETIME) out_of_time = true;
    return entries_;
  }

 private:
  struct Deleter {
    void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
  };

  Ring(Decoder& decoder, Handler handler) : decoder_(decoder), handler_(handler) {}

  static int on_entry(void* context, void* data, size_t bytes) {
    auto* ring = static_cast<Ring*>(context);
    (ring->decoder_.*ring->handler_)({static_cast<const uint8_t*>(data), bytes}, ring->now_ns_);
    ring->entries_++;
    if (ring->entries_ % 64 != 0) return 0;
    return signed_monotonic_ns() > ring->deadline_ns_ ? -ETIME : 0;
  }

  Decoder& decoder_;
  Handler handler_;
  std::unique_ptr<ring_buffer, Deleter> ring_;
  int64_t now_ns_ = 0;
  int64_t deadline_ns_ = 0;
  uint64_t entries_ = 0;
};

// Processes that have just made a shim's memfd.
class Sightings {
 public:
  static Result<std::unique_ptr<Sightings>> open(int map_fd, int epoll) {
    std::unique_ptr<Sightings> out(new Sightings);
    out->ring_.reset(ring_buffer__new(map_fd, on_entry, out.get(), nullptr));
    epoll_event interest{.events = EPOLLIN | EPOLLET, .data = {.fd = map_fd}};
    if (!out->ring_ || epoll_ctl(epoll, EPOLL_CTL_ADD, map_fd, &interest) != 0)
      return fail_errno(Code::kIo, errno, "ring buffer");
    return out;
  }
  std::vector<uint32_t> take() {
    ring_buffer__consume(ring_.get());
    return std::exchange(pids_, {});
  }

 private:
  struct Deleter {
    void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
  };
  Sightings() = default;
  static int on_entry(void* context, void* data, size_t bytes) {
    auto* self = static_cast<Sightings*>(context);
    if (bytes == sizeof(uint32_t)) self->pids_.push_back(*static_cast<const uint32_t*>(data));
    return self->pids_.size() < kMost ? 0 : -ENOSPC;
  }
  static constexpr size_t kMost = 1024;
  std::unique_ptr<ring_buffer, Deleter> ring_;
  std::vector<uint32_t> pids_;
};

// A shim file with probes on it.
struct Attachment {
  UniqueFd fd;
  std::string path;
  std::vector<ProbeSite> sites;
  std::vector<Link> links;
  std::vector<Link> autoarm;
  std::set<uint64_t> owners;  // cookies handed out that have not been detached
};

Status check_options(const ProbeOptions& options) {
  const auto page = static_cast<uint32_t>(sysconf(_SC_PAGESIZE));
  for (const uint32_t bytes : {options.events_ring_bytes, options.stacks_ring_bytes}) {
    if (bytes < page || (bytes & (bytes - 1)) != 0) {
      return fail(Code::kInvalidArgument,
                  "ring size " + std::to_string(bytes) + ": must be a power of two of whole pages");
    }
  }
  if (options.max_processes == 0) return fail(Code::kInvalidArgument, "max_processes is 0");
  return {};
}

std::optional<ProbeOptions::Pretend> pretended(std::string_view name) {
  using Pretend = ProbeOptions::Pretend;
  if (name == "pretend-old-kernel") return Pretend::kOldKernel;
  if (name == "pretend-no-btf") return Pretend::kNoBtf;
  if (name == "pretend-lockdown") return Pretend::kLockdown;
  if (name == "pretend-memlock") return Pretend::kMemlock;
  return std::nullopt;
}

BpfAccess bpf_access(ProbeOptions::Pretend pretend) {
  BpfAccess access = probe_bpf_access();
  access.locked_down |= pretend == ProbeOptions::Pretend::kLockdown;
  access.attach_cookies &= pretend != ProbeOptions::Pretend::kOldKernel;
  if (pretend == ProbeOptions::Pretend::kNoBtf) access.btf_errno = ENOENT;
  return access;
}

}  // namespace

Status ProbeOptions::add_fallbacks(std::string_view list) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string name(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
    std::replace(name.begin(), name.end(), '_', '-');
    if (name.empty()) continue;
    if (name == "no-uprobe-multi") {
      no_uprobe_multi = true;
    } else if (name == "no-sleepable") {
      no_sleepable = true;
    } else if (name == "no-nop5") {
      no_nop5 = true;
    } else if (name == "no-find-vma") {
      no_find_vma = true;
    } else if (const auto trouble = pretended(name)) {
      pretend = *trouble;
    } else {
      return fail(Code::kInvalidArgument,
                  "unknown fallback '" + name +
                      "': known are no-uprobe-multi, no-sleepable, no-nop5, no-find-vma");
    }
  }
  return {};
}

struct ProbeSession::Impl {
  ProbeOptions options;
  std::unique_ptr<BpfPrograms> programs;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<Ring> events;
  std::unique_ptr<Ring> stacks;
  UniqueFd epoll;
  std::unique_ptr<Sightings> sightings;  // null: not watched
  bool watching_all = false;
  uint64_t next_file = 1;
  uint64_t duplicate_attaches = 0;
  uint64_t unknown_probes = 0;
  std::map<uint64_t, Attachment> attachments;                // by file number
  std::map<uint64_t, uint64_t> alias_of;                     // duplicate's number -> survivor's
  std::map<std::pair<dev_t, ino_t>, uint64_t> file_numbers;  // by what fstat says

  Status open_rings(EventSink& sink);
  Status raise_autoarm(Attachment& attachment, uint64_t number);
  bool drain(uint64_t& entries);
  void merge_duplicates();
  [[nodiscard]] uint64_t survivor(uint64_t number) const;
};

Status ProbeSession::Impl::open_rings(EventSink& sink) {
  DecoderOptions decoding;
  decoding.boottime_offset_ns = boottime_offset_ns();
  decoding.reorder_window_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(options.reorder_window).count();
  decoding.max_processes = options.max_processes;
  decoder = std::make_unique<Decoder>(decoding, sink, *programs);
  auto first = Ring::open(programs->events_fd(), *decoder, &Decoder::on_events_entry);
  if (!first) return tl::unexpected(first.error());
  auto second = Ring::open(programs->stacks_fd(), *decoder, &Decoder::on_stacks_entry);
  if (!second) return tl::unexpected(second.error());
  events = std::move(*first);
  stacks = std::move(*second);
  epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return fail_errno(Code::kIo, errno, "epoll_create1");
  for (const int fd : {programs->events_fd(), programs->stacks_fd()}) {
    // Edge-triggered: a ring is hardly ever empty, but only a wake-up from BPF (a quarter full)
    // counts.
    epoll_event interest{.events = EPOLLIN | EPOLLET, .data = {.fd = fd}};
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &interest) != 0) {
      return fail_errno(Code::kIo, errno, "epoll_ctl");
    }
  }
  return {};
}

ProbeSession::ProbeSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProbeSession::~ProbeSession() = default;

Result<std::unique_ptr<ProbeSession>> ProbeSession::create(const ProbeOptions& options,
                                                           EventSink& sink) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (const char* list = std::getenv("GPU_PROFILED_DEBUG_FALLBACK")) {
    if (Status added = impl->options.add_fallbacks(list); !added) {
      return fail_with(added.error(), "GPU_PROFILED_DEBUG_FALLBACK");
    }
  }
  if (Status checked = check_options(impl->options); !checked) {
    return tl::unexpected(checked.error());
  }
  if (Status access = explain(bpf_access(impl->options.pretend)); !access)
    return tl::unexpected(access.error());
  if (const int err = can_open(kDescriptors); err != 0) {
    return fail_errno(Code::kIo, err, "eBPF programs were not loaded");
  }
  KernelFeatures features = probe_kernel_features();
  features.uprobe_multi &= !impl->options.no_uprobe_multi;
  features.sleepable &= !impl->options.no_sleepable;
  features.nop5 &= !impl->options.no_nop5;
  features.find_vma &= !impl->options.no_find_vma;
  auto programs = BpfPrograms::load(impl->options, features, boottime_offset_ns());
  if (!programs) return tl::unexpected(programs.error());
  impl->programs = std::move(*programs);
  if (Status opened = impl->open_rings(sink); !opened) return tl::unexpected(opened.error());
  return std::unique_ptr<ProbeSession>(new ProbeSession(std::move(impl)));
}

uint64_t ProbeSession::Impl::survivor(uint64_t number) const {
  const auto alias = alias_of.find(number);
  return alias == alias_of.end() ? number : alias->second;
}

Result<uint64_t> ProbeSession::attach(int shim_fd, std::string path) {
  struct stat info;
  if (fstat(shim_fd, &info) != 0) return fail_errno(Code::kIo, errno, path + ": fstat");
  const std::pair file(info.st_dev, info.st_ino);
  if (const auto known = impl_->file_numbers.find(file); known != impl_->file_numbers.end()) {
    return known->second;
  }
  Attachment attachment;
  auto image = read_shim_file(shim_fd);
  if (!image) return fail_with(image.error(), path);
  uint64_t unknown = 0;
  auto sites = parse_usdt_notes(*image, &unknown);
  if (!sites) return fail_with(sites.error(), path);
  attachment.fd.reset(fcntl(shim_fd, F_DUPFD_CLOEXEC, 3));
  if (!attachment.fd.valid()) return fail_errno(Code::kIo, errno, path + ": F_DUPFD_CLOEXEC");

  // autoarm never fires; its semaphore must stay down unless everything is watched.
  std::vector<ProbeSite> firing;
  std::copy_if(sites->begin(), sites->end(), std::back_inserter(firing),
               [](const ProbeSite& site) { return site.probe != GPUPROF_PROBE_AUTOARM; });
  const uint64_t number = impl_->next_file;
  auto links = impl_->programs->attach(attachment.fd.get(), firing, number);
  if (!links) return fail_with(links.error(), path);
  attachment.links = std::move(*links);
  attachment.path = std::move(path);
  attachment.sites = std::move(*sites);
  attachment.owners.insert(number);
  if (impl_->watching_all) {
    if (Status raised = impl_->raise_autoarm(attachment, number); !raised) {
      return tl::unexpected(raised.error());
    }
  }
  impl_->attachments.emplace(number, std::move(attachment));
  impl_->file_numbers.emplace(file, number);
  impl_->next_file++;
  impl_->unknown_probes += unknown;
  return number;
}

Status ProbeSession::Impl::raise_autoarm(Attachment& attachment, uint64_t number) {
  const auto site =
      std::find_if(attachment.sites.begin(), attachment.sites.end(),
                   [](const ProbeSite& s) { return s.probe == GPUPROF_PROBE_AUTOARM; });
  if (site == attachment.sites.end() || !attachment.autoarm.empty()) return {};
  auto links = programs->attach(attachment.fd.get(), std::span(&*site, 1), number);
  if (!links) return fail_with(links.error(), attachment.path);
  attachment.autoarm = std::move(*links);
  return {};
}

void ProbeSession::detach(uint64_t cookie) {
  const auto found = impl_->attachments.find(impl_->survivor(cookie));
  if (found == impl_->attachments.end() || found->second.owners.erase(cookie) == 0) return;
  std::erase_if(impl_->file_numbers, [&](const auto& entry) { return entry.second == cookie; });
  impl_->alias_of.erase(cookie);
  if (!found->second.owners.empty()) return;
  impl_->attachments.erase(found);
  uint64_t entries = 0;
  impl_->drain(entries);
  impl_->decoder->restart();
}

Status ProbeSession::watch(ProcessId process) { return impl_->programs->watch(process); }

void ProbeSession::unwatch(uint32_t pid) {
  impl_->programs->unwatch(pid);
  uint64_t entries = 0;
  impl_->drain(entries);
  impl_->decoder->restart(pid);
}

void ProbeSession::set_python(ProcessId process, const gpuprof_python* python) {
  if (python == nullptr) return impl_->programs->set_python(process.pid, nullptr);
  gpuprof_python value = *python;
  value.start_ticks = process.start_ticks;
  impl_->programs->set_python(process.pid, &value);
}

Status ProbeSession::watch_all(bool on) {
  impl_->watching_all = on;
  impl_->programs->watch_all(on);
  for (auto& [number, attachment] : impl_->attachments) {
    if (!on) {
      attachment.autoarm.clear();
    } else if (Status raised = impl_->raise_autoarm(attachment, number); !raised) {
      return raised;
    }
  }
  return {};
}

Status ProbeSession::set_cgroup(uint64_t id, gpuprof_cgroup_rule rule) {
  return impl_->programs->set_cgroup(id, rule);
}

Status ProbeSession::exclude(ProcessId process, uint32_t exec_id) {
  return impl_->programs->exclude(process, exec_id);
}

Status ProbeSession::watch_memfds() {
  if (impl_->sightings) return {};
  auto sightings = Sightings::open(impl_->programs->sightings_fd(), impl_->epoll.get());
  if (!sightings) return tl::unexpected(sightings.error());
  if (Status attached = impl_->programs->watch_memfds(); !attached) return attached;
  impl_->sightings = std::move(*sightings);
  return {};
}

std::vector<uint32_t> ProbeSession::take_sightings() {
  return impl_->sightings ? impl_->sightings->take() : std::vector<uint32_t>();
}

// False if the time ran out with entries left.
bool ProbeSession::Impl::drain(uint64_t& entries) {
  const int64_t now_ns = signed_monotonic_ns();
  const int64_t half_ns = kDrainBudget.count() / 2;
  bool out_of_time = false;
  // Half the time each: a flood in one ring leaves the other its turn.
  entries += events->drain(now_ns, now_ns + half_ns, out_of_time);
  const int64_t second_ns = signed_monotonic_ns();
  entries += stacks->drain(now_ns, second_ns + half_ns, out_of_time);
  // What was reserved before `now_ns` has been read, so what is missing is late or lost.
  if (!out_of_time) decoder->close_gaps(now_ns);
  merge_duplicates();
  return !out_of_time;
}

// Two attaches of one inode (two overlay mounts of a lower file): the younger one goes.
void ProbeSession::Impl::merge_duplicates() {
  for (auto [first, second] : decoder->take_duplicate_attaches()) {
    first = survivor(first);
    second = survivor(second);
    const auto keep = attachments.find(std::min(first, second));
    const auto drop = attachments.find(std::max(first, second));
    if (keep == drop || keep == attachments.end() || drop == attachments.end()) continue;
    for (auto& [alias, target] : alias_of) {
      if (target == drop->first) target = keep->first;
    }
    alias_of[drop->first] = keep->first;
    keep->second.owners.merge(drop->second.owners);
    attachments.erase(drop);
    duplicate_attaches++;
  }
}

Result<uint64_t> ProbeSession::poll(std::chrono::milliseconds timeout) {
  epoll_event ready[3];
  if (epoll_wait(impl_->epoll.get(), ready, 3, static_cast<int>(timeout.count())) < 0 &&
      errno != EINTR) {
    return fail_errno(Code::kIo, errno, "epoll_wait");
  }
  uint64_t entries = 0;
  impl_->drain(entries);
  return entries;
}

void ProbeSession::flush() {
  // Two passes more than any backlog needs: the rings are finite, a running producer is not.
  uint64_t entries = 0;
  for (int pass = 0; pass < 20 && !impl_->drain(entries); pass++) {
  }
  impl_->decoder->flush();
}

void ProbeSession::forget(ProcessId process) { impl_->decoder->forget(process); }

ProbeCounters ProbeSession::counters() const {
  ProbeCounters counters = impl_->decoder->counters();
  counters.bpf = impl_->programs->counters();
  counters.duplicate_attaches = impl_->duplicate_attaches;
  counters.unknown_probes = impl_->unknown_probes;
  return counters;
}

bool ProbeSession::uses_perf_uprobes() const { return !impl_->programs->features().uprobe_multi; }

std::string ProbeSession::describe() const {
  const KernelFeatures& use = impl_->programs->features();
  std::string text = use.uprobe_multi ? "uprobe_multi" : "perf uprobes";
  text += use.sleepable ? ", sleepable" : ", not sleepable";
  text += use.nop5 ? ", 5-byte nop" : ", 1-byte nop";
  text += use.find_vma ? ", bpf_find_vma" : ", no bpf_find_vma";
  return text;
}

}  // namespace gpuprof::probe
