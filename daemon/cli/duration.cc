// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/duration.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace gpuprof::cli {
namespace {

constexpr double kTenYearsInSeconds = 10 * 366.0 * 86400;

}  // namespace

Result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const double scale = unit == "ms"                  ? 1e-3
                       : unit == "s" || unit.empty() ? 1
                       : unit == "m"                 ? 60
                       : unit == "h"                 ? 3600
                                                     : 0;
  const double seconds = value * scale;
  if (error != std::errc() || !std::isfinite(seconds) || seconds < 1e-3 ||
      seconds > kTenYearsInSeconds) {
    std::string message(1, '\'');  // not operator+: gcc 12 warns of it (PR 105651)
    message.append(text).append("' is no duration: write 30s, 2m, 1h or 500ms");
    return fail(Code::kInvalidArgument, std::move(message));
  }
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

Result<std::string> expand_time(const std::string& pattern, time_t when) {
  if (pattern.find('%') == std::string::npos) return pattern;
  tm local = {};
  ::localtime_r(&when, &local);
  char out[4096];
  const size_t length = std::strftime(out, sizeof out, pattern.c_str(), &local);
  if (length == 0)
    return fail(Code::kInvalidArgument, "'" + pattern + "' gives no usable file name");
  return std::string(out, length);
}

std::string human_duration(std::chrono::nanoseconds duration) {
  const double seconds = static_cast<double>(duration.count()) * 1e-9;
  char out[48];
  if (seconds >= 3600) {
    const auto minutes = static_cast<long>(seconds / 60);
    std::snprintf(out, sizeof out, "%ldh%02ldm", minutes / 60, minutes % 60);
  } else if (seconds >= 60) {
    const auto whole = static_cast<long>(seconds);
    std::snprintf(out, sizeof out, "%ldm%02lds", whole / 60, whole % 60);
  } else if (seconds >= 1) {
    std::snprintf(out, sizeof out, "%.1f s", seconds);
  } else if (seconds >= 1e-3) {
    std::snprintf(out, sizeof out, "%.1f ms", seconds * 1e3);
  } else {
    std::snprintf(out, sizeof out, "%.1f us", seconds * 1e6);
  }
  return out;
}

}  // namespace gpuprof::cli
