# SPDX-License-Identifier: Apache-2.0
# Tests of the CUPTI adapter: its parts, and the whole shim on the fake driver.
add_library(stub_cupti MODULE stub_cupti.c)
target_link_libraries(stub_cupti PRIVATE gpuprof_options)

foreach(test cupti_arming_test cupti_faults_test cupti_versions_test cupti_decline_test cupti_modules_test
        cupti_pcsampling_test cupti_pc_faults_test cupti_pc_grants_test cupti_pc_guest_test cupti_pc_serialized_test)
  gpuprof_test(${test} LABELS unit
    SOURCES ${test}.cc probe_tap.cc target_process.cc
    LIBS gpuprof::proto gpuprof::shim_core gpuprof::cupti_headers fake_cuda fake_cudart ${CMAKE_DL_LIBS} Threads::Threads)
  target_compile_definitions(${test} PRIVATE
    GPUPROF_SHIM_FILE="$<TARGET_FILE:gpu-profiled-cupti>" STUB_CUPTI="$<TARGET_FILE:stub_cupti>"
    FAKE_CUPTI_DIR="${FAKE_CUPTI13_DIR}" FAKE_CUPTI12_DIR="${FAKE_CUPTI12_DIR}"
    FAKE_CUPTI118_DIR="${FAKE_CUPTI118_DIR}")
  if(GPU_PROFILED_SANITIZE)
    target_compile_definitions(${test} PRIVATE GPUPROF_SANITIZED)
  endif()
  add_dependencies(${test} gpu-profiled-cupti stub_cupti fake_cupti13 fake_cupti12 fake_cupti118)
endforeach()

get_target_property(cupti_include_dirs gpuprof_cupti_headers INTERFACE_INCLUDE_DIRECTORIES)
gpuprof_test(cupti_parts_test LABELS unit
  SOURCES cupti_parts_test.cc
  LIBS gpuprof::shim_cupti gpuprof::cupti_headers ${CMAKE_DL_LIBS} Threads::Threads)
target_compile_definitions(cupti_parts_test PRIVATE
  "CUPTI_INCLUDE_DIRS=\"${cupti_include_dirs}\"")

gpuprof_test(cupti_loader_test LABELS unit
  SOURCES cupti_loader_test.cc
  LIBS gpuprof::shim_cupti gpuprof::cupti_headers ${CMAKE_DL_LIBS} Threads::Threads)
target_compile_definitions(cupti_loader_test PRIVATE STUB_CUPTI="$<TARGET_FILE:stub_cupti>")
add_dependencies(cupti_loader_test stub_cupti)

gpuprof_test(cupti_pc_parts_test LABELS unit
  SOURCES cupti_pc_parts_test.cc
  LIBS gpuprof::shim_cupti gpuprof::cupti_headers ${CMAKE_DL_LIBS} Threads::Threads)
