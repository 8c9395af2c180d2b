// SPDX-License-Identifier: Apache-2.0
#include "daemon/pprof/writer.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "daemon/pprof/address_plan.h"
#include "daemon/pprof/gzip_stream.h"
#include "proto/profile.pb.h"

namespace gpuprof::pprof {
namespace {

using perftools::profiles::Profile;

// A repeated field may be split over several encodings of one message that are laid end to end, so
// a profile is written in parts and never lies in memory whole.
constexpr int kEntriesPerPart = 4096;

struct ValueName {
  const char* type;
  const char* unit;
};
constexpr ValueName kValueNames[join::kValueCount] = {
    {"gpu_time", "nanoseconds"},
    {"gpu_executions", "count"},
    {"gpu_pc_samples", "count"},
    {"gpu_stall_samples", "count"},
};

// Length of the UTF-8 sequence at the start of `text`, 0 if it is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;   // overlong
  if (lead == 0xed && byte(1) >= 0xa0) return 0;  // surrogate
  if (lead == 0xf0 && byte(1) < 0x90) return 0;   // overlong
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;  // beyond U+10FFFF
  return length;
}

// proto3 strings are UTF-8; names and paths come from targets and are bytes. Control bytes would
// reach a terminal through `pprof -top`.
std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) {
      out += '?';
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

// pprof demangles, and strips of "<...>" and "(...)", every function whose two names are equal
// (symbolizer.go, demangleSingleFunction): "py::<module>:a.py" would become "py:::a.py", and
// kernels that differ in template arguments one. Without a system name it leaves the name alone.
bool would_be_rewritten(const std::string& name) {
  return name.starts_with('_') || name.find_first_of("<(") != std::string::npos;
}

class Writer {
 public:
  explicit Writer(const join::Model& model) : model_(model), plan_(model) {
    strings_.emplace("", 0);
    part_.add_string_table("");
  }

  Result<std::string> write() {
    header();
    mappings();
    functions();
    locations();
    samples();
    flush();
    std::string bytes = gzip_.finish();
    if (bytes.empty()) return fail(Code::kInternal, "no memory to compress the profile");
    return bytes;
  }

 private:
  int64_t text(std::string_view value) {
    const auto [at, is_new] =
        strings_.try_emplace(printable(value), static_cast<int64_t>(strings_.size()));
    if (is_new) part_.add_string_table(at->first);
    return at->second;
  }

  void flush() {
    part_.SerializeToString(&bytes_);
    gzip_.write(bytes_);
    part_.Clear();
    entries_ = 0;
  }
  void count_entry() {
    if (++entries_ >= kEntriesPerPart) flush();
  }

  void header() {
    for (const ValueName& name : kValueNames) {
      auto* type = part_.add_sample_type();
      type->set_type(text(name.type));
      type->set_unit(text(name.unit));
    }
    part_.set_default_sample_type(text(kValueNames[join::kGpuTimeNs].type));
    part_.set_time_nanos(model_.time_unix_ns);
    part_.set_duration_nanos(model_.duration_ns);
    // The same type with and without PC sampling: pprof refuses to compare or merge profiles whose
    // period types differ.
    part_.mutable_period_type()->set_type(text("gpu_cycles"));
    part_.mutable_period_type()->set_unit(text("cycles"));
    part_.set_period(model_.pc_period_cycles);
    for (const std::string& comment : model_.comments) part_.add_comment(text(comment));
  }

  // pprof looks for a mapping's binary, and warns if there is none, unless one of the flags says
  // that it has been symbolised. What has no symbols has a named frame all the same.
  void mappings() {
    for (uint32_t i = 0; i < model_.modules.size(); ++i) {
      const join::ModelModule& module = model_.modules[i];
      const MappingRange& range = plan_.range(i);
      auto* mapping = part_.add_mapping();
      mapping->set_id(i + 1);
      mapping->set_memory_start(range.start);
      mapping->set_memory_limit(range.limit);
      mapping->set_file_offset(range.file_offset);
      mapping->set_filename(text(module.path));
      mapping->set_build_id(text(module.build_id));
      mapping->set_has_functions(true);
      mapping->set_has_filenames(module.has_filenames);
      mapping->set_has_line_numbers(module.has_line_numbers);
      mapping->set_has_inline_frames(module.has_inline_frames);
      count_entry();
    }
  }

  // pprof's source views go by file and line: all functions of no file would be one there, under
  // the name of any of them. So each is of a file of its own, which says that there is none. By its
  // name, so that profiles can be merged; without spaces, so that -raw can be read.
  static std::string no_source(const join::ModelFunction& function) {
    std::string file = "[no-source]/" + function.system_name;
    std::replace(file.begin(), file.end(), ' ', '_');
    return file;
  }

  void functions() {
    for (size_t i = 0; i < model_.functions.size(); ++i) {
      const join::ModelFunction& source = model_.functions[i];
      auto* function = part_.add_function();
      function->set_id(i + 1);
      function->set_name(text(source.name));
      const bool hide = source.name == source.system_name && would_be_rewritten(source.name);
      function->set_system_name(hide ? 0 : text(source.system_name));
      function->set_filename(text(source.file.empty() ? no_source(source) : source.file));
      function->set_start_line(source.start_line);
      count_entry();
    }
  }

  void locations() {
    for (uint32_t i = 0; i < model_.locations.size(); ++i) {
      const join::ModelLocation& source = model_.locations[i];
      auto* location = part_.add_location();
      location->set_id(uint64_t{i} + 1);
      location->set_mapping_id(uint64_t{source.module} + 1);
      location->set_address(plan_.address(i));
      for (const join::ModelLine& line : source.lines) {
        auto* out = location->add_line();
        out->set_function_id(uint64_t{line.function} + 1);
        out->set_line(line.line);
      }
      count_entry();
    }
  }

  void samples() {
    for (const join::ModelSample& source : model_.samples) {
      auto* sample = part_.add_sample();
      for (const uint32_t location : model_.stacks[source.stack]) {
        sample->add_location_id(uint64_t{location} + 1);
      }
      for (const int64_t value : source.values) sample->add_value(value);
      add_labels(model_.label_sets[source.label_set], *sample);
      if (source.code_labels != UINT32_MAX)
        add_labels(model_.label_sets[source.code_labels], *sample);
      count_entry();
    }
  }

  void add_labels(const std::vector<join::ModelLabel>& labels, perftools::profiles::Sample& to) {
    for (const join::ModelLabel& from : labels) {
      auto* label = to.add_label();
      label->set_key(text(from.key));
      if (!from.text.empty()) {
        label->set_str(text(from.text));
      } else {
        label->set_num(from.number);
        label->set_num_unit(text(from.unit));
      }
    }
  }

  const join::Model& model_;
  AddressPlan plan_;
  GzipStream gzip_;
  Profile part_;
  std::string bytes_;
  int entries_ = 0;
  std::unordered_map<std::string, int64_t> strings_;
};

// Indices come from our own code: a wrong one is a bug that must not become a wild read.
const char* broken_reference(const join::Model& model) {
  for (const join::ModelLocation& location : model.locations) {
    if (location.module >= model.modules.size()) return "location without a module";
    if (location.lines.empty()) return "location without a line";
    for (const join::ModelLine& line : location.lines) {
      if (line.function >= model.functions.size()) return "line without a function";
    }
  }
  for (const std::vector<uint32_t>& stack : model.stacks) {
    for (const uint32_t location : stack) {
      if (location >= model.locations.size()) return "stack without a location";
    }
  }
  for (const join::ModelSample& sample : model.samples) {
    if (sample.stack >= model.stacks.size()) return "sample without a stack";
    if (sample.label_set >= model.label_sets.size()) return "sample without labels";
    if (sample.code_labels != UINT32_MAX && sample.code_labels >= model.label_sets.size())
      return "sample without labels of its code";
  }
  return nullptr;
}

}  // namespace

Result<std::string> serialize(const join::Model& model) {
  if (const char* what = broken_reference(model)) {
    return fail(Code::kInternal, std::string("cannot write the profile: ") + what);
  }
  return Writer(model).write();
}

}  // namespace gpuprof::pprof
