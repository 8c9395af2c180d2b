# SPDX-License-Identifier: Apache-2.0
# A job in three containers (job.py).
foreach(case before after)
  math(EXPR timeout "180 * ${GPU_PROFILED_TIMEOUT_SCALE}")
  add_test(NAME job.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/job.py ${case}
    --build ${CMAKE_BINARY_DIR})
  # Alone: 51 processes.
  set_tests_properties(job.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
