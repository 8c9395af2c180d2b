// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/lost_variable.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace gpuprof::doctor {
namespace {

std::string explain(const std::vector<Ancestor>& above) { return explain_loss(above, "V"); }

TEST(LostVariable, TheNearestThatHadItIsNamed) {
  EXPECT_EQ(explain({{9, "python3", false}, {7, "sudo", true}, {5, "bash", true}}),
            "sudo (process 7) was started with it and does not pass it on: sudo --preserve-env=V");
  EXPECT_EQ(explain({{9, "wrapper", false}, {7, "launcher", true}}),
            "launcher (process 7), above it, was started with it: see what lies between them");
}

TEST(LostVariable, StartersThatAreKnownForIt) {
  EXPECT_EQ(explain({{9, "bash", false}, {7, "slurmstepd", false}}),
            "under slurmstepd (process 7) it is set by srun --export=ALL,V=PATH");
  EXPECT_EQ(explain({{9, "ray::IDLE", false}}),
            "under ray::IDLE (process 9) it is set by runtime_env={\"env_vars\": {\"V\": PATH}}");
  EXPECT_EQ(explain({{9, "bash", false}, {1, "systemd", false}}), "");
  EXPECT_EQ(explain({{9, "supervisord", false}}), "") << "it begins like su";
  EXPECT_EQ(explain({}), "");
}

TEST(LostVariable, OurOwnAncestors) {
  const auto above = ancestors(static_cast<uint32_t>(::getpid()), "NO_SUCH_VARIABLE_ANYWHERE");
  ASSERT_FALSE(above.empty());
  EXPECT_EQ(above.front().pid, static_cast<uint32_t>(::getppid()));
  EXPECT_FALSE(above.front().comm.empty());
  EXPECT_FALSE(above.front().has_variable);
}

}  // namespace
}  // namespace gpuprof::doctor
