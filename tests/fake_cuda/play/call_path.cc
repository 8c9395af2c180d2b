// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/play/call_path.h"

#define FOR_EACH_LETTER(F) \
  F(a) F(b) F(c) F(d) F(e) F(f) F(g) F(h) F(i) F(j) F(k) F(l) F(m) F(n) F(o) F(p)

#define DECLARE(letter) extern "C" void path_##letter(fakecuda::PathCursor*);
FOR_EACH_LETTER(DECLARE)

namespace {

#define ENTRY(letter) path_##letter,
void (*const kFunctions[])(fakecuda::PathCursor*) = {FOR_EACH_LETTER(ENTRY)};

__attribute__((always_inline)) inline void descend(fakecuda::PathCursor* c) {
  if (c->left == 0) return c->body(c->argument);
  --c->left;
  kFunctions[*c->letters++ - 'a'](c);
}

}  // namespace

// descend is inlined into each function, so that only path_x functions are on the stack; the store
// after the call keeps it from becoming a jump.
#define PATH_FUNCTION(letter)                                                                 \
  extern "C" __attribute__((noinline, noclone)) void path_##letter(fakecuda::PathCursor* c) { \
    volatile int after;                                                                       \
    descend(c);                                                                               \
    after = 1;                                                                                \
    (void)after;                                                                              \
  }
FOR_EACH_LETTER(PATH_FUNCTION)

namespace fakecuda {

void run_below(PathCursor* cursor) { descend(cursor); }

}  // namespace fakecuda
