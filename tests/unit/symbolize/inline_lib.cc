// SPDX-License-Identifier: Apache-2.0
// Functions whose names, lines and inlining the test knows. VARIANT: one namespace per build (DWARF
// 4, DWARF 5, compressed, stripped).

namespace VARIANT {

using Leaf = void (*)(void*);

inline __attribute__((always_inline)) void inlined_twice(Leaf leaf, void* arg) {
  leaf(arg);  // line 10
  asm volatile("" ::: "memory");
}

inline __attribute__((always_inline)) void inlined_once(Leaf leaf, void* arg) {
  asm volatile("" ::: "memory");
  inlined_twice(leaf, arg);  // line 16
  asm volatile("" ::: "memory");
}

template <class T>
struct Outer {
  static __attribute__((noinline)) void run(Leaf leaf, void* arg) {
    asm volatile("" ::: "memory");
    inlined_once(leaf, arg);  // line 24
    asm volatile("" ::: "memory");
  }
};

__attribute__((visibility("default"))) void entry(Leaf leaf, void* arg) {
  Outer<unsigned>::run(leaf, arg);  // line 30
  asm volatile("" ::: "memory");
}

}  // namespace VARIANT
