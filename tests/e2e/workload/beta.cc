// SPDX-License-Identifier: Apache-2.0
// The middle library of the workload, without debug information.
#include "tests/e2e/workload/work.h"

WORKLOAD_LEVEL(beta_left_9, 2, work->gamma(work))
WORKLOAD_LEVEL(beta_left_8, 3, beta_left_9(work))
WORKLOAD_LEVEL(beta_left_7, 1, beta_left_8(work))
WORKLOAD_LEVEL(beta_left_6, 12, beta_left_7(work))
WORKLOAD_LEVEL(beta_left_5, 2, beta_left_6(work))
WORKLOAD_LEVEL(beta_left_4, 5, beta_left_5(work))
WORKLOAD_LEVEL(beta_left_3, 30, beta_left_4(work))
WORKLOAD_LEVEL(beta_left_2, 1, beta_left_3(work))
WORKLOAD_LEVEL(beta_left_1, 7, beta_left_2(work))
WORKLOAD_LEVEL(beta_left_0, 4, beta_left_1(work))
WORKLOAD_LEVEL(beta_right_9, 17, work->gamma(work))
WORKLOAD_LEVEL(beta_right_8, 3, beta_right_9(work))
WORKLOAD_LEVEL(beta_right_7, 1, beta_right_8(work))
WORKLOAD_LEVEL(beta_right_6, 12, beta_right_7(work))
WORKLOAD_LEVEL(beta_right_5, 2, beta_right_6(work))
WORKLOAD_LEVEL(beta_right_4, 5, beta_right_5(work))
WORKLOAD_LEVEL(beta_right_3, 30, beta_right_4(work))
WORKLOAD_LEVEL(beta_right_2, 1, beta_right_3(work))
WORKLOAD_LEVEL(beta_right_1, 7, beta_right_2(work))
WORKLOAD_LEVEL(beta_right_0, 4, beta_right_1(work))
