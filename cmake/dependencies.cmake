# SPDX-License-Identifier: Apache-2.0
# Every third-party dependency, as an imported target, found once. No downloads at configure time.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# Names the Debian package in the error: a user who builds must not have to guess it.
function(gpuprof_pkg target module package)
  set(options_static "")
  pkg_check_modules(${target} QUIET IMPORTED_TARGET ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "${module} not found: install ${package} (scripts/check installs everything)")
  endif()
endfunction()

if(GPU_PROFILED_DAEMON)
  gpuprof_pkg(LIBBPF libbpf>=1.3 "libbpf-dev from bookworm-backports")
  gpuprof_pkg(LIBELF libelf "libelf-dev")
  gpuprof_pkg(LIBDW libdw>=0.186 "libdw-dev")
  gpuprof_pkg(ZSTD libzstd "libzstd-dev")
  gpuprof_pkg(ZLIB zlib "zlib1g-dev")
  gpuprof_pkg(XXHASH libxxhash "libxxhash-dev")
  gpuprof_pkg(LIBCAP libcap "libcap-dev")
  find_package(Protobuf REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(spdlog REQUIRED)
  find_path(TL_EXPECTED_INCLUDE_DIR tl/expected.hpp REQUIRED)
  find_program(GPUPROF_CLANG NAMES clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14 REQUIRED)
  find_program(GPUPROF_BPFTOOL NAMES bpftool PATHS /usr/sbin /sbin REQUIRED)
endif()

# tests/fake_cuda is built on the vendor headers too.
if(GPU_PROFILED_SHIM OR GPU_PROFILED_TESTS)
  include(FindCuptiHeaders)
endif()

if(GPU_PROFILED_TESTS)
  find_package(GTest REQUIRED)
  if(GPU_PROFILED_BENCH)
    find_package(benchmark REQUIRED)
  endif()
endif()
