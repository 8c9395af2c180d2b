// SPDX-License-Identifier: Apache-2.0
//
// Runs a program that executes `int3` where its stacks are of interest, unwinds each of them with
// our unwinder and with libdwfl, and writes the different ones as a recording.
// usage: record_stacks [--steps N] [--most N] [--made-with TEXT] [-o FILE] -- COMMAND...
// Without -o: checks only. Exit status 1 where the two differ.
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/unwinder.h"
#include "tests/unit/unwind/recorded/kept_cfi.h"
#include "tests/unit/unwind/recorded/recording.h"
#include "tests/unit/unwind/recorded/tracee.h"

namespace gpuprof::unwind::test {
namespace {

struct Options {
  int steps = 0;
  size_t most = 600;
  std::string made_with;
  std::string output;
  std::vector<std::string> command;
};

struct Taken {
  Recording::Stack stack;
  RawStack ours;
  std::vector<uint64_t> libdwfl;
};

std::optional<Options> parse(int argc, char** argv) {
  Options out;
  int i = 1;
  for (; i + 1 < argc && std::string_view(argv[i]) != "--"; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--steps") {
      out.steps = std::atoi(argv[i + 1]);
    } else if (name == "--most") {
      out.most = static_cast<size_t>(std::atoi(argv[i + 1]));
    } else if (name == "--made-with") {
      out.made_with = argv[i + 1];
    } else if (name == "-o") {
      out.output = argv[i + 1];
    } else {
      return std::nullopt;
    }
  }
  out.command.assign(argv + std::min(i + 1, argc), argv + argc);
  if (out.command.empty()) return std::nullopt;
  return out;
}

class Recorder {
 public:
  explicit Recorder(const Options& options) : options_(options), tracee_(options.command) {}

  int run() {
    const int status = tracee_.run(options_.steps, [this](const Recording::Stack& s) { take(s); });
    for (const auto& [end, count] : ends_) std::printf("%s %zu  ", end.c_str(), count);
    std::printf("of %zu stacks; deepest %zu; by frame pointer %zu frames\n", stacks_, deepest_,
                guided_);
    std::printf("  libdwfl: %zu the same, %zu stop earlier, %zu end in garbage, %zu differ\n",
                agreements_[0], agreements_[1], agreements_[2], agreements_[3]);
    if (status != 0) std::fprintf(stderr, "the program ended with status %d\n", status);
    if (status != 0 || stacks_ == 0 || agreements_[3] != 0) return 1;
    if (!options_.output.empty()) write_recording(recording(), options_.output);
    return 0;
  }

 private:
  void take(const Recording::Stack& stack) {
    if (!space_) space_ = open();
    space_->refresh();
    if (space_->replaced()) space_ = open();
    if (generation_ != space_->generation()) reference_ = reference();
    generation_ = space_->generation();
    const Sample sample = sample_of(stack);
    Taken taken{stack, Unwinder(space_).unwind(sample.view()),
                reference_->unwind(sample_with_below(stack))};
    ++stacks_;
    ++ends_[end_name(taken.ours.end)];
    guided_ += taken.ours.by_frame_pointer;
    deepest_ = std::max(deepest_, taken.ours.pcs.size());
    const Agreement agreement = compare(
        taken.ours, taken.libdwfl, [this](uint64_t pc) { return space_->find(pc) != nullptr; });
    if (++agreements_[static_cast<size_t>(agreement)] <= 3 && agreement == Agreement::kDifferent)
      print(taken);
    if (taken_.size() < options_.most && seen_.insert(taken.ours.pcs).second)
      taken_.push_back(std::move(taken));
  }

  std::shared_ptr<AddressSpace> open() {
    auto space = AddressSpace::open({static_cast<uint32_t>(tracee_.pid()), 0}, files_);
    if (!space) {
      std::fprintf(stderr, "%s\n", space.error().message.c_str());
      std::exit(1);
    }
    generation_ = 0;
    return *space;
  }

  // Not by libdwfl's own look at the maps: libffi maps a page of its file a second time, and
  // libdwfl then takes that for where the file begins.
  std::unique_ptr<DwflReference> reference() {
    std::map<const ElfFile*, const Mapping*> largest;
    for (const Mapping& mapping : space_->mappings()) {
      if (!mapping.file) continue;
      const Mapping*& best = largest[mapping.file.get()];
      if (best == nullptr || mapping.end - mapping.start > best->end - best->start) best = &mapping;
    }
    std::vector<RecordedModule> modules;
    for (const auto& [file, mapping] : largest)
      modules.push_back({mapping->path, image_of(*mapping), mapping->bias});
    return std::make_unique<DwflReference>(modules);
  }

