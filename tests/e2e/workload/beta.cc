// SPDX-License-Identifier: Apache-2.0
// The middle library of the workload, without debug information.
#include "tests/e2e/workload/work.h"

WORKLOAD_LEVEL(beta_left_9, 2, work->gamma(work))
WORKLOAD_LEVEL(beta_right_9, 17, work->gamma(work))
WORKLOAD_CHAIN(beta_left)
WORKLOAD_CHAIN(beta_right)
