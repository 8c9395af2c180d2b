# SPDX-License-Identifier: Apache-2.0
# The ring decoder's rate, and what a probe hit costs the target (root).
add_executable(probe_decode_bench probe_decode_bench.cc)
target_link_libraries(probe_decode_bench PRIVATE gpuprof_options gpuprof::probe benchmark::benchmark_main)

add_executable(probe_hit_bench probe_hit_bench.cc ${PROJECT_SOURCE_DIR}/tests/e2e/probe_fixture.cc)
target_link_libraries(probe_hit_bench PRIVATE gpuprof_options probe_site gpuprof::probe
  GTest::gtest GTest::gmock benchmark::benchmark_main)
