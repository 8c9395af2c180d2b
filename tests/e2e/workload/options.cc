// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/workload/options.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace workload {
namespace {

struct Number {
  const char* name;
  uint64_t Options::*field;
};

struct Flag {
  const char* name;
  bool Options::*field;
};

constexpr Number kNumbers[] = {
    {"--threads", &Options::threads},
    {"--launches", &Options::launches},
    {"--rate", &Options::rate},
    {"--seconds", &Options::seconds},
    {"--memcpy-every", &Options::memcpy_every},
    {"--memset-every", &Options::memset_every},
    {"--graph-every", &Options::graph_every},
    {"--graph-nodes", &Options::graph_nodes},
    {"--driver-every", &Options::driver_every},
    {"--delay-ms", &Options::delay_ms},
    {"--flood", &Options::flood},
    {"--flood-bursts", &Options::flood_bursts},
};

constexpr Flag kFlags[] = {
    {"--main", &Options::main_launches},
    {"--bursts", &Options::bursts},
    {"--rate-steps", &Options::rate_steps},
    {"--recapture", &Options::recapture},
};

[[noreturn]] void usage(const char* problem) {
  fprintf(stderr, "workload: bad argument %s; known:", problem);
  for (const Number& n : kNumbers) fprintf(stderr, " %s N", n.name);
  for (const Flag& f : kFlags) fprintf(stderr, " %s", f.name);
  fputs("\n", stderr);
  exit(2);
}

bool read_number(Options& options, const char* name, const char* text) {
  for (const Number& n : kNumbers) {
    if (strcmp(n.name, name) != 0) continue;
    char* end = nullptr;
    options.*n.field = text ? strtoull(text, &end, 10) : 0;
    if (end == nullptr || *end != 0) usage(name);
    return true;
  }
  return false;
}

}  // namespace

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const Flag& f : kFlags) {
      if (strcmp(f.name, argv[i]) != 0) continue;
      options.*f.field = true;
      known = true;
    }
    if (known) continue;
    if (!read_number(options, argv[i], argv[i + 1])) usage(argv[i]);
    ++i;
  }
  if (options.threads == 0) usage("--threads");
  return options;
}

}  // namespace workload
