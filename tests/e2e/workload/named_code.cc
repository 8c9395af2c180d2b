// SPDX-License-Identifier: Apache-2.0
// The lines that symbols.py knows are marked.
#include "tests/e2e/workload/named_code.h"

namespace named {

using Launch = void (*)(void*);

inline __attribute__((always_inline)) void inlined_twice(Launch launch, void* argument) {
  launch(argument);  // inlined_twice
  asm volatile("" ::: "memory");
}

inline __attribute__((always_inline)) void inlined_once(Launch launch, void* argument) {
  asm volatile("" ::: "memory");
  inlined_twice(launch, argument);  // inlined_once
  asm volatile("" ::: "memory");
}

template <class T>
struct Runner {
  static __attribute__((noinline, visibility("hidden"))) void run(Launch launch, void* argument) {
    asm volatile("" ::: "memory");
    inlined_once(launch, argument);  // run
    asm volatile("" ::: "memory");
  }
};

}  // namespace named

void named_entry(void (*launch)(void*), void* argument) {
  named::Runner<unsigned>::run(launch, argument);  // named_entry
  asm volatile("" ::: "memory");
}
