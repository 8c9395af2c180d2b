// SPDX-License-Identifier: Apache-2.0
// Enough call frame information that the linker finds it worth compressing.
#define FRAME(n)                                       \
  extern "C" void many_frames_##n(int depth) {         \
    volatile char locals[16 * (0x##n) + 8];            \
    for (int i = 0; i < depth; ++i) locals[i % 8] = 1; \
    if (depth > 0) many_frames_##n(depth - locals[0]); \
    locals[depth & 7] = 2;                             \
  }
#define ROW(n) \
  FRAME(n##0)  \
  FRAME(n##1)  \
  FRAME(n##2)  \
  FRAME(n##3)  \
  FRAME(n##4)  \
  FRAME(n##5)  \
  FRAME(n##6)  \
  FRAME(n##7) FRAME(n##8) FRAME(n##9) FRAME(n##a) FRAME(n##b) FRAME(n##c) FRAME(n##d) FRAME(n##e)
ROW(1)
ROW(2)
ROW(3)
ROW(4)
