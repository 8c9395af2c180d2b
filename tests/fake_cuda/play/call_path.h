// SPDX-License-Identifier: Apache-2.0
// Real call paths for sessions: `a/b/c` runs its body below path_a, path_b, path_c.
#pragma once

#include <cstddef>

namespace fakecuda {

struct PathCursor {
  const char* letters;
  size_t left;
  void (*body)(void*);
  void* argument;
};

/// Calls `body` below the functions of the path. An empty path calls it directly.
void run_below(PathCursor* cursor);

}  // namespace fakecuda
