# SPDX-License-Identifier: Apache-2.0
# CUPTI's headers with cuda.h and crt/host_defines.h, which they include. Only headers: libcupti is
# never linked, so any headers from 11.8 to the newest 13.x build the same shim.
#
#   CUPTI_INCLUDE_DIR   one directory or several (pip wheels split them), semicolon-separated
#
# Result: target gpuprof::cupti_headers.
set(CUPTI_INCLUDE_DIR "" CACHE STRING "Directories with cupti.h, cuda.h and crt/host_defines.h")

set(_cupti_hints ${CUPTI_INCLUDE_DIR})
if(NOT _cupti_hints)
  if(DEFINED ENV{CUDA_HOME})
    list(APPEND _cupti_hints $ENV{CUDA_HOME}/include $ENV{CUDA_HOME}/extras/CUPTI/include)
  endif()
  list(APPEND _cupti_hints /usr/local/cuda/include /usr/local/cuda/extras/CUPTI/include)
  # pip wheels: nvidia/cu13/include, or nvidia/cuda_cupti/include + nvidia/cuda_runtime/include.
  file(GLOB _cupti_pip
       /usr/lib/python3*/site-packages/nvidia/*/include
       /usr/local/lib/python3*/site-packages/nvidia/*/include
       /usr/local/lib/python3*/dist-packages/nvidia/*/include
       $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/*/include)
  # What scripts/check has fetched, the newest first.
  file(GLOB _cupti_fetched ${PROJECT_SOURCE_DIR}/build/cupti-headers/*/include)
  list(SORT _cupti_fetched COMPARE NATURAL ORDER DESCENDING)
  list(APPEND _cupti_hints ${_cupti_pip} /usr/include ${_cupti_fetched})
endif()

set(_cupti_dirs "")
foreach(_header cupti.h cuda.h crt/host_defines.h)
  string(MAKE_C_IDENTIFIER "CUPTI_DIR_OF_${_header}" _var)
  unset(${_var} CACHE)
  find_path(${_var} ${_header} PATHS ${_cupti_hints} NO_DEFAULT_PATH)
  if(NOT ${_var})
    message(FATAL_ERROR
      "${_header} not found in: ${_cupti_hints}\n"
      "cupti.h comes with the CUDA toolkit (cuda-cupti-dev) or pip (nvidia-cuda-cupti), cuda.h and "
      "crt/host_defines.h with the toolkit (cuda-cudart-dev, cuda-crt) or pip (nvidia-cuda-runtime, "
      "nvidia-cuda-crt; nvidia-cuda-nvcc-cu12 for 11.8 to 12.x). Name the directories with "
      "-DCUPTI_INCLUDE_DIR='DIR;DIR', or build without the shim: -DGPU_PROFILED_SHIM=OFF "
      "-DGPU_PROFILED_TESTS=OFF.")
  endif()
  list(APPEND _cupti_dirs ${${_var}})
endforeach()
# The oldest release is written down in the shim, which declines older libraries.
file(STRINGS ${PROJECT_SOURCE_DIR}/shim/cupti/oldest_version.h _cupti_oldest REGEX "#define GPUPROF_OLDEST_CUPTI_")
string(REGEX MATCH "_API ([0-9]+)" _cupti_match "${_cupti_oldest}")
set(_cupti_oldest_api ${CMAKE_MATCH_1})
string(REGEX MATCH "_CUDA \"([0-9.]+)\"" _cupti_match "${_cupti_oldest}")
set(_cupti_oldest_cuda ${CMAKE_MATCH_1})
set(_cupti_api "")
list(GET _cupti_dirs 0 _cupti_dir)
if(EXISTS ${_cupti_dir}/cupti_version.h)
  file(STRINGS ${_cupti_dir}/cupti_version.h _cupti_version REGEX "^#define CUPTI_API_VERSION[ \t]+[0-9]+")
  string(REGEX MATCH "[0-9]+" _cupti_api "${_cupti_version}")
endif()
if(_cupti_api STREQUAL "")
  message(FATAL_ERROR "${_cupti_dir}/cupti_version.h, which cupti.h includes, says no CUPTI_API_VERSION")
elseif(_cupti_api LESS _cupti_oldest_api)
  message(FATAL_ERROR
    "the CUPTI headers in ${_cupti_dir} have API version ${_cupti_api}; the oldest that the shim builds with is "
    "${_cupti_oldest_api}, CUDA ${_cupti_oldest_cuda}. Name newer ones with -DCUPTI_INCLUDE_DIR='DIR;DIR'.")
endif()
list(REMOVE_DUPLICATES _cupti_dirs)
add_library(gpuprof_cupti_headers INTERFACE)
add_library(gpuprof::cupti_headers ALIAS gpuprof_cupti_headers)
target_include_directories(gpuprof_cupti_headers SYSTEM INTERFACE ${_cupti_dirs})
message(STATUS "CUPTI headers: ${_cupti_dirs}")
