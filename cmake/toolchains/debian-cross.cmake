# SPDX-License-Identifier: Apache-2.0
# Cross compiling with Debian's cross compiler (g++-aarch64-linux-gnu), the libraries in a folder of
# their own (scripts/lib/sysroot.sh makes it). The C and C++ library are the compiler's.
#   GPUPROF_CROSS_ARCH      aarch64
#   GPUPROF_CROSS_SYSROOT   where the libraries and their headers are, with the paths of an installation
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${GPUPROF_CROSS_ARCH})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GPUPROF_CROSS_ARCH GPUPROF_CROSS_SYSROOT)
set(_triple ${GPUPROF_CROSS_ARCH}-linux-gnu)
set(CMAKE_C_COMPILER ${_triple}-gcc)
set(CMAKE_CXX_COMPILER ${_triple}-g++)
set(CMAKE_ASM_COMPILER ${_triple}-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE ${_triple})
foreach(_language C CXX)
  set(CMAKE_${_language}_STANDARD_INCLUDE_DIRECTORIES
    ${GPUPROF_CROSS_SYSROOT}/usr/include ${GPUPROF_CROSS_SYSROOT}/usr/include/${_triple})
endforeach()

# Programs of this machine, libraries of that one. CUPTI's headers are the same for both.
set(CMAKE_FIND_ROOT_PATH ${GPUPROF_CROSS_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${GPUPROF_CROSS_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
  ${GPUPROF_CROSS_SYSROOT}/usr/lib/${_triple}/pkgconfig:${GPUPROF_CROSS_SYSROOT}/usr/share/pkgconfig)
# Tests run under an emulator, with the libraries of the cross compiler.
find_program(GPUPROF_EMULATOR qemu-${GPUPROF_CROSS_ARCH}-static)
if(GPUPROF_EMULATOR)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${GPUPROF_EMULATOR} -L /usr/${_triple})
endif()
