# SPDX-License-Identifier: Apache-2.0
# The joiner's and the pprof writer's rates.
if(GPU_PROFILED_DAEMON)
  add_executable(join_bench join_bench.cc)
  target_link_libraries(join_bench PRIVATE gpuprof::join gpuprof::pprof benchmark::benchmark_main)
endif()
