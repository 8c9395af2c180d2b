// SPDX-License-Identifier: Apache-2.0
// One of three libraries that call each other, built -O2 -fomit-frame-pointer. CHAIN_SELF and
// CHAIN_NEXT name this library's function and the one it calls.
#include <cstdlib>
#include <cstring>

extern "C" {
using Leaf = void (*)(void*);
void CHAIN_NEXT(int depth, Leaf leaf, void* arg);

__attribute__((noinline)) void CHAIN_SELF(int depth, Leaf leaf, void* arg) {
  // A frame of a size that depends on the depth, now and then with an alloca'd part.
  volatile char locals[40];
  locals[depth % 40] = static_cast<char>(depth);
  if (depth % 5 == 0) {
    auto* more = static_cast<volatile char*>(__builtin_alloca(static_cast<size_t>(depth) * 8 + 16));
    more[depth] = 1;
  }
  if (depth <= 0) {
    leaf(arg);
  } else {
    CHAIN_NEXT(depth - 1, leaf, arg);
  }
  locals[0] = 2;
}
}
