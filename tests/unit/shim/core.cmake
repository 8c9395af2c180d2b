# SPDX-License-Identifier: Apache-2.0
# Tests of shim/core.

# Linked as the shim is: export map, C driver (no libstdc++), collected sections.
add_library(gpuprof_core_module MODULE core_module.cc)
target_link_libraries(gpuprof_core_module PRIVATE gpuprof_options gpuprof_shim_flags gpuprof::shim_core)
target_link_options(gpuprof_core_module PRIVATE
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/shim/export.map -Wl,--gc-sections -Wl,--build-id
  -static-libgcc -Wl,--as-needed)
set_target_properties(gpuprof_core_module PROPERTIES LINKER_LANGUAGE C
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/shim/export.map)

foreach(part probes sampler strata memfd names time knobs)
  gpuprof_test(shim_core_${part}_test LABELS unit SOURCES core_${part}_test.cc LIBS gpuprof::shim_core)
endforeach()

# A sanitizer's run-time would be what the file needs and exports, not ours.
if(NOT GPU_PROFILED_SANITIZE)
  gpuprof_test(shim_core_elf_test LABELS unit SOURCES core_elf_test.cc LIBS gpuprof::proto)
  target_compile_definitions(shim_core_elf_test PRIVATE
    GPUPROF_CORE_OBJECT="$<TARGET_FILE:gpuprof_core_module>")
  add_dependencies(shim_core_elf_test gpuprof_core_module)
endif()