  void print(const Taken& taken) {
    std::printf("ours (%s, %u by frame pointer):\n", end_name(taken.ours.end),
                taken.ours.by_frame_pointer);
    print(taken.ours.pcs);
    std::printf("libdwfl:\n");
    print(taken.libdwfl);
  }
  void print(const std::vector<uint64_t>& pcs) {
    for (const uint64_t pc : pcs) {
      const Mapping* m = space_->find(pc);
      std::printf("  %llx %s+%llx\n", static_cast<unsigned long long>(pc),
                  m != nullptr ? m->path.c_str() : "?",
                  static_cast<unsigned long long>(m != nullptr ? pc - m->bias : 0));
    }
  }

  // As it lies on disk: libelf changes the headers of what it has decompressed.
  std::string image_of(const Mapping& mapping) {
    if (mapping.kind == MappingKind::kVdso) {
      size_t size = 0;
      const char* const raw = elf_rawfile(mapping.file->elf(), &size);
      return {raw, size};
    }
    const auto fd = space_->open_in_root(mapping.path);
    if (!fd) {
      std::fprintf(stderr, "%s\n", fd.error().message.c_str());
      std::exit(1);
    }
    std::ifstream in("/proc/self/fd/" + std::to_string(fd->get()), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Mappings that a stack leads through.
  Recording recording() {
    std::map<uint64_t, std::set<uint64_t>> used;  // by the mapping's start: pcs
    for (const Taken& taken : taken_) {
      for (const auto* pcs : {&taken.ours.pcs, &taken.libdwfl}) {
        for (const uint64_t pc : *pcs) {
          if (const Mapping* m = space_->find(pc)) used[m->start].insert(pc);
        }
      }
    }
    Recording out;
    out.set_made_with(options_.made_with);
    std::map<const ElfFile*, std::set<uint64_t>> addresses;
    for (const Mapping& m : space_->mappings()) {
      if (!used.contains(m.start) || !m.file) continue;
      for (const uint64_t pc : used[m.start]) addresses[m.file.get()].insert(pc - m.bias);
    }
    std::map<const ElfFile*, uint32_t> numbers;
    for (const Mapping& m : space_->mappings()) {
      if (!used.contains(m.start)) continue;
      auto* to = out.add_mappings();
      to->set_start(m.start);
      to->set_end(m.end);
      to->set_file_offset(m.file_offset);
      if (!m.file) continue;
      uint32_t& number = numbers[m.file.get()];
      if (number == 0) {
        auto* file = out.add_files();
        file->set_name(m.path.substr(m.path.rfind('/') + 1));
        file->set_image(keep_cfi(image_of(m), addresses[m.file.get()]));
        number = static_cast<uint32_t>(out.files_size());
      }
      to->set_file(number);
    }
    for (const Taken& taken : taken_) add(out, taken);
    return out;
  }

  void add(Recording& out, const Taken& taken) {
    auto* to = out.add_stacks();
    *to = taken.stack;
    add_result(*to, taken.ours, taken.libdwfl);
    remove_data(*to, [this](uint64_t word) { return space_->find(word) != nullptr; });
  }

  Options options_;
  Tracee tracee_;
  FileCache files_;
  std::shared_ptr<AddressSpace> space_;
  uint64_t generation_ = 0;  // of the space that `reference_` knows
  std::unique_ptr<DwflReference> reference_;
  std::vector<Taken> taken_;
  std::set<std::vector<uint64_t>> seen_;
  std::map<std::string, size_t> ends_;
  size_t stacks_ = 0, deepest_ = 0, guided_ = 0;
  std::array<size_t, kAgreementCount> agreements_ = {};
};

}  // namespace
}  // namespace gpuprof::unwind::test

int main(int argc, char** argv) {
  const auto options = gpuprof::unwind::test::parse(argc, argv);
  if (!options) {
    std::fprintf(
        stderr,
        "usage: record_stacks [--steps N] [--most N] [--made-with TEXT] [-o FILE] -- COMMAND...\n");
    return 2;
  }
  return gpuprof::unwind::test::Recorder(*options).run();
}
