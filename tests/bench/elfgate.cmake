# SPDX-License-Identifier: Apache-2.0
# The time of one file, over those of the system; target: 10 ms.
add_executable(elfgate_bench elfgate_bench.cc)
target_link_libraries(elfgate_bench PRIVATE gpuprof::elfgate benchmark::benchmark)
target_compile_definitions(elfgate_bench PRIVATE LIBRARY_FOLDER="/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
