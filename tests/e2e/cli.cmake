# SPDX-License-Identifier: Apache-2.0
# The real gpu-profiled, the real shim and real eBPF on the fake driver: exit statuses, messages, files.
gpuprof_test(cli_e2e_test LABELS e2e
  SOURCES cli_attach_test.cc cli_errors_test.cc cli_fixture.cc cli_run_test.cc
  LIBS gpuprof::base TIMEOUT 120)
target_compile_definitions(cli_e2e_test PRIVATE
  GPU_PROFILED_PATH="$<TARGET_FILE:gpu-profiled>"
  SHIM_PATH="$<TARGET_FILE:gpu-profiled-cupti>"
  WORKLOAD_PATH="$<TARGET_FILE:workload>"
  SHORT_PATH="$<TARGET_FILE:workload_short>"
  FAKE_LIBRARIES="${FAKE_CUDA_LIB_DIR}:${FAKE_CUPTI13_DIR}")
add_dependencies(cli_e2e_test gpu-profiled gpu-profiled-cupti workload workload_short fake_cupti13)
