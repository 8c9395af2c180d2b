# SPDX-License-Identifier: Apache-2.0
# Index and lookup of a cubin of 20 MB; targets: 200 ms, 2 M lookups/s, 3 times the line table.
add_executable(cubin_bench cubin_bench.cc ${PROJECT_SOURCE_DIR}/tests/unit/cubin/cubin_writer.cc)
target_link_libraries(cubin_bench PRIVATE gpuprof::cubin benchmark::benchmark)
