// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/limits.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace gpuprof::cli {
namespace {

constexpr rlim_t kSmall = 128u << 10;

// 0: `body` held, in a process of its own, whose limits are nobody else's.
int in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

bool set(int resource, rlim_t soft, rlim_t hard) {
  const rlimit limit = {soft, hard};
  return ::setrlimit(resource, &limit) == 0;
}

rlimit get(int resource) {
  rlimit out = {};
  ::getrlimit(resource, &out);
  return out;
}

TEST(InheritedLimits, RaisedForUsAndGivenBackForTheCommand) {
  EXPECT_EQ(
      in_child([] {
        if (!set(RLIMIT_STACK, kSmall, InheritedLimits::kStackBytes) || !set(RLIMIT_NOFILE, 32, 64))
          return false;
        const auto limits = InheritedLimits::raise();
        if (!limits || get(RLIMIT_STACK).rlim_cur != InheritedLimits::kStackBytes ||
            get(RLIMIT_NOFILE).rlim_cur != 64)
          return false;
        limits->restore();
        return get(RLIMIT_STACK).rlim_cur == kSmall &&
               get(RLIMIT_STACK).rlim_max == InheritedLimits::kStackBytes &&
               get(RLIMIT_NOFILE).rlim_cur == 32 && get(RLIMIT_NOFILE).rlim_max == 64;
      }),
      0);
}

TEST(InheritedLimits, WhatIsLargeEnoughStaysAsItIs) {
  EXPECT_EQ(in_child([] {
              if (!set(RLIMIT_STACK, InheritedLimits::kStackBytes, InheritedLimits::kStackBytes))
                return false;
              return InheritedLimits::raise().has_value() &&
                     get(RLIMIT_STACK).rlim_cur == InheritedLimits::kStackBytes;
            }),
            0);
}

// With CAP_SYS_RESOURCE the hard limit is raised, too.
TEST(InheritedLimits, AStackThatCannotGrowIsToldOrGrows) {
  EXPECT_EQ(in_child([] {
              if (!set(RLIMIT_STACK, kSmall, kSmall)) return false;
              const auto limits = InheritedLimits::raise();
              if (limits) return get(RLIMIT_STACK).rlim_cur == InheritedLimits::kStackBytes;
              return limits.error().message.find("stack limit of 128 KiB is too small") !=
                         std::string::npos &&
                     limits.error().message.find("ulimit -s 8192") != std::string::npos;
            }),
            0);
}

}  // namespace
}  // namespace gpuprof::cli
