# SPDX-License-Identifier: Apache-2.0
# What the shim adds to a launch. In a shared library, as the shim is, since that is what its
# thread-local variables cost.
add_library(sampler_bench_body SHARED sampler_bench.cc)
target_link_libraries(sampler_bench_body PRIVATE gpuprof_options gpuprof_shim_flags gpuprof::shim_core benchmark::benchmark)
add_executable(sampler_bench sampler_bench_main.cc)
target_link_libraries(sampler_bench PRIVATE gpuprof_options sampler_bench_body)
