// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/accounting.h"

#include <gtest/gtest.h>

namespace gpuprof::join {
namespace {

Accounting good() {
  Accounting a;
  a.received = 10;
  a.exact = 4;
  a.sampled = 3;
  a.unattributed[1] = 1;
  a.evicted = 1;
  a.pending = 1;
  a.received_ns = a.exact_ns = 100;
  a.lost_ring[0] = 5;
  a.lost_shim[GPUPROF_DROP_CUPTI] = 2;
  a.emitted = 15;
  return a;
}

TEST(Accounting, HoldsAndTellsWhatWasProduced) {
  EXPECT_EQ(good().check(), "");
  EXPECT_EQ(good().produced(), 17u);
  Accounting unknown = good();
  unknown.emitted.reset();
  EXPECT_EQ(unknown.check(), "");
  EXPECT_EQ(unknown.produced(), std::nullopt);
}

TEST(Accounting, AnIdentityThatCannotBeCheckedDoesNotHold) {
  EXPECT_EQ(good().identity_holds(), true);
  Accounting unknown = good();
  unknown.emitted.reset();
  EXPECT_EQ(unknown.identity_holds(), std::nullopt);
  ++unknown.exact;
  EXPECT_EQ(unknown.identity_holds(), false) << "what arrived contradicts itself";
  EXPECT_EQ(Accounting().identity_holds(), std::nullopt) << "nobody said that nothing was produced";
}

TEST(Accounting, NamesTheBrokenIdentity) {
  Accounting a = good();
  ++a.exact;
  EXPECT_NE(a.check().find("executions: received 10 is not exact 5"), std::string::npos);
  a = good();
  ++a.sampled_ns;
  EXPECT_NE(a.check().find("GPU ns: received 100"), std::string::npos);
  a = good();
  ++*a.emitted;
  EXPECT_NE(a.check().find("produced 18 is not received 10"), std::string::npos);
}

TEST(Accounting, SumsKeepTheIdentities) {
  Accounting a = good();
  a += good();
  EXPECT_EQ(a.received, 20u);
  EXPECT_EQ(a.emitted, 30u);
  EXPECT_EQ(a.check(), "");
}

TEST(Accounting, OnlyExecutionLossesCount) {
  EXPECT_TRUE(is_execution_loss(GPUPROF_DROP_CUPTI));
  EXPECT_TRUE(is_execution_loss(GPUPROF_DROP_INVALID_TIME));
  EXPECT_TRUE(is_execution_loss(GPUPROF_DROP_NO_BUFFER));
  EXPECT_TRUE(is_execution_loss(GPUPROF_DROP_INCOMPLETE));
  EXPECT_FALSE(is_execution_loss(GPUPROF_DROP_STACK_BUDGET));
  EXPECT_FALSE(is_execution_loss(GPUPROF_DROP_NAME_TABLE_FULL));
  EXPECT_FALSE(is_execution_loss(9999));
}

}  // namespace
}  // namespace gpuprof::join
