// SPDX-License-Identifier: Apache-2.0
//
// Times as a user writes them.
#pragma once

#include <chrono>
#include <ctime>
#include <string>
#include <string_view>

#include "daemon/base/result.h"

namespace gpuprof::cli {

// "30s", "2m", "1h", "500ms", "1.5s"; a bare number is seconds. More than 0, at most ten years.
Result<std::chrono::nanoseconds> parse_duration(std::string_view text);

// strftime(3) conversions in `pattern` expanded for `when` in local time; "%%" is a percent sign.
// kInvalidArgument: the result is empty or too long.
Result<std::string> expand_time(const std::string& pattern, time_t when);

// "1h02m", "12.3 s", "450 ms": for people.
std::string human_duration(std::chrono::nanoseconds duration);

}  // namespace gpuprof::cli
