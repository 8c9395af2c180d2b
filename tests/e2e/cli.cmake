# SPDX-License-Identifier: Apache-2.0
# The real gpu-profiled, the real shim and real eBPF on the fake driver: exit statuses, messages, files.
gpuprof_test(cli_e2e_test LABELS e2e
  SOURCES cli_attach_test.cc cli_errors_test.cc cli_fixture.cc cli_lifecycle_test.cc cli_products_test.cc
          cli_run_test.cc cli_terminal_test.cc
  LIBS gpuprof::base gpuprof::proto TIMEOUT 300)
gpuprof_test(rss_e2e_test LABELS e2e slow SOURCES cli_fixture.cc rss_test.cc
  LIBS gpuprof::base gpuprof::proto TIMEOUT 300)
# Only there: everything else asks it, which knows of other builds to test.
set_source_files_properties(cli_fixture.cc PROPERTIES COMPILE_DEFINITIONS
  "BUILT_DAEMON_PATH=\"$<TARGET_FILE:gpu-profiled>\";BUILT_SHIM_PATH=\"$<TARGET_FILE:gpu-profiled-cupti>\"")
foreach(test cli_e2e_test rss_e2e_test)
  target_compile_definitions(${test} PRIVATE
    WORKLOAD_PATH="$<TARGET_FILE:workload>"
    SHORT_PATH="$<TARGET_FILE:workload_short>"
    EXECER_PATH="$<TARGET_FILE:workload_execer>"
    FAKE_LIBRARIES="${FAKE_CUDA_LIB_DIR}:${FAKE_CUPTI13_DIR}")
  add_dependencies(${test} gpu-profiled gpu-profiled-cupti workload workload_short workload_execer fake_cupti13)
endforeach()
# Names and lines from every place where debug information can be (symbols.py).
math(EXPR timeout "120 * ${GPU_PROFILED_TIMEOUT_SCALE}")
foreach(case plain zstd mini_debug build_id debuglink debuglink_wrong dwz dwz_separate dwz_lost debuginfod debuginfod_dead)
  add_test(NAME symbols.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/symbols.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(symbols.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
