# SPDX-License-Identifier: Apache-2.0
# `cpack` in a build folder makes an archive and, where dpkg is, a Debian package of what it installs.
# scripts/build-portable makes the packages that are shipped, with these words and its own files.
set(CPACK_PACKAGE_NAME gpu-profiled)
set(CPACK_PACKAGE_VENDOR "gpu-profiled")
set(CPACK_PACKAGE_CONTACT "gpu-profiled maintainers <maintainers@gpu-profiled.example>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_GENERATOR TGZ)
find_program(GPUPROF_DPKG dpkg)
if(GPUPROF_DPKG)
  list(APPEND CPACK_GENERATOR DEB)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# What the program needs; a static one needs nothing.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "always-on GPU profiler for CUDA programs")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Attributes the GPU time of CUDA processes to the CPU call stacks that caused
it and, with PC sampling, to the source lines of the kernels. Programs are not
rebuilt: CUDA loads a small library into them, and gpu-profiled reads it by
eBPF, from the program's start or attached to a running process. Profiles are
in pprof's format.")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
include(CPack)
