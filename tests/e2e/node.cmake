# SPDX-License-Identifier: Apache-2.0
# gpu-profiled --all (node.py), one ctest entry per case, in namespaces of their own.
math(EXPR timeout "180 * ${GPU_PROFILED_TIMEOUT_SCALE}")
foreach(case before_and_after nothing_yet windows)
  add_test(NAME node.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/node.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(node.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
