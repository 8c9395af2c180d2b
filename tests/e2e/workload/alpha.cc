// SPDX-License-Identifier: Apache-2.0
// The outer library of the workload, built with -g.
#include "tests/e2e/workload/work.h"

WORKLOAD_LEVEL(alpha_left_9, 6, work->beta(work))
WORKLOAD_LEVEL(alpha_right_9, 9, work->beta(work))
WORKLOAD_CHAIN(alpha_left)
WORKLOAD_CHAIN(alpha_right)
