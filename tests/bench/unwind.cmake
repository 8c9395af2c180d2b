# SPDX-License-Identifier: Apache-2.0
# Unwinding and symbolising a copied stack of 44 frames; target: 20 us a stack, warm.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND TARGET gpuprof_symbolize AND TARGET unwind_chain_a)
  add_executable(unwind_bench unwind_bench.cc
    ${PROJECT_SOURCE_DIR}/tests/unit/unwind/capture.cc
    ${PROJECT_SOURCE_DIR}/tests/unit/unwind/dwfl_reference.cc)
  target_link_libraries(unwind_bench PRIVATE gpuprof::symbolize gpuprof::unwind
    unwind_chain_a unwind_chain_b unwind_chain_c benchmark::benchmark)
  add_executable(unwind_memory_bench unwind_memory_bench.cc)
  target_link_libraries(unwind_memory_bench PRIVATE gpuprof::symbolize gpuprof::unwind symbolize_big_library)
endif()
