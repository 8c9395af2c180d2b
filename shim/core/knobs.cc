// SPDX-License-Identifier: Apache-2.0
#include "shim/core/knobs.h"

#include <cstring>

#include <sys/auxv.h>

#include "proto/memfd_layout.h"

namespace gpuprof::shim {
namespace {

constexpr char kPrefix[] = "GPU_PROFILED_";
constexpr size_t kPrefixLength = sizeof kPrefix - 1;

constexpr KnobInfo kTable[] = {
    {"GPU_PROFILED_DISABLE", "1, 0", "0", "The shim does nothing in this process."},
    {"GPU_PROFILED_ARM", "trace, continuous, off", "off",
     "Trace from the first launch on, and sample PCs once the controller grants a GPU; set by "
     "`gpu-profiled run`, inherited by children."},
    {"GPU_PROFILED_SUBSCRIBE", "on-demand, eager", "on-demand",
     "Hold CUPTI's subscriber only while profiling, or from the start."},
    {"GPU_PROFILED_MODULES", "on, off", "on", "Keep the table of loaded cubins."},
    {"GPU_PROFILED_MODULE_BYTES", "bytes, with K, M or G", "64M",
     "Bound of the copies of cubins in the memfd."},
    {"GPU_PROFILED_CUPTI_PATH", "path", "", "The libcupti to load if none is mapped."},
    {"GPU_PROFILED_LOG", "stderr, path", "", "Where the shim logs; silent if unset."},
    {"GPU_PROFILED_STACK_RATE", "number, all", "200",
     "Stacks a second and thread, unless the controller says otherwise."},
    {"GPU_PROFILED_SEED", "number", "0", "Seed of the launch sampler; 0 is random. For tests."},
    {"GPU_PROFILED_DEBUG_FALLBACK", "list", "",
     "Read by gpu-profiled, not by the shim: forces kernel fallbacks. For tests."},
};

constinit Knobs the_knobs;

bool equal(const char* a, const char* b) { return strcmp(a, b) == 0; }

// Decimal digits only. False on overflow, an empty text or anything else.
bool parse_number(const char* text, const char** rest, uint64_t* out) {
  if (*text < '0' || *text > '9') return false;
  uint64_t value = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(*text - '0'), &value)) {
      return false;
    }
  }
  *rest = text;
  *out = value;
  return true;
}

bool parse_bytes(const char* text, uint64_t* out) {
  const char* rest;
  uint64_t value;
  if (!parse_number(text, &rest, &value)) return false;
  unsigned shift = 0;
  switch (*rest) {
    case 'K':
    case 'k':
      shift = 10;
      ++rest;
      break;
    case 'M':
    case 'm':
      shift = 20;
      ++rest;
      break;
    case 'G':
    case 'g':
      shift = 30;
      ++rest;
      break;
    default:
      break;
  }
  if (*rest != '\0' || value > (uint64_t{1} << 40) >> shift) return false;
  *out = value << shift;
  return true;
}

bool parse_switch(const char* text, bool* out) {
  if (equal(text, "on") || equal(text, "1")) return *out = true, true;
  if (equal(text, "off") || equal(text, "0")) return *out = false, true;
  return false;
}

bool parse_rate(const char* text, uint32_t* out) {
  if (equal(text, "all")) return *out = UINT32_MAX, true;
  const char* rest;
  uint64_t value;
  if (!parse_number(text, &rest, &value) || *rest != '\0' || value == 0 || value >= UINT32_MAX) {
    return false;
  }
  *out = static_cast<uint32_t>(value);
  return true;
}

template <size_t N>
bool copy_path(const char* text, char (&out)[N]) {
  const size_t length = strlen(text);
  if (length >= N) return false;
  memcpy(out, text, length + 1);
  return true;
}

bool parse_arm(const char* text, uint32_t* out) {
  if (equal(text, "trace")) return *out = GPUPROF_TIER_TRACE, true;
  if (equal(text, "continuous")) return *out = GPUPROF_TIER_CONTINUOUS, true;
  if (equal(text, "off")) return *out = GPUPROF_TIER_OFF, true;
  return false;
}

