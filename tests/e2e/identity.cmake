# SPDX-License-Identifier: Apache-2.0
# The labels that tell processes, containers, ranks and GPUs apart (identity.py).
foreach(case container ranks visible_devices nested)
  math(EXPR timeout "120 * ${GPU_PROFILED_TIMEOUT_SCALE}")
  add_test(NAME identity.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/identity.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(identity.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77)
endforeach()
