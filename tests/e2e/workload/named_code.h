// SPDX-License-Identifier: Apache-2.0
// Functions whose names, lines and inlining a test knows (symbols.py).
#pragma once

// Calls `launch` through three functions, of which two are inlined into the third.
extern "C" __attribute__((visibility("default"))) void named_entry(void (*launch)(void*),
                                                                   void* argument);
