# SPDX-License-Identifier: Apache-2.0
# Every third-party dependency, as an imported target, found once. No downloads at configure time.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# A static gpu-profiled runs where none of this is installed: archives only, and what they need in turn.
if(GPU_PROFILED_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(PKG_CONFIG_ARGN --static)
  set(Protobuf_USE_STATIC_LIBS ON)
endif()

# Names the Debian package in the error: a user who builds must not have to guess it.
function(gpuprof_pkg target module package)
  pkg_check_modules(${target} QUIET IMPORTED_TARGET ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "${module} not found: install ${package} (scripts/check installs everything)")
  endif()
endfunction()

if(GPU_PROFILED_DAEMON OR GPU_PROFILED_TOOLS)
  gpuprof_pkg(LIBELF libelf "libelf-dev")
  find_path(TL_EXPECTED_INCLUDE_DIR tl/expected.hpp REQUIRED)
  if(GPU_PROFILED_STATIC)
    gpuprof_pkg(ZSTD libzstd "libzstd-dev")
    # libelf.a reads zstd sections, which elfutils 0.192's libelf.pc does not say.
    # An object, not an archive: imported archives cannot be made to come before another one.
    add_library(gpuprof_elfutils_search_tree OBJECT ${CMAKE_CURRENT_LIST_DIR}/static/elfutils_search_tree.c)
    target_link_libraries(PkgConfig::LIBELF INTERFACE PkgConfig::ZSTD $<TARGET_OBJECTS:gpuprof_elfutils_search_tree>)
  endif()
endif()
if(GPU_PROFILED_DAEMON)
  gpuprof_pkg(LIBBPF libbpf>=1.3 "libbpf-dev from bookworm-backports")
  gpuprof_pkg(LIBDW libdw>=0.186 "libdw-dev")
  if(GPU_PROFILED_STATIC)
    target_link_libraries(PkgConfig::LIBDW INTERFACE PkgConfig::LIBELF)
  else()
    gpuprof_pkg(ZSTD libzstd "libzstd-dev")
  endif()
  gpuprof_pkg(NETTLE nettle "nettle-dev")
  gpuprof_pkg(ZLIB zlib "zlib1g-dev")
  gpuprof_pkg(LZMA liblzma "liblzma-dev")
  gpuprof_pkg(XXHASH libxxhash "libxxhash-dev")
  gpuprof_pkg(LIBCAP libcap "libcap-dev")
  find_package(Protobuf REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(spdlog REQUIRED)
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
