// SPDX-License-Identifier: Apache-2.0
//
// Where a variable of the environment got lost on its way to a process.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpuprof::doctor {

// A process above the one in question. What it may be told is what it was started with.
struct Ancestor {
  uint32_t pid = 0;
  std::string comm;
  bool has_variable = false;
};

// From the parent up; as many as are to be seen. At most 64.
std::vector<Ancestor> ancestors(uint32_t pid, std::string_view variable);

// Who dropped it and what to do, without a subject: "sudo (process 12) had it and did not pass it
// on: sudo --preserve-env=..."; empty: nobody above has it, nor is known for dropping variables.
std::string explain_loss(std::span<const Ancestor> above, std::string_view variable);

}  // namespace gpuprof::doctor
