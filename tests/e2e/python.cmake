# SPDX-License-Identifier: Apache-2.0
# Python's frames on this machine's interpreter (python_frames.py); scripts/python-proof has the other versions.
add_library(python_evaluator MODULE python/evaluator.c)

foreach(case run attach deep evaluator interpreters threads off)
  math(EXPR timeout "240 * ${GPU_PROFILED_TIMEOUT_SCALE}")
  add_test(NAME python_frames.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/python_frames.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(python_frames.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
