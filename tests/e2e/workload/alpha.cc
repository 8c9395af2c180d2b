// SPDX-License-Identifier: Apache-2.0
// The outer library of the workload, built with -g.
#include "tests/e2e/workload/work.h"

WORKLOAD_LEVEL(alpha_left_9, 6, work->beta(work))
WORKLOAD_LEVEL(alpha_left_8, 3, alpha_left_9(work))
WORKLOAD_LEVEL(alpha_left_7, 1, alpha_left_8(work))
WORKLOAD_LEVEL(alpha_left_6, 12, alpha_left_7(work))
WORKLOAD_LEVEL(alpha_left_5, 2, alpha_left_6(work))
WORKLOAD_LEVEL(alpha_left_4, 5, alpha_left_5(work))
WORKLOAD_LEVEL(alpha_left_3, 30, alpha_left_4(work))
WORKLOAD_LEVEL(alpha_left_2, 1, alpha_left_3(work))
WORKLOAD_LEVEL(alpha_left_1, 7, alpha_left_2(work))
WORKLOAD_LEVEL(alpha_left_0, 4, alpha_left_1(work))
WORKLOAD_LEVEL(alpha_right_9, 9, work->beta(work))
WORKLOAD_LEVEL(alpha_right_8, 3, alpha_right_9(work))
WORKLOAD_LEVEL(alpha_right_7, 1, alpha_right_8(work))
WORKLOAD_LEVEL(alpha_right_6, 12, alpha_right_7(work))
WORKLOAD_LEVEL(alpha_right_5, 2, alpha_right_6(work))
WORKLOAD_LEVEL(alpha_right_4, 5, alpha_right_5(work))
WORKLOAD_LEVEL(alpha_right_3, 30, alpha_right_4(work))
WORKLOAD_LEVEL(alpha_right_2, 1, alpha_right_3(work))
WORKLOAD_LEVEL(alpha_right_1, 7, alpha_right_2(work))
WORKLOAD_LEVEL(alpha_right_0, 4, alpha_right_1(work))
