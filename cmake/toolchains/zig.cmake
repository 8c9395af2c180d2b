# SPDX-License-Identifier: Apache-2.0
# Cross compiling with zig, whose compiler and linker target old versions of glibc.
#   GPUPROF_ZIG         the zig program
#   GPUPROF_ZIG_ARCH    x86_64 or aarch64
#   GPUPROF_ZIG_GLIBC   the oldest glibc that must do, 2.17
# CMake wants a compiler that is one program: zig's is wrapped by two scripts.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${GPUPROF_ZIG_ARCH})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GPUPROF_ZIG GPUPROF_ZIG_ARCH GPUPROF_ZIG_GLIBC)
foreach(language cc c++)
  set(wrapper ${CMAKE_BINARY_DIR}/zig-${language})
  if(NOT EXISTS ${wrapper})
    file(WRITE ${wrapper}
      "#!/bin/sh\nexec '${GPUPROF_ZIG}' ${language} -target ${GPUPROF_ZIG_ARCH}-linux-gnu.${GPUPROF_ZIG_GLIBC} \"$@\"\n")
    file(CHMOD ${wrapper} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endif()
endforeach()
set(CMAKE_C_COMPILER ${CMAKE_BINARY_DIR}/zig-cc)
set(CMAKE_CXX_COMPILER ${CMAKE_BINARY_DIR}/zig-c++)
set(CMAKE_ASM_COMPILER ${CMAKE_BINARY_DIR}/zig-cc)
