# SPDX-License-Identifier: Apache-2.0
# Real eBPF on a library that holds the shim's own probe sites.
enable_language(ASM)
add_library(probe_site SHARED probe_site.cc ${PROJECT_SOURCE_DIR}/shim/core/usdt_sites.S)
target_link_libraries(probe_site PRIVATE gpuprof_options gpuprof::proto)
target_include_directories(probe_site PUBLIC ${PROJECT_SOURCE_DIR})
gpuprof_test(probe_e2e_test LABELS e2e
  SOURCES probe_fixture.cc probe_records_test.cc probe_stacks_test.cc probe_processes_test.cc probe_loss_test.cc
          probe_python_test.cc
  LIBS probe_site gpuprof::probe
  TIMEOUT 60)
if(GPU_PROFILED_SHIM)
  # The shim's own emit() at sites of its own, linked into the test.
  gpuprof_test(probe_fork_e2e_test LABELS e2e
    SOURCES probe_fixture.cc probe_fork_test.cc
    LIBS probe_site gpuprof::shim_core gpuprof::probe
    TIMEOUT 60)
endif()
