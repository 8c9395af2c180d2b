// SPDX-License-Identifier: Apache-2.0
//
// Result<T>: a value or an Error with a sentence that a user can act on. Nothing of ours throws.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace gpuprof {

enum class Code {
  kInvalidArgument,  // usage: exit 2
  kNotFound,         // no such process, file, symbol
  kPermission,       // a capability or a file mode is missing
  kUnsupported,      // kernel, CUPTI or format too old or unknown
  kUnavailable,      // right now: busy, no space, limit
  kCorrupt,          // malformed or hostile input
  kIo,               // a system call failed
  kNoTarget,         // nothing could be profiled: exit 3
  kInternal,
};

struct Error {
  Code code = Code::kInternal;
  int sys_errno = 0;    // errno, 0 if none
  std::string message;  // one line, says what to do; already holds strerror(sys_errno) if useful
};

template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
};

using Status = Result<void>;

[[nodiscard]] inline tl::unexpected<Error> fail(Code code, std::string message) {
  return tl::unexpected<Error>(Error{code, 0, std::move(message)});
}

// What to do where a limit is the cause, whatever call met it; else "".
[[nodiscard]] inline const char* remedy_of(int err) {
  switch (err) {
    case EMFILE:
      return ": raise the limit of open files (ulimit -n, LimitNOFILE= of a service)";
    case ENFILE:
      return ": the machine's limit of open files is reached (sysctl fs.file-max)";
    case ENOMEM:
      return ": free memory, or raise its limit (ulimit -v, the container's)";
    default:
      return "";
  }
}

// `message` + ": " + strerror(err), and what to do about a limit. Call it with errno saved at once
// after the failing call.
[[nodiscard]] inline tl::unexpected<Error> fail_errno(Code code, int err, std::string message) {
  message += ": ";
  message += std::strerror(err);
  message += remedy_of(err);
  return tl::unexpected<Error>(Error{code, err, std::move(message)});
}

// Hands an error on with "context: " in front.
[[nodiscard]] inline tl::unexpected<Error> fail_with(Error error, std::string_view context) {
  error.message.insert(0, ": ").insert(0, context);
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace gpuprof
