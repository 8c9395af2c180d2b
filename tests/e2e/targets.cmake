# SPDX-License-Identifier: Apache-2.0
# The table at the end of a profile run (targets.py).
foreach(case run nothing states bound unrecorded)
  math(EXPR timeout "120 * ${GPU_PROFILED_TIMEOUT_SCALE}")
  add_test(NAME targets.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/targets.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(targets.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77)
endforeach()
