// SPDX-License-Identifier: Apache-2.0
// A C library that is called from other languages. It needs no C library itself, so it serves any.

// Where the recorder takes the stack.
__attribute__((noinline)) void launch(void) { __asm__ volatile("int3"); }

// A frame each, whose size is not known before it runs.
__attribute__((noinline)) int launch_nested(int depth) {
  volatile char room[depth * 16 + 1];
  room[0] = 1;
  if (depth > 0) return launch_nested(depth - 1) + room[0];
  launch();
  return room[0];
}

// Through the caller's own function and back.
int launch_through(void (*callback)(int), int value) {
  callback(value);
  launch();
  return value;
}

// Of class Caller, through JNI.
__attribute__((force_align_arg_pointer)) void Java_Caller_launch(void* env, void* self, int depth) {
  (void)env, (void)self;
  launch_nested(depth);
}
