# SPDX-License-Identifier: Apache-2.0
# --window against ground truth (windows.py), one ctest entry per case.
math(EXPR timeout "180 * ${GPU_PROFILED_TIMEOUT_SCALE}")
foreach(case trace every_launch pc_sampling sigterm empty duration disk_full memory)
  add_test(NAME windows.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/windows.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(windows.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
