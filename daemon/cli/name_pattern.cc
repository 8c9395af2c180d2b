// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/name_pattern.h"

#include <string_view>

namespace gpuprof::cli {
namespace {

// %Z is left out: a TZ of the user's may hold anything there.
constexpr std::string_view kConversions = "aAbBdFgGHIjmMpRsSTuUVwWyYz";

}  // namespace

Result<NamePattern> NamePattern::parse(const std::string& text, const std::string& option) {
  NamePattern out;
  const size_t slash = text.rfind('/');
  out.directory_ = slash == std::string::npos ? "" : text.substr(0, slash + 1);
  out.name_ = text.substr(out.directory_.size());
  out.option_ = option;
  if (out.directory_.find('%') != std::string::npos)
    return fail(Code::kInvalidArgument, option + ": '" + text +
                                            "' has a % in a directory's name: put conversions "
                                            "into the file's name only");
  for (size_t at = out.name_.find('%'); at != std::string::npos; at = out.name_.find('%', at + 2)) {
    const std::string conversion = out.name_.substr(at, 2);
    if (conversion == "%%") continue;
    if (conversion.size() < 2 || kConversions.find(conversion[1]) == std::string_view::npos)
      return fail(
          Code::kInvalidArgument,
          option + ": '" + conversion + "' of '" + text +
              "' is no conversion for a file name: use %Y %m %d %H %M %S, %j, %s or %z, and "
              "%% for a percent sign");
    out.has_time_ = true;
  }
  return out;
}

std::string NamePattern::name_at(time_t when) const {
  tm local = {};
  ::localtime_r(&when, &local);
  // Each conversion by itself: the longest ("Wednesday", "September") has 9 bytes.
  std::string out;
  for (size_t at = 0; at < name_.size(); ++at) {
    if (name_[at] != '%') {
      out += name_[at];
      continue;
    }
    const char format[] = {'%', name_[++at], '\0'};
    char text[64];
    out.append(text, std::strftime(text, sizeof text, format, &local));
  }
  return out;
}

}  // namespace gpuprof::cli
