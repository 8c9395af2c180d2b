# SPDX-License-Identifier: Apache-2.0
# Tests of the CUPTI adapter: its parts, and the whole shim on the fake driver.
gpuprof_test(cupti_arming_test LABELS unit
  SOURCES cupti_arming_test.cc probe_tap.cc target_process.cc
  LIBS gpuprof::proto gpuprof::cupti_headers fake_cuda ${CMAKE_DL_LIBS} Threads::Threads)
foreach(test cupti_arming_test)
  target_compile_definitions(${test} PRIVATE
    GPUPROF_SHIM_FILE="$<TARGET_FILE:gpu-profiled-cupti>" FAKE_CUPTI_DIR="${FAKE_CUPTI13_DIR}"
    FAKE_CUPTI12_DIR="${FAKE_CUPTI12_DIR}" FAKE_CUPTI118_DIR="${FAKE_CUPTI118_DIR}")
  add_dependencies(${test} gpu-profiled-cupti fake_cupti13 fake_cupti12 fake_cupti118)
endforeach()