bool parse_subscribe(const char* text, SubscribeMode* out) {
  if (equal(text, "on-demand")) return *out = SubscribeMode::kOnDemand, true;
  if (equal(text, "eager")) return *out = SubscribeMode::kEager, true;
  return false;
}

// `name` is what follows the prefix. False: unknown name or refused value.
bool apply(Knobs& knobs, const char* name, size_t length, const char* value) {
  const auto is = [&](const char* knob) {
    return strlen(knob) == length && memcmp(knob, name, length) == 0;
  };
  if (is("DISABLE")) return parse_switch(value, &knobs.disabled);
  if (is("ARM")) return parse_arm(value, &knobs.arm_tier);
  if (is("SUBSCRIBE")) return parse_subscribe(value, &knobs.subscribe);
  if (is("MODULES")) return parse_switch(value, &knobs.modules);
  if (is("MODULE_BYTES")) return parse_bytes(value, &knobs.module_bytes);
  if (is("CUPTI_PATH")) return copy_path(value, knobs.cupti_path);
  if (is("LOG")) return copy_path(value, knobs.log);
  if (is("STACK_RATE")) return parse_rate(value, &knobs.stack_rate);
  if (is("SEED")) {
    const char* rest;
    return parse_number(value, &rest, &knobs.seed) && *rest == '\0';
  }
  return is("DEBUG_FALLBACK");
}

bool is_known(const char* variable, size_t length) {
  for (const KnobInfo& knob : kTable) {
    if (strlen(knob.name) == length && memcmp(knob.name, variable, length) == 0) return true;
  }
  return false;
}

// Knobs whose value is a file that is written or run.
bool names_file(const char* variable, size_t length) {
  constexpr const char* kNames[] = {"GPU_PROFILED_LOG", "GPU_PROFILED_CUPTI_PATH"};
  for (const char* name : kNames) {
    if (strlen(name) == length && memcmp(name, variable, length) == 0) return true;
  }
  return false;
}

// Adds NAME, or NAME=VALUE of a known name, printable only.
void add_unknown(Knobs& knobs, const char* variable, size_t name_length) {
  constexpr size_t kSize = sizeof knobs.unknown;
  size_t used = strlen(knobs.unknown);
  const size_t added = is_known(variable, name_length) ? strlen(variable) : name_length;
  const size_t needed = added + (used != 0 ? 1 : 0);
  constexpr size_t kEllipsis = 4;  // "..." and NUL
  if (used + kEllipsis >= kSize) return;
  if (needed + used + kEllipsis > kSize) {
    // Fills up to the brim, so that nothing more fits.
    memset(knobs.unknown + used, '.', kSize - 1 - used);
    return;
  }
  if (used != 0) knobs.unknown[used++] = ',';
  for (size_t i = 0; i < added; ++i) {
    const char c = variable[i];
    knobs.unknown[used++] = c >= 0x20 && c < 0x7f ? c : '?';
  }
  knobs.unknown[used] = '\0';
}

}  // namespace

const KnobInfo* knob_table(size_t* count) {
  *count = sizeof kTable / sizeof kTable[0];
  return kTable;
}

Knobs parse_knobs(char* const* environment, bool secure) {
  Knobs knobs;
  if (environment == nullptr) return knobs;
  for (; *environment != nullptr; ++environment) {
    const char* variable = *environment;
    if (strncmp(variable, kPrefix, kPrefixLength) != 0) continue;
    const char* equals = strchr(variable, '=');
    if (equals == nullptr) continue;
    const auto name_length = static_cast<size_t>(equals - variable);
    // An empty value is an unset one: `GPU_PROFILED_LOG= command` is how shells unset.
    const bool known = is_known(variable, name_length);
    if (known && equals[1] == '\0') continue;
    const bool refused = secure && names_file(variable, name_length);
    if (refused ||
        !apply(knobs, variable + kPrefixLength, name_length - kPrefixLength, equals + 1)) {
      add_unknown(knobs, variable, name_length);
    }
  }
  return knobs;
}

void load_knobs(char* const* environment) {
  the_knobs = parse_knobs(environment, getauxval(AT_SECURE) != 0);
}

const Knobs& knobs() { return the_knobs; }

}  // namespace gpuprof::shim
