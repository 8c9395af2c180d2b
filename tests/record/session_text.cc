// SPDX-License-Identifier: Apache-2.0
// A recording as a session of tests/fake_cuda (its README has the format).
#include <cupti.h>
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "tests/record/recording.h"

namespace gpuprof::record {
namespace {

constexpr size_t kLongestPattern = 64;

bool has_function(const std::vector<char>& image, const std::string& name) {
  Elf64_Ehdr header{};
  if (image.size() < sizeof header) return false;
  memcpy(&header, image.data(), sizeof header);
  const uint64_t table_bytes = static_cast<uint64_t>(header.e_shnum) * sizeof(Elf64_Shdr);
  if (header.e_machine != EM_CUDA || header.e_shoff > image.size() ||
      table_bytes > image.size() - header.e_shoff || header.e_shstrndx >= header.e_shnum) {
    return false;
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  memcpy(sections.data(), image.data() + header.e_shoff, table_bytes);
  const std::string wanted = ".text." + name;
  return std::any_of(sections.begin(), sections.end(), [&](const Elf64_Shdr& section) {
    const uint64_t at = sections[header.e_shstrndx].sh_offset + section.sh_name;
    return at + wanted.size() < image.size() &&
           memcmp(image.data() + at, wanted.c_str(), wanted.size() + 1) == 0;
  });
}

/// Sums that a kernel line is made of.
struct Kernel {
  std::string id;
  uint64_t sum_ns = 0, count = 0;
};

/// Lines with equal neighbours folded into counts and loops.
std::vector<std::string> folded(const std::vector<std::string>& lines, const std::string& indent) {
  std::vector<std::string> out;
  for (size_t at = 0; at < lines.size();) {
    size_t best_period = 1;
    size_t best_times = 1;
    for (size_t period = 1; period <= kLongestPattern && at + 2 * period <= lines.size();
         ++period) {
      size_t times = 1;
      while (at + (times + 1) * period <= lines.size() &&
             std::equal(&lines[at], &lines[at] + period, &lines[at + times * period]))
        ++times;
      if (times > 1 && times * period > best_times * best_period) {
        best_period = period;
        best_times = times;
      }
    }
    if (best_period == 1) {
      out.push_back(indent + lines[at] +
                    (best_times == 1 ? "" : " count=" + std::to_string(best_times)));
    } else {
      out.push_back(indent + "loop " + std::to_string(best_times));
      const std::vector<std::string> body(&lines[at], &lines[at] + best_period);
      for (std::string& line : folded(body, indent + "  ")) out.push_back(std::move(line));
      out.push_back(indent + "end");
    }
    at += best_period * best_times;
  }
  return out;
}

class Writer {
 public:
  Writer(const Recording& recording, const std::string& directory, FILE* out)
      : recording_(recording), directory_(directory), out_(out) {}

  bool write() {
    for (Thread* thread : recording_.threads) plan(*thread);
    fprintf(out_, "# Recorded: %zu threads, %zu launches and copies, %lu records without times,\n",
            recording_.threads.size(), recording_.executions.size(), recording_.invalid);
    fprintf(out_,
            "# %lu samples dropped by the hardware, %lu drains failed, %lu executions of no "
            "known call.\n",
            recording_.pc_dropped, recording_.pc_failures, orphans());
    fprintf(out_, "set devices %u\nset queue_ns 2000000000\n", recording_.devices);
    if (!modules() || !kernels()) return false;
    for (const auto& [nodes, id] : graphs_)
      fprintf(out_, "graph %s %s\n", id.c_str(), nodes.c_str());
    for (size_t i = 0; i < recording_.threads.size(); ++i) thread(i);
    return true;
  }

 private:
  /// The line of a call, and what it adds to the kernels' sums.
  std::string line_of(const Call& call, const std::vector<Execution>& executions) {
    const Execution& first = executions.front();
    if (first.graph_id != 0) return "run-graph " + graph_of(executions);
    if (first.kind == CUPTI_ACTIVITY_KIND_MEMSET) return "memset " + std::to_string(first.bytes);
    if (first.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const char* way = first.copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "htod "
                        : first.copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "dtoh "
                                                                             : "dtod ";
      return std::string("memcpy ") + way + std::to_string(first.bytes);
    }
    return (call.cooperative ? "cooperate " : "launch ") + count("", first);
  }

  /// Kernels of graphs are counted by node, so that a graph's nodes keep times of their own.
  std::string count(const std::string& node, const Execution& execution) {
    Kernel& kernel = kernels_[{execution.name, node}];
    if (kernel.id.empty()) kernel.id = "k" + std::to_string(kernels_.size());
    kernel.sum_ns += execution.end_ns - execution.start_ns;
    ++kernel.count;
    return kernel.id;
  }

  std::string graph_of(std::vector<Execution> executions) {
    std::stable_sort(
        executions.begin(), executions.end(),
        [](const Execution& a, const Execution& b) { return a.start_ns < b.start_ns; });
    std::string nodes;
    for (const Execution& execution : executions) {
      if (execution.kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
      nodes += (nodes.empty() ? "" : " ") + count(std::to_string(execution.graph_node), execution);
    }
    std::string& id = graphs_[nodes];
    if (id.empty()) id = "g" + std::to_string(graphs_.size());
    return id;
  }

  void plan(const Thread& thread) {
    Plan plan;
    for (const Call& call : thread.calls) {
      const auto found = recording_.executions.find(call.correlation);
      if (found == recording_.executions.end()) continue;
      // Calls nest (a runtime library's and the driver's): one line for one correlation.
      if (!seen_.insert(call.correlation).second) continue;
      plan.lines.push_back(line_of(call, found->second));
      plan.device = found->second.front().device;
    }
    plans_.push_back(std::move(plan));
  }

  uint64_t orphans() const { return recording_.executions.size() - seen_.size(); }

  /// The module that a function's samples name, else the first that has such a function.
  const Module* module_of(const std::string& function) const {
    std::map<uint64_t, uint64_t> by_key;
    for (const auto& [key, samples] : recording_.samples) {
      if (std::get<1>(key) == function) by_key[std::get<0>(key)] += samples.all;
    }
    const auto most =
        std::max_element(by_key.begin(), by_key.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const Module& module : recording_.modules) {
      if (most != by_key.end() ? module.key == most->first : has_function(module.image, function))
        return &module;
    }
    return nullptr;
  }

  bool modules() {
    for (const auto& [key, kernel] : kernels_) {
      const Module* module = module_of(key.first);
      if (module == nullptr || !module_ids_.try_emplace(module->key, "").second) continue;
      std::string& id = module_ids_[module->key];
      id = "m" + std::to_string(module_ids_.size());
      const std::string file = "module-" + std::to_string(module_ids_.size()) + ".cubin";
      FILE* image = fopen((directory_ + "/" + file).c_str(), "wbe");
      if (image == nullptr) return false;
      const bool whole =
          fwrite(module->image.data(), 1, module->image.size(), image) == module->image.size();
      if (fclose(image) != 0 || !whole) return false;
      fprintf(out_, "module %s file=%s\n", id.c_str(), file.c_str());
    }
    return true;
  }

  bool kernels() {
    std::map<std::string, uint64_t> ns;  // of a function, graphs included
    for (const auto& [key, kernel] : kernels_) ns[key.first] += kernel.sum_ns;
    std::set<std::string> told;
    for (const auto& [key, kernel] : kernels_) {
      const Module* module = module_of(key.first);
      fprintf(out_, "kernel %s function=%s", kernel.id.c_str(), key.first.c_str());
      if (module != nullptr) fprintf(out_, " module=%s", module_ids_.at(module->key).c_str());
      fprintf(out_, " duration=%lu/%lu\n", kernel.sum_ns, kernel.count);
      if (module != nullptr && recording_.period != 0 && told.insert(key.first).second)
        pcs(kernel.id, key.first, *module, ns[key.first]);
    }
    return true;
  }

  /// Samples of every load of one image count together.
  void pcs(const std::string& id, const std::string& function, const Module& module, uint64_t ns) {
    std::map<std::pair<uint64_t, std::string>, Samples> sums;
    for (const auto& [key, samples] : recording_.samples) {
      const auto& [crc, name, offset, reason] = key;
      if (name != function || crc == 0 || crc > recording_.modules.size()) continue;
      if (recording_.modules[crc - 1].image != module.image) continue;
      sums[{offset, reason}].all += samples.all;
      sums[{offset, reason}].not_issued += samples.not_issued;
    }
    if (sums.empty()) return;
    fprintf(out_, "pcs %s per=%lu at=%u", id.c_str(), ns, recording_.period);
    for (const auto& [pc, samples] : sums) {
      fprintf(out_, " 0x%lx:%s*%lu/%lu", pc.first, pc.second.c_str(), samples.all,
              samples.not_issued);
    }
    fputs("\n", out_);
  }

  void thread(size_t i) {
    const Thread& thread = *recording_.threads[i];
    const Plan& plan = plans_[i];
    if (plan.lines.empty()) return;
    const bool main_thread = thread.tid == getpid();
    fprintf(out_, "\nthread t%zu%s device=%u\n", i, main_thread ? " on=main" : "", plan.device);
    const uint64_t ns = thread.last_ns - thread.first_ns;
    if (ns != 0)
      fprintf(out_, "  rate %lu\n", std::max<uint64_t>(plan.lines.size() * 1'000'000'000 / ns, 1));
    for (const std::string& line : folded(plan.lines, "  ")) fprintf(out_, "%s\n", line.c_str());
  }

  struct Plan {
    std::vector<std::string> lines;
    uint32_t device = 0;
  };

  const Recording& recording_;
  const std::string& directory_;
  FILE* out_;
  std::vector<Plan> plans_;  // as recording_.threads
  std::set<uint32_t> seen_;
  std::map<std::pair<std::string, std::string>, Kernel> kernels_;  // (function, graph node)
  std::map<std::string, std::string> graphs_;                      // kernels -> id
  std::map<uint64_t, std::string> module_ids_;
};

}  // namespace

bool write_session(const Recording& recording, const std::string& directory) {
  const std::string path = directory + "/session";
  FILE* out = fopen(path.c_str(), "we");
  if (out == nullptr) {
    perror(path.c_str());
    return false;
  }
  const bool written = Writer(recording, directory, out).write();
  if (fclose(out) != 0 || !written) {
    fprintf(stderr, "record: %s is not whole\n", path.c_str());
    return false;
  }
  return true;
}

}  // namespace gpuprof::record
